"""`resil watch log`: does the training go on? Progress is a step that becomes greater, or the guard's heartbeat."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH110

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from resilience.checks._log.clocks import Moment, jump_s, shifted
from resilience.checks._log.look_paths import Look, candidates, is_pattern, look_at
from resilience.checks._log.look_runs import look_at_runs
from resilience.checks._log.sentences import deadline_of, findings
from resilience.checks._log.tail import look as look_at_log
from resilience.checks._log.words import ANY, EACH, NEWEST, LogReading, LogSettings, LogState
from resilience.errors import ProbeError, SettingsError
from resilience.model import layout
from resilience.model.finding import Finding
from resilience.model.reading import Memory, Target, Timed
from resilience.system.mounts import current_mounts, mount_of
from resilience.system.run_directory import RunDirectory
from resilience.system.scene import Scene

REGEX_CPU_S = 1.0
"""Processor time that a regular expression of one's own may take in one log and look."""
LEAST_READ_BYTES = 4096
BOOT = Path("/proc/sys/kernel/random/boot_id")


class LogCheck:
    """The watchdog of logs and heartbeats."""

    summary = "does the training go on: steps in the log, the guard's heartbeat"
    Settings = LogSettings
    Reading = LogReading
    memory = Memory(count=1)
    argument = "paths"
    example = "resil watch log 'logs/*.out'"

    def targets(self, settings: LogSettings, scene: Scene) -> Sequence[Target]:
        """One for each file system that the logs lie on: ten thousand logs need one child, and a dead mount stops only
        its own. Without paths, the state directory."""
        check_settings(settings)
        return [Target(name, subjects) for name, subjects in _groups(settings, scene).items()]

    def probe(
        self, target: Target, settings: LogSettings, scene: Scene, before: Mapping[str, Timed[LogReading]]
    ) -> Mapping[str, LogReading]:
        """Read what is new in the logs of one file system, or of the runs of the state directory."""
        clock = scene.world.clock
        moment: Moment = (clock.now(), clock.monotonic(), _boot())
        known = {subject: _moved(timed.reading, moment) for subject, timed in before.items()}
        own = compiled(settings.progress_regex) if settings.progress_regex else None
        with _bounded(own) as look:
            readings = _look(target, settings, scene, known, _reader(settings, own, moment[0], look), moment[0])
        return {subject: replace(reading, clock=moment) for subject, reading in readings.items()}

    def judge(
        self, subject: str, readings: Sequence[Timed[LogReading]], settings: LogSettings, now: float
    ) -> Sequence[Finding]:
        """Say what the newest reading amounts to."""
        return findings(subject, readings[-1].reading, settings, now)

    def deadline(self, reading: LogReading, settings: LogSettings, now: float) -> tuple[tuple[str, ...], float] | None:
        """(paths of logs, seconds after the last write): when a daemon must look again, though no tick is due."""
        return deadline_of(reading, settings, now)


CHECK = LogCheck()


def check_settings(settings: LogSettings) -> None:
    """Raise SettingsError for settings that cannot be meant."""
    if settings.files not in (EACH, NEWEST, ANY):
        raise SettingsError(f"files = {settings.files!r} must be {EACH}, {NEWEST} or {ANY}")
    if settings.factor < 1:
        raise SettingsError(f"factor = {settings.factor:g} must be at least 1", hint="factor = 5")
    if settings.timeout_s is not None and settings.timeout_s <= 0:
        raise SettingsError(f"timeout_s = {settings.timeout_s:g} must be more than 0", hint='timeout_s = "20m"')
    if settings.timeout_s is None and settings.floor_s > settings.ceiling_s:
        raise SettingsError(f"floor_s ({settings.floor_s:g}) is above ceiling_s ({settings.ceiling_s:g})")
    if settings.read_bytes < LEAST_READ_BYTES:
        raise SettingsError(f"read_bytes must be at least {LEAST_READ_BYTES}")
    if any(not path or "\0" in path for path in settings.paths):
        raise SettingsError("a path among `paths` is empty or has a NUL byte in it")
    if settings.progress_regex:
        compiled(settings.progress_regex)


@lru_cache(maxsize=8)
def compiled(text: str) -> re.Pattern[bytes]:
    """The pattern of `progress_regex`. Raise SettingsError if it is none, or has not exactly one group."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pattern = re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}: {text[: error.pos]} <-- here"
        raise SettingsError(f"progress_regex {text!r} is no regular expression: {error.msg}{place}") from None
    except (OverflowError, RecursionError, ValueError) as error:
        raise SettingsError(f"progress_regex {text[:80]!r} is no regular expression: {error}") from None
    if pattern.groups != 1:
        raise SettingsError(
            f"progress_regex {text!r} has {pattern.groups} groups and needs one, which is the step",
            hint=r"progress_regex = 'iteration\s+(\d+)/'; other brackets are written (?:...)",
        )
    return pattern


def _groups(settings: LogSettings, scene: Scene) -> dict[str, tuple[str, ...]]:
    """The subjects of each target, by its name; they are known beforehand only where they are named."""
    if not settings.paths:
        return {str(scene.state_dir): ()}
    mounts = current_mounts()
    groups: dict[str, list[str]] = {}
    for text in settings.paths:
        path = candidates(text, scene.world, str(scene.project))[0]
        mount = mount_of(Path(path), mounts)
        groups.setdefault(mount.point if mount is not None else "/", []).append(path)
    return {name: tuple(dict.fromkeys(paths)) for name, paths in groups.items()}


def _look(
    target: Target, settings: LogSettings, scene: Scene, known: Mapping[str, LogReading], look: Look, now: float
) -> dict[str, LogReading]:
    if not settings.paths:
        readings = look_at_runs(scene.runs(), settings, known, look, now)
        nothing = f"no run is under way in {scene.state_dir}"
        return readings or {str(scene.state_dir): LogReading(nothing=nothing, notes=("none",))}
    readings = {}
    for text in settings.paths:
        places = candidates(text, scene.world, str(scene.project))
        if places[0] not in target.subjects:
            continue
        run = _run_of(text, places, scene)
        if run is not None:
            readings.update(look_at_runs([run], settings, known, look, now, named=True))
        else:
            readings.update(look_at(places, settings, known, look, now))
    return readings


def _run_of(text: str, places: Sequence[str], scene: Scene) -> RunDirectory | None:
    """The run that is meant, where there is no such file."""
    if "/" in text or is_pattern(text) or text.startswith((".", "~", "$")) or any(map(os.path.lexists, places)):
        return None
    directory = RunDirectory(scene.state_dir / text, scene.group)
    return directory if os.path.exists(directory.path / layout.RUN_FILE) else None


def _reader(settings: LogSettings, own: re.Pattern[bytes] | None, now: float, arm: Any) -> Look:
    limit_bytes = int(settings.read_bytes)

    def look(path: str, before: LogState | None) -> LogState:
        arm(path)
        return look_at_log(path, before, now, limit_bytes=limit_bytes, own=own)

    return look


@contextmanager
def _bounded(own: re.Pattern[bytes] | None) -> Iterator[Any]:
    """Bound the processor time of a pattern of one's own: `(a+)+b` would search for ages, and nobody would know why.

    Python's matcher looks for signals as it goes; ITIMER_VIRTUAL counts what this process computes, not what it waits.
    """
    if own is None:
        yield lambda path: None
        return
    current = ""

    def arm(path: str) -> None:
        nonlocal current
        current = path
        signal.setitimer(signal.ITIMER_VIRTUAL, REGEX_CPU_S)

    def stop(*_: object) -> None:
        raise ProbeError(
            f"progress_regex {own.pattern.decode('utf-8', 'replace')!r} was not through {current} "
            f"after {REGEX_CPU_S:g} s",
            hint="it backtracks: avoid a repetition within a repetition, such as (a+)+, and begin with a fixed word",
        )

    former = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield arm
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def _moved(reading: LogReading, moment: Moment) -> LogReading:
    before = reading.clock
    return shifted(reading, jump_s((before[0], before[1], before[2]), moment))


def _boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
