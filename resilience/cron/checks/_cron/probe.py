"""Reads `<state_dir>/.cron` for the watchdog: heartbeat, and each entry's history."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from resilience import cron_late
from resilience.base.processes import boot_id
from resilience.cron.checks._cron.reading import SCHEDULER, TABLE_FILE, CronCheckSettings, CronReading
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory, Damaged
from resilience.errors import StateDirectoryError
from resilience.quantities import format_duration
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import read_regular
from resilience.watch.reading import Timed

TAIL_LINES = 15
TAIL_WIDTH = 300
TAIL_BYTES = 4096
WOKE_S = 60.0
"""A node suspended for longer than this has missed ticks because of that."""
TABLE_BYTES = 4 * 2**20
_ENDED = frozenset({Outcome.DONE, Outcome.SUBMITTED, Outcome.FAILED, Outcome.TIMEOUT, Outcome.REFUSED,
                    Outcome.CUT_SHORT})  # fmt: skip


def read_cron(
    directory: CronDirectory, settings: CronCheckSettings, before: Mapping[str, Timed[CronReading]], now: float
) -> dict[str, CronReading]:
    """Return the readings by subject; empty if no scheduler was ever installed and none ever ticked.

    Raise StateDirectoryError if the directory cannot be read.
    """
    readings: dict[str, CronReading] = {}
    if not settings.entries:
        known = before.get(SCHEDULER)
        scheduler = read_scheduler(directory, now, known.reading if known is not None else None)
        if scheduler is None:
            return {}
        readings[SCHEDULER] = scheduler
    elif not directory.path.is_dir():
        return {}
    table = read_table_file(directory.path)
    for key in directory.keys():  # noqa: SIM118 - no mapping
        history = directory.history(key)
        if key != SCHEDULER and history and _is_wanted(history[-1].name, settings.entries):
            readings[history[-1].name] = read_entry(directory, key, history, table)
    if settings.ignored and not settings.entries and table is not None:
        for place, reason, hint in table[1]:
            readings.setdefault(place, CronReading(kind="ignored", summary=reason, hint=hint))
    for subject, timed in before.items():
        if timed.reading.kind == "ignored" and not timed.reading.nothing and subject not in readings:
            readings[subject] = CronReading(kind="ignored", nothing="no longer ignored")
    return readings


def read_scheduler(directory: CronDirectory, now: float, before: CronReading | None = None) -> CronReading | None:
    """Return the reading of the scheduler; None: there is none. Raise StateDirectoryError if unreadable."""
    heartbeat: Heartbeat | None = None
    damaged = ""
    try:
        heartbeat = directory.heartbeat()
    except Damaged as error:
        damaged = error.message
    installation = _installation(directory)
    if heartbeat is None and not damaged and installation is None:
        return None
    here = {"is_installed": installation is not None, **_awake(now, before)}
    if (stopped := directory.stopped()) is not None:
        return CronReading(stopped=_stopped(stopped, now), **here)
    if damaged:
        return CronReading(damaged=damaged, **here)
    driver = heartbeat.driver if heartbeat is not None else ""
    is_last = heartbeat is not None and heartbeat.is_last
    if not cron_late.is_awaited(driver, is_installed=installation is not None, is_last=is_last):
        how = "ended on purpose" if is_last else "uninstalled"
        return CronReading(nothing=f"{how}; no tick is expected", **here)
    if heartbeat is None or (installation is not None and installation.time > heartbeat.expected):
        assert installation is not None
        usual = CronSettings()
        first = cron_late.first_times(installation.to_json(), usual.tick_s, usual.pulse_s)
        return CronReading(time=first[0], expected=first[1], driver=installation.driver, host=installation.host, **here)
    return CronReading(
        time=heartbeat.time,
        expected=heartbeat.expected,
        alive_since=heartbeat.alive_since,
        ticks=heartbeat.ticks,
        driver=heartbeat.driver,
        host=heartbeat.host,
        trouble=heartbeat.trouble or _chain_problem(directory, installation),
        next_slot=heartbeat.next_slot,
        patience_s=heartbeat.patience_s,
        **here,
    )


def read_entry(
    directory: CronDirectory, key: str, history: Sequence[RunRecord], table: tuple[frozenset[str], Any] | None
) -> CronReading:
    """Return the reading of an entry."""
    if table is not None and history[-1].name not in table[0]:
        return CronReading(kind="entry", nothing="no longer in the table")
    ended = [run for run in history if run.outcome in _ENDED]
    last = ended[-1] if ended else None
    failures = _tail_of(ended, lambda run: run.outcome.is_failure)
    since = [run for run in history if last is None or run.slot > last.slot]
    lately = [run for run in history if len(ended) < 2 or run.slot > ended[-2].slot]
    running = [run for run in since if run.outcome is Outcome.RUNNING]
    reading = CronReading(
        kind="entry",
        failures=len(failures),
        first_failed=failures[0].time if failures else 0.0,
        skips=sum(run.count for run in _tail_of(history, lambda run: run.outcome is Outcome.SKIPPED)),
        missed=sum(run.count for run in lately if run.outcome is Outcome.MISSED),
        running_since=float(running[-1].started or running[-1].slot) if running else 0.0,
    )
    if last is None:
        return reading
    from dataclasses import replace

    return replace(
        reading,
        outcome=last.outcome.value,
        slot=last.slot,
        ended=last.time,
        exit_code=last.exit_code,
        summary=last.summary,
        job_id=last.job_id,
        ran_on=last.host,
        tail=_tail(directory.path / "output" / key / last.output) if last.output and last.outcome.is_failure else (),
    )


def read_table_file(path: Path) -> tuple[frozenset[str], tuple[tuple[str, str, str], ...]] | None:
    """Return (names of the entries, mistakenly ignored files) as the last tick read them; None if unknown."""
    try:
        found = read_regular(path / TABLE_FILE, TABLE_BYTES)
        if found is None:
            return None
        record = json.loads(found[0])
        ignored = tuple((str(place), str(reason), str(hint)) for place, reason, hint in record["ignored"])
        return frozenset(map(str, record["entries"])), ignored
    except (StateDirectoryError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _installation(directory: CronDirectory) -> Installation | None:
    try:
        return directory.installation()
    except StateDirectoryError:  # `resil cron doctor` reports it; the heartbeat shows whether the scheduler is alive
        return None


def _chain_problem(directory: CronDirectory, installation: Installation | None) -> str:
    """Return the problem of the scheduler's chain of jobs (cron/job.py); empty if there is none."""
    if installation is None or installation.driver != "slurm":
        return ""
    from resilience.cron.drivers._slurm.keeper import trouble_of

    trouble, since = trouble_of(directory.path)
    return trouble if since >= installation.time else ""


def _stopped(record: Mapping[str, Any], now: float) -> str:
    by, why = str(record.get("by") or "an unknown user"), str(record.get("why") or "")
    when = record.get("time")
    ago = f" {format_duration(max(0.0, now - when))} ago" if isinstance(when, int | float) else ""
    return f"stopped by {by}{ago}{f' ({why})' if why else ''}; to start it again: resil cron install"


def _awake(now: float, before: CronReading | None) -> dict[str, Any]:
    """Return since when this node is awake: a cluster that was off for a night has missed ticks because of that.

    CLOCK_BOOTTIME includes the time a machine was suspended; CLOCK_MONOTONIC does not (clock_gettime(2)).
    """
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    slept_s = max(0.0, up_s - time.clock_gettime(time.CLOCK_MONOTONIC))
    boot = boot_id()[:8]
    since = now - up_s
    if before is not None and before.boot == boot and boot:
        since = now if slept_s - before.slept_s > WOKE_S else max(since, before.awake_since)
    return {"awake_since": since, "slept_s": slept_s, "boot": boot}


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, p) or fnmatchcase(name.partition("/")[2], p) for p in patterns)


def _tail_of(runs: Sequence[RunRecord], wanted: Any) -> list[RunRecord]:
    """Return the last consecutive runs that match."""
    found: list[RunRecord] = []
    for run in reversed(runs):
        if run.outcome is Outcome.RUNNING:
            continue
        if not wanted(run):
            break
        found.insert(0, run)
    return found


def _tail(path: Path) -> tuple[str, ...]:
    """Return the last lines of a run's output; empty if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = text.splitlines()
    return tuple(line[:TAIL_WIDTH] for line in (lines[1:] if size > TAIL_BYTES else lines)[-TAIL_LINES:])
