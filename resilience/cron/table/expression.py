"""Parses schedules: five fields, `@hourly` etc., `@every 90s`. Pure.

Stricter than Debian's cron where that misreads a text: `5-1`, which never matches, or `1.5`, of which it reads the 1.
(Its results are recorded in tests/cron/table/test_expression.py.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from resilience.cron.table.schedule import Schedule, fields_of
from resilience.cron.table.zones import ZoneError, offset_of
from resilience.errors import QuantityError, UsageError
from resilience.messages import plural, suggest
from resilience.quantities import parse_duration_s

__all__ = ["Schedule", "ScheduleError", "ZoneError", "parse_schedule"]

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""crontab(5). @reboot and our own @every are not expressions."""

REBOOT = "@reboot"
EVERY = "@every"

_LONGEST_S = 10 * 366 * 86400

_FIELDS: tuple[tuple[str, int, int, Sequence[str]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_TERM = r"(?ai)(?:\*|(?P<first>[a-z]+|\d{1,9})(?:-(?P<last>[a-z]+|\d{1,9}))?)(?P<stepped>/(?P<step>\d{1,9}))?"


class ScheduleError(UsageError, ValueError):
    """The text is not a schedule, or never matches."""


def parse_schedule(text: str, zone: str = "") -> Schedule:
    """Parse a schedule.

    For instance, `*/5 8-18 * * MON-FRI`, `@hourly`, `@every 90s`. Raise ScheduleError if it is invalid, if cron would
    misread it, or if it never matches; ZoneError if the zone is unknown.
    """
    words = text.split()
    zone = zone.strip()
    offset_of(zone)
    if words[:1] == [REBOOT] and len(words) == 1:
        return Schedule(REBOOT, zone)
    if words[:1] == [EVERY]:
        return Schedule(" ".join(words), zone, every_s=_parse_every(words[1:]))
    if words and words[0].startswith("@"):
        if len(words) == 1 and words[0] in ALIASES:
            return Schedule(words[0], zone, ALIASES[words[0]])
        raise ScheduleError(
            f"{text.strip()!r} is not a schedule", hint=suggest(words[0].lower(), [*ALIASES, REBOOT, EVERY])
        )
    if len(words) != len(_FIELDS):
        fields = ", ".join(name for name, *_ in _FIELDS)
        raise ScheduleError(
            f"{text.strip()!r} has {plural(len(words), 'field')} instead of five",
            hint=f"write {fields}: `30 4 * * *` is every day at 04:30",
        )
    expression = " ".join(
        _read_field(word, name, low, high, names) for word, (name, low, high, names) in zip(words, _FIELDS, strict=True)
    )
    _check_possible(expression)
    return Schedule(" ".join(words), zone, expression)


def _parse_every(words: list[str]) -> int:
    try:
        seconds = parse_duration_s(" ".join(words))
    except QuantityError as error:
        raise ScheduleError(f"@every {' '.join(words)}: {error}", hint="write for instance @every 90s") from error
    if seconds < 1 or seconds != int(seconds):
        raise ScheduleError(
            f"@every {' '.join(words)} is not a whole number of seconds", hint="write @every 1s or more"
        )
    if seconds > _LONGEST_S:
        raise ScheduleError(f"@every {' '.join(words)} is longer than ten years", hint="write @every 10m, or @yearly")
    return int(seconds)


def _read_field(word: str, name: str, low: int, high: int, names: Sequence[str]) -> str:
    """Check a field against cron's grammar: only lists of `*`, `A`, `A-B`, `*/N` and `A-B/N` are accepted.

    Return it in the form in which cronsim reads it the same way: cronsim would read `4-4/7` as 4-59/7.
    """
    terms = []
    for term in word.split(","):
        match = re.fullmatch(_TERM, term)
        if match is None:
            raise ScheduleError(f"{name}: {term!r} in {word!r} is invalid", hint=_field_hint(term, name))
        ends = [_number(match[end], name, low, high, names) for end in ("first", "last") if match[end] is not None]
        if len(ends) == 2 and ends[0] > ends[1]:
            wrapped = f"{match['first']}-{names[-1] if names else high},{names[0] if names else low}-{match['last']}"
            hint = "write SUN as 7: 5-7" if name == _FIELDS[4][0] and ends[1] == 0 else f"write {wrapped}"
            raise ScheduleError(f"{name}: the range {term!r} ends before it begins, so it never matches", hint=hint)
        terms.append(term if len(set(ends)) != 1 else str(ends[0]))
        if not match["stepped"]:
            continue
        if int(match["step"]) == 0:
            raise ScheduleError(f"{name}: {term!r} has a step of 0", hint="write a step of 1 or more: */5")
        if len(ends) == 1:
            # Debian's cron refuses it, cronie takes it for 5-59/10, older crons for 5 alone.
            raise ScheduleError(
                f"{name}: {term!r} has a step but no range", hint=f"write {match['first']}-{high}{match['stepped']}"
            )
    return ",".join(terms)


def _number(text: str, name: str, low: int, high: int, names: Sequence[str]) -> int:
    if text.lower() in names:
        return low + names.index(text.lower())
    if not text.isdigit():
        hint = f"write {names[0].upper()} to {names[-1].upper()}" if names else f"write {low} to {high}"
        raise ScheduleError(f"{name}: {text!r} is not a {name}", hint=hint)
    if not low <= int(text) <= high:
        raise ScheduleError(f"{name}: {text} is not between {low} and {high}", hint=f"write {low} to {high}")
    return int(text)


def _field_hint(term: str, name: str) -> str:
    if not term:
        return "remove the comma at the end, or one of two"
    if "L" in term.upper() or "#" in term or "?" in term or "W" in term.upper():
        return f"cron does not support L, W, # and ?; check the {name} in the script"
    return "write for instance *, 5, 1-5, */10 or 1,15"


def _check_possible(expression: str) -> None:
    from cronsim import CronSimError

    try:
        fields_of(expression)
    except CronSimError as error:
        raise ScheduleError(
            f"{expression!r} never matches: no such month has that day",
            hint="for the last day of a month run the script on `28-31`, and continue only if "
            '`[ "$(date -d tomorrow +%d)" = 01 ]`',
        ) from error
