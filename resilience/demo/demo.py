"""`resil demo`: runs a small real training as ten jobs with faults, and compares its loss with that of an uninterrupted
run.

Then a night with three faults (night.py), and a scheduler whose node dies (cron.py).
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from resilience import layout
from resilience.checkpoints.directory import StoreDirectory
from resilience.demo.cron import CronNight, play_cron
from resilience.demo.night import DemoFailed, NotifiedFault, play_night
from resilience.errors import ResilError, UsageError
from resilience.inject.checkpoint.alter import flip_bit
from resilience.job import Job, JobId, JobUpdate
from resilience.quantities import quote_toml
from resilience.runs import submit, switches
from resilience.runs.attempts import Attempt, AttemptEnd
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.runs.submit_plan import SubmitRequest
from resilience.settings.load import FILE_NAME, load
from resilience.switch import Scope
from resilience.system.files import make_directory, read_lines, read_regular, write_atomic
from resilience.system.process import DeadlineExceeded

_CAUSES = {
    "kill": "kill switch",
    "stop": "time limit",
    "walltime": "time limit",
    "signal": "signal",
    "host_memory": "memory",
    "shared_memory": "memory",
}
"""Triggers of the guard, and the causes to display."""


@dataclass(frozen=True, slots=True)
class DemoAttempt:
    """One attempt that trained.

    Attributes:
        job_id: SLURM_JOB_ID of its job.
        first_step: the checkpoint it resumed from.
        last_step: the last step it completed.
        redone: steps that the previous attempt had completed and lost.
        bad: names of checkpoints that it found damaged, and why.
        saved: the step and the label of each requested save after which the attempt continued.
        why: the reason of its end; empty while it runs.
        reasons: the reasons of the guard, if the guard stopped the attempt.
        seconds: its duration; None while it runs.
    """

    number: int
    job_id: int
    label: str
    host: str
    first_step: int
    last_step: int
    redone: int
    bad: tuple[tuple[str, str], ...]
    saved: tuple[tuple[int, str], ...]
    why: str
    reasons: tuple[str, ...]
    seconds: float | None
    exit_code: int | None

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for each known event; keys are unique."""
        for name, why in self.bad:
            yield f"bad {name}", f"attempt {self.number} sets {name} aside: {why}"
        again = f", {self.redone} steps to redo" if self.redone else ""
        if self.seconds is None or self.last_step > self.first_step:
            verb = "resumes" if self.first_step else "starts"
            yield "start", f"attempt {self.number} (job {self.label}) {verb} at step {self.first_step}{again}"
        for step, label in self.saved:
            yield f"save {step}", f"attempt {self.number} saved at step {step} as {label!r}, and continues"
        if self.why:
            yield "end", f"attempt {self.number} ended at step {self.last_step}: {self.why}"
            for reason in self.reasons:
                yield reason, f"  because {reason}"


def read_demo_attempts(directory: RunDirectory) -> tuple[DemoAttempt, ...]:
    """Return the attempts that trained, oldest first."""
    found: list[DemoAttempt] = []
    for attempt in read_attempts(directory):
        events = _journal(directory, attempt)
        first = next((_step(event) for event in events if event.get("event") == "resume"), None)
        if first is None:
            continue
        last = max([first, *map(_step, events), _beat(directory, attempt)])
        before = found[-1].last_step if found else first
        decisions = [event for event in events if event.get("event") == "decision"]
        stop = next((event for event in decisions if event.get("stop")), {}) if attempt.end else {}
        found.append(
            DemoAttempt(
                number=attempt.number,
                job_id=attempt.job_id,
                label=attempt.label,
                host=attempt.host,
                first_step=first,
                last_step=last,
                redone=max(0, before - first),
                bad=tuple(
                    (str(event.get("name")), str(event.get("why")))
                    for event in events
                    if event.get("event") == "checkpoint_bad"
                ),
                saved=tuple((_step(event), str(event.get("label"))) for event in decisions if not event.get("stop")),
                why=_why(attempt, stop),
                reasons=_texts(stop, "reasons"),
                seconds=None if attempt.end_time is None else attempt.end_time - attempt.start_time,
                exit_code=attempt.exit_code,
            )
        )
    return tuple(found)


def rejected_jobs(directory: RunDirectory) -> int:
    """Return how many jobs ended at their start because of the kill switch: they never became an attempt."""
    ends = [
        record
        for path in (directory.path / layout.JOURNAL).glob("*.batch.jsonl")
        for record in read_lines(path)
        if record.get("event") == "attempt_end" and record.get("attempt") is None
    ]
    return sum(end.get("end") == AttemptEnd.STOPPED for end in ends)


def _journal(directory: RunDirectory, attempt: Attempt) -> list[dict[str, object]]:
    path = directory.path / layout.JOURNAL / f"{attempt.job_id}.0.jsonl"
    return [record for record in read_lines(path) if record.get("attempt") == attempt.number]


def _step(event: dict[str, object]) -> int:
    return int(str(event.get("step", 0)))


def _beat(directory: RunDirectory, attempt: Attempt) -> int:
    """Return the last step in a heartbeat of this attempt, which may be newer than its last save."""
    best = 0
    for path in (directory.path / layout.BEATS).glob(f"{attempt.job_id}.*"):
        found = read_regular(path)
        whole = found[0].decode("utf-8", "replace").partition("[")[0] if found else ""  # before the ranks' own tables
        fields = dict(line.split(" = ", 1) for line in whole.splitlines() if " = " in line)
        if fields.get("attempt") == str(attempt.number) and fields.get("step", "").isdigit():
            best = max(best, int(fields["step"]))
    return best


def _texts(event: dict[str, object], key: str) -> tuple[str, ...]:
    found = event.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _why(attempt: Attempt, stop: dict[str, object]) -> str:
    """Return why an attempt ended: the guard's decision, else the exit code."""
    if attempt.end is None:
        return ""
    if attempt.end is AttemptEnd.FINISHED:
        return "finished"
    if stop:
        cause = next((_CAUSES[name] for name in _texts(stop, "triggers") if name in _CAUSES), "the guard")
        if not stop.get("save"):
            return f"{cause}: stopped"
        return f"{cause}: saved and stopped" if attempt.end is AttemptEnd.STOPPED else f"{cause}: its save failed"
    if attempt.end is AttemptEnd.STOPPED:
        return "stopped on purpose"
    if attempt.exit_code is not None and attempt.exit_code > 128:
        return f"killed by signal {attempt.exit_code - 128}"
    if attempt.end is AttemptEnd.EXITED:
        return "crashed" if attempt.exit_code else "ended"
    return attempt.end.value


FAULTS: Mapping[str, tuple[str, int]] = {"1": ("crash", 50), "2": ("kill", 110), "4": ("leak", 190)}
"""Faults that the training injects into itself: by attempt, the kind and the step."""
MIDWAY_STEPS = 10
"""Steps of an attempt before a switch is set."""
WHY = "a colleague wants the GPUs"
LABEL = "keep-this"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The timing of a demo, which depends on its scheduler.

    Attributes:
        step_s: minimum duration of a step.
        walltime_s: time left to the shortened attempt. SLURM checks time limits every 30 s.
        lead_s: how long before the limit the signal comes.
        time_limit: of every job.
        poll_s: interval at which the guard reads its switches.
        deadline_s: time limit of the demo.
    """

    step_s: float
    walltime_s: float
    lead_s: int
    time_limit: str
    poll_s: float
    deadline_s: float


TIMINGS = {
    "local": Timing(step_s=0.015, walltime_s=6.0, lead_s=5, time_limit="5", poll_s=0.1, deadline_s=90),
    "slurm": Timing(step_s=0.15, walltime_s=45.0, lead_s=30, time_limit="10", poll_s=1.0, deadline_s=600),
}


RUN = "demo"
OUTPUT = "output"
"""What the training writes, in the demo's directory."""
JOBS = 10
STEPS = 400
SAVE_EVERY = 40
POLL_S = 0.1
_TRAINING = Path(__file__).with_name("_training.py")
STORE, FINAL_LOSS, CHECKPOINT_FILE = "checkpoints", "final-loss", "model.json"
"""As `_training.py` names them in its directory."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        attempts: the ones that trained, in order.
        turned_away: how many jobs started while the kill switch was set.
        burned, burned_s: how many jobs started after the end, and their total duration.
        loss: final loss of the interrupted run, exactly as written.
        reference: final loss of the uninterrupted run.
        seconds: of the whole demo.
        night: the faults of act two and their notifications; none on a cluster.
        cron: act three; None on a cluster.
        directory: of all files, if kept.
    """

    attempts: tuple[DemoAttempt, ...]
    turned_away: int
    burned: int
    burned_s: float
    loss: float
    reference: float
    seconds: float
    directory: Path
    night: tuple[NotifiedFault, ...] = ()
    cron: CronNight | None = None

    @property
    def is_exact(self) -> bool:
        """Return whether the losses are equal to the last bit."""
        return self.loss == self.reference

    @property
    def is_notified_once(self) -> bool:
        """Return whether each fault was notified once when it started and once when it was resolved."""
        return all(fault.was_notified_once for fault in self.night)

    @property
    def is_run_once(self) -> bool:
        """Return whether the scheduler survived the loss of its node, and ran each slot once."""
        return self.cron is None or self.cron.is_well


@dataclass(slots=True)
class Stage:
    """The state of a running demo."""

    project: Project
    directory: Path
    run: RunDirectory
    timing: Timing
    array: JobId | None = None
    seen: set[str] = field(default_factory=set)

    def is_new(self, key: str) -> bool:
        """Return True for the first call with a key, False afterwards."""
        before = len(self.seen)
        self.seen.add(key)
        return len(self.seen) > before


def _runs(attempt: DemoAttempt) -> bool:
    return attempt.seconds is None


def _ended(attempt: DemoAttempt) -> bool:
    return attempt.seconds is not None


def _is_midway(attempt: DemoAttempt) -> bool:
    return _runs(attempt) and attempt.last_step >= attempt.first_step + MIDWAY_STEPS


def _shorten(stage: Stage, attempt: DemoAttempt) -> None:
    end = stage.project.system.clock.now() + stage.timing.walltime_s
    stage.project.scheduler().update(JobId(attempt.job_id), JobUpdate(end_time=end))


def _announce(stage: Stage, attempt: DemoAttempt) -> None:
    """Do nothing: the training leaks by itself."""


def _kill(stage: Stage, attempt: DemoAttempt) -> None:
    switches.set_switch(stage.project, stage.run, layout.KILL_SWITCH, why=WHY, scope=Scope.JOB)


def _flip_and_clear(stage: Stage, attempt: DemoAttempt) -> None:
    flip_bit(StoreDirectory(stage.directory / OUTPUT / STORE).checkpoints()[-1].path / CHECKPOINT_FILE)
    switches.clear(stage.project, stage.run)


def _save(stage: Stage, attempt: DemoAttempt) -> None:
    switches.set_switch(stage.project, stage.run, layout.SAVE_SWITCH, why="", scope=Scope.JOB, label=LABEL)


class Row(NamedTuple):
    """One interference with the run from outside, by a colleague or the scheduler.

    Attributes:
        attempt: the number of the attempt.
        when: the condition. An interference happens once.
        do: the interference.
        say: the message; `{left}` is the walltime left.
    """

    attempt: int
    when: Callable[[DemoAttempt], bool]
    do: Callable[[Stage, DemoAttempt], None]
    say: str


INTERFERENCES = (
    Row(3, _runs, _shorten, "attempt 3: walltime cut to {left:g} s from now"),
    Row(4, _runs, _announce, "attempt 4 will leak memory; its guard has a low memory limit"),
    Row(5, _is_midway, _kill, f'resil kill --why "{WHY}"'),
    Row(5, _ended, _flip_and_clear, "one bit of the newest checkpoint is flipped; resil clear: the run may continue"),
    Row(6, _is_midway, _save, f"resil save --label {LABEL}"),
)
"""Interferences from outside. Attempts 1, 2 and 4 fail by themselves: FAULTS."""


def due(attempt: DemoAttempt) -> Row | None:
    """Return the interference that is due for the newest attempt, or None. Pure."""
    return next((row for row in INTERFERENCES if row.attempt == attempt.number and row.when(attempt)), None)


def run_demo(
    project: Project,
    *,
    directory: Path | None,
    keep: bool,
    report: Callable[[float, str], None],
    detail: Callable[[float, str], None],
    show: Callable[[str], None],
) -> DemoResult:
    """Run the demo and return its result.

    `report(seconds, sentence)` is called for each event of the training, `detail` for each reason and for the events
    of the later acts, `show(line)` with a progress line that replaces the previous one. Raise UsageError if the
    directory is not empty, DemoFailed if the demo does not end in time or not as expected; then the directory is kept.
    """
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} already exists and is not empty", hint="use a new directory: --folder NEW")
    clock = project.system.clock
    began = clock.monotonic()
    scheduler = project.scheduler_name()
    parent = None if scheduler == "local" else project.system.cwd  # jobs on other nodes must see it
    path = directory or Path(tempfile.mkdtemp(prefix="resil-demo-", dir=parent))
    make_directory(path, mode=0o755)
    stage = _set_up(project, path, TIMINGS.get(scheduler, TIMINGS["slurm"]))
    try:
        result = _play(stage, began, report, detail, show)
        if scheduler == "local":  # acts two and three play on one machine: on a cluster they would wait for the queue

            def say(sentence: str) -> None:
                detail(clock.monotonic() - began, sentence)

            night = play_night(project.system, path / "night", say=say)
            cron = play_cron(project.system, path / "cron", say=say)
            result = replace(result, night=night, cron=cron, seconds=clock.monotonic() - began)
    except BaseException:
        _cancel_quietly(stage)
        report(clock.monotonic() - began, f"the files are kept in {path}")
        raise
    if not keep and directory is None:
        gone = path.rename(path.with_name(f".{path.name}.gone"))  # now no process can add a file
        shutil.rmtree(gone, ignore_errors=True)
    return result


def _set_up(project: Project, directory: Path, timing: Timing) -> Stage:
    """Create a separate project in the directory: resil.toml as a user would write it, and a spool."""
    command = shlex.join([*_training(directory / OUTPUT, timing.step_s), "--faults", json.dumps(FAULTS)])
    settings = f"""\
[run]
name = "{RUN}"
command = {quote_toml(command)}
template = "python"
[submit]
array = "{JOBS}"
signal_lead_s = {timing.lead_s}
[attempt]
beat_s = 1
[guard]
poll_s = {timing.poll_s}
beat_s = {timing.poll_s}
[checkpoints]
path = {quote_toml(f"{OUTPUT}/{STORE}")}
[sbatch]
time = {quote_toml(timing.time_limit)}
"""
    write_atomic(directory / FILE_NAME, settings, mode=0o644)
    # Ignore the user's own settings, except those that a cluster requires of every job (account, partition).
    environ = {
        name: value
        for name, value in project.system.environ.items()
        if name.startswith("RESIL_SBATCH__")
        or not (name == "RESIL_GUARD" or (name.startswith("RESIL_") and "__" in name))
    }
    if project.scheduler_name() == "local":
        environ["RESIL_LOCAL_SPOOL"] = str(directory / "spool")
        environ.setdefault("RESIL_LOCAL_IDLE_S", "2")
    system = replace(project.system, cwd=directory, environ=environ)
    overrides = {"scheduler.name": project.scheduler_name()}
    own = Project(system, load(system, named=directory / FILE_NAME, overrides=overrides))
    return Stage(own, directory, own.directory(RUN), timing)


def _training(output: Path, pace_s: float) -> list[str]:
    words = [sys.executable, "-u", str(_TRAINING), str(output)]
    return [*words, "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--pace", str(pace_s)]


def _play(
    stage: Stage,
    began: float,
    report: Callable[[float, str], None],
    detail: Callable[[float, str], None],
    show: Callable[[str], None],
) -> DemoResult:
    clock = stage.project.system.clock

    def say(sentence: str) -> None:
        (detail if sentence.startswith(" ") else report)(clock.monotonic() - began, sentence)

    reference = _uninterrupted(stage)
    say(f"an uninterrupted training reaches loss {reference!r} after {STEPS} steps; now the same with faults")
    request = SubmitRequest(run=RUN, time=stage.timing.time_limit)
    result = submit.perform(stage.project, submit.prepare(stage.project, request))
    stage.array = result.ids[0]
    say(f"resil submit --array {JOBS}: queued array {stage.array}, one job after another")
    for sentence in _events(stage, show, began + stage.timing.deadline_s):
        say(sentence)
    attempts = read_demo_attempts(stage.run)
    loss_file = stage.directory / OUTPUT / FINAL_LOSS
    if not loss_file.exists():
        raise DemoFailed(
            "all jobs have ended, but the training is not finished", hint=f"see the logs in {stage.run.path}"
        )
    turned_away = rejected_jobs(stage.run)
    burned = JOBS - len(attempts) - turned_away
    burned_s = _burned_s(stage)
    say(f"the other {burned} jobs found the run finished and ended in {burned_s:.1f} s in total")
    return DemoResult(
        attempts=attempts,
        turned_away=turned_away,
        burned=burned,
        burned_s=burned_s,
        loss=float(loss_file.read_text(encoding="utf-8")),
        reference=reference,
        seconds=clock.monotonic() - began,
        directory=stage.directory,
    )


def _uninterrupted(stage: Stage) -> float:
    """Return the loss of the same training without faults."""
    directory = stage.directory / "uninterrupted"
    environ = {key: value for key, value in stage.project.system.environ.items() if not key.startswith("RESIL_")}
    environ["RESIL_GUARD"] = "off"
    try:
        done = stage.project.system.runner.run(
            _training(directory, 0.0), timeout_s=stage.timing.deadline_s, env=environ
        )
    except DeadlineExceeded as error:
        raise DemoFailed(error.message, hint="this machine is very busy; try again") from error
    if done.returncode != 0:
        raise DemoFailed(f"the training cannot run here: {done.stderr.strip()[-300:]}")
    return float((directory / FINAL_LOSS).read_text(encoding="utf-8"))


def _events(stage: Stage, show: Callable[[str], None], deadline: float) -> Iterator[str]:
    """Yield a sentence for each event, until every job has ended."""
    clock = stage.project.system.clock
    while True:
        yield from _news(stage)
        yield from _interfere(stage)
        show(_progress(stage))
        if not _live(stage):
            yield from _news(stage)
            return
        if clock.monotonic() > deadline:
            raise DemoFailed("the demo did not end in time", hint=f"see the logs in {stage.run.path}")
        clock.sleep(POLL_S if stage.project.scheduler_name() == "local" else 1.0)


def _news(stage: Stage) -> Iterator[str]:
    for attempt in read_demo_attempts(stage.run):
        for key, sentence in attempt.sentences():
            if stage.is_new(f"{attempt.number} {key}"):
                yield sentence


def _interfere(stage: Stage) -> Iterator[str]:
    """Apply the interference that is due for the newest attempt, once; yield its message."""
    attempts = read_demo_attempts(stage.run)
    row = due(attempts[-1]) if attempts else None
    if row is not None and stage.is_new(row.say):
        row.do(stage, attempts[-1])
        yield row.say.format(left=stage.timing.walltime_s)


def _live(stage: Stage) -> tuple[Job, ...]:
    if stage.array is None:
        return ()
    jobs = stage.project.scheduler().jobs()
    return tuple(job for job in jobs if job.id.array == stage.array.array and job.state.is_alive)


def _burned_s(stage: Stage) -> float:
    """Return how long after the end of the training the last job ended, by files and scheduler."""
    finished = (stage.run.path / layout.FINISHED).stat().st_mtime
    jobs = stage.project.scheduler().jobs(finished=True)
    ends = [job.end_time for job in jobs if stage.array and job.id.array == stage.array.array and job.end_time]
    return max(0.0, max(ends, default=finished) - finished)


def _progress(stage: Stage) -> str:
    steps = [attempt.last_step for attempt in read_demo_attempts(stage.run)]
    step = steps[-1] if steps else 0
    filled = 30 * step // STEPS
    return f"step {step:3d}/{STEPS} [{'#' * filled}{'.' * (30 - filled)}]"


def _cancel_quietly(stage: Stage) -> None:
    """Cancel the demo's jobs after a failure; ignore errors of the scheduler."""
    try:
        stage.project.scheduler().cancel([job.id for job in _live(stage)])
    except ResilError:
        return
