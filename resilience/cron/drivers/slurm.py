"""Makes the ticks with a chain of small jobs, for sites that offer a queue and no cron."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilience.cron.drivers import Availability, DriverState, Step
from resilience.cron.drivers._slurm.chain import SUCCESSORS, Mode
from resilience.cron.drivers._slurm.keeper import Keeper, mode_of, token_in
from resilience.cron.drivers._slurm.script import (
    REQUEUE_SCRIPT,
    SCRIPT,
    render_requeue_script,
    render_script,
    sbatch_options,
    time_limit_s,
)
from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ResilError, SchedulerError, SettingsError
from resilience.job import Job, Liveness
from resilience.pending_reason import explain_reason
from resilience.quantities import format_duration
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import make_directory, read_regular, write_atomic

REASON_WITHIN_S = 3.0
"""`install` waits this long for the reason of its pending job: SLURM sets it within a second or two."""


_NEVER_HINT = (
    "compare [cron] time_limit_s (pulse_limit_s for pulses) with MaxTime in `scontrol show partition`; "
    "lower it, or set another partition in [cron] sbatch"
)


def check_mode(mode: str) -> None:
    """Raise SettingsError if this is no mode of the scheduler's jobs: `daemon` or `pulse`."""
    from resilience.messages import suggest

    if mode not in set(Mode):
        raise SettingsError(f"unknown mode {mode!r} in [cron]", hint=suggest(mode, list(Mode)))


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
        """Return the files, and the missing jobs."""
        keeper = _keeper(installation, settings, context)
        steps = [
            Step(f"write {path}", text)
            for path, (text, _) in _files(installation, settings, context).items()
            if _content(path) != text
        ]
        for request in keeper.plan(keeper.queued_jobs()).submit:
            words = keeper.scheduler.command_line(keeper.submission(request))
            steps.append(Step("queue a job of the chain", " ".join(words)))
        return steps

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the files, and queue the first jobs."""
        keeper = _keeper(installation, settings, context)
        sbatch_options(keeper.name, settings, mode_of(installation, settings))  # reject before anything is written
        done = []
        files = _files(installation, settings, context)
        fresh = [path for path in files if _content(path) is None]
        for path, (text, mode) in files.items():
            if _content(path) != text:
                make_directory(path.parent, mode=keeper.directory.directory_mode)
                write_atomic(path, text, mode=mode)
                done.append(f"wrote {path}")
        kept = keeper.keep()
        try:
            if kept.ended:
                raise SchedulerError(f"{kept.ended} while it was being installed", hint="resil cron install")
            if kept.problem and not kept.waiting and not keeper.plan(keeper.queued_jobs()).waiting:
                raise SchedulerError(
                    f"the scheduler's first job could not be queued: {kept.problem}",
                    hint=kept.hint or "to run without a queue: resil cron install --backend foreground",
                )
            if kept.submitted:
                self._refuse_never(keeper, kept.submitted)
        except ResilError:
            if not kept.waiting or len(kept.submitted) == kept.waiting:  # nothing was there before
                keeper.cancel_all(running=True)
                for path in fresh:
                    path.unlink(missing_ok=True)
            raise
        if kept.submitted:
            done.append(
                f"queued {_jobs(kept.submitted)} under the name {keeper.name}: {_rhythm(installation, settings)}"
            )
        if kept.is_stuck:
            done.append(f"{kept.problem}: {kept.hint}")
        elif kept.problem:
            done.append(f"some successors could not be queued; the jobs will try again: {kept.problem}")
        if kept.cancelled:
            done.append(f"cancelled surplus {_jobs(kept.cancelled)}")
        return done

    def _refuse_never(self, keeper: Keeper, submitted: Sequence[int]) -> None:
        """Raise SchedulerError if a queued job can never start: some sites accept such jobs."""
        until = keeper.clock.monotonic() + REASON_WITHIN_S
        while True:
            ours = [job for job in keeper.jobs() if job.id.array in submitted]
            for job in ours:
                why = explain_reason(job.reason, str(job.id))
                if job.state.is_waiting and why.blocks_for_ever and not job.reason.startswith("JobHeld"):
                    raise SchedulerError(
                        f"SLURM accepted the scheduler's job {job.id} but cannot start it: {why.words} ({job.reason})",
                        hint=_NEVER_HINT if _asks_too_much(job.reason) else f"{why.advice}; see [cron] sbatch",
                    )
            first = next((job for job in ours if job.id.array == min(submitted)), None)
            known = first is None or not first.state.is_waiting or first.reason not in ("", "None")
            if known or keeper.clock.monotonic() > until:
                return
            keeper.clock.sleep(0.2)

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Cancel the chain's pending jobs, and signal the running one to exit when its runs have ended.

        The running job also checks by itself whether it is stopped or replaced.
        """
        keeper = _keeper(installation, settings, context)
        cancelled = keeper.cancel_all(running=False)
        done = [f"cancelled pending {_jobs(cancelled)}"] if cancelled else []
        if signalled := keeper.signal_exit():
            done.append(f"signalled {_jobs(signalled)} to exit when its current runs have ended, without a successor")
        for name in (REQUEUE_SCRIPT, SCRIPT):
            path = keeper.directory.path / name
            if path.exists():
                path.unlink(missing_ok=True)
                done.append(f"removed {path}")
        return done

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Return which job ticks until when, and how many are queued behind it."""
        try:
            keeper = _keeper(installation, settings, context)
            jobs = sorted(keeper.jobs(), key=lambda job: job.id.array)
            if not jobs and not keeper.is_mine:
                reason = f"no job of {installation.by}'s scheduler is visible; PrivateData may hide jobs of other users"
                return DriverState(Liveness.UNKNOWN, reason, hint=f"ask {installation.by}, or check the last tick")
            return _judge(jobs, installation, settings, context.system.clock.now())
        except ResilError as error:
            return DriverState(Liveness.UNKNOWN, f"the queue could not be read: {error.message}", hint=error.hint)
        except Exception as error:
            return DriverState(Liveness.UNKNOWN, f"the check failed: {type(error).__name__}: {error}")


def _judge(jobs: Sequence[Job], installation: Installation, settings: CronSettings, now: float) -> DriverState:
    """Return the state of the chain. Pure."""
    ours = [job for job in jobs if (token := token_in(job)) is not None and token.installation == installation.token]
    running = [job for job in ours if not job.state.is_waiting and job.state != "COMPLETING"]
    waiting = [job for job in ours if job.state.is_waiting]
    again = "queue it again: resil cron install"
    if not running and not waiting:
        return DriverState(Liveness.GONE, "the scheduler has no job in the queue: its chain is broken", hint=again)
    words, hint = [], ""
    for job in running:
        where = f" on {job.nodes}" if job.nodes else ""
        ends = f" until {_clock(job.end_time, now)}" if job.end_time else ""
        words.append(f"job {job.id} runs{where}{ends}")
    behind = " behind it" if running else ""
    if not waiting:
        words.append("and no job is queued behind it")
    else:
        words.append(f"{_jobs([job.id.array for job in waiting])} {'are' if len(waiting) > 1 else 'is'} queued{behind}")
    next_tick: float | None = now if running and mode_of(installation, settings) is Mode.DAEMON else None
    if not running:
        head = waiting[0]
        why = explain_reason(head.reason, str(head.id))
        if head.reason not in ("", "None", "BeginTime", "Dependency"):
            words.append(f"{head.reason}: {why.words}")
            hint = why.advice
    if next_tick is None:
        starts = [token.seed for job in waiting if (token := token_in(job)) is not None and token.mode is Mode.PULSE]
        next_tick = max(min(starts), now) if starts else None
    return DriverState(Liveness.ALIVE, ", ".join(words), next_tick, hint)


def _asks_too_much(reason: str) -> bool:
    """Return whether the time limit may be the reason: SLURM reports PartitionTimeLimit or PartitionConfig."""
    return reason == "PartitionConfig" or "TimeLimit" in reason or "WallDuration" in reason


def _clock(seconds: float, now: float) -> str:
    """Return the time of day, with the date if it is not today."""
    import time

    then, today = time.localtime(seconds), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def _jobs(ids: Sequence[int]) -> str:
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(map(str, ids))}"


def _rhythm(installation: Installation, settings: CronSettings) -> str:
    if mode_of(installation, settings) is Mode.PULSE:
        return f"a pulse every {format_duration(settings.pulse_s)}, {SUCCESSORS} queued ahead"
    limit = format_duration(time_limit_s(settings, Mode.DAEMON))
    return f"one runs for up to {limit} and ticks, {SUCCESSORS} are queued behind it"


def _keeper(installation: Installation, settings: CronSettings, context: Context) -> Keeper:
    directory = CronDirectory(context.state_dir, context.group)
    system = context.system
    return Keeper(directory, installation, settings, context.scheduler(), system.clock, me=system.host.user)


def _files(installation: Installation, settings: CronSettings, context: Context) -> dict[Path, tuple[str, int]]:
    """Return the files that `install` writes, with text and mode."""
    directory = CronDirectory(context.state_dir, context.group)
    environ = context.system.environ
    scheduler = context.scheduler()
    script = render_script(
        installation,
        settings,
        state=str(directory.path),
        config=str(context.project / "resil.toml") if context.has_settings else "",
        scheduler=scheduler.name,
        environ=environ,
        tool_directories=tuple(_tool_directories(environ.get("PATH"))),
        shared=bool(context.group),
        spool=str(getattr(scheduler, "spool", "")),
    )
    # The script runs with the owner's rights, so the group must not be able to write it.
    mode = 0o750 if context.group else 0o700
    return {
        directory.path / SCRIPT: (script, mode),
        directory.path / REQUEUE_SCRIPT: (render_requeue_script(str(directory.path)), mode),
    }


def _tool_directories(path: str | None) -> Iterator[str]:
    for program in ("sbatch", "squeue"):
        found = shutil.which(program, path=path)
        if found is not None:
            yield str(Path(found).absolute().parent)


def _content(path: Path) -> str | None:
    found = read_regular(path, 1 << 20)
    return found[0].decode("utf-8", "surrogateescape") if found is not None else None


DRIVER = SlurmDriver()
