"""Runs of the state directory: the heartbeat takes precedence over the log, and ended runs need no progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.fakes import FakeClock
from tests.watch.checks.log.training_run import (
    ANYTHING,
    NOTHING,
    Run,
    Story,
    beats,
    begins,
    ends,
    follow,
    is_removed,
    logs,
)
from tests.watch.checks.log.watcher import HOUR, MINUTE, LogWatcher
from tests.watch.checks.outcome import outcome

SILENT = "CRITICAL no-progress"
BUILDS = "building the data set\n"
ONE_SECOND = "iteration 7/ 9 | elapsed time per iteration (s): 1.0 |\n"
LONG_S = 20 * MINUTE + 10


def trains(step: int, quiet_s: float = 1.0) -> tuple[int, float, str]:
    """The state of a rank in its heartbeat."""
    return step, quiet_s, "train"


STORIES: dict[str, Story] = {
    "the newest attempt's log is watched without configuration": [
        (0, logs("step 900 loss\n", 100, age_s=5 * HOUR), "OK"), (0, logs("step 901 loss\n"), "OK", "says: step 901"),
        (HOUR, None, SILENT, "resil logs gpt")],
    "a job that just began may take its time": [
        (0, None, "OK", "says: ", "no log and no heartbeat yet"), (HOUR, None, "UNKNOWN missing"),
        # appended to what the job before left
        (0, (logs(BUILDS, age_s=2 * HOUR), begins(2, 101)), "OK")],
    "what the job before left in the log does not hurry the next": [
        (0, (logs(ONE_SECOND, age_s=HOUR), begins(2, 101)), "OK"),  # requeued, and the log appended to
        (10 * MINUTE, None, "OK"), (25 * MINUTE, None, "WARNING no-progress")],
    **{f"the log of a job that is over ({word}) does not hang": [
        (0, (logs("step 901 loss\nCUDA out of memory\n"), ends(1, word)), "OK"),
        (5 * HOUR, None, "OK", f"job 101 is over: {word}, exit code 1 (step 901 at ")]
       for word in ("exited", "stopped", "terminated", "lost", "superseded")},
    "a finished run needs no progress and is later not even probed": [
        (0, (logs("step 901 loss\n"), Run.finish), "OK", "says: the run is finished"), (48 * HOUR, None, NOTHING)],
    "a rank that hangs is named although the log grows": [
        *((MINUTE, (
            logs(f"step {tick} loss\n"), beats({0: trains(tick), 1: trains(tick)}),
            beats({2: trains(tick), 3: trains(min(tick, 4), max(0, tick - 4) * MINUTE)}, host="n2"),
        ), ANYTHING) for tick in range(40)),
        (0, None, "CRITICAL no-progress", "rank 3 on n2: behind in steps", "(4 at ", "on n2: resil stacks gpt, ")],
    **{f"a node whose clock is {ahead_s:+.0f} s wrong does not hang": [
        (MINUTE, beats({0: trains(tick)}, ahead_s=ahead_s), "OK") for tick in range(5)] for ahead_s in (-600.0, 600.0)},
    "a heartbeat whose writer is dead gives way to the log": [
        (0, beats({0: trains(5)}), "OK"), *((MINUTE, logs(f"step {step} loss\n"), "OK") for step in range(5, 40)),
        (0, None, "OK", "says: step 39", "writer is dead"), (HOUR + MINUTE, None, SILENT)],
    "a heartbeat without progress and a silent log are a hang": [
        *((MINUTE, (logs(f"step {step} loss\n"), beats({0: trains(step, 0.0)})), "OK") for step in range(5)),
        (HOUR + MINUTE, None, SILENT, "its heartbeat shows no progress either")],
    **{f"the phase {phase} of the heartbeat has its own allowance": [
        *((10, beats({0: trains(step, 0.0), 1: trains(step, 0.0)}), "OK") for step in range(5)),
        # the others wait for the one that saves
        (LONG_S, beats({0: (4, LONG_S, phase), 1: trains(4, LONG_S)}), "OK"),
        (45 * MINUTE, beats({0: (4, LONG_S + 45 * MINUTE, phase), 1: trains(4, LONG_S + 45 * MINUTE)}), SILENT)]
       for phase in ("eval", "validation", "save", "start")},
    "a rank that ended without a word is reported": [
        (0, beats({0: trains(9), 1: trains(9)}, gone=(1,)), "WARNING rank-gone",
         "rank 1 on n1 exited without a final message"),
        (10 * MINUTE, beats({0: trains(9, 601.0), 1: trains(9, 601.0)}, gone=(1,)), "CRITICAL rank-gone")],
    "a heartbeat of an earlier attempt says nothing": [
        (0, beats({0: trains(900)}), "OK"), (HOUR, begins(2, 101), "OK", "began")],  # requeued: the same job
    "a new attempt may begin below the last step": [
        (0, logs("".join(f"step {n} loss\n" for n in range(90, 101))), "OK"),
        (MINUTE, (begins(2, 101), logs("step 51 loss\nstep 52 loss\n")), "OK", "says: step 52")],
    "what was wrong with a run that was removed is over": [
        (0, logs("step 5 loss\n"), "OK"), (5 * HOUR, None, SILENT), (0, is_removed, "OK", "removed, or"),
        (0, None, NOTHING)],
    "a training that says it is done and whose job never ends is reported": [
        (0, logs("step 5 loss\n[exiting program after 10 minutes]\n"), "OK"),
        (2 * HOUR, None, "WARNING not-ended")],
}  # fmt: skip


@pytest.mark.parametrize("claim", STORIES)
def test_a_run_is_judged_as_it_progresses(watchdog: LogWatcher, run: Run, claim: str) -> None:
    follow(watchdog, run, STORIES[claim])


def test_one_of_a_runs_logs_with_progress_is_enough(watchdog: LogWatcher, run: Run) -> None:
    stand_still = (logs("step 0 loss\n", "101.rank1"), logs("step 0 loss\n", "101.rank2"))
    goes_on = [(MINUTE, logs(f"step {tick} loss\n", "101.rank0"), "OK") for tick in range(10)]
    follow(watchdog.anew(timeout_s=300.0), run, [(0, stand_still, "OK"), *goes_on])


def test_without_runs_nothing_is_expected_and_the_finding_says_so(watchdog: LogWatcher) -> None:
    (finding,) = watchdog.all_findings()
    directory = f"{watchdog.directory}/runs"
    assert (finding.subject, outcome(finding)) == (
        directory,
        "OK",
    ) and finding.summary == f"no active run in {directory}"


def test_a_finished_run_given_by_name_is_probed_long_after(watchdog: LogWatcher, run: Run) -> None:
    run.finish()
    watchdog.clock.sleep(48 * HOUR)
    finding = watchdog.anew("gpt").finding()
    assert finding.summary.startswith("the run is finished") and finding.run == "gpt"


def test_a_heartbeat_takes_precedence_over_a_silent_log(watchdog: LogWatcher, run: Run) -> None:
    run.log(101, "step 1 loss\n")
    for tick in range(100):
        run.beat(101, {0: trains(10 * tick), 1: trains(10 * tick, 2.0)})
        finding = watchdog.finding()
        assert outcome(finding) == "OK"
        watchdog.clock.sleep(MINUTE)
    assert finding.summary == "step 990 2 s ago, usually every 6 s (heartbeat of 2 ranks)"
    assert watchdog.anew(heartbeat=False).outcome() == SILENT


def test_damaged_heartbeats_are_skipped(watchdog: LogWatcher, run: Run) -> None:
    run.log(101, "step 5 loss\n")
    for host, content in {
        "a": b"\xff\x00", "b": b"time = 1", "c": b"rank = 5\ntime = 1", "d": b'time = "x"\n[rank.0]\n',
        "e": b'attempt = 1\nhost = "e"\ntime = 5\n[rank.0]\nstep = "x"\n', "f": b"a = " + b"[" * 5000,
    }.items():  # fmt: skip
        (run.path / "beats" / f"101.{host}").write_bytes(content)
    assert watchdog.outcome() == "OK"


def test_the_guards_last_event_ends_a_training_that_no_template_started(watchdog: LogWatcher, clock: FakeClock) -> None:
    run = Run(watchdog.directory, clock)
    run.beat(7, {0: trains(5, 0.0)}, attempt=0)
    assert watchdog.finding().summary.startswith("step 5")
    event = f'{{"event":"end","time":{clock.time},"step":5,"exit_code":0}}\n'
    run.journal(7).write_text('{"event":"start"}\n' + event)
    clock.sleep(2 * HOUR)
    assert watchdog.finding().summary.startswith("the guard was closed at step 5")


def test_many_runs_have_a_finding_each(tmp_path: Path, watchdog: LogWatcher, clock: FakeClock) -> None:
    runs = [Run(tmp_path, clock, f"run{number:02d}") for number in range(50)]
    for number, run in enumerate(runs):
        run.attempt(1, 200 + number)
    clock.sleep(2 * HOUR)
    for number, run in enumerate(runs):
        run.log(200 + number, "step 5 loss\n", age_s=HOUR if number == 7 else 1.0)
    found = watchdog.findings()
    assert len(found) == 50
    assert [finding.subject for finding in found if finding.fault] == ["run07"]


def test_a_run_without_log_and_heartbeat_has_no_figures(watchdog: LogWatcher, run: Run) -> None:
    bare = Run(run.path.parents[1], run.clock, "bare")
    bare.finish()
    (finding,) = (finding for finding in watchdog.findings() if finding.subject == "bare")
    assert finding.figures == (), "not the seconds since 1970"
