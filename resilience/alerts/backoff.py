"""When a channel that failed is tried again, and when its failing is news. Pure.

Full jitter: a wait drawn evenly from nothing to the bound, and the bound doubles with each failure. Many nodes that
lost the same server do not come back in step.
Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

BASE_S = 30.0
CAP_S = 900.0
LEAST_S = 1.0
ASKED_CAP_S = 3600.0
"""However long a server asks us to wait, we ask again after an hour. (Channels have caps of their own below this.)"""
BROKEN_AFTER_S = 900.0
BROKEN_TRIES = 3
TOLD_EVERY_S = 86400.0
GIVE_UP_TRIES, GIVE_UP_S = 20, 86400.0

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How one channel fares from one node: a node without a way out must not stop those that have one.

    Attributes:
        failures: in a row.
        since: of the first of them, seconds since the epoch.
        last: when the last of them was, seconds since the epoch.
        retry_at: not before.
        error, hint: what came back last.
        is_fault: the settings, the secret or the channel's own code are at fault, or the server refused for good: no
            waiting will help.
    """

    failures: int = 0
    since: float = 0.0
    last: float = 0.0
    retry_at: float = 0.0
    error: str = ""
    hint: str = ""
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What all nodes know of one channel.

    Attributes:
        last_ok: when it last took a message, from whichever node.
        asked_until: the server asked us not to come before.
        told_at: when the others were last told that it is broken; 0 for never.
        episode: of what they were told, until they are told of its end; empty when there is nothing to end.
        told_to: the channels that were told.
    """

    last_ok: float = 0.0
    asked_until: float = 0.0
    told_at: float = 0.0
    episode: str = ""
    told_to: tuple[str, ...] = ()


class News(StrEnum):
    """What the other channels are told about one of them."""

    NONE = "none"
    BROKEN = "broken"
    MENDED = "mended"


def delay_s(failures: int, chance: float, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> float:
    """Given the failures in a row and a random number from 0 to 1, return how long to wait, in seconds."""
    bound = min(cap_s, base_s * 2.0 ** min(max(failures - 1, 0), 60))
    return max(LEAST_S, chance * bound)


def asked_wait_s(retry_after_s: float) -> float:
    """How long to stay away when the server said for how long: never less than a second, never absurdly long."""
    if retry_after_s != retry_after_s:  # not a number
        return LEAST_S
    return min(max(retry_after_s, LEAST_S), ASKED_CAP_S)


def after_failure(
    health: Health, now: float, chance: float, *, error: str, hint: str = "", is_fault: bool = False
) -> Health:
    """The health of a channel that has just failed."""
    failures = health.failures + 1
    return Health(
        failures=failures,
        since=health.since if health.failures else now,
        last=now,
        retry_at=now + delay_s(failures, chance),
        error=error,
        hint=hint,
        is_fault=is_fault,
    )


def is_paused(health: Health, standing: Standing, now: float, *, patient: bool) -> bool:
    """Whether to leave a channel alone now. A person who does not want to wait (`patient` off) still heeds the server.

    A time too far ahead is another node's wrong clock, and is not believed.
    """
    if now < standing.asked_until <= now + ASKED_CAP_S:
        return True
    return patient and now < health.retry_at <= now + CAP_S


def decide_news(health: Health, standing: Standing, now: float) -> News:
    """Say whether the other channels are to be told about this one: of each breakdown once, and once a day at most."""
    if health.failures == 0:
        delivered_since = standing.last_ok > standing.told_at
        return News.MENDED if standing.episode and delivered_since else News.NONE
    if standing.episode or 0 < standing.told_at <= now < standing.told_at + TOLD_EVERY_S:
        return News.NONE
    if health.is_fault:
        return News.BROKEN
    lasts = health.failures >= BROKEN_TRIES and now - health.since >= BROKEN_AFTER_S
    works_elsewhere = standing.last_ok >= health.since
    return News.BROKEN if lasts and not works_elsewhere else News.NONE


def is_hopeless(tries: int, queued: float, standing: Standing, now: float) -> bool:
    """Whether one message is never going to be taken: others went through since, and it did not, for a day.

    While the channel takes nothing at all, no message is hopeless: that is an outage.
    """
    return tries >= GIVE_UP_TRIES and now - queued >= GIVE_UP_S and standing.last_ok > queued


def to_record(state: Health | Standing) -> dict[str, Any]:
    """As JSON's own types."""
    return asdict(state)


def from_record(owner: type[RecordT], record: Mapping[str, Any]) -> RecordT:
    """What `to_record` wrote; whatever is missing or of another type has its default. Never raises."""
    plain = owner()
    given: dict[str, Any] = {}
    for field in fields(owner):  # type: ignore[arg-type]
        value, default = record.get(field.name), getattr(plain, field.name)
        if isinstance(default, tuple):
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                given[field.name] = tuple(value)
        elif isinstance(default, bool) or isinstance(value, bool):
            if isinstance(default, bool) and isinstance(value, bool):
                given[field.name] = value
        elif isinstance(default, float):
            if isinstance(value, int | float) and value == value:
                given[field.name] = float(value)
        elif type(value) is type(default):
            given[field.name] = value
    return owner(**given)
