"""`resil watch cron`: checks the health of this project's scheduler, and the results of its entries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Any

from resilience import cron_late
from resilience.cron.book import State
from resilience.cron.health import Health, Judgement, awake_since, judge_scheduler
from resilience.cron.records import Installation, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory, Damaged
from resilience.errors import ResilError, SettingsError, StateDirectoryError
from resilience.finding import Figure, Finding, Verdict
from resilience.messages import plural, quoted
from resilience.quantities import format_duration
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.watch.reading import Memory, Target, Timed

SCHEDULER = "scheduler"
"""Subject of findings about the scheduler itself. No entry has this name: entry names contain a `/`."""

TABLE_FILE = "table.json"
"""In `<state_dir>/.cron`: entries and ignored files, as the last tick read them (cron/report.py)."""

TAIL_LINES, TAIL_WIDTH, TAIL_BYTES = 15, 300, 4096
"""Of a failed run's output, shown as evidence."""

DRIVER_SHARE = 0.6
"""Share of the probe's deadline within which the driver answers. A controller that hangs leaves the heartbeat."""

VERDICTS = {Health.LATE: Verdict.WARNING, Health.DEAD: Verdict.CRITICAL, Health.UNKNOWN: Verdict.UNKNOWN}
"""Of other healths: OK. A scheduler that was stopped or uninstalled needs no alert."""

_WORDS = {
    Outcome.FAILED: "failed", Outcome.TIMEOUT: "timed out", Outcome.REFUSED: "could not be started",
    Outcome.CUT_SHORT: "was cut short: its supervisor died", Outcome.SUBMITTED: "submitted", Outcome.DONE: "succeeded",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CronCheckSettings:
    """[watch.cron]: health of this project's scheduler, and results of its entries.

    Attributes:
        entries: entries to check, by name or pattern: `cron.hourly/backup`, `crontab/*`. Default: all, the scheduler
            itself, and files ignored by mistake.
        late_s: a tick overdue by more than this is late. 0: [cron] late_s, or twice the expected interval, and at least
            three minutes.
        crit_failures: number of consecutive failures of an entry that are CRITICAL. 0: never.
        skips: alert after this many consecutive skips of an entry.
        ignored: whether to report files in the cron directory that do not run but were probably meant to.
    """

    entries: tuple[str, ...] = ()
    late_s: float = 0.0
    crit_failures: int = 3
    skips: int = 3
    ignored: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CronReading:
    """Reading of the scheduler, of one entry, or of one ignored file. Times: seconds since the epoch.

    Attributes:
        judgement: of the scheduler; None: of an entry or an ignored file.
        trouble: error of the last tick, or of the chain of jobs; of an ignored file, why it does not run.
        hint: for an ignored file: what to try.
        nothing: why there is nothing to judge, one sentence; empty: there is something.
        last: record of the entry's last run that ended; None: none.
        failures: number of consecutive failures.
        skips: number of slots skipped since the last run began.
        missed: number of slots missed since the last run.
        running_since: start of the active run; 0: none.
        tail: last lines of a failed run's output.
    """

    judgement: Judgement | None = None
    trouble: str = ""
    hint: str = ""
    nothing: str = ""
    last: RunRecord | None = None
    failures: int = 0
    skips: int = 0
    missed: int = 0
    running_since: float = 0.0
    tail: tuple[str, ...] = ()


class CronCheck:
    """See ports.Check."""

    summary = "cron: health of the scheduler, and results of its entries"
    Settings = CronCheckSettings
    Reading = CronReading
    memory = Memory(count=1)
    argument = "entries"
    example = "resil watch cron 'cron.hourly/*'"
    on_nothing = "install a scheduler: resil cron install"

    def targets(self, settings: CronCheckSettings, context: Context) -> Sequence[Target]:
        """Return the state directory of the scheduler. Raise SettingsError for a negative number."""
        for key in ("late_s", "crit_failures", "skips"):
            if getattr(settings, key) < 0:
                raise SettingsError(f"{key} = {getattr(settings, key):g} is negative", hint=f"{key} = 0")
        return (Target(str(CronDirectory(context.state_dir).path)),)

    def probe(
        self, target: Target, settings: CronCheckSettings, context: Context, before: Mapping[str, Timed[CronReading]]
    ) -> Mapping[str, CronReading]:
        """Read the heartbeat and the histories, and ask the driver.

        Empty if no scheduler was ever installed and none ever ticked. Raise StateDirectoryError if the directory cannot
        be read.
        """
        from resilience.cron.driver_state import driver_state

        directory, readings = CronDirectory(context.state_dir, context.group), dict[str, CronReading]()
        if not settings.entries:
            cron, limit_s = context.cron or CronSettings(), DRIVER_SHARE * (target.deadline_s or 10.0)
            found = read_scheduler(
                directory, cron, context.system.clock.now(), late_s=settings.late_s,
                ask=lambda installation: driver_state(installation, cron, context, limit_s),
            )  # fmt: skip
            if found is None:
                return {}
            readings[SCHEDULER] = found
        elif not directory.path.is_dir():
            return {}
        names, ignored = read_table_file(directory.path)
        running = {run.entry_key: run.time for run in directory.book.active() if run.state is State.RUNNING}
        for key in directory.keys():  # noqa: SIM118 - no mapping
            runs = directory.history(key)
            if key == SCHEDULER or not runs or not _is_wanted(runs[-1].name, settings.entries):
                continue
            reading = replace(fold(runs), running_since=running.get(key, 0.0))
            if names is not None and runs[-1].name not in names:
                reading = CronReading(nothing="no longer in the table")
            elif reading.last is not None and reading.last.outcome.is_failure and reading.last.output:
                reading = replace(reading, tail=_tail(directory.path / "output" / key / reading.last.output))
            readings[runs[-1].name] = reading
        for place, reason, hint in ignored if settings.ignored and not settings.entries else ():
            readings.setdefault(place, CronReading(trouble=reason, hint=hint))
        gone = CronReading(nothing="no longer ignored")
        known = {subject: timed.reading for subject, timed in before.items()}
        return {subject: gone for subject, one in known.items() if one.judgement is None and one.trouble} | readings

    def judge(
        self, subject: str, readings: Sequence[Timed[CronReading]], settings: CronCheckSettings, now: float
    ) -> Sequence[Finding]:
        """Return the findings of the newest reading."""
        reading = readings[-1].reading
        if reading.nothing:
            return (Finding(subject=subject, verdict=Verdict.OK, summary=reading.nothing),)
        if reading.judgement is not None:
            return tuple(_of_scheduler(subject, reading.judgement, reading.trouble))
        if reading.trouble:
            why, advice = f"does not run: {reading.trouble}", reading.hint or "resil cron doctor"
            return (Finding(subject=subject, verdict=Verdict.WARNING, fault="ignored", summary=why, advice=advice),)
        return tuple(_of_entry(subject, reading, settings, now))


CHECK = CronCheck()


# ---- the scheduler ----------------------------------------------------------------------------------------------


def read_scheduler(
    directory: CronDirectory,
    settings: CronSettings,
    now: float,
    *,
    late_s: float = 0.0,
    ask: Callable[[Installation], Any] = lambda _: None,
) -> CronReading | None:
    """Return the reading of the scheduler; None: there is none. Raise StateDirectoryError if it cannot be read.

    `ask`: returns the driver's state, or None.
    """
    heartbeat, installation, stopped = None, None, directory.stopped()
    with suppress(StateDirectoryError):  # `resil cron doctor` reports it; the heartbeat shows if the scheduler is alive
        installation = directory.installation()
    try:
        heartbeat = directory.heartbeat()
    except Damaged as error:
        if stopped is None:
            advice = "the next tick rewrites it; if none comes: resil cron status"
            return CronReading(judgement=Judgement(Health.UNKNOWN, error.message, advice, "damaged"))
    if heartbeat is None and installation is None:
        return None
    judgement = judge_scheduler(
        installation, heartbeat, ask(installation) if installation is not None and stopped is None else None, stopped,
        now=now, settings=settings, late_s=late_s, awake_since=awake_since(now),
    )  # fmt: skip
    from resilience.cron.drivers._slurm.keeper import chain_problem

    if heartbeat is None or judgement.health in (Health.STOPPED, Health.ABSENT):
        return CronReading(judgement=judgement)
    return CronReading(judgement=judgement, trouble=heartbeat.trouble or chain_problem(directory.path, installation))


def _of_scheduler(subject: str, judged: Judgement, trouble: str) -> Iterator[Finding]:
    word = "dead, nothing runs" if judged.health is Health.DEAD else judged.health.value
    verdict = Verdict.WARNING if judged.fault == "clock" else VERDICTS.get(judged.health, Verdict.OK)
    limits = judged.patience_s, cron_late.DEAD * judged.patience_s
    if verdict is not Verdict.OK or not trouble:
        yield Finding(
            subject=subject, verdict=verdict, fault=judged.fault, summary=f"{word}: {judged.reason}",
            advice=judged.advice if judged.fault else "",
            figures=(Figure("overdue", judged.overdue_s, "s", *limits, minimum=0.0),) if judged.patience_s else (),
        )  # fmt: skip
    if trouble:
        advice = "resil cron status"
        yield Finding(subject=subject, verdict=Verdict.WARNING, fault="trouble", summary=trouble, advice=advice)


# ---- entries ------------------------------------------------------------------------------------------------------


def fold(runs: Sequence[RunRecord]) -> CronReading:
    """Return the reading of an entry from its history, oldest first. Pure."""
    ended = [run for run in runs if run.outcome not in (Outcome.SKIPPED, Outcome.MISSED)]
    last = ended[-1] if ended else None
    before = ended[-2].slot if len(ended) > 1 else float("-inf")
    return CronReading(
        last=last,
        failures=len([*takewhile(lambda run: run.outcome.is_failure, reversed(ended))]),
        skips=sum(run.count for run in takewhile(lambda run: run.outcome is Outcome.SKIPPED, reversed(runs))),
        missed=sum(run.count for run in runs if run.outcome is Outcome.MISSED and run.slot > before),
    )


def _of_entry(subject: str, reading: CronReading, settings: CronCheckSettings, now: float) -> Iterator[Finding]:
    last, summary, is_failed = reading.last, "not run yet", False
    running = f" for {format_duration(max(0.0, now - reading.running_since))}" if reading.running_since else ""
    if last is not None:
        is_failed = last.outcome.is_failure
        code = f" with exit code {last.exit_code}" if last.outcome is Outcome.FAILED and last.exit_code else ""
        job = f" as job {last.job_id}" if last.job_id and not is_failed else ""
        ago = format_duration(max(0.0, now - last.time))
        summary = f"{_WORDS.get(last.outcome, last.outcome.value)}{code}{job} {ago} ago"
    if is_failed and last is not None:
        summary += f" on {last.host}" if last.host else ""
        summary += f", {reading.failures} times in a row" if reading.failures > 1 else ""
        summary += f": {last.summary}" if last.summary and not last.summary.startswith("exit code") else ""
        is_critical = 0 < settings.crit_failures <= reading.failures
        yield Finding(
            subject=subject, verdict=Verdict.CRITICAL if is_critical else Verdict.WARNING, fault="failed",
            summary=summary, advice=f"resil cron logs {quoted(subject)}", evidence=reading.tail,
            figures=(Figure("failures", reading.failures, minimum=0.0),),
        )  # fmt: skip
    if 0 < settings.skips <= reading.skips:
        yield Finding(
            subject=subject, verdict=Verdict.WARNING, fault="skipped",
            summary=f"{reading.skips} slots in a row were skipped: an earlier run is still active{running}",
            advice=f"resil cron history {quoted(subject)}; a shorter timeout ends it: # resil: timeout=10m",
        )  # fmt: skip
    elif not is_failed:
        missed = f"; {plural(reading.missed, 'slot')} missed before that and not run" if reading.missed else ""
        summary = (f"running{running}" if running else summary) + missed
        yield Finding(subject=subject, verdict=Verdict.OK, summary=summary)


def read_table_file(path: Path) -> tuple[frozenset[str] | None, Sequence[tuple[str, str, str]]]:
    """Return the names of the entries as the last tick read them, None if unknown, and the mistakenly ignored files."""
    from resilience.system.files import read_regular

    with suppress(StateDirectoryError, ValueError, KeyError, TypeError, RecursionError):
        if (found := read_regular(path / TABLE_FILE, 4 * 2**20)) is not None:
            record = json.loads(found[0])
            ignored = [(str(place), str(reason), str(hint)) for place, reason, hint in record["ignored"]]
            return frozenset(map(str, record["entries"])), ignored
    return None, ()


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, p) or fnmatchcase(name.partition("/")[2], p) for p in patterns)


def _tail(path: Path) -> tuple[str, ...]:
    """Return the last lines of a run's output; empty if it is gone."""
    from resilience.cron.logs import read_text

    with suppress(ResilError):
        text, _, left_out = read_text(path, TAIL_BYTES, flags=os.O_NOFOLLOW)
        return tuple(line[:TAIL_WIDTH] for line in text.splitlines()[1 if left_out else 0 :][-TAIL_LINES:])
    return ()
