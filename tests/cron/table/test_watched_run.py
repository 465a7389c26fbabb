"""What a run wrote, and how it ended, is kept without secrets, however the state directory is."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from resilience.cron.book import Run, State
from resilience.cron.records import Outcome, Overlap
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table import watched_run
from tests.cron.records import settle
from tests.cron.table.runs import SLOT, Runs, entry, quick, runs, until_true, wait_for
from tests.lab.disks import fill, make_read_only, small_disk
from tests.lab.hung import hung_directory
from tests.system.writer import sampled, writer

__all__ = ["quick", "runs"]


def test_no_secret_appears_in_output_history_or_record(runs: Runs, canary: str) -> None:
    runs.environ["SLACK_BOT_TOKEN"] = canary
    half = len(canary) // 2
    script = 't=$SLACK_BOT_TOKEN; printf \'%s\' "${t%????????????}"; sleep 0.2; echo "${t#' + "?" * (len(canary) - 12)
    record = runs.sh(script + '}"; echo https://me:hunter22@host; echo last $t; exit 1')
    assert half and record.summary == "exit code 1: last REDACTED"
    assert runs.words(record) == b"REDACTED\nhttps://REDACTED@host\nlast REDACTED\n"


def test_only_the_newest_outputs_are_kept(tmp_path: Path, quick: None) -> None:
    runs = Runs(tmp_path, keep_runs=3)
    for slot in range(SLOT, SLOT + 6):
        runs.sh(f"echo {slot}", slot=slot)
    names = sorted(path.name for path in (runs.directory.path / "output" / "crontab+it").iterdir())
    assert names == [f"{slot}.txt" for slot in range(SLOT + 3, SLOT + 6)]
    until_true(lambda: runs.supervised.poll() == () and not runs.supervised._leaving, "all reaped")


def test_a_full_disk_hides_no_end(tmp_path: Path, quick: None) -> None:
    (tmp_path / "project").mkdir()
    with small_disk(tmp_path / "disk", "256k") as disk:
        runs = Runs(tmp_path / "project", disk)
        script = "echo first; echo up > up; while [ ! -e go ]; do sleep 0.02; done; seq 100000; echo done; exit 3"
        runs.start(entry("/bin/sh", "-c", script))
        wait_for(runs.project / "up")
        until_true(lambda: bool(runs.active()), "its record")
        ballast = fill(disk)
        (runs.project / "go").write_text("")
        (record,) = runs.ends()
        assert (record.outcome, record.exit_code) == (Outcome.FAILED, 3)
        assert record.summary.startswith("exit code 3; ") and "No space left" in record.summary
        assert (runs.history(), runs.active()) == ((record,), []), "its record had room for its end"
        ballast.unlink()
        until_true(lambda: runs.supervised.poll() == () and not runs.supervised._leaving, "reaped")


def test_entries_run_on_a_full_disk_because_they_may_free_it(tmp_path: Path, quick: None) -> None:
    (tmp_path / "project").mkdir()
    with small_disk(tmp_path / "disk", "256k") as disk:
        runs = Runs(tmp_path / "project", disk)
        ballast = fill(disk)
        record = runs.sh(f"rm {ballast}; echo freed")
        assert record.outcome is Outcome.DONE and record.summary == "freed"
        assert [run.outcome for run in runs.history()] == [Outcome.DONE]
        until_true(lambda: runs.supervised.poll() == () and not runs.supervised._leaving, "reaped")


def test_a_state_directory_that_hangs_neither_stops_a_run_nor_hides_its_end(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_run, "PATIENCE_S", 0.5)
    monkeypatch.setattr(watched_run, "LAST_S", 0.5)
    monkeypatch.setattr(watched_run, "_SIGN_ON_S", 0.5)
    (tmp_path / "project").mkdir()
    with hung_directory(tmp_path / "hung") as hung:
        runs = Runs(tmp_path / "project", hung)
        run = Run("crontab+it", SLOT, "abc", State.CLAIMED, "0badf00d-1-1-1")
        runs.supervised.start(entry("/bin/sh", "-c", "echo alive", overlap=Overlap.ALLOW), SLOT, run)
        hangs = entry("/bin/sh", "-c", "sleep 87619", overlap=Overlap.ALLOW, timeout_s=0.3)
        runs.supervised.start(hangs, SLOT + 1, run)
        ends = sorted(runs.ends(2), key=lambda record: record.slot)
        assert [record.outcome for record in ends] == [Outcome.DONE, Outcome.TIMEOUT]
        assert all("the file system does not respond" in record.summary for record in ends)
        assert runs.left("87619") == []
    until_true(lambda: runs.supervised.poll() == () and not runs.supervised._leaving, "reaped when it answers again")


@pytest.mark.parametrize("lives", [True, False])
def test_a_disk_that_turns_read_only_hides_no_end_from_the_scheduler(tmp_path: Path, quick: None, lives: bool) -> None:
    (tmp_path / "project").mkdir()
    with small_disk(tmp_path / "disk", "256k") as disk:
        runs = Runs(tmp_path / "project", disk)
        runs.start(entry("/bin/sh", "-c", "echo up > up; while [ ! -e go ]; do sleep 0.02; done; exit 5"))
        wait_for(runs.project / "up")
        until_true(lambda: bool(runs.active()), "its record")
        make_read_only(disk, True)
        (runs.project / "go").write_text("")
        (record,) = runs.ends()
        assert (record.outcome, record.exit_code) == (Outcome.FAILED, 5)
        assert "not in the history yet" in record.summary and "Read-only" in record.summary
        until_true(lambda: runs.supervised.poll() == () and not runs.supervised._leaving, "reaped")
        make_read_only(disk, False)
        if lives:
            runs.supervised.file(runs.directory.book.active())
            assert [(run.outcome, run.exit_code) for run in runs.history()] == [(Outcome.FAILED, 5)]
            assert not settle(runs.directory)
        else:
            assert [run.outcome for run in settle(runs.directory)] == [Outcome.CUT_SHORT]


CHANGES = {
    "openat", "write", "mkdir", "rename", "unlink", "fsync", "clone", "clone3", "wait4", "epoll_wait", "setsid",
    "prctl", "setpgid", "pipe2", "fchmod", "exit_group",
}  # fmt: skip
"""Calls right before which something may have changed. Killed before any other, a supervisor leaves what it would have
left if killed before the next of these."""


def test_a_supervisor_killed_at_any_system_call_leaves_one_end_and_nothing_else(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    with writer(tmp_path / "strace", "from tests.cron.table.kill_points import run_supervisor") as process:
        (tmp_path / "all").mkdir()
        points = list(process.kill_points(f"run_supervisor({str(tmp_path / 'all')!r})"))
        for number, (name, count) in enumerate(sampled(point for point in points if point[0] in CHANGES)):
            project = tmp_path / str(number)
            project.mkdir()
            code = process.run(f"run_supervisor({str(project)!r})", f"{name}:signal=SIGKILL:when={count}").code
            assert code in (-signal.SIGKILL, 0)  # it may do with fewer waits than the last time
            directory = CronDirectory(project / "state")
            settle(directory)
            for run in directory.book.active():  # what a tick does with claims of the dead
                directory.book.settle(run, time.time(), "it was killed", "n1")
            assert directory.book.active() == []
            until_true(lambda project=project: processes_in(project) == [], "its program is gone")  # type: ignore[misc]
            ends = directory.history("crontab+it")
            assert len(ends) <= 1
            outcome = ends[0].outcome if ends else "nothing"
            assert ends or not (project / "ran").exists(), f"it ran and nobody knows ({name} {count})"
            assert outcome in ("nothing", Outcome.CUT_SHORT, Outcome.FAILED)
            # The program dies with its supervisor, perhaps after it opened the file and before it wrote: never twice.
            assert not (project / "ran").exists() or (project / "ran").read_text() in ("", "ran\n")
            seen[outcome] = seen.get(outcome, 0) + 1
    assert set(seen) == {"nothing", Outcome.CUT_SHORT, Outcome.FAILED}, "before, within and after the run"


def processes_in(directory: Path) -> list[str]:
    """The living processes whose working directory this is."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and (path / "cwd").readlink() == directory:
                found.append(path.name)
    return found
