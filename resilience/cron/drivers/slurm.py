"""Makes the ticks with a chain of small jobs, for sites that offer a queue and no cron."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from resilience.cron.drivers import Availability, DriverState, Step
from resilience.cron.drivers._slurm.keeper import ChainJob, Keeper, trouble_of
from resilience.cron.drivers._slurm.script import (
    REQUEUE_SCRIPT,
    SCRIPT,
    job_name,
    render_requeue_script,
    render_script,
    time_limit_s,
)
from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ResilError, SchedulerError, SchedulerUnavailable, SettingsError
from resilience.job import Liveness
from resilience.pending_reason import explain_reason
from resilience.quantities import format_duration, parse_slurm_time_s
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import make_directory, read_regular, write_atomic

REASON_WITHIN_S = 3.0
"""`install` waits this long for the reason of its pending job: SLURM sets it within a second or two."""
FIRST_TICK_S = 45.0
"""`install` waits this long for the first tick of a job that runs: a node may start Python from a cold file server."""
OUTPUT_LINES = 5

_NEVER_HINT = (
    "compare [cron] time_limit_s (pulse_limit_s for pulses) with MaxTime in `scontrol show partition`; "
    "lower it, or set another partition in [cron] sbatch"
)


def check_mode(mode: str) -> None:
    """Raise SettingsError if this is no mode of the scheduler's jobs: `daemon` or `pulse`."""
    from resilience.messages import suggest

    if mode not in ("daemon", "pulse"):
        raise SettingsError(f"unknown mode {mode!r} in [cron]", hint=suggest(mode, ["daemon", "pulse"]))


@dataclass(frozen=True, slots=True)
class SlurmDriver:
    """The queue of SLURM or, where SLURM is not installed, of the embedded scheduler."""

    summary: str = "a chain of small jobs in the queue"
    rank: int = 40

    def availability(self, context: Context) -> Availability:
        """Check that the queue answers."""
        try:
            scheduler = context.scheduler()
            scheduler.jobs(names=["resil-cron"])
        except ResilError as error:
            return Availability(False, error.message, error.hint)
        if scheduler.name == "local":
            return Availability(True, "SLURM is not installed here; uses the embedded scheduler")
        return Availability(True, "squeue answers")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the files, and the jobs that are missing or have other options."""
        keeper, limit = _clamped(installation, settings, context)
        steps = [Step(f"write {path}", text) for path, text in _files(keeper).items() if _content(path) != text]
        planned = keeper.ask("plan")
        steps += [Step("queue a job of the chain", line) for line in planned.of("submit")]
        steps += [Step(f"then cancel surplus {_jobs(planned.ids('cancel'))}")] if planned.of("cancel") else []
        return (*(Step(note) for note in _clamp_notes(settings, installation, limit) if steps), *steps)

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the files, queue the first jobs, and wait for the first tick or the reason of its delay."""
        keeper, limit = _clamped(installation, settings, context)
        before = keeper.jobs()
        was_there, runs = any(job.state.is_alive for job in before), any(job.is_running for job in before)
        fresh, done = [], []
        mode = 0o750 if context.group else 0o700  # it runs with the owner's rights: the group must not write it
        for path, text in _files(keeper).items():
            if (old := _content(path)) != text:
                fresh += [path] if old is None else []
                make_directory(path.parent, mode=_directory(context).directory_mode)
                write_atomic(path, text, mode=mode)
                done.append(f"wrote {path}")
        answer = keeper.ask("keep")
        submitted, problem = answer.ids("submitted"), answer.problem
        try:
            if ended := answer.of("ended"):
                raise SchedulerError(f"{ended[0]} while it was being installed", hint="resil cron install")
            if problem and not submitted and not was_there:
                raise SchedulerError(
                    f"the scheduler's first job could not be queued: {problem}",
                    hint="to run without a queue: resil cron install --backend foreground",
                )
            first = _first_tick(keeper, submitted[0]) if submitted and not runs else ""
        except ResilError:
            if not was_there:
                keeper.ask("kill")
                for path in fresh:
                    path.unlink(missing_ok=True)
            raise
        if submitted:
            done += _clamp_notes(settings, installation, limit)
            rhythm = _rhythm(installation, settings, limit)
            done.append(f"queued {_jobs(submitted)} under the name {job_name(installation)}: {rhythm}")
        done += [first] if first else []
        if problem:
            done.append(f"not all jobs of the chain are queued; the running job will try again: {problem}")
        else:
            (_directory(context).path / "driver" / "trouble").unlink(missing_ok=True)
        if surplus := [number for number in answer.ids("cancelled") if number not in submitted]:
            done.append(f"cancelled surplus {_jobs(surplus)}")
        return done

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Cancel the chain's pending jobs, and signal the running one to exit when its runs have ended.

        The running job also checks by itself whether it is stopped or replaced.
        """
        keeper = _keeper(installation, replace(settings, sbatch={}), context)
        answer = keeper.ask("end")
        if answer.problem:
            raise SchedulerUnavailable(answer.problem, hint=f"scancel -n {job_name(installation)}")
        done = [f"cancelled pending {_jobs(ids)}"] if (ids := answer.ids("cancelled")) else []
        if ids := answer.ids("signalled"):
            done.append(f"signalled {_jobs(ids)} to exit when its current runs have ended, without a successor")
        for name in (REQUEUE_SCRIPT, SCRIPT):
            path = _directory(context).path / name
            if path.exists():
                path.unlink(missing_ok=True)
                done.append(f"removed {path}")
        return done

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Return which job ticks until when, how many are queued behind it, and when the next one begins."""
        try:
            jobs = _keeper(installation, replace(settings, sbatch={}), context).jobs()
            if not jobs and installation.by != context.system.host.user:
                reason = f"no job of {installation.by}'s scheduler is visible; PrivateData may hide jobs of other users"
                return DriverState(Liveness.UNKNOWN, reason, hint=f"ask {installation.by}, or check the last tick")
            return judge_chain(jobs, is_daemon=_is_daemon(installation, settings), now=context.system.clock.now())
        except ResilError as error:
            return DriverState(Liveness.UNKNOWN, f"the queue could not be read: {error.message}", hint=error.hint)
        except Exception as error:
            return DriverState(Liveness.UNKNOWN, f"the check failed: {type(error).__name__}: {error}")


def judge_chain(jobs: Sequence[ChainJob], *, is_daemon: bool, now: float) -> DriverState:
    """Return the state of the chain. Pure."""
    running = [job for job in jobs if job.is_running]
    waiting = [job for job in jobs if job.state.is_waiting]
    trouble = next((f"job {job.id} failed: {job.trouble}" for job in reversed(jobs) if job.trouble), "")
    if not running and not waiting:
        broken = "the scheduler has no job in the queue: its chain is broken"
        summary = f"{broken}; {trouble}" if trouble else broken
        return DriverState(Liveness.GONE, summary, hint="queue it again: resil cron install")
    words, hint = [], ""
    for job in running:
        where = f" on {job.node}" if job.node else ""
        words.append(f"job {job.id} runs{where}" + (f" until {_clock(job.end, now)}" if job.end else ""))
    if not waiting:
        words.append("and no job is queued behind it")
    else:
        behind = f"queued{' behind it' if running else ''}"
        words.append(f"{_jobs([job.id for job in waiting])} {'are' if len(waiting) > 1 else 'is'} {behind}")
    next_tick: float | None = None
    if running and is_daemon:
        next_tick = now
    elif waiting:
        first = min(job.id for job in waiting)  # the others may have to wait for its end
        able = [job for job in waiting if job.reason != "Dependency" or job.id == first]
        head = min(able, key=lambda job: (max(job.start or 0, job.begin, now), job.id))
        next_tick = max(head.start or 0, head.begin, now)
        if not running and (head.start or head.begin > now):
            said = " (SLURM's estimate)" if head.start else ""
            words.append(f"the next one begins at {_clock(next_tick, now)}{said}")
        if not running and head.reason not in ("", "None", "BeginTime", "Dependency"):
            why = explain_reason(head.reason, str(head.id))
            words.append(f"{head.reason}: {why.words}")
            hint = why.advice or "a shorter time_limit_s, or another partition in [cron] sbatch, may begin earlier"
    if trouble and not running:
        words.append(trouble)
        hint = hint or "try again now: resil cron install"
    return DriverState(Liveness.ALIVE, ", ".join(words), next_tick, hint)


def _first_tick(keeper: Keeper, first: int) -> str:
    """Wait for the first tick of a job; return one line. Raise SchedulerError if the job fails or can never start."""
    clock, directory = keeper.context.system.clock, _directory(keeper.context)
    began = clock.monotonic()
    while True:
        jobs = keeper.jobs()
        job = next((job for job in jobs if job.id == first), None)
        if job is not None and not job.state.is_alive and not job.trouble:  # surplus for another `install`
            job = next((other for other in jobs if other.state.is_alive), job)
            first = job.id
        heartbeat = directory.heartbeat()
        waited_s = clock.monotonic() - began
        if heartbeat is not None and heartbeat.job_id == str(first):
            return f"job {first} ticks on {heartbeat.host}"
        if job is None:
            return ""
        why = explain_reason(job.reason, str(first))
        if job.state.is_waiting and why.blocks_for_ever and not job.reason.startswith("JobHeld"):
            raise SchedulerError(
                f"SLURM accepted the scheduler's job {first} but cannot start it: {why.words} ({job.reason})",
                hint=_NEVER_HINT if _asks_too_much(job.reason) else f"{why.advice}; see [cron] sbatch",
            )
        if job.trouble or not job.state.is_alive:
            message, hint = _death(directory, job)
            raise SchedulerError(message, hint=hint)
        if job.state.is_waiting and job.reason not in ("", "None") and waited_s > REASON_WITHIN_S:
            when = f"; SLURM expects it to begin at {_clock(job.start, clock.now())}" if job.start else ""
            return f"job {first} is pending: {why.words} ({job.reason}){when}"
        if waited_s > (REASON_WITHIN_S if job.state.is_waiting else FIRST_TICK_S):
            return f"job {first} has not ticked yet: resil cron status"
        clock.sleep(0.3)


def _death(directory: CronDirectory, job: ChainJob) -> tuple[str, str]:
    """Return why the first job died, and a hint."""
    where = f" on {job.node}" if job.node else ""
    told = job.trouble or trouble_of(directory.path)[0] or f"it ended as {job.state} without a tick"
    output = directory.path / "driver" / f"{job.id}.out"
    lines = (_content(output) or "").strip().splitlines()[-OUTPUT_LINES:]
    hint = (
        f"{output}: {' / '.join(lines)}" if lines else "set state_dir in resil.toml to a directory that all nodes see"
    )
    return f"the scheduler's first job {job.id}{where} failed: {told}", hint


def _clamped(installation: Installation, settings: CronSettings, context: Context) -> tuple[Keeper, int]:
    """Return the keeper for jobs within the partition's time limit, and that limit. Raise SettingsError for options
    that would break the chain, SchedulerUnavailable if sinfo does not answer."""
    keeper = _keeper(installation, settings, context)
    wanted = limit = time_limit_s(settings, _mode(installation, settings))
    if context.scheduler().name != "local":
        given = {key.lstrip("-"): value for key, value in settings.sbatch.items()}
        named = given.get("partition") or context.system.environ.get("SBATCH_PARTITION", "")
        for text in keeper.ask("limits").of("partition"):
            name, _, most = text.partition("|")
            if name.rstrip("*") in named.split(",") if named else name.endswith("*"):
                try:
                    limit = min(limit, parse_slurm_time_s(most) or limit)
                except ResilError:  # n/a
                    continue
    return (keeper if limit == wanted else _keeper(installation, settings, context, limit)), limit


def _clamp_notes(settings: CronSettings, installation: Installation, limit: int) -> list[str]:
    wanted = time_limit_s(settings, _mode(installation, settings))
    if limit == wanted:
        return []
    key = "time_limit_s" if _is_daemon(installation, settings) else "pulse_limit_s"
    return [f"the partition allows {format_duration(limit)}, less than [cron] {key} ({format_duration(wanted)}): "
            f"each job gets {format_duration(limit)}"]  # fmt: skip


def _mode(installation: Installation, settings: CronSettings) -> str:
    return installation.mode or settings.mode


def _is_daemon(installation: Installation, settings: CronSettings) -> bool:
    return _mode(installation, settings) != "pulse"


def _asks_too_much(reason: str) -> bool:
    """Return whether the time limit may be the reason: SLURM reports PartitionTimeLimit or PartitionConfig."""
    return reason == "PartitionConfig" or "TimeLimit" in reason or "WallDuration" in reason


def _clock(seconds: float, now: float) -> str:
    """Return the time of day, with the date if it is not today."""
    then, today = time.localtime(seconds), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def _jobs(ids: Sequence[int]) -> str:
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(map(str, ids))}"


def _rhythm(installation: Installation, settings: CronSettings, limit: int) -> str:
    if _is_daemon(installation, settings):
        return f"one runs for up to {format_duration(limit)} and ticks, 2 are queued behind it"
    return f"a pulse every {format_duration(settings.pulse_s)}, 2 queued ahead"


def _directory(context: Context) -> CronDirectory:
    return CronDirectory(context.state_dir, context.group)


def _keeper(installation: Installation, settings: CronSettings, context: Context, limit: int = 0) -> Keeper:
    scheduler, environ = context.scheduler(), context.system.environ
    spool = str(getattr(scheduler, "spool", ""))
    tools = [str(scheduler.commands())] if spool else []  # type: ignore[attr-defined]
    script = render_script(
        installation,
        settings,
        state=str(_directory(context).path),
        config=str(context.project / "resil.toml") if context.has_settings else "",
        scheduler=scheduler.name,
        environ=environ,
        limit=limit or time_limit_s(settings, _mode(installation, settings)),
        tool_directories=(*tools, *_tool_directories(environ.get("PATH"))),
        shared=bool(context.group),
        spool=spool,
    )
    return Keeper(installation, script, context)


def _files(keeper: Keeper) -> dict[Path, str]:
    """Return the files that `install` writes, with their text."""
    path = _directory(keeper.context).path
    return {path / SCRIPT: keeper.script, path / REQUEUE_SCRIPT: render_requeue_script(str(path))}


def _tool_directories(path: str | None) -> Iterator[str]:
    for program in ("sbatch", "squeue"):
        found = shutil.which(program, path=path)
        if found is not None:
            yield str(Path(found).absolute().parent)


def _content(path: Path) -> str | None:
    found = read_regular(path, 1 << 20)
    return found[0].decode("utf-8", "surrogateescape") if found is not None else None


DRIVER = SlurmDriver()
