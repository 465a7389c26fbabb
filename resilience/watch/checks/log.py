"""`resil watch log`: trainings that stop making progress, which is a greater step in the log or the guard's heartbeat.

Also reports what the guard recorded of a NaN or spiking loss and of failed saves.
"""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH100, PTH110, PTH118

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from string import Template

from resilience import layout
from resilience.base.mounts import current_mounts, mount_of
from resilience.base.processes import boot_id
from resilience.errors import ProbeError, SettingsError
from resilience.finding import Finding
from resilience.job import JobId
from resilience.messages import plural
from resilience.runs.context import Context
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import Queues, scheduler_of
from resilience.runs.submissions import read_intents
from resilience.watch.checks._log.judge import deadline_of, findings
from resilience.watch.checks._log.paths import probe_paths
from resilience.watch.checks._log.reading import (
    ANY,
    EACH,
    NEWEST,
    ON_HANG,
    LogReading,
    LogSettings,
    Moment,
    jump_s,
    shifted,
)
from resilience.watch.checks._log.runs import lessons, probe_runs
from resilience.watch.checks._log.tail import LogReader
from resilience.watch.checks._log.teaching import taught
from resilience.watch.processor import BACKTRACKS, cpu_limit, no_collection
from resilience.watch.reading import Memory, Target, Timed

REGEX_CPU_S = 1.0
"""The CPU limit of `progress_regex` for one log and probe."""
QUERY_S = 4.0
"""The time for each query of the scheduler, which is made only for runs with a user's own script and for quiet logs."""
LEAST_READ_BYTES = 4096


class LogCheck:
    """The watchdog of logs and heartbeats."""

    summary = "progress of trainings: steps in the log, the guard's heartbeat, loss and saves"
    Settings = LogSettings
    Reading = LogReading
    memory = Memory(count=1)
    argument = "paths"
    path_fields = ("learn",)  # relative to the current directory on the command line
    example = "resil watch log 'logs/*.out'"

    def targets(self, settings: LogSettings, context: Context) -> Sequence[Target]:
        """Return a target for each file system with logs: ten thousand logs need one child, and a hung mount affects
        only its own. Without paths, the target is the state directory."""
        check_settings(settings)
        return [Target(name, subjects) for name, subjects in _groups(settings, context).items()]

    def probe(
        self, target: Target, settings: LogSettings, context: Context, before: Mapping[str, Timed[LogReading]]
    ) -> Mapping[str, LogReading]:
        """Read the new part of the logs of one file system, or of the runs of the state directory."""
        clock = context.system.clock
        moment: Moment = (clock.now(), clock.monotonic(), boot_id()[:8])
        known = {subject: _moved(timed.reading, moment) for subject, timed in before.items()}
        own = compiled(settings.progress_regex) if settings.progress_regex else None
        if settings.learn:
            paths = [str(context.project / Path(text).expanduser()) for text in settings.learn]
            known = taught(known, _learners(target, settings, context), paths, own)
        with no_collection(), _bounded(own) as arm:
            reader = LogReader(settings, moment, own, arm, _cpu_seconds(context))
            return _probe(target, settings, context, known, reader)

    def judge(
        self, subject: str, readings: Sequence[Timed[LogReading]], settings: LogSettings, now: float
    ) -> Sequence[Finding]:
        """Return the findings about the newest reading."""
        return findings(subject, readings[-1].reading, settings, now)

    def deadline(
        self, reading: LogReading, settings: LogSettings, now: float
    ) -> tuple[tuple[str, ...], float, float] | None:
        """Return (paths, last progress, timeout), by which the daemon schedules a probe between ticks, or None."""
        return deadline_of(reading, settings, now)


CHECK = LogCheck()


def _learners(target: Target, settings: LogSettings, context: Context) -> Sequence[str]:
    """Return the subjects that `learn` teaches. Raise ProbeError if it is not clear which run is meant."""
    if settings.paths:
        return target.subjects
    runs = [directory.run for directory in context.runs()]
    if len(runs) > 1:
        hint = f"name the run: resil watch log {runs[0]} --learn {settings.learn[0]}"
        raise ProbeError(f"--learn teaches one run, and there are {len(runs)}", hint=hint)
    return runs


QUESTIONS_S = 2 * QUERY_S
"""The time in one tick after which the CPU time of no other job is asked for."""


def _cpu_seconds(context: Context) -> Callable[[RunDirectory, str], float | None]:
    """Return a function that asks the scheduler for the CPU seconds of a run's job: None if it does not know them."""
    clock = context.system.clock
    until = clock.monotonic() + QUESTIONS_S

    def ask(directory: RunDirectory, job: str) -> float | None:
        from resilience.base.background import BackgroundCall

        if clock.monotonic() > until:
            return None

        def seconds() -> float:
            return context.scheduler(scheduler_of(read_intents(directory))).cpu_seconds(JobId.parse(job))

        try:
            return BackgroundCall(seconds, "CPU time").result(QUERY_S)
        except Exception:  # of a plugin: the second witness may be missing, but must not stop the watchdog
            return None

    return ask


def check_settings(settings: LogSettings) -> None:
    """Raise SettingsError for invalid settings."""
    if settings.files not in (EACH, NEWEST, ANY):
        raise SettingsError(f"files = {settings.files!r} must be {EACH}, {NEWEST} or {ANY}")
    if settings.on_hang not in ON_HANG:
        raise SettingsError(f"on_hang = {settings.on_hang!r} must be {', '.join(ON_HANG[:-1])} or {ON_HANG[-1]}")
    if settings.factor < 1:
        raise SettingsError(f"factor = {settings.factor:g} must be at least 1", hint="factor = 5")
    if settings.timeout_s is not None and settings.timeout_s <= 0:
        raise SettingsError(f"timeout_s = {settings.timeout_s:g} must be more than 0", hint='timeout_s = "20m"')
    if settings.timeout_s is None and settings.ceiling_s is not None and settings.floor_s > settings.ceiling_s:
        raise SettingsError(f"floor_s ({settings.floor_s:g}) is above ceiling_s ({settings.ceiling_s:g})")
    if settings.read_bytes < LEAST_READ_BYTES:
        raise SettingsError(f"read_bytes must be at least {LEAST_READ_BYTES}")
    if any(not path or "\0" in path for path in settings.paths):
        raise SettingsError("an item of `paths` is empty or contains a NUL byte")
    if settings.progress_regex:
        compiled(settings.progress_regex)


@lru_cache(maxsize=8)
def compiled(text: str) -> re.Pattern[bytes]:
    """Compile `progress_regex`. Raise SettingsError if it is invalid or does not have exactly one group."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pattern = re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}: {text[: error.pos]} <-- here"
        raise SettingsError(f"progress_regex {text!r} is not a regular expression: {error.msg}{place}") from None
    except (OverflowError, RecursionError, ValueError) as error:
        raise SettingsError(f"progress_regex {text[:80]!r} is not a regular expression: {error}") from None
    if pattern.groups != 1:
        raise SettingsError(
            f"progress_regex {text!r} has {pattern.groups} groups and needs exactly one, for the step",
            hint=r"progress_regex = 'iteration\s+(\d+)/'; other brackets are written (?:...)",
        )
    return pattern


def _groups(settings: LogSettings, context: Context) -> dict[str, tuple[str, ...]]:
    """Return the subjects of each target by its name: a mount point, or the state directory."""
    if not settings.paths:
        return {str(context.state_dir): (str(context.state_dir),)}
    mounts = current_mounts()
    groups: dict[str, list[str]] = {}
    for text in settings.paths:
        subject = _subject(text, context)
        mount = mount_of(context.state_dir if _may_be_run(text) else Path(subject), mounts)
        groups.setdefault(mount.point if mount is not None else "/", []).append(subject)
    return {name: tuple(dict.fromkeys(subjects)) for name, subjects in groups.items()}


def _may_be_run(text: str) -> bool:
    """Return whether the text is a plain word and so may be the name of a run."""
    return not set(text) & set("/.*?[~$")


def _subject(text: str, context: Context) -> str:
    """Return the subject for an item of `paths`: a run's name, or an absolute path; accesses no disk."""
    return text if _may_be_run(text) else _places(text, context)[0]


def _places(text: str, context: Context) -> tuple[str, ...]:
    """Return the absolute paths that an item may mean: relative to the project, or to the current directory."""
    environ = context.system.environ
    whole = Template(text).safe_substitute(environ)
    if whole.startswith("~/") or whole == "~":
        whole = f"{context.system.host.home}{whole[1:]}"
    directories = (str(context.project), str(context.system.cwd))
    return tuple(dict.fromkeys(os.path.abspath(os.path.join(directory, whole)) for directory in directories))


def _probe(
    target: Target, settings: LogSettings, context: Context, known: Mapping[str, LogReading], reader: LogReader
) -> dict[str, LogReading]:
    if not settings.paths:
        return _probe_all_runs(context, known, reader)
    readings: dict[str, LogReading] = {}
    queues = _queues(context)
    for text in settings.paths:
        subject = _subject(text, context)
        if subject not in target.subjects:
            continue
        places = _places(text, context)
        if _may_be_run(text) and not any(map(os.path.lexists, places)):
            directory = RunDirectory(context.state_dir / text, context.group)
            if os.path.exists(directory.path / layout.RUN_FILE):
                readings |= probe_runs([directory], known, reader, queues, named=True)
                continue
        readings |= probe_paths(subject, places, known, reader)
    return readings


def _queues(context: Context) -> Queues:
    """Return the queues; a scheduler that does not answer must not take the deadline of all logs."""
    return Queues(context.system, context.scheduler, "", patience_s=QUERY_S)


def _probe_all_runs(context: Context, known: Mapping[str, LogReading], reader: LogReader) -> dict[str, LogReading]:
    directories = context.runs()
    readings = probe_runs(directories, known, reader, _queues(context))
    there = {directory.run for directory in directories}
    for run, before in known.items():
        # A run that stopped because of its loss, or whose save failed, stays a fault, however long ago.
        is_reported = before.over and not ((before.losses or before.save) and run not in there)
        if before.run and run not in readings and not is_reported:
            over = "removed, or ended long ago"
            readings[run] = LogReading(run=run, over=over, clock=reader.moment, **lessons(before))
    runs = [reading for run, reading in readings.items() if run == reading.run]  # the others are jobs beside a run's
    active = sum(not reading.over and not reading.nothing for reading in runs)
    rest = f"; {len(runs) - active} not" if active < len(runs) else ""
    summary = f"{plural(active, 'active run')}{rest}" if active else f"no active run in {context.state_dir}"
    return readings | {str(context.state_dir): LogReading(nothing=summary, notes=("none",), clock=reader.moment)}


@contextmanager
def _bounded(own: re.Pattern[bytes] | None) -> Iterator[Callable[[str], None] | None]:
    """Limit the CPU time of `progress_regex`, restarting the limit for each log."""
    if own is None:
        yield None
        return
    current = ""

    def error() -> ProbeError:
        text = own.pattern.decode("utf-8", "replace")
        return ProbeError(
            f"progress_regex {text!r} took more than {REGEX_CPU_S:g} s on {current}",
            hint=f"{BACKTRACKS}, and start with a fixed word",
        )

    with cpu_limit(REGEX_CPU_S, error, is_armed=False) as restart:

        def arm(path: str) -> None:
            nonlocal current
            current = path
            restart()

        yield arm


def _moved(reading: LogReading, moment: Moment) -> LogReading:
    before = reading.clock
    return shifted(reading, jump_s((before[0], before[1], before[2]), moment))
