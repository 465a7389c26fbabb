"""[alert]: who is notified, when, and how often. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from resilience.errors import QuantityError, SettingsError
from resilience.quantities import parse_duration_s

HOLD, CANCEL = "hold", "cancel"
"""What may be done about the run of an incident."""
_RANGE = r"(?a)([0-9]{1,2})(?::([0-9]{2}))?\s*[-–]\s*([0-9]{1,2})(?::([0-9]{2}))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """[alert]: who is notified, when, and how often. The channels themselves are the tables [channel.NAME].

    Attributes:
        channels: names of the channels that are notified first. Empty: no notifications, `resil watch` only prints.
        escalation: channels that are notified as well while an incident is not acknowledged, and how long after the
            first notification: `["1h: list", "4h: oncall, slack"]`.
        act: what is done about the run of an incident that stays CRITICAL and is not acknowledged, and how long after
            the first notification: `["6h: hold", "1d: cancel"]`. `hold` holds its queued jobs, as `resil breaker open`;
            `cancel` ends its jobs, as `resil cancel`. Each once, and only with `enabled = true` under [act].
        reminder_s: interval of reminders for an open incident, until the incident is acknowledged. 0: no reminders.
        group_s: findings of the same check within this time are sent in one message; also the minimum interval
            between two messages of one check to one channel. A new CRITICAL is sent at once.
        unknown_for_s: an UNKNOWN must last this long before a notification is sent: a single failed check is not news.
        quiet_hours: `"22:00-07:00"`, local time: only CRITICAL notifications are sent; the others are held until the
            end of the quiet hours, and incidents that were resolved meanwhile are reported then, once.
        flap_count: an incident that recurs this often within `flap_s` is flapping: one notification is sent, and
            another when the incident is stable again. 0: never.
        flap_s: time window for `flap_count`.
        resolve_after_s: a fault must be gone this long before the incident is reported as resolved.
    """

    channels: tuple[str, ...] = ()
    escalation: tuple[str, ...] = ()
    act: tuple[str, ...] = ()
    reminder_s: float = 4 * 3600.0
    group_s: float = 300.0
    unknown_for_s: float = 180.0
    quiet_hours: str = ""
    flap_count: int = 4
    flap_s: float = 3600.0
    resolve_after_s: float = 0.0


class EscalationStep(NamedTuple):
    """Channels to notify `after_s` seconds after the first notification of an unacknowledged incident."""

    after_s: float
    channels: tuple[str, ...]


def parse_escalation(texts: Sequence[str]) -> tuple[EscalationStep, ...]:
    """Given `["1h: list", "4h: oncall, slack"]`, return the steps, earliest first.

    Raise SettingsError for an invalid step.
    """
    hint = 'write a delay, a colon and the channels: escalation = ["1h: list", "4h: oncall, slack"]'
    steps = (_step(text, "escalation", "channel", hint) for text in texts)
    return tuple(sorted(steps, key=lambda step: step.after_s))


def parse_acts(texts: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """Given `["6h: hold", "1d: cancel"]`, return delays in seconds and deeds, earliest first.

    Raise SettingsError for an invalid one.
    """
    hint = 'write a delay, a colon and hold or cancel: act = ["6h: hold", "1d: cancel"]'
    steps = [_step(text, "act", "deed", hint) for text in texts]
    for text, step in zip(texts, steps, strict=True):
        if step.channels not in ((HOLD,), (CANCEL,)):
            raise SettingsError(f"{text!r} in [alert] act is neither hold nor cancel", hint=hint)
    return tuple(sorted((step.after_s, step.channels[0]) for step in steps))


def _step(text: str, key: str, what: str, hint: str) -> EscalationStep:
    wait, colon, names = text.partition(":")
    channels = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not colon or not channels:
        raise SettingsError(f"{text!r} in [alert] {key} names no {what}", hint=hint)
    try:
        after_s = parse_duration_s(wait)
    except QuantityError as error:
        raise SettingsError(f"{text!r} in [alert] {key}: {error.message}", hint=hint) from error
    if after_s <= 0:
        raise SettingsError(
            f"{text!r} in [alert] {key} has no delay",
            hint="list channels that are notified at once in [alert] channels" if what == "channel" else hint,
        )
    return EscalationStep(after_s, channels)


class QuietHours(NamedTuple):
    """A period of the day, in minutes since midnight. It may span midnight; the end is exclusive."""

    start_minute: int
    end_minute: int

    def cover(self, minute: int) -> bool:
        """Return whether a minute of the day is within the period."""
        if self.start_minute < self.end_minute:
            return self.start_minute <= minute < self.end_minute
        return minute >= self.start_minute or minute < self.end_minute


def parse_quiet_hours(text: str) -> QuietHours | None:
    """Parse `22:00-07:00`; return None for an empty text. Raise SettingsError for an invalid or a 24-hour period."""
    if not text.strip():
        return None
    match = re.fullmatch(_RANGE, text.strip())
    minutes = [60 * int(match[i]) + int(match[i + 1] or 0) for i in (1, 3)] if match is not None else []
    # 24:00 is midnight at the end of a day (ISO 8601).
    if match is None or max(minutes) > 24 * 60 or int(match[2] or 0) > 59 or int(match[4] or 0) > 59:
        raise SettingsError(
            f"{text!r} in [alert] quiet_hours is not a period of the day", hint='write quiet_hours = "22:00-07:00"'
        )
    start, end = (minute % (24 * 60) for minute in minutes)
    if start == end:
        raise SettingsError(
            f"{text!r} in [alert] quiet_hours covers the whole day or nothing",
            hint="to mute alerts for a while, use `resil alert silence`, which expires",
        )
    return QuietHours(start, end)
