"""The ledger: attempts, their steps and their causes; evidence may be missing or damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from resilience.attempts.breaker import State, decide, with_decisions
from resilience.attempts.error_files import parse_error
from resilience.attempts.failure import Confidence, FailureClass, RankError
from resilience.attempts.ledger import LedgerRow, Totals, fold_steps, injected_into, read_ledger, totals_of
from resilience.attempts.timeline import render
from resilience.runs.attempts import AttemptEnd
from resilience.runs.injections import Injection
from resilience.runs.run_directory import RunDirectory
from resilience.settings.sections import ActSettings
from resilience.system.files import read_regular


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "gpt")
    for name in ("attempts", "journal", "logs"):
        (directory.path / name).mkdir(parents=True)
    return directory


def attempt(
    run: RunDirectory,
    number: int,
    *,
    end: str = "",
    code: int = 1,
    log: str = "",
    events: list[dict[str, Any]] = [],  # noqa: B006
    restart: int = 0,
) -> None:
    path, job = run.path / "attempts" / f"{number:04d}", 40 + number - restart
    start_file = (
        f'job_id = {job}\nlabel = "{job}"\nrestart = {restart}\nhost = "n1"\npid = 7\nstart = {1000 * number}\n'
    )
    path.write_text(start_file)
    if end:
        path.with_suffix(".end").write_text(f'end = "{end}"\nexit_code = {code}\ntime = {1000 * number + 60}\n')
    start = {"event": "attempt_start", "attempt": number, "nodes": "n[1-2]"}
    (run.path / "journal" / f"{job}.batch.jsonl").write_text(json.dumps(start) + "\n")
    (run.path / "journal" / f"{job}.0.jsonl").write_text(
        "".join(json.dumps({"attempt": number, **event}) + "\n" for event in events)
    )
    (run.path / "logs" / f"gpt-{job}.out").write_text(log)


def test_a_row_tells_steps_nodes_time_and_cause(run: RunDirectory) -> None:
    events = [{"event": "resume", "step": 20}, {"event": "save", "step": 40}, {"event": "decision", "step": 45}]
    attempt(run, 1, end="exited", log="OSError: [Errno 28] No space left on device\n", events=events)
    attempt(run, 2)
    first, second = read_ledger(run)
    assert (first.first_step, first.last_step, first.durable_step) == (20, 45, 40)
    assert (first.nodes, first.seconds, first.exit_code, first.end) == ("n[1-2]", 60.0, 1, AttemptEnd.EXITED)
    assert first.failure is not None and first.failure.failure is FailureClass.DISK_FULL
    assert second.failure is None and second.end is None, "it runs"


def test_attempts_of_a_requeued_job_share_its_journal_and_nothing_else(run: RunDirectory) -> None:
    attempt(run, 1, end="lost", events=[{"event": "save", "step": 40}])
    attempt(run, 2, end="exited")
    second = run.path / "attempts" / "0002"
    second.write_text(second.read_text().replace("job_id = 42", "job_id = 41"))
    journal = run.path / "journal" / "41.batch.jsonl"
    lines = [
        {"event": "launch", "time": 1009, "attempt": 1},
        {"event": "attempt_start", "attempt": 2, "nodes": "n9"},
    ]
    journal.write_text(journal.read_text() + "".join(json.dumps(line) + "\n" for line in lines))
    found = [(row.nodes, row.launch_time, row.last_step, row.durable_step) for row in read_ledger(run)]
    assert found == [("n[1-2]", 1009, 40, 40), ("n9", None, None, None)], "of the second one nothing was launched"


def test_an_attempt_without_an_end_is_lost_once_another_has_begun(run: RunDirectory) -> None:
    attempt(run, 1)
    assert [row.end for row in read_ledger(run)] == [None]
    attempt(run, 2)
    assert [row.end for row in read_ledger(run)] == [AttemptEnd.LOST, None]


SHARED_LOG = """\
resil: START attempt 1 of gpt: job 41 on n1 at 2026-11-23T02:54:34+0000, restart 0
{first}
resil: waiting for attempt 0001 to end: an earlier start of this job
resil: START attempt 2 of gpt: job 41 on n2 at 2026-11-23T02:55:49+0000, restart 1
OSError: [Errno 98] Address already in use
resil: END attempt 2 of gpt: job 41 on n2 at 2026-11-23T02:55:51+0000: exited, exit code 1
"""


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("step 7", FailureClass.NODE_FAILURE),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FailureClass.GPU_FAULT),
        ("*** JOB 41 ON n1 CANCELLED AT 2026-11-23T02:55:00 DUE TO PREEMPTION ***", FailureClass.PREEMPTED),
    ],
)
def test_the_starts_of_a_requeued_job_share_a_log_but_no_cause(
    run: RunDirectory, first: str, expected: FailureClass
) -> None:
    attempt(run, 1, end="lost")
    attempt(run, 2, end="exited", restart=1, log=SHARED_LOG.format(first=first))
    attempt(run, 3)
    found = [row.failure.failure for row in read_ledger(run) if row.failure is not None]
    assert found == [expected, FailureClass.PORT_IN_USE]


def test_a_log_without_marks_is_that_of_the_last_start(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", code=139)
    attempt(run, 2, end="exited", restart=1, log="OSError: [Errno 98] Address already in use\n")
    attempt(run, 3)
    found = [row.failure.failure for row in read_ledger(run) if row.failure is not None]
    assert found == [FailureClass.SEGFAULT, FailureClass.PORT_IN_USE]


def test_a_lost_attempt_that_slurm_did_not_start_again_is_unknown(run: RunDirectory) -> None:
    attempt(run, 1, end="lost")
    attempt(run, 2)
    (first, _) = read_ledger(run)
    assert first.failure is not None and first.failure.failure is FailureClass.UNKNOWN


def test_ends_are_classified_without_reading_the_run_again_for_each(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def counted(path: Path, *more: Any, **options: Any) -> Any:
        read.append(str(path))
        return read_regular(path, *more, **options)

    monkeypatch.setattr("resilience.runs.run_files.read_regular", counted)
    for number in range(1, 31):
        attempt(run, number, end="exited")
    assert all(row.failure is not None for row in read_ledger(run))
    assert read.count(str(run.path / "attempts" / "0030")) == 1


def test_a_cause_is_kept_when_its_log_is_deleted(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", log="ModuleNotFoundError: No module named 'apex'\n")
    (before,) = read_ledger(run)
    (run.path / "logs" / "gpt-41.out").unlink()
    assert read_ledger(run) == (before,)


@pytest.mark.parametrize("kept", ["", "{", '{"version": 99}', "[]", '{"version": 1, "end": "exited", "failure": {}}'])
def test_a_damaged_cause_is_found_again(run: RunDirectory, kept: str) -> None:
    attempt(run, 1, end="exited", log="ModuleNotFoundError: No module named 'apex'\n")
    (run.path / "attempts" / "0001.why").write_text(kept)
    (row,) = read_ledger(run)
    assert row.failure is not None and row.failure.failure is FailureClass.MISSING_MODULE


def test_a_requeued_job_has_one_log_for_all_its_attempts_and_each_its_own_part(run: RunDirectory) -> None:
    killed = "slurmstepd: error: *** JOB 41 ON n1 CANCELLED AT 2026-11-20T03:14:15 DUE TO JOB REQUEUE ***\n"
    ends = ("OSError: [Errno 28] No space left on device\n", "ModuleNotFoundError: No module named 'apex'\n")
    parts = [
        f"resil: START attempt {number} of gpt: job 41\n{end}resil: END attempt {number} of gpt: exited\n{killed}"
        for number, end in enumerate(ends, 1)
    ]
    for number in (1, 2):
        attempt(run, number, end="exited")
        (run.path / "attempts" / f"{number:04d}").write_text(f'job_id = 41\nlabel = "41"\nstart = {1000 * number}\n')
    (run.path / "logs" / "gpt-42.out").unlink()
    (run.path / "logs" / "gpt-41.out").write_text("".join(parts))
    found = [row.failure.failure for row in read_ledger(run) if row.failure is not None]
    assert found == [FailureClass.DISK_FULL, FailureClass.MISSING_MODULE]
    quotes = [row.failure.quotes[0].line for row in read_ledger(run) if row.failure is not None]
    assert quotes == [2, 6], "numbers of the lines of the log"


def test_the_time_between_attempts_is_summed_up() -> None:
    times = ((1000.0, 1060.0, 300.0), (2000.0, 2600.0, 940.0), (3000.0, None, 400.0))
    rows = [LedgerRow(attempt=n, job="7", start_time=a, end_time=b, queue_s=q) for n, (a, b, q) in enumerate(times, 1)]
    assert totals_of(rows, now=3050.0) == Totals(trained_s=710.0, waited_s=1640.0, total_s=2350.0)
    assert totals_of(rows[:2], now=9999.0) == Totals(trained_s=660.0, waited_s=1240.0, total_s=1900.0)
    assert totals_of((), now=1.0) == Totals()


def test_a_lost_attempt_that_ends_after_all_is_classified_anew(run: RunDirectory) -> None:
    attempt(run, 1)
    attempt(run, 2)
    assert read_ledger(run)[0].end is AttemptEnd.LOST
    attempt(run, 1, end="finished", code=0)
    row: LedgerRow = read_ledger(run)[0]
    assert row.failure is not None and row.failure.failure is FailureClass.FINISHED


def test_a_directory_that_cannot_be_written_loses_no_row(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", log="KeyError: 'x'\n")
    (run.path / "attempts" / "0001.why").mkdir()
    assert [row.attempt for row in read_ledger(run)] == [1]


def test_steps_of_a_journal() -> None:
    assert fold_steps([]) == (None, None, None)
    assert fold_steps([{"event": "save", "step": "x"}, {"event": "save", "step": True}]) == (None, None, None)
    events = [{"event": "resume", "step": 5}, {"event": "save", "step": 9}, {"event": "resume", "step": 9}]
    assert fold_steps(events) == (5, 9, 9)
    start = {"event": "start", "step": 0}
    assert fold_steps([start, *events]) == (5, 9, 9)
    assert fold_steps([start, {"event": "error", "step": 70}]) == (0, 70, None), "nothing was resumed"
    assert fold_steps([start]) == (None, 0, None), "it may yet resume"


def ruined(step: int, decided: int) -> list[dict[str, Any]]:
    """Return the journal of a training that the guards stopped `decided - step` steps after its loss became NaN."""
    return [
        {"event": "start", "step": 0}, {"event": "resume", "step": 100}, {"event": "save", "step": 120},
        {"event": "state_ruined", "step": step, "why": f"rank 3: the loss is NaN, at step {step}"},
        {"event": "decision", "step": decided, "exit_code": 1}, {"event": "end", "step": decided, "exit_code": 1},
    ]  # fmt: skip


def test_a_stop_for_silent_corruption_is_no_nan_and_opens_no_breaker_at_the_second(run: RunDirectory) -> None:
    events = [one | ({"world": 0} if one["event"] == "state_ruined" else {}) for one in ruined(150, 151)]
    for number in (1, 2):
        attempt(run, number, end="exited", events=events)
    failure = read_ledger(run)[-1].failure
    assert failure is not None and failure.failure is FailureClass.UNKNOWN and failure.step == 150
    assert "silent data corruption" in failure.reason and "batch" not in failure.advice and "nodes" in failure.advice
    assert judged(run)[0] is State.CLOSED


def judged(run: RunDirectory) -> tuple[State, str]:
    """Return the state of the breaker, and its reason."""
    verdict = decide(read_ledger(run), ActSettings(), 9000.0)
    return verdict.state, verdict.reason


def test_the_breaker_opens_when_the_loss_is_nan_at_the_same_step_twice(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", events=ruined(150, 151))
    (row,) = read_ledger(run)
    assert row.failure is not None
    assert (row.failure.failure, row.failure.confidence) == (FailureClass.NAN_LOSS, Confidence.CERTAIN)
    assert (row.failure.step, row.last_step, row.durable_step) == (150, 150, 120)
    assert "rank 3: the loss is NaN, at step 150" in row.failure.reason
    assert judged(run)[0] is State.CLOSED
    attempt(run, 2, end="exited", events=ruined(150, 157))  # the ranks agreed on a later step this time
    state, reason = judged(run)
    assert state is State.OPEN and "twice at the same step" in reason


def test_a_kill_after_the_guard_found_the_memory_nearly_used_up_is_a_lack_of_memory(run: RunDirectory) -> None:
    request = {"event": "request", "trigger": "host_memory", "why": "97 % of job_41 is used"}
    attempt(run, 1, end="exited", code=137, events=[request])
    attempt(run, 2, end="exited", code=137)
    attempt(run, 3, end="exited", code=137)
    with (run.path / "attempts/0003.end").open("a") as file:  # by resil run
        file.write('why = "killed by SIGKILL; memory was at 99 % of job_43 (62.1 GiB)"\n')
    found = [row.failure for row in read_ledger(run)]
    assert [one.failure for one in found if one is not None] == [
        FailureClass.HOST_OOM,
        FailureClass.KILLED,
        FailureClass.HOST_OOM,
    ]
    assert found[0] is not None and "97 % of job_41 is used" in found[0].reason


def test_a_preemption_after_the_failure_is_no_second_failure(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", events=[{"event": "save", "step": 200}])
    attempt(run, 2, end="exited", events=ruined(150, 151))
    attempt(run, 3, end="stopped", code=75, events=[{"event": "resume", "step": 120}])
    assert judged(run)[0] is State.CLOSED


def test_a_loss_that_is_nan_at_another_step_is_not_the_same(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", events=ruined(150, 151))
    attempt(run, 2, end="exited", events=ruined(170, 171))
    assert judged(run)[0] is State.CLOSED


def test_a_launch_that_follows_in_the_same_attempt_ends_for_its_own_reason(run: RunDirectory) -> None:
    events = [*ruined(150, 151), {"event": "start", "step": 0}, {"event": "resume", "step": 120}]
    attempt(run, 1, end="exited", events=events, log="OSError: [Errno 28] No space left on device\n")
    (row,) = read_ledger(run)
    assert row.failure is not None and row.failure.failure is FailureClass.DISK_FULL


def test_the_wait_before_an_attempt_begins_with_the_end_of_the_previous_one(run: RunDirectory) -> None:
    attempt(run, 1, end="exited")
    attempt(run, 2, end="exited")
    intent = {"event": "intent", "token": "t", "time": 400, "scheduler": "slurm", "script": "s", "argv": ["sbatch"]}
    result = {"event": "submitted", "token": "t", "job_id": "41", "time": 401}
    (run.path / "submissions.jsonl").write_text(f"{json.dumps(intent)}\n{json.dumps(result)}\n")
    assert [row.queue_s for row in read_ledger(run)] == [600.0, 940.0]
    assert [row.queue_s for row in read_ledger(run, newest=1)] == [None], "the previous one was not read"


def test_a_line_of_progress_tells_steps_that_no_event_has(run: RunDirectory) -> None:
    attempt(run, 1, end="lost", events=[{"event": "save", "step": 40}])
    lines = [
        {"event": "progress", "time": 1030, "attempt": 1, "step": 77},
        {"event": "progress", "attempt": 2, "step": 99},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"event":"progress","time":10'
    (run.path / "journal" / "41.progress.jsonl").write_text(text)
    (row,) = read_ledger(run)
    assert (row.last_step, row.durable_step) == (77, 40)


def test_the_last_heartbeat_tells_steps_after_the_last_line_of_progress(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", code=137, events=[{"event": "save", "step": 40}])
    (run.path / "beats").mkdir()
    beat = "attempt = {}\nstep = 51\n[rank.0]\nstep = 51\nadvanced = 1055.5\n"
    for number, last in ((1, 51), (2, 40)):
        (run.path / "beats" / "41.n1").write_text(beat.format(number))
        assert read_ledger(run)[0].last_step == last, "a heartbeat of a later start of the job tells nothing"


def test_the_signal_is_told_apart_from_the_exit_code(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", code=139)
    attempt(run, 2, end="exited", code=255)
    attempt(run, 3, end="exited", code=128)
    assert [(row.exit_code, row.signal) for row in read_ledger(run)] == [(139, 11), (255, None), (128, None)]


def test_the_error_file_of_the_first_failing_rank_comes_before_the_log(run: RunDirectory) -> None:
    stack = "Traceback (most recent call last):\n  File \"/home/ada/train.py\", line 9, in main\nKeyError: 'en'\n"
    errors = {
        "0": {"message": {"message": "DistBackendError", "extraInfo": {"py_callstack": "x", "timestamp": "1010"}}},
        "1": {"message": {"message": "KeyError", "extraInfo": {"py_callstack": stack, "timestamp": "1001", "rank": 9}}},
    }
    for task, record in errors.items():
        (run.path / "attempts" / f"0001.error.{task}").write_text(json.dumps(record))
    (run.path / "attempts" / "0001.error.2").write_text('{"message": {"message": "half')
    (run.path / "attempts" / "0001.error.3").write_text("[]")
    attempt(run, 1, end="exited", log="RuntimeError: Connection closed by peer\n")
    (row,) = read_ledger(run)
    assert row.failure is not None
    assert (row.failure.failure, row.failure.rank) == (FailureClass.EXCEPTION, 9)
    assert row.failure.fingerprint == "exception: train.py:9 in main: KeyError: 'en'"


def test_an_error_file_of_an_older_torch_is_a_text() -> None:
    assert parse_error('{"message": "RuntimeError: x"}').text == "RuntimeError: x"
    assert parse_error('{"message": 7}') == parse_error("[]") == RankError()


def test_the_timeline_shows_each_attempt_and_what_ended_it(run: RunDirectory) -> None:
    attempt(run, 1, end="exited", log="OSError: [Errno 28] No space left on device: '<&>'\n")
    attempt(run, 2, end="finished", code=0)
    attempt(run, 3)
    rows = with_decisions(read_ledger(run), ActSettings(), 3050.0)
    drawn = ElementTree.fromstring(render("gpt", rows, now=3050.0))
    texts = [one.text or "" for one in drawn.iter() if one.tag.endswith("}text")]
    assert texts[0] == "gpt: 3 attempts in 34 min 10 s, 2 min 50 s of them running, 31 min 20 s between jobs"
    assert "disk full → would hold" in texts and texts[-1] == "running"
    assert [text for text in texts if text.endswith(" min") or text == "0"] == ["0", "10 min", "20 min", "30 min"]
    bars = [one.get("class") for one in drawn.iter() if one.tag.endswith("}rect") and one.get("height") == "16"]
    assert bars == ["failed", "good", "running"]
    assert ElementTree.fromstring(render("gpt", (), now=1.0)) is not None


def test_an_attempt_that_only_waited_for_another_one_has_not_trained() -> None:
    first = LedgerRow(attempt=1, job="1", start_time=0, launch_time=1, end_time=60, end=AttemptEnd.EXITED)
    second = replace(first, attempt=2, launch_time=None, end=AttemptEnd.STOPPED)
    assert totals_of([first, second], 60) == Totals(trained_s=60.0, waited_s=0.0, total_s=60.0)
    assert totals_of([first, replace(second, start_time=5, end_time=20)], 60).total_s == 60, "the first ends last"


@pytest.mark.parametrize(("on_hang", "did"), [("restart_step", "its launch was ended"), ("requeue", "it was requeued")])
def test_a_hang_that_a_watchdog_ended_counts_with_its_rank_and_node(run: RunDirectory, on_hang: str, did: str) -> None:
    attempt(run, 1, end="terminated" if on_hang == "requeue" else "exited", code=137, log="step 19\n")
    attempt(run, 2, end="exited", code=137)
    attempt(run, 3, end="exited", code=137)
    (run.path / "hangs").mkdir()
    record = {"on_hang": on_hang, "why": "rank 3 on n2: stopped", "rank": 3, "host": "n2", "did": did}
    changes: list[dict[str, str]] = [{}, {"did": "requeue failed: slurm refused"}, {"on_hang": "save"}]
    for number, change in enumerate(changes, start=1):
        (run.path / "hangs" / f"{number:04d}-19.acted").write_text(json.dumps(record | change) + "\n")
    first, *others = (row.failure for row in read_ledger(run))
    assert first is not None and (first.failure, first.rank, first.host) == (FailureClass.COLLECTIVE_TIMEOUT, 3, "n2")
    assert first.reason == "a watchdog ended it because it hung: rank 3 on n2: stopped"
    assert [one.failure for one in others if one is not None] == [FailureClass.KILLED] * 2


@pytest.mark.parametrize(
    ("attempt", "begun", "ended", "is_of_it"),
    [
        (1, 150.0, 150.0, True),
        (0, 150.0, 200.0, True),
        (0, 50.0, None, True),
        (1, 201.0, 201.0, True),
        (0, 20.0, 50.0, False),
        (0, 250.0, 300.0, False),
    ],
    ids=["killed", "of no attempt", "on since before", "a clock that is fast", "over before", "later"],
)
def test_which_injected_faults_may_have_ended_an_attempt(
    attempt: int, begun: float, ended: float | None, is_of_it: bool
) -> None:
    one = Injection(id="x", fault="eio", target="the checkpoints", begun=begun, ended=ended, attempt=attempt)
    first = LedgerRow(attempt=1, job="1", start_time=100, launch_time=100, end_time=200, end=AttemptEnd.EXITED)
    assert bool(injected_into(first, [one])) is is_of_it
    assert injected_into(first, [replace(one, fault="clock")]) == ()
    assert injected_into(replace(first, end_time=200 + 86400), [replace(one, ended=ended or begun)]) == ()
