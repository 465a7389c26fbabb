"""Reports on ticks: the ping of the dead man's switch, and a child that mails output, runs the watchdog `cron`, and
sends what is due.

Never delays a tick: all of it happens in detached children.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.records import Outcome, RunRecord
from resilience.errors import ResilError
from resilience.records import from_record, to_record
from resilience.system.child import Detached, start_detached
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, Table
    from resilience.cron.ticker import TickResult
    from resilience.settings.cron_settings import CronSettings

CHILD_S = 180.0
"""A reporting child is killed after this time; unsent messages stay in the outbox."""
CLOSE_S = 60.0
REPEAT_S = 900.0
"""Interval at which the watchdog checks an ongoing problem again without new runs, for reminders."""
SOON_S = 60.0
"""The same interval while alerts wait ([alert] group_s, unknown_for_s)."""
UNSENT_S = 86400.0
"""Failures to send are shown for this long."""
TABLE, STATE = "table.json", "reported"
"""In `<state_dir>/.cron`: the table for the watchdog (checks/cron.py), and what the last report left."""
WATCHDOG = "cron"
_KILLS_CHILDREN = ("SLURM_JOB_ID", "INVOCATION_ID")
"""If one of these is set, slurmstepd or systemd kills all children when this process ends."""


class Reported(NamedTuple):
    """What the last report left for the next. Times: seconds since the epoch.

    Attributes:
        looked: when the watchdog ran.
        open: number of its open incidents.
        unknown: what it could not check; empty: nothing.
        mailed: up to when output was mailed to MAILTO; 0: never.
        failed, trouble: failures to send, and when.
    """

    looked: float = 0.0
    open: int = 0
    unknown: str = ""
    mailed: float = 0.0
    failed: float = 0.0
    trouble: tuple[str, ...] = ()


class TickReporter:
    """Reports on the ticks of one scheduler process: called at the start and the end of each tick."""

    def __init__(self, cron: CronProject) -> None:
        self._cron, self._clock = cron, cron.project.system.clock
        self._began = self._clock.monotonic()
        self._children: dict[str, Detached] = {}
        self._mailed: Mapping[str, Entry] = {}
        """The entries with MAILTO, by name."""
        self._ended: list[RunRecord] = []
        self._codes: dict[str, int | None] = {}
        """Exit codes of the runs that ended since the last ping."""
        self._trouble = self._driver = ""
        self._is_due = False

    def use(self, cron: CronProject) -> None:
        """Go on with other settings."""
        self._cron = cron

    def tick_started(self) -> None:
        """Note the start of a tick."""
        self._began = self._clock.monotonic()

    def ended(self, ticked: TickResult, table: Table | None, *, trouble: str = "") -> tuple[str, ...]:
        """Report the end of a tick; `trouble`: why it failed as a whole. Return messages for standard error.

        Never raises, and does not block: a child sends everything. A scheduler that is stopped pings nothing, so the
        dead man's switch alerts.
        """
        try:
            return () if ticked.stopped else self._report(ticked, table, trouble)
        except Exception as error:
            return (f"cannot report on this tick: {type(error).__name__}: {error}",)

    def close(self) -> None:
        """Wait for children, at most a minute, if the end of this process would kill them (a SLURM job, a systemd
        unit)."""
        must_wait = any(name in self._cron.project.system.environ for name in _KILLS_CHILDREN)
        with suppress(Exception):
            if must_wait and "report" in self._children:
                self._children["report"].wait(CLOSE_S)
            if "report" in self._children and (self._ended or self._is_due):  # arrived while the child was running
                self._start_report(again=True)
            for child in self._children.values():
                if must_wait:
                    child.wait(CLOSE_S)
                child.forget()

    def _report(self, ticked: TickResult, table: Table | None, trouble: str) -> tuple[str, ...]:
        heartbeat, settings, known = ticked.heartbeat, self._cron.settings, reported(self._cron)
        trouble = trouble or (heartbeat.trouble if heartbeat is not None else "")
        if settings.ping_url or settings.ping_url_file:
            summary = summary_of(ticked, trouble, self._clock.monotonic() - self._began)
            self._codes |= {run.name: run.exit_code if run.outcome is Outcome.DONE else None for run in ticked.ended}
            self._start_ping(summary, not trouble, known.unknown)
        if heartbeat is not None:
            self._driver = heartbeat.driver
        if table is not None:
            self._mailed = {entry.name: entry for entry in table.entries if entry.mail_to}
        self._ended += [run for run in ticked.ended if run.name in self._mailed]
        is_news = ticked.skipped or ticked.refused or any(run.outcome.is_failure for run in ticked.ended)
        may_end = known.open and (ticked.ended or ticked.submitted)
        is_back = heartbeat is not None and heartbeat.alive_since == heartbeat.time  # no ticks for a while
        is_stale = not 0 <= self._clock.now() - known.looked < REPEAT_S
        is_changed = self._write_table(table) or trouble != self._trouble
        self._is_due |= bool(is_changed or is_news or may_end or is_back or is_stale)
        self._trouble = trouble
        self._start_report()
        try:
            check_reporting(settings)
        except ResilError as error:
            return (f"{error.message}; {error.hint}",)
        return ()

    def _start_ping(self, summary: str, is_well: bool, doubt: str) -> None:
        from resilience.cron.ping import CHILD_S as PING_S
        from resilience.cron.ping import ping

        if "ping" in self._children and not self._children["ping"].is_over():
            return  # a slow server is asked again at the end of a later tick
        with suppress(OSError):  # fork failed: the missing ping shows that
            work = partial(ping, self._cron, summary, self._codes, is_well=is_well, doubt=doubt)
            self._children["ping"] = start_detached(work, PING_S)
            self._codes = {}

    def _start_report(self, *, again: bool = False) -> None:
        """Start a child that reports what is pending; if one is still running, the next tick reports it."""
        if "report" in self._children and not self._children["report"].is_over() and not again:
            return
        cron, canaries = self._cron, _canaries(self._cron)
        self._is_due &= bool(cron.project.loaded.settings.alert.channels or self._mailed)
        if not (self._is_due or self._ended or canaries):
            return
        entries, ended, driver = tuple(self._mailed.values()), tuple(self._ended), self._driver
        with suppress(OSError):  # fork failed: the next tick tries again
            self._children["report"] = start_detached(
                lambda: _report(cron, entries, ended, canaries, driver), CHILD_S, keep_stderr=_uses_stderr(cron)
            )
            self._ended, self._is_due = [], False

    def _write_table(self, table: Table | None) -> bool:
        """Write the table for the watchdog; return whether it changed."""
        if table is None:
            return False
        ignored = [[one.place, one.reason, one.hint] for one in table.ignored if one.is_fault]
        text = json.dumps({"entries": [entry.name for entry in table.entries], "ignored": ignored}) + "\n"
        with suppress(ResilError):
            if (found := read_regular(self._cron.state.path / TABLE, 2**22)) is not None and found[0] == text.encode():
                return False
            _write(self._cron, TABLE, text)
            return True
        return False


def check_reporting(settings: CronSettings) -> None:
    """Raise SettingsError for an invalid time of day or address."""
    if settings.digest_at:
        from resilience.cron.table.own_entries import parse_digest_at

        parse_digest_at(settings.digest_at)
    if settings.ping_url or settings.ping_url_file:
        from resilience.cron.ping import check_ping

        check_ping(settings)


def reported(cron: CronProject) -> Reported:
    """Return what the last report left; the defaults if that cannot be read. Never raises."""
    with suppress(ResilError, ValueError, TypeError):
        found = read_regular(cron.state.path / STATE)
        if found is not None:
            return from_record(Reported, json.loads(found[0]), lenient=True, strict=True)
    return Reported()


def send_failures(cron: CronProject) -> tuple[str, ...]:
    """Return recent failures to report, with reasons, for `resil cron status`. Never raises."""
    from resilience.cron.ping import last_ping
    from resilience.quantities import format_duration

    now, known, pinged = cron.project.system.clock.now(), reported(cron), last_ping(cron)
    found = known.trouble if now - known.failed < UNSENT_S else ()
    if not pinged.error or not (cron.settings.ping_url or cron.settings.ping_url_file):
        return found
    ago = format_duration(max(0.0, now - pinged.time))
    return (f"ping of the dead man's switch failed {ago} ago: {pinged.error}", *found)


def summary_of(ticked: TickResult, trouble: str, took_s: float = 0.0) -> str:
    """Summarize a tick: counts and names, but no output of runs. Pure."""
    counts: Counter[str] = Counter()
    for run in (*ticked.started, *ticked.ended, *ticked.submitted, *ticked.refused, *ticked.skipped):
        counts[run.outcome.value] += run.count
    done = ", ".join(f"{count} {word}" for word, count in counts.items()) or "nothing was due"
    lines = [*([trouble] if trouble else []), f"{done}; the tick took {took_s:.1f} s"]
    lines += [f"{run.name}: {run.outcome}" for run in (*ticked.ended, *ticked.refused) if run.outcome.is_failure]
    return "\n".join(lines[:50])


def _report(
    cron: CronProject, entries: tuple[Entry, ...], ended: tuple[RunRecord, ...], canaries: tuple[str, ...], driver: str
) -> None:
    """In the child: queue mails, run the watchdog, deliver everything, and release canaries."""
    from resilience.alerts.commands import deliver
    from resilience.cron import late as notes
    from resilience.cron.canary import release
    from resilience.cron.mail import queue_mails

    def remember(known: Reported) -> None:
        with suppress(ResilError):
            _write(cron, STATE, json.dumps(to_record(known)) + "\n")

    known, began = reported(cron), cron.project.system.clock.now()
    trouble, is_complete = queue_mails(cron, entries, ended, known.mailed)
    known = known._replace(looked=began, mailed=began if is_complete and entries else known.mailed)
    if trouble:
        known = known._replace(failed=began, trouble=trouble[-20:])
    remember(known._replace(open=max(1, known.open)))  # in case this process is killed: an incident may be open
    if cron.project.loaded.settings.alert.channels:
        known = _watch(cron, known)
    else:
        for _ in deliver(cron.project, notes=notes, patient=True, deadline_s=60.0):
            pass
    remember(known)
    for canary in canaries:
        release(cron, canary, driver)


def _watch(cron: CronProject, known: Reported) -> Reported:
    """Do what `resil watch cron` does, including its alerts; return when, and the number of open incidents."""
    from resilience.alerts.notify import notify
    from resilience.alerts.state import open_alert_state
    from resilience.cron import late as notes
    from resilience.finding import Verdict
    from resilience.watch.watch import watch, watchdogs_of, with_own_finding

    project = cron.project
    watchdogs, broken = watchdogs_of(project, [WATCHDOG])
    reports = [*broken, *(with_own_finding(report) for report in watch(project, watchdogs))]
    notify(project, reports, notes=notes, typed="")
    ours = [i for i in open_alert_state(project).ledger.incidents() if i.is_open and i.check == WATCHDOG]
    unknown = [one.summary for report in reports for one in report.findings if one.verdict is Verdict.UNKNOWN]
    waits = any(i.gone is not None or i.told is None for i in ours)  # its start or its end has not been sent yet
    looked = project.system.clock.now() - (REPEAT_S - SOON_S if waits or unknown else 0.0)
    said = f"the watchdog cron ended UNKNOWN: {'; '.join(unknown)}" if unknown else ""
    return known._replace(looked=looked, open=len(ours), unknown=said)


def _canaries(cron: CronProject) -> tuple[str, ...]:
    if not (cron.state.path / "canary").is_dir():
        return ()  # the usual case, without loading the module
    from resilience.cron.canary import waiting

    return waiting(cron)


def _uses_stderr(cron: CronProject) -> bool:
    """Return whether an alert channel writes to this process's standard error, so that the child must inherit it."""
    settings = cron.project.loaded.settings
    tables = [(name, settings.channels.get(name)) for name in settings.alert.channels]
    return any((table.kind if table else name) == "console" and not (table and table.values.get("path"))
               for name, table in tables)  # fmt: skip


def _write(cron: CronProject, name: str, text: str) -> None:
    """Write a file of the state directory. Raise StateDirectoryError if that fails."""
    make_directory(cron.state.path, mode=cron.state.directory_mode)
    write_atomic(cron.state.path / name, text, mode=cron.state.file_mode, durable=False)
