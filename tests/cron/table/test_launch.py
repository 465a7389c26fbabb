"""What cannot be started is refused with the reason and what to try."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from resilience.cron.records import Ignored, Outcome
from resilience.cron.table import supervisor, watched_run
from resilience.errors import UsageError
from tests.cron.table.runs import SLOT, Runs, entry, quick, runs, until_true
from tests.lab.disks import small_disk

__all__ = ["quick", "runs"]


def a_program(runs: Runs, content: bytes, mode: int = 0o700) -> str:
    """A drop-in."""
    path = runs.project / "it"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("content", "mode", "reason", "hint"),
    [
        (b"#!/no/such/interpreter\n", 0o700, "its interpreter /no/such/interpreter does not exist", "first line"),
        (b"#!/bin/sh\r\necho hi\r\n", 0o700, "it has Windows line endings", "sed -i"),
        (b"echo hi\n", 0o700, "the kernel does not know its format", "#!/bin/sh"),
        (b"\x7fELF not really", 0o700, "the kernel does not know its format", "#!/bin/sh"),
        (b"#!/bin/sh\n", 0o600, "Permission denied", "chmod u+x"),
    ],
)
def test_a_failed_exec_is_reported_with_a_hint(runs: Runs, content: bytes, mode: int, reason: str, hint: str) -> None:
    record = runs.run(a_program(runs, content, mode))
    assert record.outcome is Outcome.REFUSED
    assert reason in record.summary and hint in record.summary
    assert (record.started, record.exit_code, record.output) == (None, None, "")
    assert runs.history() == (record,) and runs.active() == []


def test_a_missing_program_is_refused(runs: Runs) -> None:
    assert "no such file" in runs.run(str(runs.project / "gone")).summary
    assert "PATH of entries" in runs.run("no-such-program").summary


def test_a_mount_that_runs_nothing_is_named(runs: Runs) -> None:
    with small_disk(runs.project / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,noexec", disk], check=True)
        (disk / "it").write_bytes(b"#!/bin/sh\n")
        (disk / "it").chmod(0o700)
        record = runs.run(str(disk / "it"))
    assert record.outcome is Outcome.REFUSED and "mounted noexec" in record.summary


def test_too_many_arguments_are_refused(runs: Runs) -> None:
    record = runs.run("/bin/true", "x" * 3_000_000)
    assert record.outcome is Outcome.REFUSED and "too large" in record.summary


def test_a_program_that_is_just_written_is_waited_for_a_while(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(a_program(runs, Path("/bin/true").resolve().read_bytes()))
    monkeypatch.setattr(watched_run, "BUSY_S", 0.2)
    with path.open("r+b"):
        assert "it is open for writing" in runs.run(str(path)).summary
    monkeypatch.setattr(watched_run, "BUSY_S", 30.0)
    with path.open("r+b"):
        runs.start(entry(str(path)))
        until_true(lambda: bool(runs.active()), "its record")
    assert runs.ends()[0].outcome is Outcome.DONE


def test_a_missing_project_directory_is_reported(runs: Runs) -> None:
    runs.supervised._setup = runs.supervised._setup._replace(project=runs.project / "moved")
    record = runs.sh("true")
    assert record.outcome is Outcome.REFUSED and "cannot enter" in record.summary and "moved" in record.summary


def test_a_drop_in_rejected_right_before_its_start_does_not_run(runs: Runs) -> None:
    runs.refused = Ignored("cron/it", "its directory is writable by everybody", "chmod o-w cron")
    record = runs.sh("echo ran > ran")
    assert record.outcome is Outcome.REFUSED
    assert record.summary == "its directory is writable by everybody (chmod o-w cron)"
    assert not (runs.project / "ran").exists()


def test_a_failed_fork_is_reported_at_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(supervisor, "fork", no_room)
    started = runs.supervised.start(entry("true"), SLOT, None)
    assert started.outcome is Outcome.REFUSED and "no process could be started" in started.summary
    assert "ulimit -u" in started.summary
    monkeypatch.undo()
    monkeypatch.setattr("resilience.cron.table.watched_run.fork", no_room)
    record = runs.run("true")
    assert record.outcome is Outcome.REFUSED and "no process could be started" in record.summary


def test_an_environment_that_cannot_be_made_is_refused_at_once(runs: Runs) -> None:
    def fail(*_: object) -> dict[str, str]:
        raise UsageError("no home", hint="find one")

    runs.supervised._setup = runs.supervised._setup._replace(environment=fail)
    started = runs.supervised.start(entry("true"), SLOT, None)
    assert (started.outcome, started.summary) == (Outcome.REFUSED, "no home (find one)")
