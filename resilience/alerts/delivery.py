"""Delivers queued messages, each channel at its own pace, and records the result of each."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from resilience.alerts import channel_health
from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channel_health import NOTIFY_EVERY_S, ChannelStore, NodeState, SharedState
from resilience.alerts.claims import Claim, claim
from resilience.alerts.digest import is_due
from resilience.alerts.outbox import Entry, Outbox, channel_of, in_order
from resilience.alerts.routes import Route
from resilience.alerts.sending import SEND_S, DeliveryRequest, DeliveryStatus, Outcome, send_in_child
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.system.ports import System

FLUSH_S = 25.0
"""How long delivering may take altogether unless the caller says otherwise."""
LEAST_SEND_S = 3.0
"""With less time left than this, no message is begun: a send that is cut short may arrive, and be sent again."""
PACE_S = 1.0
"""Between two messages of one channel; Slack takes no more either (https://docs.slack.dev/apis/web-api/rate-limits)."""
_GRACE_S = 7 * NOTIFY_EVERY_S
"""How long messages for an unknown channel are kept that another project of this state directory may know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message of this flush and its outcome."""

    entry: Entry
    outcome: Outcome

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self.entry.channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """Result of a flush.

    Attributes:
        sent: messages that were delivered.
        failed: messages that were tried and are still queued.
        dead: messages that became dead letters.
        waiting: how many messages are queued now; a digest is one.
        paused: why a channel was skipped, by its name.
        error: what is wrong with the outbox's own disk; empty when nothing is.
    """

    sent: tuple[Delivery, ...] = ()
    failed: tuple[Delivery, ...] = ()
    dead: tuple[Delivery, ...] = ()
    waiting: int = 0
    paused: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


def flush(
    outbox: Outbox,
    routes: Mapping[str, Route],
    *,
    system: System,
    project: str = "",
    deadline_s: float = FLUSH_S,
    patient: bool = True,
    most: int | None = None,
    skip: Collection[str] = (),
) -> Flushed:
    """Deliver the queued messages that are due, as far as the time allows.

    Channels are served at the same time; one that fails is skipped for a while and delays no other. Never raises for
    an error of a channel or a disk.

    Args:
        project: the project directory. An unknown channel is only a dead letter when the alert is of this project.
        deadline_s: how long the flush may take altogether.
        patient: whether to respect a channel's back-off. A server's own request to wait is always respected.
        most: so many messages for each channel.
        skip: channels that are left alone.
    """
    return _Flush(outbox, routes, system, project, deadline_s, patient, most, skip).run()


class _ActiveChannel:
    """One channel in one flush.

    Attributes:
        claim: the claim that is held on it.
        node, shared: its state.
        is_open: whether it may take another message in this flush.
        last_sent: monotonic seconds of its last message.
        count: how many messages were handed over.
    """

    def __init__(self, store: ChannelStore, channel: str, held: Claim, host: str) -> None:
        self._store, self._channel, self._host, self.claim = store, channel, host, held
        self.node = store.node_state(channel, host)
        self.shared = store.shared_state(channel)
        self.is_open = True
        self.last_sent = float("-inf")
        self.count = 0

    def save(self, node: NodeState, shared: SharedState, now: float) -> None:
        """Save its state where that has changed."""
        if node != self.node:
            self._store.save_node_state(self._channel, self._host, node, now)
        if shared != self.shared:
            self._store.save_shared_state(self._channel, shared)
        self.node, self.shared = node, shared


@dataclass(slots=True)
class _Flush:
    outbox: Outbox
    routes: Mapping[str, Route]
    system: System
    project: str
    deadline_s: float
    patient: bool
    most: int | None
    skip: Collection[str]
    _active: dict[str, _ActiveChannel] = field(default_factory=dict)
    _paused: dict[str, str] = field(default_factory=dict)
    _done: dict[DeliveryStatus, list[Delivery]] = field(default_factory=lambda: {s: [] for s in DeliveryStatus})
    _end: float = 0.0
    _owner: str = ""

    def run(self) -> Flushed:
        self._end = self.system.clock.monotonic() + self.deadline_s
        self._owner = f"{self._host} {os.getpid()} {os.urandom(4).hex()}"
        self.outbox.flush_fallback()  # a node that has a way out may be waiting for it
        names = self.outbox.names()
        if not names:
            return Flushed(error=self.outbox.error)
        with ExitStack() as claims:
            for channel in dict.fromkeys(map(channel_of, names)):
                self._begin(channel, claims)
            while self._round():
                pass
            notified = self._notify_of_channels()
            for channel in notified:
                if channel not in self._active and channel not in self._paused:
                    self._begin(channel, claims)
            while notified and self._round():
                pass
        self.outbox.cleanup(self._now())
        return Flushed(
            sent=tuple(self._done[DeliveryStatus.SENT]),
            failed=tuple(self._done[DeliveryStatus.FAILED] + self._done[DeliveryStatus.FAULT]),
            dead=tuple(self._done[DeliveryStatus.REFUSED]),
            waiting=len(self.outbox.names()),
            paused=self._paused,
            error=self.outbox.error,
        )

    @property
    def _host(self) -> str:
        return self.system.host.name

    def _now(self) -> float:
        return self.system.clock.now()

    def _begin(self, channel: str, claims: ExitStack) -> None:
        """Take on a channel's messages, unless it is skipped, paused, unknown, or claimed by another process."""
        if channel in self.skip:
            return
        if self.routes.get(channel) is None:
            self._handle_unknown(channel)
            return
        held = claims.enter_context(claim(self.outbox.claims, channel, self._owner))
        if held is None:
            self._paused[channel] = "another process is delivering its messages"
            return
        active = _ActiveChannel(self.outbox.channels, channel, held, self._host)
        now = self._now()
        entries = self.outbox.pending(channel)
        if lost := [name for name in self.outbox.damaged if channel_of(name) == channel]:
            with suppress(StateDirectoryError):
                alert = channel_health.damaged(channel, lost, now=now, host=self._host, project=self.project)
                self.outbox.put(alert, channel, now)
                self.outbox.damaged.difference_update(lost)
                entries = self.outbox.pending(channel)
        # A CRITICAL that is new since the last try is worth another one.
        urgent = any(e.alert.verdict is Verdict.CRITICAL and e.queued > active.node.last for e in entries)
        if channel_health.is_paused(active.node, active.shared, now, patient=self.patient and not urgent):
            asked = active.shared.asked_until > now
            why = "the server asked us to wait" if asked else active.node.error
            until = active.shared.asked_until if asked else active.node.retry_at
            self._paused[channel] = f"{why}; next try in {max(1.0, until - now):.0f} s"
            return
        self._active[channel] = active
        single = [entry for entry in entries if not entry.is_digest]
        has_digest = len(single) < len(entries)  # there was an outage: later messages join its digest
        due = bool(single) and is_due(len(single), min(entry.queued for entry in single), now)
        if due or (has_digest and len(entries) > 1):
            with suppress(StateDirectoryError):  # then they go one by one
                self.outbox.fold(channel, now, host=self._host, project=self.project or entries[0].alert.project)

    def _handle_unknown(self, channel: str) -> None:
        for entry in self.outbox.pending(channel):
            ours = not self.project or entry.alert.project == self.project
            if ours or self._now() - entry.queued > _GRACE_S:
                error = f"there is no channel {channel!r} any more"
                hint = f"write a table [channel.{channel}] in resil.toml, then: resil alert flush --retry-dead"
                self._give_up(entry, Outcome(status=DeliveryStatus.REFUSED, error=error, hint=hint))
            else:
                self._paused[channel] = f"it is a channel of {entry.alert.project}"

    def _round(self) -> bool:
        """Send the next message of each channel; return whether there may be another round."""
        heads: dict[str, Entry] = {}
        for channel, active in self._active.items():
            if active.is_open and (self.most is None or active.count < self.most):
                head = next(self._fresh(channel), None)
                if head is not None:
                    heads[channel] = head
        if not heads:
            return False
        self._pace(heads)
        left_s = self._end - self.system.clock.monotonic()
        if left_s < LEAST_SEND_S:
            return False
        requests = {
            channel: DeliveryRequest(
                entry.alert,
                self.routes[channel],
                self.outbox.channels.thread(entry.alert.thread, channel),
                min(SEND_S, left_s),
            )
            for channel, entry in heads.items()
        }
        for channel, outcome in send_in_child(requests, self.system):
            active = self._active[channel]
            active.last_sent = self.system.clock.monotonic()
            active.claim.renew()
            active.count += 1
            self._record(active, heads[channel], outcome)
        return True

    def _fresh(self, channel: str) -> Iterator[Entry]:
        """The messages that may go next, each read once more: another node may just have sent it."""
        for entry in in_order(self.outbox.pending(channel)):
            if (fresh := self.outbox.waits(entry.name)) is not None:
                yield fresh

    def _pace(self, heads: Mapping[str, Entry]) -> None:
        """Wait until each of these channels may be used again."""
        last = max(self._active[channel].last_sent for channel in heads)
        recent = max(self._active[channel].shared.last_ok for channel in heads)
        since = self._now() - recent  # an earlier flush, perhaps of another node
        wait_s = max(last + PACE_S - self.system.clock.monotonic(), PACE_S - since if 0 <= since < PACE_S else 0.0)
        if wait_s > 0:
            self.system.clock.sleep(wait_s)

    def _record(self, active: _ActiveChannel, entry: Entry, outcome: Outcome) -> None:
        """Record the outcome for a message and its channel."""
        now, store, thread = self._now(), self.outbox.channels, entry.alert.thread
        if outcome.status is DeliveryStatus.SENT:
            # Should this process be killed after this, the repeat is a reply to this message.
            store.save_thread(thread, entry.channel, outcome.memory, now)
            try:
                self.outbox.delivered(entry, now, outcome.answer, self._host)
            except StateDirectoryError:
                active.is_open = False  # it could not be marked: do not send it again and again in this flush
            active.save(NodeState(), replace(active.shared, last_ok=now), now)
            self._done[DeliveryStatus.SENT].append(Delivery(entry=entry, outcome=outcome))
            return
        if outcome.memory:  # some recipients have got it
            store.save_thread(thread, entry.channel, {**store.thread(thread, entry.channel), **outcome.memory}, now)
        node = channel_health.after_failure(
            active.node,
            now,
            random.random(),
            error=outcome.error,
            hint=outcome.hint,
            is_fault=outcome.status in (DeliveryStatus.REFUSED, DeliveryStatus.FAULT),
        )
        shared = active.shared
        if outcome.retry_after_s is not None:
            shared = replace(shared, asked_until=now + channel_health.asked_wait_s(outcome.retry_after_s))
        active.save(node, shared, now)
        if outcome.status is DeliveryStatus.REFUSED:
            self._give_up(entry, outcome)
            return  # the channel may take the next message
        active.is_open = False
        if channel_health.is_hopeless(entry.tries + 1, entry.queued, shared, now):
            error = f"{outcome.error} ({entry.tries + 1} times in a day on which others were taken)"
            self._give_up(entry, replace(outcome, error=error))
            return
        with suppress(StateDirectoryError):
            self.outbox.failed(entry, outcome.error, outcome.hint, self._host)
        self._done[outcome.status].append(Delivery(entry=entry, outcome=outcome))

    def _give_up(self, entry: Entry, outcome: Outcome) -> None:
        try:
            self.outbox.give_up(entry, outcome.error, outcome.hint, self._now(), self._host)
        except StateDirectoryError:
            if entry.channel in self._active:
                self._active[entry.channel].is_open = False
        self._done[DeliveryStatus.REFUSED].append(Delivery(entry=entry, outcome=outcome))

    def _notify_of_channels(self) -> tuple[str, ...]:
        """Notify the other channels of one that is broken or works again; return those with a new message.

        Only channels that work are notified: else two broken ones would report each other in turn. Where none can be
        notified, nothing is saved, and the next flush tries again.
        """
        notified: dict[str, None] = {}
        origin = {"host": self._host, "project": self.project}
        for channel, active in self._active.items():
            now, shared = self._now(), active.shared
            reason = channel_health.decide_reason(active.node, shared, now)
            if reason is Reason.FIRST:
                id = channel_health.incident_id_of(channel, now)
                waiting = sum(channel_of(name) == channel for name in self.outbox.names())
                alert = channel_health.broken(channel, active.node, incident_id=id, now=now, waiting=waiting, **origin)
                others = [name for name in self.routes if name != channel and self._works(name)]
                to = tuple(name for name in others if self._put(alert, name))
                if to:
                    active.save(active.node, replace(shared, told_at=now, episode=id, told_to=to), now)
            elif reason is Reason.RESOLVED:
                alert = channel_health.recovered(
                    channel, incident_id=shared.episode, since=shared.told_at, now=now, **origin
                )
                to = tuple(name for name in shared.told_to if name in self.routes and self._put(alert, name))
                active.save(active.node, replace(shared, episode="", told_to=()), now)
            else:
                continue
            notified |= dict.fromkeys(to)
        return tuple(notified)

    def _works(self, channel: str) -> bool:
        active = self._active.get(channel)
        node = active.node if active is not None else self.outbox.channels.node_state(channel, self._host)
        return node.failures == 0

    def _put(self, alert: Alert, channel: str) -> bool:
        try:
            return self.outbox.put(alert, channel, self._now())
        except StateDirectoryError:
            return False
