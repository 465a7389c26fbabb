"""Notifications: describes an incident in one sentence, and groups notifications into few messages. Pure.

Notifications are grouped by check: those of one tick become one message, and so do those that follow within `group_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.alerts.alert import URGENCY, Alert, Notice, Reason
from resilience.alerts.incident import Incident, hex_digest
from resilience.alerts.policy import due_steps, is_flapping
from resilience.finding import Verdict
from resilience.quantities import format_duration
from resilience.settings.alert_policy import AlertPolicy

MAX_NOTICES = 24
"""Maximum number of incidents its in a message; the others are counted."""

FULL_EVIDENCE_NOTICES = 3
"""With more notices than this in a message, each shows only the beginning of its evidence."""

MAX_MESSAGES = 12
"""Maximum number of ids of messages kept with an incident."""

_LONG, _SHORT = 40, 4
_LINE = 500
"""Maximum length of a line of evidence: a log line may be a gigabyte."""

_SHARED = ("episode", "fingerprint", "check", "subject", "fault", "run", "acknowledged_by")
"""Fields that incidents and notices share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A notification of one incident.

    Attributes:
        incident: its current state, this notification not yet counted.
        text: one sentence that describes the incident.
        steps: number of escalation steps notified, including this notification.
        is_flapping: whether the fault comes and goes too often to notify each time.
    """

    incident: Incident
    reason: Reason
    text: str
    steps: int = 0
    is_flapping: bool = False

    @classmethod
    def of(
        cls, incident: Incident, reason: Reason, now: float, policy: AlertPolicy, *, expired: bool = False
    ) -> Notification:
        """Return the notification of an incident, given the reason from the policy."""
        flaps = is_flapping(incident, policy)
        text = describe(incident, reason, now, policy, is_flapping=flaps, expired=expired)
        steps = due_steps(incident, now, policy) if reason is Reason.ESCALATED else incident.escalated
        return cls(incident=incident, reason=reason, text=text, steps=steps, is_flapping=flaps)

    @property
    def verdict(self) -> Verdict:
        """The current verdict."""
        return Verdict.OK if self.reason is Reason.RESOLVED else self.incident.verdict

    @property
    def kind(self) -> str:
        """Reason and verdict, which `Incident.intended_as` records."""
        return f"{self.reason} {self.verdict.value}"

    def intended(self, now: float) -> Notification:
        """Return the notification with the intention to send it recorded in its incident.

        An earlier notification of another kind that a process may have sent before it crashed counts as sent:
        otherwise a later one could get the id of an older message, and the outbox would drop it as a duplicate.
        """
        incident = self.incident
        may_have_sent = incident.intended is not None and incident.intended_as not in ("", self.kind)
        count = incident.count + may_have_sent
        return replace(self, incident=replace(incident, count=count, intended=now, intended_as=self.kind))

    @property
    def key(self) -> str:
        """Identifies the notification, the same on every node: incident, number of notifications, reason, verdict."""
        incident = self.incident
        return f"{incident.fingerprint} {incident.episode} {incident.count + 1} {self.reason} {self.verdict.value}"

    def sent(self, thread: str, messages: Sequence[str], now: float) -> Incident:
        """Return the incident after this notification was queued in a thread, in messages with these ids."""
        incident = self.incident
        is_over = self.reason is Reason.RESOLVED
        return replace(
            incident,
            told=now,
            first_told=incident.first_told if incident.first_told is not None else now,
            told_verdict=incident.told_verdict if is_over else incident.verdict,
            count=incident.count + 1,
            thread=incident.thread or thread,
            messages=(*incident.messages, *messages)[-MAX_MESSAGES:],
            escalated=max(incident.escalated, self.steps),
            flapping=(incident.flapping or now) if self.is_flapping else None,
            intended=None,
            intended_as="",
            held=None,
            silenced=None,
            resolved=now if is_over else None,
        )


@dataclass(frozen=True, slots=True)
class NotificationGroup:
    """One message, its channels, and the notifications in it."""

    alert: Alert
    channels: tuple[str, ...]
    notifications: tuple[Notification, ...]


def sendable(
    notifications: Sequence[Notification],
    channels_of: Callable[[Notification], Sequence[str]],
    last_sent: Mapping[str, float],
    now: float,
    policy: AlertPolicy,
) -> tuple[Notification, ...]:
    """Return the notifications of one check that may be sent now: a channel gets one message per `group_s`.

    A new CRITICAL is sent at once, with all others for its channels. A notification waits until each of its channels
    may get a message. `last_sent`: time of the last message to each channel.
    """

    def is_new_critical(one: Notification) -> bool:
        return one.verdict is Verdict.CRITICAL and one.reason in (Reason.FIRST, Reason.WORSE)

    open_now = {channel for one in notifications if is_new_critical(one) for channel in channels_of(one)}

    def is_ready(channel: str) -> bool:
        return channel in open_now or not 0 <= now - last_sent.get(channel, float("-inf")) < policy.group_s

    return tuple(one for one in notifications if all(map(is_ready, channels_of(one))))


def compose(
    notifications: Iterable[Notification],
    channels_of: Callable[[Notification], Sequence[str]],
    *,
    now: float,
    host: str,
    project: str,
) -> tuple[NotificationGroup, ...]:
    """Group notifications into messages, one for each check and set of channels."""
    checks: dict[str, list[Notification]] = {}
    for one in notifications:
        checks.setdefault(one.incident.check, []).append(one)
    groups = []
    for check in checks.values():
        by_channel: dict[str, list[Notification]] = {}
        for one in sorted(check, key=_rank):
            for channel in channels_of(one):
                by_channel.setdefault(channel, []).append(one)
        shared: dict[tuple[str, ...], list[str]] = {}
        for channel, listed in by_channel.items():
            shared.setdefault(tuple(one.key for one in listed), []).append(channel)
        for channels in shared.values():
            group = tuple(by_channel[channels[0]])
            groups.append(NotificationGroup(_alert(group, now, host, project), tuple(channels), group))
    return tuple(groups)


def thread_of(notifications: Sequence[Notification], project: str) -> str:
    """Return the thread of a message.

    - One incident: its id, so that mail programs and Slack show all its messages in one place.
    - Several new incidents: a thread of their own, which later messages about any of them join.
    - Several incidents with different threads: the thread of the check.
    """
    threads = {one.incident.thread for one in notifications}
    if threads == {""}:
        ids = sorted(one.incident.episode for one in notifications)
        return ids[0] if len(ids) == 1 else hex_digest(16, *ids)
    if len(threads) == 1:
        return threads.pop()
    return hex_digest(16, project, notifications[0].incident.check)


def _alert(group: Sequence[Notification], now: float, host: str, project: str) -> Alert:
    """`group`: of one check, sorted."""
    lines = _LONG if len(group) <= FULL_EVIDENCE_NOTICES else _SHORT
    return Alert.of(
        *(_notice(one, lines) for one in group),
        id=hex_digest(16, *sorted(one.key for one in group)),
        thread=thread_of(group, project),
        most=MAX_NOTICES,
        time=now,
        host=host,
        project=project,
    )


def _notice(one: Notification, lines: int) -> Notice:
    incident = one.incident
    evidence = tuple(_cut(line) for line in incident.evidence[:lines])
    more = len(incident.evidence) - len(evidence)
    return Notice(
        **{name: getattr(incident, name) for name in _SHARED},
        reason=one.reason,
        verdict=one.verdict,
        summary=_cut(one.text),
        since=incident.opened,
        advice=incident.advice if one.reason is not Reason.RESOLVED else "",
        evidence=(*evidence, f"... and {more} more lines") if more > 0 else evidence,
        count=incident.count + 1,
    )


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]} ... ({len(line)} characters)"


def _rank(one: Notification) -> tuple[int, int, float, str]:
    return -one.verdict.severity, URGENCY.index(one.reason), one.incident.opened, one.incident.episode


def describe(
    incident: Incident,
    reason: Reason,
    now: float,
    policy: AlertPolicy,
    *,
    is_flapping: bool = False,
    expired: bool = False,
) -> str:
    """Return a self-contained sentence about an incident, given the reason for the notification."""
    summary = incident.summary + (f"; {incident.did}" if incident.did else "")
    lasted = format_duration(max(0.0, now - incident.opened))
    if reason is Reason.RESOLVED:
        return _describe_end(incident, now, expired)
    if is_flapping:
        times, within = len(incident.flaps), format_duration(policy.flap_s)
        if incident.flapping is None:
            return f"{summary} (flapping: came back {times} times in {within}; next notification when it settles)"
        return f"{summary} (still flapping)"
    if reason is Reason.REMINDER and incident.flapping is not None:
        return f"{summary} (stopped flapping, still present)"
    if reason is Reason.REMINDER and incident.silenced is not None:
        return f"{summary} (silence expired, still present after {lasted})"
    if reason is Reason.REMINDER:
        return f"{summary} (still present after {lasted})"
    if reason is Reason.ESCALATED:
        return f"{summary} (not acknowledged for {lasted})"
    if reason in (Reason.WORSE, Reason.BETTER) and incident.told_verdict not in (None, incident.verdict):
        return f"{summary} (was {incident.told_verdict.value})"
    return summary


def _describe_end(incident: Incident, now: float, expired: bool) -> str:
    was = f"was {incident.worst.value}" + (f": {incident.summary}" if incident.summary else "")
    if expired:
        unchecked = format_duration(max(0.0, now - max(incident.looked, incident.seen)))
        return f"no longer checked for {unchecked}; the problem may persist; {was}"
    until = incident.gone if incident.gone is not None else now
    lasted = format_duration(max(0.0, until - incident.opened))
    if incident.told is None and incident.held is not None:
        return f"started and was resolved in the quiet hours, after {lasted}; {was}"
    return f"resolved after {lasted}; {was}"
