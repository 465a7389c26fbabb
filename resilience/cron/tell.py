"""What a tick of cron tells, and whom: the dead man's switch, the mails of MAILTO, the daily word, canaries, alerts.

Nothing here delays a tick: all that may take time happens in children that nobody waits for.
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
    from resilience.cron.ticked import Ticked
    from resilience.settings.cron_settings import CronSettings

CHILD_S = 180.0
"""A child that tells is killed after so long; what it did not tell lies in the outbox."""
CLOSE_S = 60.0
PING_CLOSE_S = 12.0
REPEAT_S = 900.0
"""While something is wrong, people may have to be reminded: it is looked at again so often, though nothing ran."""
SOON_S = 60.0
"""Where news wait for their time ([alert] group_s, unknown_for_s), so often."""
TABLE = "table.json"
"""In `<state_dir>/.cron`: the entries, and what is ignored by mistake, for the watchdog (checks/_cron/words.py)."""
LOOKED = "looked"
"""In `<state_dir>/.cron`: when a tick last asked the watchdog."""
UNTOLD = "untold"
"""In `<state_dir>/.cron`: what could not be told of late, and why."""
UNTOLD_S = 86400.0
WATCHDOG = "cron"
_TAKEN_ALONG = ("SLURM_JOB_ID", "INVOCATION_ID")
"""Where one of these is set, the end of this process is that of all its children: slurmstepd and systemd see to it."""


class Teller:
    """Tells of the ticks of one scheduler process: made once, and asked twice for each tick."""

    def __init__(self, cron: CronProject) -> None:
        self._cron = cron
        self._ping: Ping | None = None
        self._child: Detached | None = None
        self._mails: dict[str, tuple[Entry, list[RunRecord]]] = {}
        self._is_first = True
        self._table = ""
        self._is_owed = False
        """Whether the watchdog has something to say."""
        self._heartbeat: Heartbeat | None = None
        self._trouble = ""

    def begins(self) -> None:
        """A tick begins. Never raises, and waits for nothing.

        While the scheduler is stopped the dead man's switch hears nothing: that is what it is for.
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

    def ended(self, ticked: Ticked, table: Table | None, *, trouble: str = "") -> tuple[str, ...]:
        """A tick has ended; `trouble`: why it failed as a whole. Return what to say on standard error.

        Never raises, and waits for nothing: whatever is sent is sent by a child.
        """
        try:
            return self._ended(ticked, table, trouble)
        except Exception as error:
            return (f"nobody may be told of this tick: {type(error).__name__}: {error}",)

    def close(self) -> None:
        """The process is about to end: wait for children where their end would be theirs too (a job of SLURM, a unit
        of systemd), and at most a minute. Elsewhere return at once."""
        with suppress(Exception):
            must_wait = any(name in self._cron.project.system.environ for name in _TAKEN_ALONG)
            if self._child is not None:
                if must_wait:
                    self._child.wait(CLOSE_S)
                if self._mails or self._is_owed:  # what came while it was busy
                    self._start(ticked_driver(self._heartbeat), again=True)
                    if must_wait:
                        self._child.wait(CLOSE_S)
                self._child.forget()
            if self._ping is not None:
                if must_wait:
                    self._ping.wait(PING_CLOSE_S)
                self._ping.forget()

    # ---- one tick -----------------------------------------------------------------------------------------------

    def _ended(self, ticked: Ticked, table: Table | None, trouble: str) -> tuple[str, ...]:
        heartbeat = self._heartbeat = ticked.heartbeat or self._heartbeat
        if not trouble and ticked.heartbeat is not None:
            trouble = ticked.heartbeat.trouble
        if self._ping is not None:
            self._ping.ended(summary_of(ticked, trouble), is_well=not trouble)
        if ticked.stopped:
            return ()
        if ticked.heartbeat is not None:
            cron_digest.count(self._cron, ticked.heartbeat)
        looked, open_incidents = self._last_look()
        is_stale = not 0 <= self._cron.project.system.clock.now() - looked < REPEAT_S
        is_back = heartbeat is not None and heartbeat.alive_since == heartbeat.time  # nobody ticked for a while
        is_new = self._note_table(table) or is_bad_news(ticked) or (open_incidents > 0 and is_news(ticked))
        if is_new or is_stale or is_back or trouble != self._trouble:
            self._is_owed = True
        self._trouble = trouble
        self._gather_mails(ticked, table)
        self._start(ticked_driver(heartbeat))
        try:
            check_telling(self._cron.settings)
        except ResilError as error:
            return (f"{error.message}; {error.hint}",)
        return ()

    def _start(self, driver: str, *, again: bool = False) -> None:
        """Have a child tell what there is to tell, unless one is still at it: then it is told with the next tick."""
        if self._child is not None and not self._child.is_over() and not again:
            return
        cron, heartbeat = self._cron, self._heartbeat
        canaries = cron_canary.waiting(cron)
        is_digest_due = cron_digest.is_due(cron)
        if not (self._mails or canaries or is_digest_due or self._is_owed):
            return
        mails, is_owed = tuple(self._mails.values()), self._is_owed
        has_channels = bool(cron.project.loaded.settings.alert.channels)
        if not mails and not canaries and not has_channels:
            self._is_owed = False
            return  # nobody is to be told of anything

        def tell() -> None:
            _tell(cron, mails, canaries, driver, heartbeat if is_digest_due else None, is_digest_due, is_owed)

        with suppress(OSError):  # no room for a process: with the next tick
            self._child = start_detached(tell, CHILD_S, keep_stderr=_speaks_here(cron))
            self._mails.clear()
            self._is_owed = False

    def _last_look(self) -> tuple[float, int]:
        """When a tick last asked the watchdog, seconds since the epoch, and how many of its incidents were open."""
        with suppress(ResilError, ValueError):
            found = read_regular(self._cron.state.path / LOOKED)
            if found is not None:
                moment, count = found[0].split()
                return float(moment), int(count)
        return float("-inf"), 0

    def _gather_mails(self, ticked: Ticked, table: Table | None) -> None:
        if table is None:
            return
        entries = {entry.name: entry for entry in table.entries if entry.mail_to}
        if self._is_first and entries:  # a tick before us may have been killed before it told
            from resilience.cron.mail import has_news

            self._mails |= {name: (entry, []) for name, entry in entries.items() if has_news(self._cron, entry)}
        self._is_first = False
        for record in ticked.ended:
            if record.name in entries:
                self._mails.setdefault(record.name, (entries[record.name], []))[1].append(record)

    def _note_table(self, table: Table | None) -> bool:
        """Write down for the watchdog what the table says; return whether that is news."""
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


def check_telling(settings: CronSettings) -> None:
    """Raise SettingsError for a time of day or an address that cannot be meant."""
    if settings.digest_at:
        cron_digest.parse_digest_at(settings.digest_at)
    if settings.ping_url or settings.ping_url_file:
        from resilience.cron.ping import check_ping

        check_ping(settings)


def unreached(cron: CronProject) -> tuple[str, ...]:
    """What ticks could not tell of late, and why, for `resil cron status`. Never raises."""
    from resilience.cron.ping import ping_state
    from resilience.quantities import format_duration

    now, found = cron.project.system.clock.now(), []
    state = ping_state(cron)
    if state is not None and state.error and (cron.settings.ping_url or cron.settings.ping_url_file):
        ago = f"{format_duration(max(0.0, now - state.time))} ago"
        found.append(f"the dead man's switch was not reached {ago}: {state.error}")
    with suppress(ResilError, ValueError, TypeError, KeyError):
        if (raw := read_regular(cron.state.path / UNTOLD)) is not None:
            record = json.loads(raw[0])
            if now - float(record["time"]) < UNTOLD_S:
                found += [str(line) for line in record["trouble"]]
    return tuple(found)


def is_news(ticked: Ticked) -> bool:
    """Whether something became of a slot: it may end an incident. Pure."""
    return bool(ticked.ended or ticked.submitted or ticked.skipped or ticked.refused)


def is_bad_news(ticked: Ticked) -> bool:
    """Whether something became of a slot that may open an incident. Pure."""
    return bool(ticked.skipped or ticked.refused or any(run.outcome.is_failure for run in ticked.ended))


def ticked_driver(heartbeat: Heartbeat | None) -> str:
    """Who made a tick, for people. Pure."""
    return heartbeat.driver if heartbeat is not None else ""


def summary_of(ticked: Ticked, trouble: str) -> str:
    """A tick in a few words: counts and names, and nothing that a run wrote. Pure."""
    lines = [trouble] if trouble else []
    counts = [
        (len(ticked.started), "started"),
        (sum(run.outcome is Outcome.DONE for run in ticked.ended), "ended well"),
        (sum(run.outcome.is_failure for run in ticked.ended), "failed"),
        (len(ticked.submitted), "submitted"),
        (len(ticked.refused), "refused"),
        (sum(run.count for run in ticked.skipped), "skipped or missed"),
    ]
    lines.append(", ".join(f"{count} {word}" for count, word in counts if count) or "nothing was due")
    lines += [f"{run.name}: {run.outcome}" for run in (*ticked.ended, *ticked.refused) if run.outcome.is_failure]
    return "\n".join(lines[:50])


def _tell(
    cron: CronProject,
    mails: tuple[tuple[Entry, list[RunRecord]], ...],
    canaries: tuple[str, ...],
    driver: str,
    heartbeat: Heartbeat | None,
    is_digest_due: bool,
    is_owed: bool,
) -> None:
    """In the child: mails and the daily word into the outbox, what the watchdog says, and then all of it out."""
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
    if is_owed and has_channels:
        _watch(cron)
    elif mails or is_digest_due:
        for _ in deliver(project, notes=notes, patient=True, deadline_s=60.0):
            pass
    for canary in canaries:
        cron_canary.release(cron, canary, driver)
    _note_trouble(cron, trouble)


def _speaks_here(cron: CronProject) -> bool:
    """Whether an alert is to appear on the standard error of this very process: then a child must have it."""
    settings = cron.project.loaded.settings
    for name in settings.alert.channels:
        table = settings.channels.get(name)
        if (table.kind if table is not None else name) == "console":
            return table is None or not table.values.get("path")
    return False


def _watch(cron: CronProject) -> None:
    """What `resil watch cron` does in a tick of its own, with its alerts."""
    from resilience.alerts.notify import notify
    from resilience.alerts.state import open_alert_state
    from resilience.watch.watch import watch, watchdogs_of, with_own_finding

    project = cron.project
    _note_look(cron, 0.0, 1)  # should we be killed: an incident may be open
    watchdogs, broken = watchdogs_of(project, [WATCHDOG])
    notify(project, [*broken, *(with_own_finding(report) for report in watch(project, watchdogs))], notes=notes)
    ours = [i for i in open_alert_state(project).ledger.incidents() if i.is_open and i.check == WATCHDOG]
    waits = any(i.gone is not None or i.told is None for i in ours)  # its end, or its beginning, is not told yet
    _note_look(cron, REPEAT_S - SOON_S if waits else 0.0, len(ours))


def _note_look(cron: CronProject, ago_s: float, count: int) -> None:
    with suppress(ResilError):
        text = f"{cron.project.system.clock.now() - ago_s:.3f} {count}\n"
        write_atomic(cron.state.path / LOOKED, text, mode=cron.state.file_mode, durable=False)


def _note_trouble(cron: CronProject, trouble: list[str]) -> None:
    """What could not be told, for `resil cron status`. Mostly nothing, and then nothing is written."""
    path = cron.state.path / UNTOLD
    with suppress(ResilError, OSError):
        if trouble:
            record = {"time": cron.project.system.clock.now(), "trouble": trouble[-20:]}
            write_atomic(path, json.dumps(record) + "\n", mode=cron.state.file_mode, durable=False)
