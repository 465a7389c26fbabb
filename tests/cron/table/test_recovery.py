"""Runs whose supervisor died: their processes are killed, and their end is recorded once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.recovery import kill_session, record_end, session_members, settle_dead_runs
from resilience.cron.table.running import Mark, here, marks, write_mark
from resilience.errors import StateDirectoryError
from resilience.system.child import fork
from tests.cron.table.runs import until_true
from tests.lab.disks import fill, make_read_only, small_disk

_LEADER = """
import os, subprocess, sys, time
os.setsid()
inside = subprocess.Popen(["sleep", "87630"])
group = subprocess.Popen(["sleep", "87630"], process_group=0)
other = subprocess.Popen(["sleep", "87630"], start_new_session=True)
print(inside.pid, group.pid, other.pid, flush=True)
sys.stdin.read()
"""


def test_the_session_of_a_dead_leader_is_ended_and_no_other() -> None:
    leader = subprocess.Popen([sys.executable, "-c", _LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert leader.stdin is not None and leader.stdout is not None
    inside, group, other = map(int, leader.stdout.readline().split())
    try:
        assert set(session_members(leader.pid)) == {inside, group}
        assert kill_session(leader.pid) == 0  # the leader lives
        leader.kill()
        until_true(lambda: kill_session(leader.pid) == 2 or session_members(leader.pid) == (), "it is ended")
        until_true(lambda: session_members(leader.pid) == (), "none of it is left")
        os.kill(other, 0)
    finally:
        os.kill(other, 9)
        leader.stdin.close()
        leader.stdout.close()
        leader.wait()


def test_no_session_is_killed_by_a_meaningless_number() -> None:
    assert [kill_session(number) for number in (-1, 0, 1, os.getpid(), 2**22 + 1)] == [0] * 5


NOW = time.time()
DEAD = 2**22 + 1
"""A process number that no process can have."""


def a_mark(slot: int, pid: int = DEAD) -> Mark:
    """The mark of a run whose supervisor is dead."""
    return Mark("crontab/it", "crontab+it", slot, *here(), pid, 1, NOW, NOW + 60)


def test_of_two_that_settle_at_once_one_gets_the_record(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    for slot in range(40):
        write_mark(directory, a_mark(slot))
    reading, writing = os.pipe()
    pids = []
    for _ in range(2):
        pid = fork()
        if pid == 0:
            try:
                os.write(writing, b"%d\n" % len(settle_dead_runs(directory, now=NOW)))
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(writing)
    for pid in pids:
        os.waitpid(pid, 0)
    with os.fdopen(reading) as told:
        assert sum(map(int, told.read().split())) == 40
    assert marks(directory) == ()
    assert [run.outcome for run in directory.history("crontab+it")] == [Outcome.CUT_SHORT] * 40


def test_a_full_disk_leaves_the_mark_for_the_next_tick(tmp_path: Path) -> None:
    record = RunRecord(name="crontab/it", slot=1, outcome=Outcome.CUT_SHORT, time=NOW, summary="died")
    with small_disk(tmp_path / "disk") as disk:
        directory = CronDirectory(disk)
        write_mark(directory, a_mark(1))
        ballast = fill(disk)
        with pytest.raises(StateDirectoryError, match="No space left"):
            settle_dead_runs(directory, now=NOW)
        noted = record_end(directory, a_mark(1), record)
        assert noted.summary.startswith("died; not in the history yet: ")
        ballast.unlink()
        make_read_only(disk, True)
        with pytest.raises(StateDirectoryError, match="Read-only"):
            settle_dead_runs(directory, now=NOW)
        make_read_only(disk, False)
        assert [run.slot for run in settle_dead_runs(directory, now=NOW)] == [1]
