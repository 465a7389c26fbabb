"""Reports on ticks: dead man's switch, MAILTO mails, the daily digest, canaries and alerts.

Never delays a tick: slow work is done in detached children.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from resilience.cron import canary as cron_canary
from resilience.cron import digest as cron_digest
from resilience.cron import notes
from resilience.cron.records import Outcome, RunRecord
from resilience.errors import ResilError
from resilience.system.child import Detached, start_detached
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.ping import Ping
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, Heartbeat, Table
    from resilience.cron.ticker import TickResult
    from resilience.settings.cron_settings import CronSettings

CHILD_S = 180.0
"""A reporting child is killed after this time; unsent messages stay in the outbox."""
CLOSE_S = 60.0
PING_CLOSE_S = 12.0
REPEAT_S = 900.0
"""Interval at which the watchdog checks an ongoing problem again without new runs, for reminders."""
SOON_S = 60.0
"""The same interval while alerts wait ([alert] group_s, unknown_for_s)."""
TABLE = "table.json"
"""In `<state_dir>/.cron`: the entries and mistakenly ignored files, for the watchdog (checks/_cron/reading.py)."""
LAST_WATCH = "looked"
"""In `<state_dir>/.cron`: when a tick last ran the watchdog."""
UNSENT = "untold"
"""In `<state_dir>/.cron`: recent failures to report, with reasons."""
UNSENT_S = 86400.0
WATCHDOG = "cron"
_KILLS_CHILDREN = ("SLURM_JOB_ID", "INVOCATION_ID")
"""If one of these is set, slurmstepd or systemd kills all children when this process ends."""


class TickReporter:
    """Reports on the ticks of one scheduler process: called at the start and the end of each tick."""

    def __init__(self, cron: CronProject) -> None:
        self._cron = cron
        self._ping: Ping | None = None
        self._child: Detached | None = None
        self._mails: dict[str, tuple[Entry, list[RunRecord]]] = {}
        self._is_first = True
        self._table = ""
        self._watch_due = False
        """Whether to run the watchdog."""
        self._heartbeat: Heartbeat | None = None
        self._trouble = ""

    def tick_started(self) -> None:
        """Report the start of a tick. Never raises, and does not block.

        While the scheduler is stopped, the dead man's switch gets no pings, so it alerts.
        """
        with suppress(Exception):
            if self._ping is not None:
                self._ping.forget()
                self._ping = None
            settings = self._cron.settings
            if settings.ping_url or settings.ping_url_file:
                from resilience.cron.ping import Ping

                if not os.path.lexists(self._cron.state.path / "stop"):
                    self._ping = Ping(self._cron)

    def ended(self, ticked: TickResult, table: Table | None, *, trouble: str = "") -> tuple[str, ...]:
        """Report the end of a tick; `trouble`: why it failed as a whole. Return messages for standard error.

        Never raises, and does not block: a child sends everything.
        """
        try:
            return self._ended(ticked, table, trouble)
        except Exception as error:
            return (f"cannot report on this tick: {type(error).__name__}: {error}",)

    def close(self) -> None:
        """Wait for children, at most a minute, if the end of this process would kill them (a SLURM job, a systemd
        unit)."""
        with suppress(Exception):
            must_wait = any(name in self._cron.project.system.environ for name in _KILLS_CHILDREN)
            if self._child is not None:
                if must_wait:
                    self._child.wait(CLOSE_S)
                if self._mails or self._watch_due:  # arrived while the child was running
                    self._start(ticked_driver(self._heartbeat), again=True)
                    if must_wait:
                        self._child.wait(CLOSE_S)
                self._child.forget()
            if self._ping is not None:
                if must_wait:
                    self._ping.wait(PING_CLOSE_S)
                self._ping.forget()

    # ---- one tick -----------------------------------------------------------------------------------------------

    def _ended(self, ticked: TickResult, table: Table | None, trouble: str) -> tuple[str, ...]:
        heartbeat = self._heartbeat = ticked.heartbeat or self._heartbeat
        if not trouble and ticked.heartbeat is not None:
            trouble = ticked.heartbeat.trouble
        if self._ping is not None:
            self._ping.ended(summary_of(ticked, trouble), is_well=not trouble)
        if ticked.stopped:
            return ()
        if ticked.heartbeat is not None:
            cron_digest.count(self._cron, ticked.heartbeat)
        looked, open_incidents = self._last_watch()
        is_stale = not 0 <= self._cron.project.system.clock.now() - looked < REPEAT_S
        is_back = heartbeat is not None and heartbeat.alive_since == heartbeat.time  # no ticks for a while
        is_new = (
            self._write_table(table) or may_open_incident(ticked) or (open_incidents > 0 and may_end_incident(ticked))
        )
        if is_new or is_stale or is_back or trouble != self._trouble:
            self._watch_due = True
        self._trouble = trouble
        self._gather_mails(ticked, table)
        self._start(ticked_driver(heartbeat))
        try:
            check_reporting(self._cron.settings)
        except ResilError as error:
            return (f"{error.message}; {error.hint}",)
        return ()

    def _start(self, driver: str, *, again: bool = False) -> None:
        """Start a child that reports what is pending; if one is still running, the next tick reports it."""
        if self._child is not None and not self._child.is_over() and not again:
            return
        cron, heartbeat = self._cron, self._heartbeat
        canaries = cron_canary.waiting(cron)
        is_digest_due = cron_digest.is_due(cron)
        if not (self._mails or canaries or is_digest_due or self._watch_due):
            return
        mails, watch_due = tuple(self._mails.values()), self._watch_due
        has_channels = bool(cron.project.loaded.settings.alert.channels)
        if not mails and not canaries and not has_channels:
            self._watch_due = False
            return  # nothing to send

        def report() -> None:
            _report(cron, mails, canaries, driver, heartbeat if is_digest_due else None, is_digest_due, watch_due)

        with suppress(OSError):  # fork failed: the next tick tries again
            self._child = start_detached(report, CHILD_S, keep_stderr=_uses_stderr(cron))
            self._mails.clear()
            self._watch_due = False

    def _last_watch(self) -> tuple[float, int]:
        """Return when a tick last ran the watchdog, seconds since the epoch, and how many incidents were open then."""
        with suppress(ResilError, ValueError):
            found = read_regular(self._cron.state.path / LAST_WATCH)
            if found is not None:
                moment, count = found[0].split()
                return float(moment), int(count)
        return float("-inf"), 0

    def _gather_mails(self, ticked: TickResult, table: Table | None) -> None:
        if table is None:
            return
        entries = {entry.name: entry for entry in table.entries if entry.mail_to}
        if self._is_first and entries:  # an earlier tick may have been killed before it mailed
            from resilience.cron.mail import has_news

            self._mails |= {name: (entry, []) for name, entry in entries.items() if has_news(self._cron, entry)}
        self._is_first = False
        for record in ticked.ended:
            if record.name in entries:
                self._mails.setdefault(record.name, (entries[record.name], []))[1].append(record)

    def _write_table(self, table: Table | None) -> bool:
        """Write the table for the watchdog; return whether it changed."""
        if table is None:
            return False
        ignored = [[one.place, one.reason, one.hint] for one in table.ignored if one.is_fault]
        text = json.dumps({"entries": [entry.name for entry in table.entries], "ignored": ignored}) + "\n"
        if text == self._table:
            return False
        is_first, self._table = not self._table, text
        path = self._cron.state.path / TABLE
        with suppress(ResilError):
            if is_first and (found := read_regular(path, 2**22)) is not None and found[0] == text.encode():
                return False
            make_directory(self._cron.state.path, mode=self._cron.state.directory_mode)
            write_atomic(path, text, mode=self._cron.state.file_mode, durable=False)
        return True


def check_reporting(settings: CronSettings) -> None:
    """Raise SettingsError for an invalid time of day or address."""
    if settings.digest_at:
        cron_digest.parse_digest_at(settings.digest_at)
    if settings.ping_url or settings.ping_url_file:
        from resilience.cron.ping import check_ping

        check_ping(settings)


def send_failures(cron: CronProject) -> tuple[str, ...]:
    """Return recent failures to report, with reasons, for `resil cron status`. Never raises."""
    from resilience.cron.ping import ping_state
    from resilience.quantities import format_duration

    now, found = cron.project.system.clock.now(), []
    state = ping_state(cron)
    if state is not None and state.error and (cron.settings.ping_url or cron.settings.ping_url_file):
        ago = f"{format_duration(max(0.0, now - state.time))} ago"
        found.append(f"ping of the dead man's switch failed {ago}: {state.error}")
    with suppress(ResilError, ValueError, TypeError, KeyError):
        if (raw := read_regular(cron.state.path / UNSENT)) is not None:
            record = json.loads(raw[0])
            if now - float(record["time"]) < UNSENT_S:
                found += [str(line) for line in record["trouble"]]
    return tuple(found)


def may_end_incident(ticked: TickResult) -> bool:
    """Return whether a slot has a result, which may end an incident. Pure."""
    return bool(ticked.ended or ticked.submitted or ticked.skipped or ticked.refused)


def may_open_incident(ticked: TickResult) -> bool:
    """Return whether a slot has a result that may open an incident. Pure."""
    return bool(ticked.skipped or ticked.refused or any(run.outcome.is_failure for run in ticked.ended))


def ticked_driver(heartbeat: Heartbeat | None) -> str:
    """Return the driver of a tick. Pure."""
    return heartbeat.driver if heartbeat is not None else ""


def summary_of(ticked: TickResult, trouble: str) -> str:
    """Summarize a tick: counts and names, but no output of runs. Pure."""
    lines = [trouble] if trouble else []
    counts = [
        (len(ticked.started), "started"),
        (sum(run.outcome is Outcome.DONE for run in ticked.ended), "succeeded"),
        (sum(run.outcome.is_failure for run in ticked.ended), "failed"),
        (len(ticked.submitted), "submitted"),
        (len(ticked.refused), "refused"),
        (sum(run.count for run in ticked.skipped), "skipped or missed"),
    ]
    lines.append(", ".join(f"{count} {word}" for count, word in counts if count) or "nothing was due")
    lines += [f"{run.name}: {run.outcome}" for run in (*ticked.ended, *ticked.refused) if run.outcome.is_failure]
    return "\n".join(lines[:50])


def _report(
    cron: CronProject,
    mails: tuple[tuple[Entry, list[RunRecord]], ...],
    canaries: tuple[str, ...],
    driver: str,
    heartbeat: Heartbeat | None,
    is_digest_due: bool,
    watch_due: bool,
) -> None:
    """In the child: queue mails and the digest, run the watchdog, and deliver everything."""
    from resilience.alerts.commands import deliver
    from resilience.cron.mail import mail_news

    project = cron.project
    trouble: list[str] = []
    for entry, records in mails:
        trouble += mail_news(cron, entry, records)
    has_channels = bool(project.loaded.settings.alert.channels)
    if is_digest_due and has_channels:
        with suppress(ResilError, OSError):
            cron_digest.send_digest(cron, heartbeat)
    if watch_due and has_channels:
        _watch(cron)
    elif mails or is_digest_due:
        for _ in deliver(project, notes=notes, patient=True, deadline_s=60.0):
            pass
    for canary in canaries:
        cron_canary.release(cron, canary, driver)
    _write_failures(cron, trouble)


def _uses_stderr(cron: CronProject) -> bool:
    """Return whether an alert channel writes to this process's standard error, so that the child must inherit it."""
    settings = cron.project.loaded.settings
    for name in settings.alert.channels:
        table = settings.channels.get(name)
        if (table.kind if table is not None else name) == "console":
            return table is None or not table.values.get("path")
    return False


def _watch(cron: CronProject) -> None:
    """Do what `resil watch cron` does, including its alerts."""
    from resilience.alerts.notify import notify
    from resilience.alerts.state import open_alert_state
    from resilience.watch.watch import watch, watchdogs_of, with_own_finding

    project = cron.project
    _write_last_watch(cron, 0.0, 1)  # in case this process is killed: an incident may be open
    watchdogs, broken = watchdogs_of(project, [WATCHDOG])
    reports = [*broken, *(with_own_finding(report) for report in watch(project, watchdogs))]
    notify(project, reports, notes=notes, typed="")
    ours = [i for i in open_alert_state(project).ledger.incidents() if i.is_open and i.check == WATCHDOG]
    waits = any(i.gone is not None or i.told is None for i in ours)  # its start or its end has not been sent yet
    _write_last_watch(cron, REPEAT_S - SOON_S if waits else 0.0, len(ours))


def _write_last_watch(cron: CronProject, ago_s: float, count: int) -> None:
    with suppress(ResilError):
        text = f"{cron.project.system.clock.now() - ago_s:.3f} {count}\n"
        write_atomic(cron.state.path / LAST_WATCH, text, mode=cron.state.file_mode, durable=False)


def _write_failures(cron: CronProject, trouble: list[str]) -> None:
    """Write failures for `resil cron status`; writes nothing if there are none."""
    path = cron.state.path / UNSENT
    with suppress(ResilError, OSError):
        if trouble:
            record = {"time": cron.project.system.clock.now(), "trouble": trouble[-20:]}
            write_atomic(path, json.dumps(record) + "\n", mode=cron.state.file_mode, durable=False)
