"""A mark says truly whether a run is under way; where that cannot be seen, it is believed for its time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from resilience.base.processes import start_ticks
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.running import (
    LAPSE_S,
    SKEW_S,
    Here,
    Mark,
    here,
    is_running,
    liveness,
    marks,
    remove_mark,
    write_end,
    write_mark,
)
from resilience.job import Liveness
from tests.lab.disks import fill, small_disk
from tests.system.people import NOBODY, acting_as, needs_root

NOW = 1_800_000_000.0
KEY = "cron.hourly+backup"


def a_mark(pid: int = 0, *, at: Here | None = None, ticks: int | None = None, until: float | None = NOW) -> Mark:
    """The mark of a run whose supervisor is this process."""
    pid = pid or os.getpid()
    ticks = start_ticks(pid) or 0 if ticks is None else ticks
    return Mark("cron.hourly/backup", KEY, 1000, *(at or here()), pid, ticks, NOW - 60, until)


def test_a_mark_is_read_as_it_was_written_oldest_slot_first(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    assert marks(directory) == ()
    newer, older = a_mark()._replace(slot=3000), a_mark()._replace(slot=200, until=None)
    for mark in (newer, older):
        write_mark(directory, mark)
    assert marks(directory) == (older, newer)
    assert remove_mark(directory, newer) is True
    assert remove_mark(directory, newer) is False
    assert marks(directory) == (older,)


def test_a_live_supervisor_of_this_host_is_alive_whatever_its_time_limit(tmp_path: Path) -> None:
    assert liveness(a_mark(until=NOW - 1e6), now=NOW, at=here())[0] is Liveness.ALIVE
    directory = CronDirectory(tmp_path)
    write_mark(directory, a_mark())
    assert is_running(directory, KEY, now=NOW)[0] is Liveness.ALIVE
    assert is_running(directory, "cron.hourly+other", now=NOW)[0] is Liveness.GONE


def test_a_dead_one_is_gone_and_so_is_its_number_given_to_another() -> None:
    ended = subprocess.Popen(["true"])
    ticks = start_ticks(ended.pid)
    zombie = a_mark(ended.pid, ticks=ticks)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert liveness(zombie, now=NOW, at=here())[0] is Liveness.GONE
    ended.wait()
    assert liveness(zombie, now=NOW, at=here())[0] is Liveness.GONE
    assert liveness(a_mark(ticks=1), now=NOW, at=here())[0] is Liveness.GONE


def test_a_rebooted_machine_runs_no_earlier_process() -> None:
    state, reason = liveness(a_mark(at=here()._replace(boot="other")), now=NOW, at=here())
    assert state is Liveness.GONE and "rebooted" in reason


@needs_root
def test_a_colleague_s_process_that_proc_hides_is_unknown_and_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = a_mark(1)
    monkeypatch.setattr("resilience.cron.table.running.start_ticks", lambda _: None)  # hidepid=2
    with acting_as(NOBODY):
        assert liveness(mark, now=NOW, at=here())[0] is Liveness.UNKNOWN
        assert liveness(mark._replace(pid=2**22 + 1), now=NOW, at=here())[0] is Liveness.GONE


@pytest.mark.parametrize("at", [here()._replace(host="n2"), here()._replace(namespace="pid:[1]"), Here("", "", "")])
def test_an_invisible_process_is_unknown_until_its_time_limit(at: Here) -> None:
    assert liveness(a_mark(at=at), now=NOW + SKEW_S - 1, at=here())[0] is Liveness.UNKNOWN
    assert liveness(a_mark(at=at), now=NOW + SKEW_S + 1, at=here())[0] is Liveness.GONE


def test_a_run_elsewhere_without_limit_is_trusted_as_long_as_its_mark_is_touched(tmp_path: Path) -> None:
    directory, mark = CronDirectory(tmp_path), a_mark(at=here()._replace(host="n2"), until=None)
    write_mark(directory, mark)
    os.utime(directory.path / "running" / mark.file_name, (NOW, NOW))
    assert is_running(directory, KEY, now=NOW + LAPSE_S - 1)[0] is Liveness.UNKNOWN
    assert is_running(directory, KEY, now=NOW + LAPSE_S + 1)[0] is Liveness.GONE


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": 1}', b"\xff\0"])
def test_a_damaged_mark_is_believed_for_a_while_and_known_by_its_name(tmp_path: Path, content: bytes) -> None:
    directory = CronDirectory(tmp_path)
    write_mark(directory, a_mark())
    path = directory.path / "running" / f"{KEY}@1000"
    path.write_bytes(content)
    os.utime(path, (NOW, NOW))
    (mark,) = marks(directory)
    assert (mark.name, mark.key, mark.slot) == ("cron.hourly/backup", KEY, 1000)
    assert is_running(directory, KEY, now=NOW)[0] is Liveness.UNKNOWN
    assert is_running(directory, KEY, now=NOW + LAPSE_S + 1)[0] is Liveness.GONE


def test_the_end_of_a_run_fits_into_its_mark_when_the_disk_is_full(tmp_path: Path) -> None:
    end = RunRecord(name="cron.hourly/backup", slot=1000, outcome=Outcome.FAILED, time=NOW, summary="é" * 199)
    with small_disk(tmp_path / "disk") as disk:
        directory = CronDirectory(disk)
        write_mark(directory, a_mark())
        fill(disk)
        write_end(directory, a_mark(), end)
        (mark,) = marks(directory)
    assert mark == a_mark()._replace(end=end)
