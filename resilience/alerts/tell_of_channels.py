"""Tells the other channels that one is broken, and that it works again: queues it for those that work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from resilience.alerts import backoff, channel_news
from resilience.alerts.alert import Alert
from resilience.alerts.backoff import News
from resilience.alerts.entry import channel_of
from resilience.alerts.lane import Lane
from resilience.alerts.outbox import Outbox
from resilience.errors import StateDirectoryError


def tell_of_channels(
    outbox: Outbox, lanes: Mapping[str, Lane], channels: Sequence[str], now: float, *, host: str, project: str
) -> tuple[str, ...]:
    """Queue what is to be told about the channels that were just used; return for which ones something was queued.

    Where nobody can be told now, nothing is remembered, and the next flush asks again.
    """
    told: dict[str, None] = {}
    for channel, lane in lanes.items():
        news, standing = backoff.decide_news(lane.health, lane.standing, now), lane.standing
        if news is News.BROKEN:
            episode = channel_news.episode_of(channel, now)
            waiting = sum(channel_of(name) == channel for name in outbox.names())
            alert = channel_news.broken(
                channel, lane.health, episode=episode, now=now, host=host, project=project, waiting=waiting
            )
            others = [name for name in channels if name != channel and _works(outbox, lanes, name, host)]
            to = tuple(name for name in others if _put(outbox, alert, name, now))
            if to:
                lane.keep(lane.health, replace(standing, told_at=now, episode=episode, told_to=to), now)
        elif news is News.MENDED:
            alert = channel_news.mended(
                channel, episode=standing.episode, since=standing.told_at, now=now, host=host, project=project
            )
            to = tuple(name for name in standing.told_to if name in channels and _put(outbox, alert, name, now))
            lane.keep(lane.health, replace(standing, episode="", told_to=()), now)
        else:
            to = ()
        told |= dict.fromkeys(to)
    return tuple(told)


def _works(outbox: Outbox, lanes: Mapping[str, Lane], channel: str, host: str) -> bool:
    """Whether there is no sign that this channel fails as well: else they would tell of each other in turn."""
    health = lanes[channel].health if channel in lanes else outbox.memory.health(channel, host)
    return health.failures == 0


def _put(outbox: Outbox, alert: Alert, channel: str, now: float) -> bool:
    try:
        return outbox.put(alert, channel, now)
    except StateDirectoryError:
        return False
