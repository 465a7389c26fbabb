"""What a dead supervisor left is ended, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys

from resilience.cron.table.leftovers import kill_session, session_members
from tests.cron.table.runs import until_true

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


def test_nobody_s_session_is_ended_by_a_number_that_means_nothing() -> None:
    assert [kill_session(number) for number in (-1, 0, 1, os.getpid(), 2**22 + 1)] == [0] * 5
