"""A fault from its first notice to its end: what is known of it and what was said of it. Pure words, and their JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

from resilience.errors import UsageError
from resilience.finding import Verdict

STALE_AFTER_S = 86400.0
"""An open incident whose subject was not looked at for so long is shown as stale: perhaps nobody looks any more."""

_TIMES = ("gone", "resolved", "told", "first_told", "acknowledged_at", "intended", "held", "silenced", "flapping")


def fingerprint_of(check: str, subject: str, fault: str) -> str:
    """What makes two findings the same fault, whoever finds it and whenever: 16 hex digits."""
    return _digest(16, check, subject, fault)


def episode_of(fingerprint: str, number: int, opened: float) -> str:
    """The id of an incident's `number`th coming: 8 hex digits that people type.

    Two watchdogs that find the same fault at the same moment on two nodes give it the same id, and so they tell it
    once. The hour is in it for the case that the number was forgotten, with a damaged file.
    """
    return _digest(8, fingerprint, str(number), str(int(opened // 3600)))


def _digest(length: int, *parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of one subject. Times are seconds since the epoch.

    Attributes:
        episode: its id from its first notice to its end; people type it.
        fingerprint: what makes it the same fault, across episodes; its file is named by it.
        number: how many episodes this fault has had, this one included.
        check, subject, fault, run: as in the finding.
        verdict: how bad it was when it was last seen; never OK.
        worst: how bad it has been at worst.
        changed: since when it is as bad as it is now.
        summary, advice, evidence: as in the finding that was seen last.
        host: the node that saw it last.
        opened: when it was seen first.
        seen: when it was seen last.
        looked: when its subject was looked at last, whatever was found.
        gone: since when it has not been found any more; None while it is there.
        resolved: when it was closed; None while it is open.
        told: when people were last told; None: never yet.
        first_told: when people were first told.
        told_verdict: how bad they were told it is.
        count: how often they were told.
        acknowledged_by, acknowledged_at, acknowledged_note: who has taken it on, when, and the words they left.
        escalated: how many steps of the escalation have been told.
        flaps: when it came back, of late.
        flapping: when people were told that it flaps; None when it does not.
        thread: what its alerts hang together by.
        intended: when telling was begun and not seen to end: people may have been told, or not.
        held: since when quiet hours keep it from being told.
        silenced: since when a silence keeps it from being told.
        earlier: the ids of this fault's last episodes before this one: people type what stands in an old mail.
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
        """Whether it is not over yet."""
        return self.resolved is None

    def is_stale(self, now: float) -> bool:
        """Whether it is open and nobody looked at its subject for a day."""
        return self.is_open and now - max(self.looked, self.seen) > STALE_AFTER_S


def incident_to_json(incident: Incident) -> dict[str, Any]:
    """An incident as JSON's own types."""
    record = {field.name: getattr(incident, field.name) for field in fields(incident)}
    record["verdict"] = incident.verdict.value
    record["worst"] = incident.worst.value
    record["told_verdict"] = incident.told_verdict.value if incident.told_verdict is not None else None
    record["evidence"] = list(incident.evidence)
    record["flaps"] = list(incident.flaps)
    record["earlier"] = list(incident.earlier)
    return record


def incident_from_json(record: Mapping[str, Any]) -> Incident:
    """The incident that `incident_to_json` wrote. Raise KeyError, TypeError or ValueError if it is none.

    Keys of a later version are passed over.
    """
    given = {field.name: record[field.name] for field in fields(Incident) if field.name in record}
    for name in ("episode", "fingerprint", "check", "subject", "fault", "summary"):
        if not isinstance(record[name], str):
            raise TypeError(f"{name} is not a text")
    for name in ("run", "advice", "host", "acknowledged_by", "acknowledged_note", "thread"):
        if not isinstance(given.get(name, ""), str):
            raise TypeError(f"{name} is not a text")
    for name in ("opened", "seen", "changed", "looked"):
        given[name] = float(given.get(name, record["opened"]))
    for name in _TIMES:
        given[name] = None if given.get(name) is None else float(given[name])
    for name in ("number", "count", "escalated"):
        given[name] = int(given.get(name, 0))
    times = [given[name] for name in ("opened", "seen", "changed", "looked", *_TIMES)]
    given["flaps"] = tuple(float(time) for time in given.get("flaps", ()))
    if not all(isfinite(time) for time in (*times, *given["flaps"]) if time is not None):
        raise ValueError("a time is no time")
    told_verdict = given.get("told_verdict")
    given["verdict"] = Verdict(record["verdict"])
    given["worst"] = max(given["verdict"], Verdict(given.get("worst", given["verdict"].value)))
    given["told_verdict"] = None if told_verdict is None else Verdict(told_verdict)
    given["evidence"] = tuple(str(line) for line in given.get("evidence", ()))
    given["earlier"] = tuple(str(episode) for episode in given.get("earlier", ()))
    return Incident(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Keeps people from being told; what is known goes on being kept.

    What is given must all match; a text stands for itself or is a pattern: `*`, `?`, `[ab]`.

    Attributes:
        id: 8 hex digits that people type.
        until: when it ends, seconds since the epoch. There is no silence without an end.
        by: who wanted it.
        why: the reason that they gave.
        since: when it began.
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
        """Whether it has ended."""
        return now >= self.until

    def covers(self, *, check: str, subject: str, run: str = "", fault: str = "", episode: str = "") -> bool:
        """Whether an incident is one of those that are silenced, time apart."""
        pairs = ((self.check, check), (self.subject, subject), (self.run, run), (self.fault, fault))
        return episode.startswith(self.episode) and all(_matches(pattern, text) for pattern, text in pairs)


def _matches(pattern: str, text: str) -> bool:
    # A subject may have brackets in its name: first of all, a text stands for itself.
    return not pattern or pattern == text or fnmatchcase(text, pattern)


def silence_to_json(silence: Silence) -> dict[str, Any]:
    """A silence as JSON's own types."""
    return {field.name: getattr(silence, field.name) for field in fields(silence)}


def silence_from_json(record: Mapping[str, Any]) -> Silence:
    """The silence that `silence_to_json` wrote. Raise KeyError, TypeError or ValueError if it is none.

    Keys of a later version are passed over.
    """
    given: dict[str, Any] = {field.name: record[field.name] for field in fields(Silence) if field.name in record}
    for name in ("until", "since"):
        given[name] = float(given.get(name, 0.0) if name == "since" else record[name])
    for name, value in given.items():
        if name not in ("until", "since") and not isinstance(value, str):
            raise TypeError(f"{name} is not a text")
    try:
        return Silence(**given)
    except UsageError as error:
        raise ValueError(error.message) from error
