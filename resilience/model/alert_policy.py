"""[alert]: who is told, when, and how often. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """[alert]: who is told, when, and how often. The channels themselves are the tables [channel.NAME].

    Attributes:
        channels: names of the channels that are told first. None: nobody is told, and `resil watch` only prints.
        escalation: who is told as well while nobody has acknowledged: `["1h: list", "4h: oncall, slack"]`.
        reminder_s: how often an incident that lasts is told again, until it is acknowledged. 0: never.
        group_s: findings of the same check within this time go into one message; it also is the shortest time between
            two messages of one group, a CRITICAL that is new excepted.
        unknown_for_s: an UNKNOWN must last this long before anybody is told: one missed answer is no news.
        quiet_hours: `"22:00-07:00"`, local time: only CRITICAL is told then, the rest waits for the morning.
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
