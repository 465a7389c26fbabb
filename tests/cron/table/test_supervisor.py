"""A run ends once, and its end is known: to the scheduler, to the history, and to who comes after a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.base.processes import is_alive
from resilience.cron.records import Outcome, Overlap
from resilience.cron.table import watched_run
from tests.cron.records import DEAD, FAR, put_run, running, settle
from tests.cron.table.runs import SLOT, Runs, entry, kill, quick, runs, until_true, wait_for

__all__ = ["quick", "runs"]

ROOT = Path(__file__).parents[3]


def test_a_run_under_way_is_marked_and_its_end_removes_the_mark(runs: Runs) -> None:
    before = time.time()
    record = runs.start(entry("/bin/sh", "-c", "echo up > up; while [ ! -e go ]; do sleep 0.02; done"))
    wait_for(runs.project / "up")
    assert record.outcome is Outcome.RUNNING and list(runs.supervised.running) == [record]
    (run,) = running(runs.directory)
    assert (run.entry_key, run.slot, run.pid, run.is_here) == ("crontab+it", SLOT, record.pid, True)
    assert run.time >= before - 0.001 and runs.directory.book.about(run)["limit_s"] > 3600
    assert settle(runs.directory) == []  # it lives: nobody's record is closed
    (runs.project / "go").write_text("")
    (end,) = runs.ends()
    assert (end.outcome, end.slot, end.pid) == (Outcome.DONE, SLOT, record.pid)
    assert runs.active() == [] and list(runs.supervised.running) == []
    assert runs.history() == (end,)


def test_many_at_once_end_each_in_its_own_way(runs: Runs) -> None:
    for number in range(12):
        runs.start(entry("/bin/sh", "-c", f"sleep 0.1; echo {number}; exit {number % 3}", name=f"crontab/{number}"))
    found = {record.name: (record.exit_code, runs.words(record)) for record in runs.ends(12)}
    assert found == {f"crontab/{number}": (number % 3, b"%d\n" % number) for number in range(12)}


def test_a_run_without_limit_has_no_timeout(runs: Runs) -> None:
    runs.start(entry("sleep", "0.5", timeout_s=0.0))
    until_true(lambda: bool(runs.active()), "its record")
    assert runs.directory.book.about(running(runs.directory)[0])["limit_s"] == 0
    assert runs.ends()[0].outcome is Outcome.DONE


def test_waiting_ends_on_request(runs: Runs) -> None:
    assert runs.supervised.wait(60) == ()  # nothing is under way
    runs.start(entry("sleep", "87611"))
    asked = iter((False, False, True))
    assert runs.supervised.wait(600, is_over=lambda: next(asked)) == ()
    assert list(asked) == []


# ---- the scheduler ends, or dies --------------------------------------------------------------------------------


def test_a_scheduler_that_ends_cuts_its_runs_short_and_says_why(runs: Runs) -> None:
    runs.start(entry("/bin/sh", "-c", "trap 'echo tidy; exit 0' TERM; echo up > up; sleep 87612 & wait"))
    wait_for(runs.project / "up")
    (record,) = runs.supervised.end_all(30)
    assert (record.outcome, record.exit_code) == (Outcome.CUT_SHORT, 0)
    assert record.summary == "ended because its scheduler was stopped: tidy"
    assert runs.history() == (record,) and runs.active() == []
    assert runs.left("87612") == []


def test_a_run_that_ended_by_itself_is_not_cut_short_for_its_leftovers(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_run, "LINGER_S", 600.0)
    runs.start(entry("/bin/sh", "-c", "echo done; sleep 87622 & echo $$ > up"))
    program = int(wait_for(runs.project / "up"))
    until_true(lambda: not Path(f"/proc/{program}").exists(), "its program has ended")
    (record,) = runs.supervised.end_all(30)
    assert (record.outcome, record.exit_code) == (Outcome.DONE, 0)
    assert record.summary == "killed 1 leftover process: done"


def test_a_run_that_ignores_the_schedulers_end_is_killed_after_the_grace_period(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_run, "KILL_AFTER_S", 600.0)
    runs.start(entry("/bin/sh", "-c", "trap '' TERM; echo up > up; while :; do sleep 0.05; done", "87613"))
    wait_for(runs.project / "up")
    (record,) = runs.supervised.end_all(0.3)
    assert (record.outcome, record.exit_code) == (Outcome.CUT_SHORT, 137)
    assert runs.left("87613") == []


_SCHEDULER = """
import sys, time
from pathlib import Path
from tests.cron.table.runs import Runs, entry
runs = Runs(Path(sys.argv[1]))
record = runs.start(entry(*sys.argv[2:], overlap="replace"))
print(record.pid, flush=True)
time.sleep(600)
"""


def a_scheduler(directory: Path, *argv: str) -> tuple[subprocess.Popen[str], int]:
    """Another scheduler of the project, with a run; and the number of that one's supervisor."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SCHEDULER, str(directory), *argv], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_run_outlives_its_scheduler_and_its_end_is_written_down(runs: Runs) -> None:
    script = "echo up > up; while [ ! -e go ]; do sleep 0.02; done; echo survived; exit 3"
    scheduler, _ = a_scheduler(runs.project, "/bin/sh", "-c", script)
    wait_for(runs.project / "up")
    scheduler.kill()
    scheduler.communicate()
    assert settle(runs.directory) == []  # its supervisor lives
    (runs.project / "go").write_text("")
    until_true(lambda: bool(runs.history()), "the end in the history")
    (record,) = runs.history()
    assert (record.outcome, record.exit_code, record.summary) == (Outcome.FAILED, 3, "exit code 3: survived")
    assert runs.words(record) == b"survived\n"
    until_true(lambda: runs.active() == [], "the mark is gone")


def test_a_timeout_holds_though_the_scheduler_is_dead(runs: Runs) -> None:
    scheduler, watcher = a_scheduler(runs.project, "/bin/sh", "-c", "echo up > up; sleep 87614")
    wait_for(runs.project / "up")
    scheduler.kill()
    scheduler.communicate()
    kill(watcher, signal.SIGTERM)  # as SLURM does at the end of a job, to everybody in it
    until_true(lambda: bool(runs.history()), "the end in the history")
    (record,) = runs.history()
    assert record.outcome is Outcome.CUT_SHORT
    assert record.summary == "ended because its scheduler was stopped"
    assert runs.left("87614") == []


def test_a_program_that_kills_its_parent_is_cut_short_and_takes_its_children_along(runs: Runs) -> None:
    record = runs.sh("sleep 87615 & echo $PPID > parent; kill -KILL $PPID; sleep 87615")
    assert record.pid == int((runs.project / "parent").read_text())
    assert (record.outcome, record.summary) == (Outcome.CUT_SHORT, "its supervisor was killed by signal 9")
    assert runs.history() == (record,) and runs.active() == []
    until_true(lambda: runs.left("87615") == [], "none of it is left")


def test_runs_of_a_killed_scheduler_and_a_killed_supervisor_are_settled_once(runs: Runs) -> None:
    scheduler, watcher = a_scheduler(runs.project, "/bin/sh", "-c", "sleep 87616 & echo $$ > up; sleep 87616; :")
    wait_for(runs.project / "up")
    for pid in (scheduler.pid, watcher):
        kill(pid)
    scheduler.communicate()
    until_true(lambda: not is_alive(watcher), "the supervisor is dead")
    program = int((runs.project / "up").read_text())
    until_true(lambda: not is_alive(program), "nobody watches over it: so it does not go on")
    (record,) = settle(runs.directory)
    assert (record.outcome, record.slot, record.pid) == (Outcome.CUT_SHORT, SLOT, watcher)
    assert record.summary.startswith("its supervisor died: process")
    assert settle(runs.directory) == []
    assert runs.history() == (record,)
    until_true(lambda: runs.left("87616") == [], "none of it is left")


def test_a_supervisor_killed_right_after_it_filed_the_end_leaves_that_end(runs: Runs) -> None:
    record = runs.start(entry("/bin/sh", "-c", "echo fine; echo up > up; while [ ! -e go ]; do sleep 0.02; done"))
    wait_for(runs.project / "up")
    kill(record.pid, signal.SIGSTOP)
    (run,) = running(runs.directory)
    assert runs.directory.book.end(run, replace(record, outcome=Outcome.DONE))
    kill(record.pid)
    assert [end.outcome for end in runs.ends()] == [Outcome.DONE] == [end.outcome for end in runs.history()]


def test_a_run_that_another_host_reported_as_cut_short_does_not_begin(runs: Runs) -> None:
    run = runs.directory.book.claim("crontab+it", SLOT, {}, time.time)
    assert run is not None
    assert runs.directory.book.settle(run, time.time(), "its scheduler seemed dead", "n2") is not None
    runs.supervised.start(entry("/bin/sh", "-c", "echo ran > ran"), SLOT, run)
    until_true(lambda: runs.supervised.poll() == () and not runs.supervised.running, "its supervisor has ended")
    assert not (runs.project / "ran").exists()
    assert [end.outcome for end in runs.history()] == [Outcome.CUT_SHORT]


# ---- overlap ----------------------------------------------------------------------------------------------------


def test_a_slot_is_skipped_while_an_earlier_run_is_under_way(runs: Runs) -> None:
    runs.start(entry("sleep", "87617"))
    second = runs.start(entry("sleep", "87617"), SLOT + 60)  # at once: before its mark can be there
    assert second.outcome is Outcome.SKIPPED and "still active" in second.summary
    until_true(lambda: bool(runs.active()), "its record")
    other = Runs(runs.project)  # another scheduler, which knows only the mark
    third = other.start(entry("sleep", "87617"), SLOT + 120)
    assert third.outcome is Outcome.SKIPPED and str(runs.supervised.running[0].pid) in third.summary
    assert (third.started, third.slot, other.supervised.running) == (None, SLOT + 120, ())
    assert runs.start(entry("true", name="crontab/else"), SLOT).outcome is Outcome.RUNNING


def test_a_slot_that_was_missed_before_the_run_under_way_began_waits_for_its_turn(runs: Runs) -> None:
    now = time.time()
    runs.start(entry("sleep", "87621"))
    until_true(lambda: bool(runs.active()), "its record")
    for scheduler in (runs, Runs(runs.project)):  # another one sees it by the mark
        assert scheduler.supervised.must_wait(entry("sleep", "87621"), now - 60)
        assert not scheduler.supervised.must_wait(entry("sleep", "87621"), time.time() + 1)
        assert not scheduler.supervised.must_wait(entry("sleep", "87621", overlap=Overlap.ALLOW), now - 60)
        assert not scheduler.supervised.must_wait(entry("sleep", "87621", name="crontab/other"), now - 60)


def test_two_run_side_by_side_where_that_is_allowed(runs: Runs) -> None:
    for slot in (SLOT, SLOT + 60):
        script = f"echo $$ > {slot}; while [ ! -e go ]; do sleep 0.02; done; echo {slot}"
        runs.start(entry("/bin/sh", "-c", script, overlap=Overlap.ALLOW), slot)
    for slot in (SLOT, SLOT + 60):
        wait_for(runs.project / str(slot))
    assert runs.active() == [f"crontab+it@{SLOT}", f"crontab+it@{SLOT + 60}"]
    (runs.project / "go").write_text("")
    assert {runs.words(record) for record in runs.ends(2)} == {b"%d\n" % SLOT, b"%d\n" % (SLOT + 60)}


@pytest.mark.parametrize("whose", ["own", "another scheduler's"])
def test_the_newer_run_replaces_the_earlier_one(runs: Runs, whose: str) -> None:
    script = "echo $$ > up; while :; do sleep 0.05; done"
    other = None
    if whose == "own":
        runs.start(entry("/bin/sh", "-c", f"trap '' TERM; {script}"))
    else:
        other, _ = a_scheduler(runs.project, "/bin/sh", "-c", script)
    wait_for(runs.project / "up")
    alone = "kill -0 $(cat up) 2>/dev/null && echo both; echo new"
    assert runs.start(entry("/bin/sh", "-c", alone, overlap=Overlap.REPLACE), SLOT + 60).outcome is Outcome.RUNNING
    ends = runs.ends(2 if whose == "own" else 1)
    if other is not None:
        other.kill()
        other.communicate()
    assert (ends[-1].slot, ends[-1].outcome, ends[-1].summary) == (SLOT + 60, Outcome.DONE, "new")
    assert runs.words(ends[-1]) == b"new\n"  # and not "both": it began when the other had ended
    first, second = runs.history()
    assert first.outcome is Outcome.CUT_SHORT and "overlap=replace" in first.summary
    assert second == ends[-1]
    assert first.time <= (second.started or 0) + 1.0


def test_a_run_on_another_host_is_not_replaced_but_reported(runs: Runs) -> None:
    put_run(runs.directory, machine_id=FAR, host="n2", pid=77, ticks=1, limit_s=100.0)
    for overlap in (Overlap.SKIP, Overlap.REPLACE):
        record = runs.start(entry("true", overlap=overlap), SLOT + 60)
        assert record.outcome is Outcome.SKIPPED and "process 77 on n2" in record.summary
    assert runs.start(entry("true", overlap=Overlap.ALLOW), SLOT + 60).outcome is Outcome.RUNNING
    runs.ends()
    assert settle(runs.directory) == []
    (record,) = settle(runs.directory, time.time() + 1000)
    assert (record.outcome, record.host) == (Outcome.CUT_SHORT, "n2")


def test_the_mark_of_a_dead_run_blocks_no_run(runs: Runs) -> None:
    now = time.time()
    put_run(runs.directory, slot=SLOT - 60, pid=DEAD)
    put_run(runs.directory, slot=SLOT - 30, machine_id=FAR, boot="an earlier one")
    assert runs.sh("echo ran").outcome is Outcome.DONE
    assert [record.outcome for record in settle(runs.directory, now)] == [Outcome.CUT_SHORT] * 2


def test_a_silent_supervisor_is_reported_eventually(runs: Runs) -> None:
    record = runs.start(entry("sleep", "87620", timeout_s=3600.0))
    kill(record.pid, signal.SIGSTOP)
    runs.supervised._runs[0].overdue = 0.0
    (told,) = runs.supervised.poll()
    assert told.outcome is Outcome.TIMEOUT and f"process {record.pid}, hangs" in told.summary
    assert (runs.supervised.running, runs.supervised.poll()) == ((), ())
    kill(record.pid, signal.SIGCONT)
    kill(record.pid, signal.SIGTERM)
    until_true(lambda: bool(runs.history()), "its true end")
    until_true(lambda: [end.outcome for end in runs.supervised.poll()] == [Outcome.CUT_SHORT], "its true end is told")


def test_a_scheduler_without_standard_streams_hears_all_the_same(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.cron.table.runs import Runs\n"
        "for stream in (0, 1, 2): os.close(stream)\n"
        "record = Runs(Path(sys.argv[1])).sh('echo words; echo more >&2')\n"
        "Path(sys.argv[1], 'told').write_text(f'{record.outcome} {record.summary}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, timeout=60)
    assert (done.returncode, (tmp_path / "told").read_text()) == (0, "done more")
