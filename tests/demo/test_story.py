"""The demo's story is told from the run directory's own files: attempts, steps, why each ended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resilience import layout
from resilience.demo.story import tell_attempts, turned_away_jobs
from resilience.runs.run_directory import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "demo")
    made.create("")
    return made


def attempt(
    directory: RunDirectory, number: int, *steps: int, end: str = "", code: int | None = None, **decision: object
) -> None:
    """An attempt that resumed at the first of the steps and saved at the others; then the guard decided."""
    folder = directory.path / layout.ATTEMPTS
    name = f"{number:04d}"
    (folder / name).write_text(f'job_id = {number}\nlabel = "7_{number}"\nhost = "n1"\nstart = 10.0\n')
    if end:
        exit_code = "" if code is None else f"exit_code = {code}\n"
        (folder / f"{name}.end").write_text(f'end = "{end}"\ntime = 14.5\n{exit_code}')
    if steps:
        records: list[dict[str, object]] = [{"event": "start", "step": 0}]
        records += [{"event": "save" if i else "resume", "step": step} for i, step in enumerate(steps)]
        records += [{"event": "decision", "step": steps[-1], "label": "", **decision}] if decision else []
        journal = directory.path / layout.JOURNAL / f"{number}.0.jsonl"
        journal.write_text("".join(json.dumps({**record, "attempt": number}) + "\n" for record in records))


ENDS = [
    ("finished", 0, "finished"),
    ("stopped", 75, "stopped on purpose"),
    ("exited", 1, "crashed"),
    ("exited", 0, "ended"),
    ("exited", 137, "killed by signal 9"),
    ("terminated", 143, "killed by signal 15"),
    ("superseded", None, "superseded"),
    ("lost", None, "lost"),
]


@pytest.mark.parametrize(("end", "code", "why"), ENDS)
def test_why_an_attempt_ended_is_said_in_words(directory: RunDirectory, end: str, code: int | None, why: str) -> None:
    attempt(directory, 1, 0, 40, end=end, code=code)
    (told,) = tell_attempts(directory)
    assert (told.why, told.seconds, told.exit_code) == (why, 4.5, code)
    assert dict(told.sentences())["end"] == f"attempt 1 ended at step 40: {why}"


DECIDED = [
    (["kill"], True, "kill switch: it saved and stopped"),
    (["walltime"], True, "time limit: it saved and stopped"),
    (["stop"], True, "time limit: it saved and stopped"),
    (["host_memory", "kill"], True, "memory: it saved and stopped"),
    (["superseded"], False, "the guard: it stopped"),
]


@pytest.mark.parametrize(("triggers", "save", "why"), DECIDED)
def test_what_the_guard_decided_is_why_it_ended(
    directory: RunDirectory, triggers: list[str], save: bool, why: str
) -> None:
    decision = {"triggers": triggers, "save": save, "stop": True, "reasons": ["one", "two"]}
    attempt(directory, 1, 0, 40, end="stopped", code=75, **decision)
    (told,) = tell_attempts(directory)
    assert (told.why, told.reasons) == (why, ("one", "two"))
    sentences = [sentence for _, sentence in told.sentences()]
    assert sentences[1:] == [f"attempt 1 ended at step 40: {why}", "  because one", "  because two"]


def test_a_save_after_which_it_goes_on_is_told_with_its_label(directory: RunDirectory) -> None:
    attempt(directory, 1, 0, 40, triggers=["save"], save=True, stop=False, label="best", reasons=["somebody wants it"])
    (told,) = tell_attempts(directory)
    assert (told.saved, told.why, told.reasons) == (((40, "best"),), "", ())
    assert ("save 40", "attempt 1 saved at step 40 as 'best', and goes on") in told.sentences()


def test_jobs_that_a_kill_switch_turned_away_are_counted_and_finished_ones_are_not(directory: RunDirectory) -> None:
    ends = [("stopped", None), ("stopped", 3), ("finished", None), ("stopped", None)]
    for number, (end, attempt_number) in enumerate(ends):
        record = {"event": "attempt_end", "end": end, "attempt": attempt_number}
        (directory.path / layout.JOURNAL / f"{number}.batch.jsonl").write_text(json.dumps(record) + "\n")
    assert turned_away_jobs(directory) == 2


def test_steps_that_were_lost_are_counted_from_the_last_heartbeat(directory: RunDirectory) -> None:
    attempt(directory, 1, 0, 40, end="exited", code=137)
    (directory.path / "beats" / "1.n1").write_text("step = 55\nattempt = 1\n[rank.1]\nstep = 54\n")
    (directory.path / "beats" / "1.n2").write_text("step = 99\nattempt = 9\n")
    (directory.path / "beats" / "1.n3").write_bytes(b"\xff = \n")
    attempt(directory, 2, 40)
    first, second = tell_attempts(directory)
    assert (first.last_step, second.first_step, second.redone) == (55, 40, 15)
    assert dict(second.sentences()) == {"start": "attempt 2 (job 7_2) resumes at step 40, 15 steps to do again"}
    assert dict(first.sentences())["start"] == "attempt 1 (job 7_1) starts at step 0"


def test_an_attempt_that_never_trained_is_no_part_of_it(directory: RunDirectory) -> None:
    attempt(directory, 1, end="exited", code=0)
    attempt(directory, 2, 0)
    assert [told.number for told in tell_attempts(directory)] == [2]


def test_a_running_attempt_has_no_end(directory: RunDirectory) -> None:
    attempt(directory, 1, 0)
    (told,) = tell_attempts(directory)
    assert (told.why, told.seconds, told.exit_code) == ("", None, None)
    assert [key for key, _ in told.sentences()] == ["start"]


def test_without_attempts_there_is_no_story(directory: RunDirectory) -> None:
    os.mkfifo(directory.path / layout.JOURNAL / "1.0.jsonl")
    assert tell_attempts(directory) == ()
