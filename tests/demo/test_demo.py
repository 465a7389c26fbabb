"""The demo ends exactly, or says why not and leaves no job behind; it touches nothing of the person's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from resilience import layout
from resilience.checkpoints.directory import StoreDirectory
from resilience.demo import demo
from resilience.demo.cron import CronNight
from resilience.demo.demo import MIDWAY_STEPS, DemoAttempt, DemoResult, due, read_demo_attempts, rejected_jobs, run_demo
from resilience.demo.night import DemoFailed, NotifiedFault
from resilience.errors import UsageError
from resilience.report.goodput import Category
from resilience.report.reading import read_goodput
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.schedulers.local import LocalScheduler
from resilience.settings.load import FILE_NAME, Loaded
from resilience.settings.sections import SchedulerSettings, Settings
from resilience.system.ports import System, SystemClock
from resilience.system.process import Completed, DeadlineExceeded, ProcessRunner
from tests.lab.fakes import make_system


def a_project(tmp_path: Path, runner: object = None, **environ: str) -> Project:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "SBATCH"))}
    system = make_system(tmp_path, {**kept, **environ}, clock=SystemClock(), runner=runner or ProcessRunner())
    return Project(system, Loaded(Settings(scheduler=SchedulerSettings(name="local")), None, tmp_path))


def play(project: Project, directory: Path | None, told: list[str], keep: bool = False) -> DemoResult:
    def tell(_: float, sentence: str) -> None:
        told.append(sentence)

    return run_demo(project, directory=directory, keep=keep, report=tell, detail=tell, show=lambda _: None)


class FakeRunner:
    """Ends the uninterrupted training as told."""

    def __init__(self, answer: Completed | Exception) -> None:
        self.answer = answer
        self.env: dict[str, str] = {}

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, **_: object
    ) -> Completed:
        self.env = dict(env or {})
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_short_demo_is_hurt_and_steered_and_ends_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEPS", 300)
    monkeypatch.setattr(demo, "SAVE_EVERY", 20)
    monkeypatch.setattr(demo, "MIDWAY_STEPS", 2)
    monkeypatch.setattr(demo, "FAULTS", {"1": ("crash", 25), "2": ("kill", 45), "4": ("leak", 50)})
    pace = demo.Timing(step_s=0.02, walltime_s=9.0, lead_s=8, time_limit="5", poll_s=0.05, deadline_s=90)
    monkeypatch.setitem(demo.TIMINGS, "local", pace)
    nights: list[Path] = []

    def play_night(system: System, directory: Path, *, say: Callable[[str], None]) -> tuple[NotifiedFault, ...]:
        nights.append(directory)
        return ()

    def play_cron(system: System, directory: Path, *, say: Callable[[str], None]) -> CronNight:
        nights.append(directory)
        return CronNight("1", "2", "CRITICAL", 1.0, 9, 0, 0)

    monkeypatch.setattr(demo, "play_night", play_night)
    monkeypatch.setattr(demo, "play_cron", play_cron)
    told: list[str] = []
    strange = {"RUN__STATE_DIR": "/nope", "RUN__COMMAND": "false", "SUBMIT__ARRAY": "99", "GUARD__POLL_S": "9"}
    project = a_project(
        tmp_path, RESIL_LOCAL_IDLE_S="0.2", RESIL_LOCAL_KILL_WAIT_S="1", RESIL_GUARD="off",
        **{f"RESIL_{name}": value for name, value in strange.items()},
    )  # fmt: skip
    result = play(project, tmp_path / "demo", told)
    assert result.is_exact, told
    directories = [tmp_path / "demo" / "night", tmp_path / "demo" / "cron"]
    assert nights == directories, "acts two and three have tests of their own: test_night.py, test_cron.py"
    assert result.cron is not None and result.is_run_once
    whys = [attempt.why for attempt in result.attempts]
    assert whys[3] in ("memory: saved and stopped", "memory: stopped"), "after a save of its own if one fits"
    assert [*whys[:3], *whys[4:]] == [
        "crashed", "killed by signal 9", "time limit: saved and stopped", "kill switch: saved and stopped", "finished",
    ], told  # fmt: skip
    redone = [attempt.redone for attempt in result.attempts[3:]]
    assert redone[0] == 0, "a stop on purpose loses nothing"
    ((damaged, why),) = result.attempts[5].bad
    assert "model.json has other content than was committed" in why
    assert damaged == f"step-{result.attempts[4].last_step:08d}" and 0 < redone[2] <= 40, "one bit costs one checkpoint"
    between_polls = 0 if whys[3] == "memory: saved and stopped" else 19  # a save of its own came just before the stop
    assert redone[1] <= between_polls
    assert result.attempts[1].first_step == 20 and result.attempts[1].redone == 5
    assert "a colleague wants the GPUs" in result.attempts[4].reasons[0]
    assert [label for _, label in result.attempts[5].saved] == ["keep-this"]
    store = StoreDirectory(tmp_path / "demo" / "output" / "checkpoints")
    assert "keep-this" in [checkpoint.manifest().label for checkpoint in store.checkpoints()]
    assert store.bad() == [damaged]
    assert len(result.attempts) + result.turned_away + result.burned == 10
    assert any("walltime cut" in sentence for sentence in told)
    time = read_goodput(project, RunDirectory(tmp_path / "demo" / ".resil" / "demo"), ask_scheduler=False)
    assert sum(time.ms.values()) == time.wall_ms and 0 < time.kept_steps <= 300 and time.ms[Category.PRODUCTIVE] > 0
    assert [one.ended for one in time.by_attempt][-1] == "finished" and len(time.by_attempt) == len(result.attempts)
    assert time.ms[Category.UNKNOWN] < time.wall_ms / 5, "a real guard tells nearly all of it"
    stage = LocalScheduler(
        clock=SystemClock(), runner=ProcessRunner(), environ={"RESIL_LOCAL_SPOOL": str(tmp_path / "demo" / "spool")}
    )
    assert stage.jobs() == (), "no job is left behind"


def test_a_directory_with_something_in_it_is_never_written_into(tmp_path: Path) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    (own / FILE_NAME).write_text("# weeks of tuning\n")
    with pytest.raises(UsageError, match="not empty") as caught:
        play(a_project(tmp_path), own, [])
    assert "--folder NEW" in caught.value.hint
    assert [path.name for path in own.iterdir()] == [FILE_NAME]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        play(a_project(tmp_path), tmp_path / "file", [])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (DeadlineExceeded("python did not end in 90 s"), "did not end in 90 s"),
        (
            Completed(("python",), 1, "", "x" * 900 + "no module named math"),
            "the training cannot run here: .*named math",
        ),
    ],
    ids=["slow", "broken"],
)
def test_a_training_that_cannot_run_here_ends_the_demo_with_the_reason_and_the_directory(
    tmp_path: Path, answer: Completed | Exception, said: str
) -> None:
    told: list[str] = []
    runner = FakeRunner(answer)
    with pytest.raises(DemoFailed, match=said):
        play(a_project(tmp_path, runner, RESIL_RUN_DIR="/somebody's"), tmp_path / "demo", told)
    assert told == [f"the files are kept in {tmp_path / 'demo'}"]
    assert "RESIL_RUN_DIR" not in runner.env, "the demo may be started inside a job of a run"


def test_the_two_paces_leave_room_for_the_signal_before_the_limit() -> None:
    for pace in demo.TIMINGS.values():
        assert 0 < pace.lead_s < pace.walltime_s < pace.deadline_s


def test_a_demo_is_exact_or_not() -> None:
    def result(loss: float) -> DemoResult:
        return DemoResult((), 0, 0, 0.0, loss, 0.1 + 0.2, 1.0, Path("/"))

    assert result(0.1 + 0.2).is_exact and not result(0.3).is_exact


def newest_of(number: int, steps: int, *, runs: bool = True) -> DemoAttempt:
    return DemoAttempt(
        number,
        7,
        f"7_{number}",
        "n1",
        40,
        40 + steps,
        0,
        (),
        (),
        "" if runs else "ended",
        (),
        None if runs else 1.5,
        None,
    )


@pytest.mark.parametrize(
    ("newest", "deed"),
    [
        (newest_of(1, 50), None),
        (newest_of(3, 0), demo._shorten),
        (newest_of(3, 0, runs=False), None),
        (newest_of(4, 0), demo._announce),
        (newest_of(5, MIDWAY_STEPS - 1), None),
        (newest_of(5, MIDWAY_STEPS), demo._kill),
        (newest_of(5, MIDWAY_STEPS, runs=False), demo._flip_and_clear),
        (newest_of(6, MIDWAY_STEPS - 1), None),
        (newest_of(6, MIDWAY_STEPS), demo._save),
        (newest_of(6, 200, runs=False), None),
        (newest_of(7, 200), None),
    ],
)
def test_each_attempt_has_its_own_fate(newest: DemoAttempt, deed: object) -> None:
    row = due(newest)
    assert (row and row.do) is deed


def test_no_attempt_is_hurt_in_two_ways() -> None:
    steered = {row.attempt for row in demo.INTERFERENCES if row.do is not demo._announce}
    assert sorted([*map(int, demo.FAULTS), *steered]) == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "demo")
    made.create("")
    return made


def attempt(
    directory: RunDirectory, number: int, *steps: int, end: str = "", code: int | None = None, **decision: object
) -> None:
    """An attempt that resumed at the first of the steps and saved at the others; then the guard decided."""
    attempts = directory.path / layout.ATTEMPTS
    name = f"{number:04d}"
    (attempts / name).write_text(f'job_id = {number}\nlabel = "7_{number}"\nhost = "n1"\nstart = 10.0\n')
    if end:
        exit_code = "" if code is None else f"exit_code = {code}\n"
        (attempts / f"{name}.end").write_text(f'end = "{end}"\ntime = 14.5\n{exit_code}')
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
    (found,) = read_demo_attempts(directory)
    assert (found.why, found.seconds, found.exit_code) == (why, 4.5, code)
    assert dict(found.sentences())["end"] == f"attempt 1 ended at step 40: {why}"


DECIDED = [
    (["kill"], True, "kill switch: saved and stopped"),
    (["walltime"], True, "time limit: saved and stopped"),
    (["stop"], True, "time limit: saved and stopped"),
    (["host_memory", "kill"], True, "memory: saved and stopped"),
    (["superseded"], False, "the guard: stopped"),
]


@pytest.mark.parametrize(("triggers", "save", "why"), DECIDED)
def test_what_the_guard_decided_is_why_it_ended(
    directory: RunDirectory, triggers: list[str], save: bool, why: str
) -> None:
    decision = {"triggers": triggers, "save": save, "stop": True, "reasons": ["one", "two"]}
    attempt(directory, 1, 0, 40, end="stopped", code=75, **decision)
    (found,) = read_demo_attempts(directory)
    assert (found.why, found.reasons) == (why, ("one", "two"))
    sentences = [sentence for _, sentence in found.sentences()]
    assert sentences[1:] == [f"attempt 1 ended at step 40: {why}", "  because one", "  because two"]


def test_a_save_after_which_it_goes_on_is_told_with_its_label(directory: RunDirectory) -> None:
    attempt(directory, 1, 0, 40, triggers=["save"], save=True, stop=False, label="best", reasons=["somebody wants it"])
    (found,) = read_demo_attempts(directory)
    assert (found.saved, found.why, found.reasons) == (((40, "best"),), "", ())
    assert ("save 40", "attempt 1 saved at step 40 as 'best', and continues") in found.sentences()


def test_jobs_that_a_kill_switch_turned_away_are_counted_and_finished_ones_are_not(directory: RunDirectory) -> None:
    ends = [("stopped", None), ("stopped", 3), ("finished", None), ("stopped", None)]
    for number, (end, attempt_number) in enumerate(ends):
        record = {"event": "attempt_end", "end": end, "attempt": attempt_number}
        (directory.path / layout.JOURNAL / f"{number}.batch.jsonl").write_text(json.dumps(record) + "\n")
    assert rejected_jobs(directory) == 2


def test_steps_that_were_lost_are_counted_from_the_last_heartbeat(directory: RunDirectory) -> None:
    attempt(directory, 1, 0, 40, end="exited", code=137)
    (directory.path / "beats" / "1.n1").write_text("step = 55\nattempt = 1\n[rank.1]\nstep = 54\n")
    (directory.path / "beats" / "1.n2").write_text("step = 99\nattempt = 9\n")
    (directory.path / "beats" / "1.n3").write_bytes(b"\xff = \n")
    attempt(directory, 2, 40)
    first, second = read_demo_attempts(directory)
    assert (first.last_step, second.first_step, second.redone) == (55, 40, 15)
    assert dict(second.sentences()) == {"start": "attempt 2 (job 7_2) resumes at step 40, 15 steps to redo"}
    assert dict(first.sentences())["start"] == "attempt 1 (job 7_1) starts at step 0"


def test_an_attempt_that_never_trained_is_no_part_of_it(directory: RunDirectory) -> None:
    attempt(directory, 1, end="exited", code=0)
    attempt(directory, 2, 0)
    assert [told.number for told in read_demo_attempts(directory)] == [2]


def test_a_running_attempt_has_no_end(directory: RunDirectory) -> None:
    attempt(directory, 1, 0)
    (found,) = read_demo_attempts(directory)
    assert (found.why, found.seconds, found.exit_code) == ("", None, None)
    assert [key for key, _ in found.sentences()] == ["start"]


def test_without_attempts_there_is_no_story(directory: RunDirectory) -> None:
    os.mkfifo(directory.path / layout.JOURNAL / "1.0.jsonl")
    assert read_demo_attempts(directory) == ()
