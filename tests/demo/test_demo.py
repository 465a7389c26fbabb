"""The demo ends exactly, or says why not and leaves no job behind; it touches nothing of the person's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from resilience.demo import demo
from resilience.demo import plot as demo_plot
from resilience.demo.cron import CronNight
from resilience.demo.demo import DemoResult, run_demo
from resilience.demo.night import ToldFault
from resilience.demo.person import DemoFailed
from resilience.errors import UsageError
from resilience.runs.project import Project
from resilience.schedulers.local import LocalScheduler
from resilience.settings.load import FILE_NAME, Loaded
from resilience.settings.sections import SchedulerSettings, Settings
from resilience.system.process import Completed, DeadlineExceeded, ProcessRunner
from resilience.system.world import SystemClock, World
from tests.fakes import make_world


def a_project(tmp_path: Path, runner: object = None, **environ: str) -> Project:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM", "SBATCH"))}
    world = make_world(tmp_path, {**kept, **environ}, clock=SystemClock(), runner=runner or ProcessRunner())
    return Project(world, Loaded(Settings(scheduler=SchedulerSettings(name="local")), None, tmp_path))


def play(project: Project, folder: Path | None, told: list[str], keep: bool = False) -> DemoResult:
    return run_demo(
        project, folder=folder, keep=keep, tell=lambda _, sentence: told.append(sentence), show=lambda _: None
    )


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
    monkeypatch.setattr(demo_plot, "AMID_STEPS", 2)
    for module in (demo, demo_plot):
        monkeypatch.setattr(module, "FAULTS", {"1": ("crash", 25), "2": ("kill", 45), "4": ("leak", 50)})
    pace = demo_plot.Pace(step_s=0.02, walltime_s=2.0, lead_s=1, time_limit="5", look_s=0.05, deadline_s=90)
    monkeypatch.setitem(demo_plot.PACES, "local", pace)
    nights: list[Path] = []

    def play_night(world: World, folder: Path, *, say: Callable[[str], None]) -> tuple[ToldFault, ...]:
        nights.append(folder)
        return ()

    def play_cron(world: World, folder: Path, *, say: Callable[[str], None]) -> CronNight:
        nights.append(folder)
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
    folders = [tmp_path / "demo" / "night", tmp_path / "demo" / "cron"]
    assert nights == folders, "acts two and three have tests of their own: test_demo_night.py, test_demo_cron.py"
    assert result.cron is not None and result.is_run_once
    assert [attempt.why for attempt in result.attempts] == [
        "crashed", "killed by signal 9", "time limit: it saved and stopped", "memory: it saved and stopped",
        "kill switch: it saved and stopped", "finished",
    ], told  # fmt: skip
    assert [attempt.redone for attempt in result.attempts[3:]] == [0, 0, 0], "a stop on purpose loses nothing"
    assert result.attempts[1].first_step == 20 and result.attempts[1].redone == 5
    assert "a colleague wants the GPUs" in result.attempts[4].reasons[0]
    assert [label for _, label in result.attempts[5].saved] == ["keep-this"]
    assert (tmp_path / "demo" / "checkpoints" / "keep-this.json").exists()
    assert len(result.attempts) + result.turned_away + result.burned == 10
    assert any("its walltime is cut" in sentence for sentence in told)
    stage = LocalScheduler(
        clock=SystemClock(), runner=ProcessRunner(), environ={"RESIL_LOCAL_SPOOL": str(tmp_path / "demo" / "spool")}
    )
    assert stage.jobs() == (), "no job is left behind"


def test_a_folder_with_something_in_it_is_never_written_into(tmp_path: Path) -> None:
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
def test_a_training_that_cannot_run_here_ends_the_demo_with_the_reason_and_the_folder(
    tmp_path: Path, answer: Completed | Exception, said: str
) -> None:
    told: list[str] = []
    runner = FakeRunner(answer)
    with pytest.raises(DemoFailed, match=said):
        play(a_project(tmp_path, runner, RESIL_RUN_DIR="/somebody's"), tmp_path / "demo", told)
    assert told == [f"everything is kept in {tmp_path / 'demo'}"]
    assert "RESIL_RUN_DIR" not in runner.env, "the demo may be started inside a job of a run"


def test_the_two_paces_leave_room_for_the_signal_before_the_limit() -> None:
    for pace in demo_plot.PACES.values():
        assert 0 < pace.lead_s < pace.walltime_s < pace.deadline_s


def test_a_demo_is_exact_or_not() -> None:
    def result(loss: float) -> DemoResult:
        return DemoResult((), 0, 0, 0.0, loss, 0.1 + 0.2, 1.0, Path("/"))

    assert result(0.1 + 0.2).is_exact and not result(0.3).is_exact
