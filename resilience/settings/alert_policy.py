"""[alert]: who is told, when, and how often. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from resilience.errors import QuantityError, SettingsError
from resilience.quantities import parse_duration_s

_RANGE = r"(?a)([0-9]{1,2})(?::([0-9]{2}))?\s*[-–]\s*([0-9]{1,2})(?::([0-9]{2}))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """[alert]: who is told, when, and how often. The channels themselves are the tables [channel.NAME].

    Attributes:
        channels: names of the channels that are told first. None: nobody is told, and `resil watch` only prints.
        escalation: who is told as well while nobody has acknowledged, and how long after the first were told:
            `["1h: list", "4h: oncall, slack"]`.
        reminder_s: how often an incident that lasts is told again, until it is acknowledged. 0: never.
        group_s: findings of the same check within this time go into one message; it also is the shortest time between
            two messages of one group, a CRITICAL that is new excepted.
        unknown_for_s: an UNKNOWN must last this long before anybody is told: one missed answer is no news.
        quiet_hours: `"22:00-07:00"`, local time: only CRITICAL is told then, the rest waits for the morning; what came
            and went in the night is told then as well, once.
        flap_count: an incident that came back so often within `flap_s` is flapping: it is told once, and again when it
            has settled.
        flap_s: see there.
        resolve_after_s: a fault must be gone this long before its end is told.
    """

    channels: tuple[str, ...] = ()
    escalation: tuple[str, ...] = ()
    reminder_s: float = 4 * 3600.0
    group_s: float = 300.0
    unknown_for_s: float = 180.0
    quiet_hours: str = ""
    flap_count: int = 4
    flap_s: float = 3600.0
    resolve_after_s: float = 0.0


class EscalationStep(NamedTuple):
    """Channels to notify as well while nobody has acknowledged, so long after the first notification."""

    after_s: float
    channels: tuple[str, ...]


def parse_escalation(texts: Sequence[str]) -> tuple[EscalationStep, ...]:
    """Given `["1h: list", "4h: oncall, slack"]`, return the steps, the earliest first.

    Raise SettingsError if one is no step.
    """
    return tuple(sorted((_step(text) for text in texts), key=lambda step: step.after_s))


def _step(text: str) -> EscalationStep:
    hint = 'write how long to wait, a colon, and the channels: escalation = ["1h: list", "4h: oncall, slack"]'
    wait, colon, names = text.partition(":")
    channels = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not colon or not channels:
        raise SettingsError(f"{text!r} in [alert] escalation names no channel", hint=hint)
    try:
        after_s = parse_duration_s(wait)
    except QuantityError as error:
        raise SettingsError(f"{text!r} in [alert] escalation: {error.message}", hint=hint) from error
    if after_s <= 0:
        raise SettingsError(
            f"{text!r} in [alert] escalation does not wait", hint="who is told at once stands in [alert] channels"
        )
    return EscalationStep(after_s, channels)


class QuietHours(NamedTuple):
    """A time of the day, in minutes since midnight; it may go over midnight. The end does not belong to it."""

    start_minute: int
    end_minute: int

    def cover(self, minute: int) -> bool:
        """Return whether a minute of the day lies within."""
        if self.start_minute < self.end_minute:
            return self.start_minute <= minute < self.end_minute
        return minute >= self.start_minute or minute < self.end_minute


def parse_quiet_hours(text: str) -> QuietHours | None:
    """Given `22:00-07:00`, return it; None for an empty text. Raise SettingsError if it is none, or a whole day."""
    if not text.strip():
        return None
    match = re.fullmatch(_RANGE, text.strip())
    minutes = [60 * int(match[i]) + int(match[i + 1] or 0) for i in (1, 3)] if match is not None else []
    # 24:00 is midnight, as people write the end of a day (ISO 8601).
    if match is None or max(minutes) > 24 * 60 or int(match[2] or 0) > 59 or int(match[4] or 0) > 59:
        raise SettingsError(
            f"{text!r} in [alert] quiet_hours is no time of the day", hint='write quiet_hours = "22:00-07:00"'
        )
    start, end = (minute % (24 * 60) for minute in minutes)
    if start == end:
        raise SettingsError(
            f"{text!r} in [alert] quiet_hours is the whole day, or nothing",
            hint="to hear of nothing for a while, use `resil alert silence`, which ends",
        )
    return QuietHours(start, end)
