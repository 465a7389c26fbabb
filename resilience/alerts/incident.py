"""Incidents, from the first finding of a fault to its end, and silences, which hold notifications back. Pure."""

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
"""An open incident whose subject was not checked for so long is shown as stale: its watchdog may not run any more."""


def fingerprint_of(check: str, subject: str, fault: str) -> str:
    """The same for the same fault, on every node and at any time: 16 hex digits."""
    return _digest(16, check, subject, fault)


def incident_id_of(fingerprint: str, number: int, opened: float) -> str:
    """The id of the `number`th incident of a fault: 8 hex digits that people type.

    Two watchdogs that find the same fault at the same moment on two nodes give it the same id, so people are notified
    once. The hour is part of the id in case the number was lost with a damaged file.
    """
    return _digest(8, fingerprint, str(number), str(int(opened // 3600)))


def _digest(length: int, *parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of one subject. Times are seconds since the epoch.

    Attributes:
        episode: id of the incident, which people type.
        fingerprint: identifies the fault across incidents; names the file.
        number: number of incidents of this fault so far, this one included.
        check, subject, fault, run: as in the finding.
        verdict: the verdict when the fault was last found; never OK.
        worst: the worst verdict so far.
        changed: since when the verdict is the present one.
        summary, advice, evidence: as in the last finding.
        host: the node that found the fault last.
        opened: when the fault was first found.
        seen: when the fault was last found.
        looked: when the subject was last checked, whatever the result.
        gone: since when the fault is not found any more; None while it is there.
        resolved: when the incident was closed; None while it is open.
        told: when people were last notified; None: never yet.
        first_told: when people were first notified.
        told_verdict: the verdict of the last notification.
        count: number of notifications.
        acknowledged_by, acknowledged_at, acknowledged_note: who acknowledged the incident, when, and their note.
        escalated: number of escalation steps that were notified.
        flaps: when the fault came back, of late.
        flapping: when people were notified that the fault flaps; None when it does not.
        thread: the thread of its alerts.
        intended: when a notification was begun that is not known to have ended: people may have got it, or not.
        held: since when quiet hours hold the notification back.
        silenced: since when a silence holds the notification back.
        earlier: ids of the last incidents of this fault before this one: people type those of an old mail.
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
    first_told: float | None = None
    told_verdict: Verdict | None = None
    count: int = 0
    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    acknowledged_note: str = ""
    escalated: int = 0
    flaps: tuple[float, ...] = ()
    flapping: float | None = None
    thread: str = ""
    intended: float | None = None
    held: float | None = None
    silenced: float | None = None
    earlier: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the incident is not resolved yet."""
        return self.resolved is None

    def is_stale(self, now: float) -> bool:
        """Whether the incident is open and its subject was not checked for a day."""
        return self.is_open and now - max(self.looked, self.seen) > STALE_AFTER_S


def read_incident(record: Mapping[str, Any]) -> Incident:
    """The incident of a JSON record. Raise KeyError, TypeError or ValueError for any other record."""
    opened = record["opened"]
    incident = from_record(Incident, {"seen": opened, "changed": opened, "looked": opened} | dict(record), strict=True)
    return incident if incident.worst >= incident.verdict else replace(incident, worst=incident.verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Keeps people from being notified of incidents, which are still recorded.

    All patterns that are given must match; a text stands for itself or is a pattern: `*`, `?`, `[ab]`.

    Attributes:
        id: 8 hex digits that people type.
        until: when the silence ends, seconds since the epoch. There is no silence without an end.
        by: the user who made it.
        why: the reason that the user gave.
        since: when the silence began.
        check, subject, run, fault: patterns; empty matches everything.
        episode: the id of one incident, or the beginning of it.
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
                "a silence must say what it silences",
                hint="name an incident, a check, a subject or a run; --check '*' silences everything",
            )
        if not self.since < self.until < float("inf"):
            raise UsageError("a silence must end, and later than it begins", hint="say for how long: 2h, 3d")

    def is_over(self, now: float) -> bool:
        """Whether the silence has ended."""
        return now >= self.until

    def covers(self, incident: Incident) -> bool:
        """Whether the silence matches an incident, whatever the time."""
        names = ("check", "subject", "run", "fault")
        return incident.episode.startswith(self.episode) and all(
            _matches(getattr(self, name), getattr(incident, name)) for name in names
        )


def _matches(pattern: str, text: str) -> bool:
    # A subject may have brackets in its name: first of all, a text stands for itself.
    return not pattern or pattern == text or fnmatchcase(text, pattern)


def silencing(silences: Iterable[Silence], incident: Incident, now: float) -> Silence | None:
    """Given the silences, return the one that covers an incident and ends last, or None."""
    covering = (silence for silence in silences if not silence.is_over(now) and silence.covers(incident))
    return max(covering, key=lambda silence: silence.until, default=None)
