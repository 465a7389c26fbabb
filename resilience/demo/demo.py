"""`resil demo`: a real small training as ten jobs, hurt and steered, told live, compared with one left alone; then a
night of which people are told (demo_night.py); then a scheduler whose node dies (demo_cron.py)."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from resilience import layout
from resilience.demo.cron import CronNight, play_cron
from resilience.demo.night import ToldFault, play_night
from resilience.demo.person import DemoFailed
from resilience.demo.plot import FAULTS, LABEL, PACES, WHY, Deed, Pace, due
from resilience.demo.story import DemoAttempt, tell_attempts, turned_away_jobs
from resilience.errors import ResilError, UsageError
from resilience.job import Job, JobId, JobUpdate
from resilience.quantities import quote_toml
from resilience.runs import submit, switches
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submit_plan import SubmitRequest
from resilience.settings.load import FILE_NAME, load
from resilience.switch import Scope
from resilience.system.files import make_folder, write_atomic
from resilience.system.process import DeadlineExceeded

RUN = "demo"
JOBS = 10
STEPS = 400
SAVE_EVERY = 40
POLL_S = 0.1
_TRAINING = Path(__file__).with_name("_training.py")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """How it ended.

    Attributes:
        attempts: the ones that trained, in order.
        turned_away: how many jobs started while the kill switch was thrown.
        burned: how many jobs started after the end, and how long they took together.
        loss: final loss of the interrupted run, exactly as written.
        reference: final loss of the uninterrupted run.
        seconds: of the whole demo.
        night: the faults of act two, and what people heard of them; none on a cluster.
        cron: act three; None on a cluster.
        folder: where everything lies, when it was kept.
    """

    attempts: tuple[DemoAttempt, ...]
    turned_away: int
    burned: int
    burned_s: float
    loss: float
    reference: float
    seconds: float
    folder: Path
    night: tuple[ToldFault, ...] = ()
    cron: CronNight | None = None

    @property
    def is_exact(self) -> bool:
        """Whether interruption changed nothing, to the last bit."""
        return self.loss == self.reference

    @property
    def is_told_once(self) -> bool:
        """Whether people heard of each fault of the night once, and of its end."""
        return all(fault.was_told_once for fault in self.night)

    @property
    def is_run_once(self) -> bool:
        """Whether the scheduler outlived its node, and ran each slot once."""
        return self.cron is None or self.cron.is_well


@dataclass(slots=True)
class _Stage:
    """What the demo works with while it runs."""

    project: Project
    folder: Path
    directory: RunDirectory
    pace: Pace
    array: JobId | None = None
    told: set[str] = field(default_factory=set)

    def is_new(self, key: str) -> bool:
        """Whether this was not told, or done, yet. Asked once, it is."""
        before = len(self.told)
        self.told.add(key)
        return len(self.told) > before


def run_demo(
    project: Project,
    *,
    folder: Path | None,
    keep: bool,
    tell: Callable[[float, str], None],
    show: Callable[[str], None],
) -> DemoResult:
    """Run the demo and return how it ended.

    `tell(seconds, sentence)` is called for each event, `show(line)` with a line of progress that replaces the one
    before. Raise UsageError if the folder holds something already, DemoFailed if it does not end in time, or not as it
    must; then the folder is kept.
    """
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already, and not empty", hint="name a new folder: --folder NEW")
    clock = project.world.clock
    began = clock.monotonic()
    scheduler = project.scheduler_name()
    parent = None if scheduler == "local" else project.world.cwd  # jobs on other nodes must see it
    path = folder or Path(tempfile.mkdtemp(prefix="resil-demo-", dir=parent))
    make_folder(path, mode=0o755)
    stage = _set_up(project, path, PACES.get(scheduler, PACES["slurm"]))
    try:
        result = _play(stage, began, tell, show)
        if scheduler == "local":  # acts two and three play on one machine: on a cluster they would wait for the queue

            def say(sentence: str) -> None:
                tell(clock.monotonic() - began, sentence)

            night = play_night(project.world, path / "night", say=say)
            cron = play_cron(project.world, path / "cron", say=say)
            result = replace(result, night=night, cron=cron, seconds=clock.monotonic() - began)
    except BaseException:
        _cancel_quietly(stage)
        tell(clock.monotonic() - began, f"everything is kept in {path}")
        raise
    if not keep and folder is None:
        gone = path.rename(path.with_name(f".{path.name}.gone"))  # now nobody can put a new file into it
        shutil.rmtree(gone, ignore_errors=True)
    return result


def _set_up(project: Project, folder: Path, pace: Pace) -> _Stage:
    """A project of its own in the folder: resil.toml as a user would write it, and a spool of its own."""
    command = shlex.join([*_training(folder / "checkpoints", pace.step_s), "--faults", json.dumps(FAULTS)])
    settings = f"""\
[run]
name = "{RUN}"
command = {quote_toml(command)}
template = "python"
[submit]
array = "{JOBS}"
signal_lead_s = {pace.lead_s}
[attempt]
beat_s = 1
[guard]
poll_s = {pace.look_s}
beat_s = {pace.look_s}
[sbatch]
time = {quote_toml(pace.time_limit)}
"""
    write_atomic(folder / FILE_NAME, settings, mode=0o644)
    # The person's own settings are not the demo's, but for what their cluster asks of every job (account, partition).
    environ = {
        name: value
        for name, value in project.world.environ.items()
        if name.startswith("RESIL_SBATCH__")
        or not (name == "RESIL_GUARD" or (name.startswith("RESIL_") and "__" in name))
    }
    if project.scheduler_name() == "local":
        environ["RESIL_LOCAL_SPOOL"] = str(folder / "spool")
        environ.setdefault("RESIL_LOCAL_IDLE_S", "2")
    world = replace(project.world, cwd=folder, environ=environ)
    overrides = {"scheduler.name": project.scheduler_name()}
    own = Project(world, load(world, wanted=folder / FILE_NAME, overrides=overrides))
    return _Stage(own, folder, own.directory(RUN), pace)


def _training(checkpoints: Path, pace_s: float) -> list[str]:
    words = [sys.executable, "-u", str(_TRAINING), str(checkpoints)]
    return [*words, "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--pace", str(pace_s)]


def _play(stage: _Stage, began: float, tell: Callable[[float, str], None], show: Callable[[str], None]) -> DemoResult:
    clock = stage.project.world.clock

    def say(sentence: str) -> None:
        tell(clock.monotonic() - began, sentence)

    reference = _uninterrupted(stage)
    say(f"a training left alone reaches loss {reference!r} after {STEPS} steps; now the same, hurt")
    request = SubmitRequest(run=RUN, time=stage.pace.time_limit)
    result = submit.perform(stage.project, submit.prepare(stage.project, request))
    stage.array = result.ids[0]
    say(f"resil submit --array {JOBS}: queued array {stage.array}, one job after another")
    for sentence in _events(stage, show, began + stage.pace.deadline_s):
        say(sentence)
    attempts = tell_attempts(stage.directory)
    loss_file = stage.folder / "checkpoints" / "final-loss"
    if not loss_file.exists():
        raise DemoFailed(
            "all jobs are over and the training is not finished", hint=f"see the logs in {stage.directory.path}"
        )
    turned_away = turned_away_jobs(stage.directory)
    burned = JOBS - len(attempts) - turned_away
    burned_s = _burned_s(stage)
    say(f"the other {burned} jobs saw that it is finished and ended in {burned_s:.1f} s together")
    return DemoResult(
        attempts=attempts,
        turned_away=turned_away,
        burned=burned,
        burned_s=burned_s,
        loss=float(loss_file.read_text(encoding="utf-8")),
        reference=reference,
        seconds=clock.monotonic() - began,
        folder=stage.folder,
    )


def _uninterrupted(stage: _Stage) -> float:
    """The loss of the same training when nothing happens to it."""
    folder = stage.folder / "uninterrupted"
    environ = {key: value for key, value in stage.project.world.environ.items() if not key.startswith("RESIL_")}
    environ["RESIL_GUARD"] = "off"
    try:
        done = stage.project.world.runner.run(_training(folder, 0.0), timeout_s=stage.pace.deadline_s, env=environ)
    except DeadlineExceeded as error:
        raise DemoFailed(error.message, hint="this machine is very busy; try again") from error
    if done.returncode != 0:
        raise DemoFailed(f"the training cannot run here: {done.stderr.strip()[-300:]}")
    return float((folder / "final-loss").read_text(encoding="utf-8"))


def _events(stage: _Stage, show: Callable[[str], None], deadline: float) -> Iterator[str]:
    """Yield what happens, as sentences, until every job is over."""
    clock = stage.project.world.clock
    while True:
        yield from _news(stage)
        yield from _interfere(stage)
        show(_progress(stage))
        if not _live(stage):
            yield from _news(stage)
            return
        if clock.monotonic() > deadline:
            raise DemoFailed("the demo did not end in time", hint=f"see the logs in {stage.directory.path}")
        clock.sleep(POLL_S if stage.project.scheduler_name() == "local" else 1.0)


def _news(stage: _Stage) -> Iterator[str]:
    for attempt in tell_attempts(stage.directory):
        for key, sentence in attempt.sentences():
            if stage.is_new(f"{attempt.number} {key}"):
                yield sentence


def _interfere(stage: _Stage) -> Iterator[str]:
    """Do to the running attempt what people and schedulers do, each once; yield what was done."""
    attempts = tell_attempts(stage.directory)
    deed = due(attempts[-1]) if attempts else None
    if deed is None or not stage.is_new(deed):
        return
    attempt = attempts[-1]
    if deed is Deed.SHORTEN:
        end = stage.project.world.clock.now() + stage.pace.walltime_s
        stage.project.scheduler().update(JobId(attempt.job_id), JobUpdate(end_time=end))
        yield f"attempt {attempt.number}: its walltime is cut; {stage.pace.walltime_s:g} s are left"
    elif deed is Deed.ANNOUNCE_LEAK:
        yield f"attempt {attempt.number} will leak memory; its guard is told that little is left"
    elif deed is Deed.KILL:
        switches.set_switch(stage.project, stage.directory, layout.KILL_SWITCH, why=WHY, scope=Scope.JOB)
        yield f'resil kill --why "{WHY}"'
    elif deed is Deed.CLEAR:
        switches.clear(stage.directory)
        yield "resil clear: the run may go on"
    else:
        switches.set_switch(stage.project, stage.directory, layout.SAVE_SWITCH, why="", scope=Scope.JOB, label=LABEL)
        yield f"resil save --label {LABEL}"


def _live(stage: _Stage) -> tuple[Job, ...]:
    if stage.array is None:
        return ()
    jobs = stage.project.scheduler().jobs()
    return tuple(job for job in jobs if job.id.array == stage.array.array and job.state.is_alive)


def _burned_s(stage: _Stage) -> float:
    """How long after the end of the training the last job was over, as files and the scheduler tell."""
    finished = (stage.directory.path / layout.FINISHED).stat().st_mtime
    jobs = stage.project.scheduler().jobs(finished=True)
    ends = [job.end_time for job in jobs if stage.array and job.id.array == stage.array.array and job.end_time]
    return max(0.0, max(ends, default=finished) - finished)


def _progress(stage: _Stage) -> str:
    steps = [attempt.last_step for attempt in tell_attempts(stage.directory)]
    step = steps[-1] if steps else 0
    filled = 30 * step // STEPS
    return f"step {step:3d}/{STEPS} [{'#' * filled}{'.' * (30 - filled)}]"


def _cancel_quietly(stage: _Stage) -> None:
    """The demo is being given up: leave no job behind, whatever else goes wrong."""
    try:
        stage.project.scheduler().cancel([job.id for job in _live(stage)])
    except ResilError:
        return
