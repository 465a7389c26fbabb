"""Delivers queued messages, each channel at its own pace, and records the result of each."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from resilience.alerts import channel_health as backoff
from resilience.alerts import channel_health as channel_news
from resilience.alerts.alert import Alert
from resilience.alerts.channel_health import Health, Lane, News
from resilience.alerts.claims import claim
from resilience.alerts.digest import is_due
from resilience.alerts.outbox import Entry, Outbox, channel_of, in_order
from resilience.alerts.sending import SEND_S, Ending, Errand, Outcome, Route, send_apart
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.system.world import World


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


FLUSH_S = 25.0
"""How long delivering may take altogether when nobody said otherwise."""
LEAST_SEND_S = 3.0
"""With less time left than this, no message is begun: a send that is cut short may arrive, and be sent again."""
PACE_S = 1.0
"""Between two messages of one channel; Slack takes no more either (https://docs.slack.dev/apis/web-api/rate-limits)."""
_GRACE_S = 7 * backoff.TOLD_EVERY_S
"""A channel that another project of this state directory may know is given so long to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of one message in this flush."""

    entry: Entry
    outcome: Outcome

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self.entry.channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """What a flush did.

    Attributes:
        sent: what was delivered.
        failed: what was tried, and waits on.
        dead: what went to the dead letters.
        waiting: how many messages wait now; a digest is one.
        paused: why a channel was left alone, by its name.
        trouble: what is wrong with the outbox's own disk; empty when nothing is.
    """

    sent: tuple[Delivery, ...] = ()
    failed: tuple[Delivery, ...] = ()
    dead: tuple[Delivery, ...] = ()
    waiting: int = 0
    paused: Mapping[str, str] | None = None
    trouble: str = ""


def flush(
    outbox: Outbox,
    routes: Mapping[str, Route],
    *,
    world: World,
    project: str = "",
    deadline_s: float = FLUSH_S,
    patient: bool = True,
    most: int | None = None,
    skip: Collection[str] = (),
) -> Flushed:
    """Deliver what waits and is due, as far as the time goes.

    Channels are served at the same time; one that fails is left alone for a while, and keeps no other waiting. Never
    raises for what a channel does, or a disk.

    Args:
        project: the project folder. An unknown channel is only a dead letter when the alert is of this project.
        deadline_s: how long it may take altogether.
        patient: whether a channel's back-off is waited for. What a server asked for always is.
        most: so many messages for each channel.
        skip: channels that are left alone.
    """
    return _Flush(outbox, routes, world, project, deadline_s, patient, most, skip).run()


class _Flush:
    def __init__(
        self,
        outbox: Outbox,
        routes: Mapping[str, Route],
        world: World,
        project: str,
        deadline_s: float,
        patient: bool,
        most: int | None,
        skip: Collection[str],
    ) -> None:
        self._outbox, self._routes, self._world, self._project = outbox, routes, world, project
        self._end = world.clock.monotonic() + deadline_s
        self._patient, self._most, self._skip = patient, most, skip
        self._host = world.host.name
        self._owner = f"{self._host} {os.getpid()} {os.urandom(4).hex()}"
        self._lanes: dict[str, Lane] = {}
        self._paused: dict[str, str] = {}
        self._done: dict[Ending, list[Delivery]] = {ending: [] for ending in Ending}
        self._counts: dict[str, int] = {}

    def run(self) -> Flushed:
        self._outbox.bring_home()  # a node that has a way out may be waiting for it
        if not self._outbox.names():
            return Flushed(trouble=self._outbox.trouble)
        with ExitStack() as claims:
            for channel in self._channels():
                self._begin(channel, claims)
            while self._round():
                pass
            told = tell_of_channels(
                self._outbox, self._lanes, tuple(self._routes), self._now(), host=self._host, project=self._project
            )
            for channel in told:
                if channel not in self._lanes and channel not in self._paused and channel not in self._skip:
                    self._begin(channel, claims)
            while told and self._round():
                pass
        self._outbox.sweep(self._now())
        return Flushed(
            sent=tuple(self._done[Ending.SENT]),
            failed=tuple(self._done[Ending.FAILED] + self._done[Ending.FAULT]),
            dead=tuple(self._done[Ending.REFUSED]),
            waiting=len(self._outbox.names()),
            paused=self._paused,
            trouble=self._outbox.trouble,
        )

    def _now(self) -> float:
        return self._world.clock.now()

    def _channels(self) -> tuple[str, ...]:
        names = dict.fromkeys(channel_of(name) for name in self._outbox.names())
        return tuple(name for name in names if name not in self._skip)

    def _begin(self, channel: str, claims: ExitStack) -> None:
        """Take a channel's messages on, unless it is paused, unknown, or in somebody else's hands."""
        route = self._routes.get(channel)
        if route is None:
            self._unknown(channel)
            return
        held = claims.enter_context(claim(self._outbox.claims, channel, self._owner))
        if held is None:
            self._paused[channel] = "another process is delivering its messages"
            return
        lane = Lane(self._outbox.memory, channel, held, self._host)
        now = self._now()
        entries = self._outbox.pending(channel)
        if lost := [name for name in self._outbox.damaged if channel_of(name) == channel]:
            with suppress(StateDirectoryError):
                alert = channel_news.damaged(channel, lost, now=now, host=self._host, project=self._project)
                self._outbox.put(alert, channel, now)
                self._outbox.damaged.difference_update(lost)
                entries = self._outbox.pending(channel)
        # A CRITICAL that is new since the last try is worth another one.
        urgent = any(e.alert.verdict is Verdict.CRITICAL and e.queued > lane.health.last for e in entries)
        if backoff.is_paused(lane.health, lane.standing, now, patient=self._patient and not urgent):
            asked = lane.standing.asked_until > now
            why = "the server asked us to wait" if asked else lane.health.error
            until = lane.standing.asked_until if asked else lane.health.retry_at
            self._paused[channel] = f"{why}; next try in {max(1.0, until - now):.0f} s"
            return
        self._lanes[channel] = lane
        waiting = [entry for entry in entries if not entry.is_digest]
        has_digest = len(waiting) < len(entries)  # there was an outage: what came later is told with it
        due = bool(waiting) and is_due(len(waiting), min(entry.queued for entry in waiting), now)
        if due or (has_digest and len(entries) > 1):
            with suppress(StateDirectoryError):  # then they go one by one
                self._outbox.fold(channel, now, host=self._host, project=self._project or entries[0].alert.project)

    def _unknown(self, channel: str) -> None:
        for entry in self._outbox.pending(channel):
            ours = not self._project or entry.alert.project == self._project
            if ours or self._now() - entry.queued > _GRACE_S:
                error = f"there is no channel {channel!r} any more"
                hint = f"write a table [channel.{channel}] in resil.toml, then: resil alert flush --retry-dead"
                self._give_up(entry, Outcome(ending=Ending.REFUSED, error=error, hint=hint))
            else:
                self._paused[channel] = f"it is a channel of {entry.alert.project}"

    # ---- one message for each channel

    def _round(self) -> bool:
        """Hand over the next message of each channel; return whether there may be another round."""
        heads: dict[str, Entry] = {}
        for channel, lane in self._lanes.items():
            if lane.is_open and (self._most is None or self._counts.get(channel, 0) < self._most):
                head = next(self._fresh(channel), None)
                if head is not None:
                    heads[channel] = head
        if not heads:
            return False
        self._pace(heads)
        left_s = self._end - self._world.clock.monotonic()
        if left_s < LEAST_SEND_S:
            return False
        errands = {
            channel: Errand(
                entry.alert,
                self._routes[channel],
                self._outbox.memory.thread(entry.alert.thread, channel),
                min(SEND_S, left_s),
            )
            for channel, entry in heads.items()
        }
        for channel, outcome in send_apart(errands, self._world):
            self._lanes[channel].last_sent = self._world.clock.monotonic()
            self._lanes[channel].claim.renew()
            self._counts[channel] = self._counts.get(channel, 0) + 1
            self._settle(self._lanes[channel], heads[channel], outcome)
        return True

    def _fresh(self, channel: str) -> Iterator[Entry]:
        """What may go next, each looked at once more: another node may just have sent it."""
        for entry in in_order(self._outbox.pending(channel)):
            if (fresh := self._outbox.waits(entry.name)) is not None:
                yield fresh

    def _pace(self, heads: Mapping[str, Entry]) -> None:
        """Wait until each of these channels may be used again."""
        now = self._world.clock.monotonic()
        last = max(self._lanes[channel].last_sent for channel in heads)
        recent = max((self._lanes[channel].standing.last_ok for channel in heads), default=0.0)
        since = self._now() - recent  # an earlier flush, perhaps of another node
        wait_s = max(last + PACE_S - now, PACE_S - since if 0 <= since < PACE_S else 0.0)
        if wait_s > 0:
            self._world.clock.sleep(wait_s)

    def _settle(self, lane: Lane, entry: Entry, outcome: Outcome) -> None:
        """Write down what became of one message, and of its channel."""
        now = self._now()
        if outcome.ending is Ending.SENT:
            # Should we be killed after this, its repeat is a reply to it.
            self._outbox.memory.keep_thread(entry.alert.thread, entry.channel, outcome.memory, now)
            try:
                self._outbox.delivered(entry, now, outcome.answer, self._host)
            except StateDirectoryError:
                lane.is_open = False  # it could not be marked: do not send it again and again in this flush
            lane.keep(Health(), replace(lane.standing, last_ok=now), now)
            self._done[Ending.SENT].append(Delivery(entry=entry, outcome=outcome))
            return
        if outcome.memory:  # some have got it
            known = self._outbox.memory.thread(entry.alert.thread, entry.channel)
            self._outbox.memory.keep_thread(entry.alert.thread, entry.channel, {**known, **outcome.memory}, now)
        refused = outcome.ending is Ending.REFUSED
        is_fault = refused or outcome.ending is Ending.FAULT
        chance = random.random()
        health = backoff.after_failure(
            lane.health, now, chance, error=outcome.error, hint=outcome.hint, is_fault=is_fault
        )
        standing = lane.standing
        if outcome.retry_after_s is not None:
            standing = replace(standing, asked_until=now + backoff.asked_wait_s(outcome.retry_after_s))
        lane.keep(health, standing, now)
        if refused:
            self._give_up(entry, outcome)
            return  # the next message may be to its liking
        lane.is_open = False
        if backoff.is_hopeless(entry.tries + 1, entry.queued, standing, now):
            error = f"{outcome.error} ({entry.tries + 1} times in a day on which others were taken)"
            self._give_up(entry, replace(outcome, error=error))
            return
        with suppress(StateDirectoryError):
            self._outbox.failed(entry, outcome.error, outcome.hint, self._host)
        self._done[outcome.ending].append(Delivery(entry=entry, outcome=outcome))

    def _give_up(self, entry: Entry, outcome: Outcome) -> None:
        try:
            self._outbox.give_up(entry, outcome.error, outcome.hint, self._now(), self._host)
        except StateDirectoryError:
            if entry.channel in self._lanes:
                self._lanes[entry.channel].is_open = False
        self._done[Ending.REFUSED].append(Delivery(entry=entry, outcome=outcome))
