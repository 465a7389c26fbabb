"""What nobody wants to hear of for a while, until when, and why. Pure words, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from resilience.errors import UsageError


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
