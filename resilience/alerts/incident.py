"""Incidents, from the first finding of a fault to its resolution, and silences, which mute notifications. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from resilience.errors import UsageError
from resilience.finding import Verdict
from resilience.records import from_record

STALE_AFTER_S = 86400.0
"""An open incident whose subject was not checked for this long, and for MAX_MISSED of its intervals, is stale."""

MAX_MISSED = 3
"""After this many checks in a row that did not include its subject, an incident is closed."""


def fingerprint_of(check: str, subject: str, fault: str) -> str:
    """Return the fingerprint of a fault, 16 hex digits: the same on every node and at any time."""
    return hex_digest(16, check, subject, fault)


def next_incident_id(previous: str, number: int) -> str:
    """Return the id of the incident that follows `previous` of the same fault: 8 hex digits, short enough to type.

    Watchdogs on two nodes that read the same previous incident derive the same id, so that one notification is sent.
    The first incident of a fault has a random id (Ledger.open): ids that are derived from it are never used again,
    whatever becomes of the files.
    """
    return hex_digest(8, previous, str(number))


def hex_digest(length: int, *parts: str) -> str:
    """Return the first `length` hex digits of the SHA-256 of the parts."""
    text = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of one subject. Times are seconds since the epoch.

    Attributes:
        episode: id of the incident, as users type it.
        fingerprint: identifies the fault across incidents; names the file.
        number: number of incidents of this fault so far, including this one.
        check, subject, fault, run: as in the finding.
        verdict: the verdict when the fault was last found; never OK.
        worst: the worst verdict so far.
        changed: when the verdict last changed.
        summary, advice, evidence: as in the last finding.
        host: the node that last found the fault.
        opened: when the fault was first found.
        seen: when the fault was last found.
        looked: when the subject was last checked, whatever the result.
        gone: when a check first no longer found the fault; None while the fault is present.
        resolved: when the incident was resolved; None while it is open.
        told: time of the last notification; None before the first.
        told_before: time of the last notification of an earlier incident of this fault.
        first_told: time of the first notification.
        told_verdict: verdict of the last notification.
        count: number of notifications.
        acknowledged_by, acknowledged_at, acknowledged_note: user, time and note of the acknowledgement.
        escalated: number of escalation steps notified so far.
        acted: number of deeds of [alert] act that are done; `acted_at`: when the last one was, `did`: what it was.
        flaps: recent times at which the fault came back.
        flapping: when flapping was notified; None if the fault does not flap.
        thread: the thread of its alerts.
        intended: start of a notification that is not known to have completed: it may have been sent.
        intended_as: reason and verdict of that notification.
        held: since when quiet hours have delayed the notification.
        silenced: since when a silence has muted the incident.
        earlier: ids of previous incidents of this fault, for users who type an id from an old message.
        source: node, project and typed arguments of the watch that last found the fault; empty if unknown, or if that
            watch checks only a part of its subjects.
        missed: number of checks in a row by the same source that did not include the subject.
        every_s: seconds between the last two checks of the subject; 0 before the second.
        messages: ids of the last messages about the incident, for users who type the id of a message.
    """

    episode: str
    fingerprint: str
    check: str
    subject: str
    fault: str
    verdict: Verdict
    summary: str
    opened: float
    seen: float
    run: str = ""
    number: int = 1
    worst: Verdict = Verdict.OK
    changed: float = 0.0
    advice: str = ""
    evidence: tuple[str, ...] = ()
    host: str = ""
    looked: float = 0.0
    gone: float | None = None
    resolved: float | None = None
    told: float | None = None
    told_before: float | None = None
    first_told: float | None = None
    told_verdict: Verdict | None = None
    count: int = 0
    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    acknowledged_note: str = ""
    escalated: int = 0
    acted: int = 0
    acted_at: float | None = None
    did: str = ""
    flaps: tuple[float, ...] = ()
    flapping: float | None = None
    thread: str = ""
    intended: float | None = None
    intended_as: str = ""
    held: float | None = None
    silenced: float | None = None
    earlier: tuple[str, ...] = ()
    source: str = ""
    missed: int = 0
    every_s: float = 0.0
    messages: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Return True if the incident is not resolved."""
        return self.resolved is None

    @property
    def state(self) -> str:
        """`faulty`, `recovered` (the last check no longer found the fault; not notified yet) or `resolved`."""
        return "resolved" if self.resolved is not None else "recovered" if self.gone is not None else "faulty"

    def is_stale(self, now: float) -> bool:
        """Return True if the incident is open and its subject was not checked for a day, and for three intervals."""
        return self.is_open and now - max(self.looked, self.seen) > max(STALE_AFTER_S, MAX_MISSED * self.every_s)

    def is_expired(self, now: float) -> bool:
        """Return True if the incident is open and its subject is no longer checked."""
        return self.is_open and (self.missed >= MAX_MISSED or self.is_stale(now))


def read_incident(record: Mapping[str, Any]) -> Incident:
    """Return the incident of a JSON record. Raise KeyError, TypeError or ValueError if the record is not one."""
    opened = record["opened"]
    incident = from_record(Incident, {"seen": opened, "changed": opened, "looked": opened} | dict(record), strict=True)
    return incident if incident.worst >= incident.verdict else replace(incident, worst=incident.verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Mutes the notifications of matching incidents, which are still recorded.

    All given patterns must match, literally or as a glob: `*`, `?`, `[ab]`.

    Attributes:
        id: 8 hex digits, as users type it.
        until: when the silence expires, seconds since the epoch. Every silence expires.
        by: the user who created the silence.
        why: the reason given by the user.
        since: when the silence starts.
        check, subject, run, fault: patterns; empty matches everything.
        episode: id or id prefix of one incident.
    """

    id: str
    until: float
    by: str = ""
    why: str = ""
    since: float = 0.0
    check: str = ""
    subject: str = ""
    run: str = ""
    fault: str = ""
    episode: str = ""

    def __post_init__(self) -> None:
        if not (self.check or self.subject or self.run or self.fault or self.episode):
            raise UsageError(
                "a silence needs a pattern",
                hint="name an incident, a check, a subject or a run; --check '*' silences everything",
            )
        if not self.since < self.until < float("inf"):
            raise UsageError("a silence must end after it starts", hint="give a duration: 2h, 3d")

    def is_expired(self, now: float) -> bool:
        """Return True if the silence has expired."""
        return now >= self.until

    def matches(self, incident: Incident) -> bool:
        """Return True if the silence matches an incident, regardless of time."""
        names = ("check", "subject", "run", "fault")
        return incident.episode.startswith(self.episode) and all(
            _matches(getattr(self, name), getattr(incident, name)) for name in names
        )


def _matches(pattern: str, text: str) -> bool:
    # A subject may contain brackets, so a literal match comes first.
    return not pattern or pattern == text or fnmatchcase(text, pattern)


def matching_silence(silences: Iterable[Silence], incident: Incident, now: float) -> Silence | None:
    """Return the active silence that matches an incident and expires last, or None."""
    covering = (silence for silence in silences if not silence.is_expired(now) and silence.matches(incident))
    return max(covering, key=lambda silence: silence.until, default=None)
