"""Delivers queued messages to all channels concurrently, and records each result."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from resilience.alerts import channel_health
from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channel_health import NOTIFY_EVERY_S, ChannelStore, NodeState, SharedState
from resilience.alerts.claims import Claim, claim
from resilience.alerts.digest import is_due
from resilience.alerts.outbox import Entry, Outbox, channel_of, sending_order
from resilience.alerts.routes import Route
from resilience.alerts.sending import SEND_S, DeliveryRequest, DeliveryStatus, Outcome, send_in_child
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.system.ports import System

FLUSH_S = 25.0
"""Default time limit of a flush."""
MIN_SEND_S = 3.0
"""With less time left no send is started: an interrupted send may have arrived, and would be repeated."""
SEND_INTERVAL_S = 1.0
"""Interval between messages of one channel: Slack's limit (https://docs.slack.dev/apis/web-api/rate-limits)."""
_UNKNOWN_CHANNEL_S = 7 * NOTIFY_EVERY_S
"""How long a message for an unknown channel stays queued if another project of this state directory may define it."""


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
        failed: messages whose delivery failed and that are still queued.
        dead: messages that became dead letters.
        waiting: number of messages still queued; a digest counts as one.
        paused: the reason for each channel that was skipped.
        error: error of the outbox's own disk, or empty.
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
    """Deliver the queued messages that are due, within the time limit.

    Channels are served concurrently; one that fails backs off and delays no other. Errors of channels and disks are
    part of the result and never raised.

    Args:
        project: the project directory. A message for an unknown channel becomes a dead letter if its alert is from
            this project.
        deadline_s: time limit of the flush.
        patient: whether to respect a channel's back-off. A server's Retry-After is always respected.
        most: maximum number of messages per channel.
        skip: channels to skip.
    """
    return _Flush(outbox, routes, system, project, deadline_s, patient, most, skip).run()


class _ActiveChannel:
    """One channel in one flush.

    Attributes:
        claim: this process's claim on the channel.
        node, shared: the channel's state.
        is_open: whether this flush may send it another message.
        last_sent: time of its last message, monotonic seconds.
        count: number of messages sent.
    """

    def __init__(self, store: ChannelStore, channel: str, held: Claim, host: str) -> None:
        self._store, self._channel, self._host, self.claim = store, channel, host, held
        self.node = store.node_state(channel, host)
        self.shared = store.shared_state(channel)
        self.is_open = True
        self.last_sent = float("-inf")
        self.count = 0

    def save(self, node: NodeState, shared: SharedState, now: float) -> None:
        """Save the state that has changed."""
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
        self.outbox.flush_fallback()  # a node with network access may deliver them
        names = self.outbox.names()
        if not names:
            return Flushed(error=self.outbox.error)
        with ExitStack() as claims:
            for channel in dict.fromkeys(map(channel_of, names)):
                self._activate(channel, claims)
            while self._round():
                pass
            notified = self._notify_of_channels()
            for channel in notified:
                if channel not in self._active and channel not in self._paused:
                    self._activate(channel, claims)
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

    def _activate(self, channel: str, claims: ExitStack) -> None:
        """Activate a channel unless it is skipped, paused, unknown, or claimed by another process."""
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
                alert = channel_health.damage_alert(channel, lost, now=now, host=self._host, project=self.project)
                self.outbox.put(alert, channel, now)
                self.outbox.damaged.difference_update(lost)
                entries = self.outbox.pending(channel)
        # A CRITICAL that was queued after the last failure overrides the back-off.
        urgent = any(e.alert.verdict is Verdict.CRITICAL and e.queued > active.node.last for e in entries)
        if channel_health.is_paused(active.node, active.shared, now, patient=self.patient and not urgent):
            asked = active.shared.asked_until > now
            why = "the server requested a wait" if asked else active.node.error
            until = active.shared.asked_until if asked else active.node.retry_at
            self._paused[channel] = f"{why}; next try in {max(1.0, until - now):.0f} s"
            return
        self._active[channel] = active
        single = [entry for entry in entries if not entry.is_digest]
        has_digest = len(single) < len(entries)  # after an outage, later messages join its digest
        due = bool(single) and is_due(len(single), min(entry.queued for entry in single), now)
        if due or (has_digest and len(entries) > 1):
            with suppress(StateDirectoryError):  # otherwise they are sent one by one
                self.outbox.fold(channel, now, host=self._host, project=self.project or entries[0].alert.project)

    def _handle_unknown(self, channel: str) -> None:
        for entry in self.outbox.pending(channel):
            ours = not self.project or entry.alert.project == self.project
            if ours or self._now() - entry.queued > _UNKNOWN_CHANNEL_S:
                error = f"there is no channel {channel!r} any more"
                hint = f"write a table [channel.{channel}] in resil.toml, then: resil alert flush --retry-dead"
                self._give_up(entry, Outcome(status=DeliveryStatus.REFUSED, error=error, hint=hint))
            else:
                self._paused[channel] = f"channel of {entry.alert.project}"

    def _round(self) -> bool:
        """Send the next message of each channel; return whether there may be another round."""
        heads: dict[str, Entry] = {}
        for channel, active in self._active.items():
            if active.is_open and (self.most is None or active.count < self.most):
                head = next(self._sendable(channel), None)
                if head is not None:
                    heads[channel] = head
        if not heads:
            return False
        self._wait_for_rate_limit(heads)
        left_s = self._end - self.system.clock.monotonic()
        if left_s < MIN_SEND_S:
            return False
        requests = {
            channel: DeliveryRequest(
                self._relocated(entry.alert),
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

    def _relocated(self, alert: Alert) -> Alert:
        """Return an alert whose commands work in this project, if its own project was moved here."""
        is_moved = self.project not in ("", alert.project) and bool(alert.project) and not Path(alert.project).is_dir()
        return replace(alert, project=self.project) if is_moved else alert

    def _sendable(self, channel: str) -> Iterator[Entry]:
        """Yield the messages that may be sent next, each read again: another node may have sent it meanwhile."""
        for entry in sending_order(self.outbox.pending(channel)):
            if (fresh := self.outbox.reload(entry.name)) is not None:
                yield fresh

    def _wait_for_rate_limit(self, heads: Mapping[str, Entry]) -> None:
        """Sleep until the rate limit of each of these channels allows another message."""
        last = max(self._active[channel].last_sent for channel in heads)
        recent = max(self._active[channel].shared.last_ok for channel in heads)
        since = self._now() - recent  # in an earlier flush, possibly of another node
        wait_s = max(
            last + SEND_INTERVAL_S - self.system.clock.monotonic(),
            SEND_INTERVAL_S - since if 0 <= since < SEND_INTERVAL_S else 0.0,
        )
        if wait_s > 0:
            self.system.clock.sleep(wait_s)

    def _record(self, active: _ActiveChannel, entry: Entry, outcome: Outcome) -> None:
        """Record the outcome of a message and update the channel's state."""
        now, store, thread = self._now(), self.outbox.channels, entry.alert.thread
        if outcome.status is DeliveryStatus.SENT:
            # If this process is killed after this line, the duplicate is a reply to this message.
            store.save_thread(thread, entry.channel, outcome.memory, now)
            try:
                self.outbox.delivered(entry, now, outcome.answer, self._host)
            except StateDirectoryError:
                active.is_open = False  # still queued: do not send it repeatedly in this flush
            active.save(NodeState(), replace(active.shared, last_ok=now), now)
            self._done[DeliveryStatus.SENT].append(Delivery(entry=entry, outcome=outcome))
            return
        if outcome.memory:  # some recipients have received it
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
            shared = replace(shared, asked_until=now + channel_health.retry_after_wait_s(outcome.retry_after_s))
        active.save(node, shared, now)
        if outcome.status is DeliveryStatus.REFUSED:
            self._give_up(entry, outcome)
            return  # the channel may accept the next message
        active.is_open = False
        if channel_health.should_give_up(entry.tries + 1, entry.queued, shared, now):
            error = f"{outcome.error} (failed {entry.tries + 1} times in a day while other messages were delivered)"
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
        """Notify the other channels of channels that failed or recovered; return those with a new message.

        Only working channels are notified, so that two broken ones do not report each other in turn. If none can be
        notified, nothing is saved and the next flush retries.
        """
        notified: dict[str, None] = {}
        origin = {"host": self._host, "project": self.project}
        for channel, active in self._active.items():
            now, shared = self._now(), active.shared
            reason = channel_health.decide_reason(active.node, shared, now)
            if reason is Reason.FIRST:
                id = os.urandom(4).hex()  # this process alone serves the channel
                waiting = sum(channel_of(name) == channel for name in self.outbox.names())
                alert = channel_health.failure_alert(
                    channel, active.node, incident_id=id, now=now, waiting=waiting, **origin
                )
                others = [name for name in self.routes if name != channel and self._works(name)]
                to = tuple(name for name in others if self._put(alert, name))
                if to:
                    active.save(active.node, replace(shared, told_at=now, episode=id, told_to=to), now)
            elif reason is Reason.RESOLVED:
                alert = channel_health.recovery_alert(
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
