"""Makes few messages of much news: one for many findings, one for a thousand jobs. Pure.

A group is one check: what it has to say in one tick goes into one message, and so does what follows within `group_s`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.incident import Incident
from resilience.finding import Verdict
from resilience.quantities import format_duration
from resilience.settings.alert_policy import AlertPolicy

MOST_NOTICES = 24
"""So many incidents are told one by one in a message; the rest are counted."""

MANY_NOTICES = 3
"""From more than so many in a message on, each shows only the beginning of its evidence."""

_LONG, _SHORT = 40, 4
_LINE = 500
"""Characters of a line of evidence: a line of a log may be a gigabyte."""

_URGENT = (Reason.FIRST, Reason.WORSE, Reason.ESCALATED, Reason.REMINDER, Reason.BETTER, Reason.RESOLVED)
"""The most urgent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is to be told of one incident.

    Attributes:
        incident: as it is now, this telling not yet counted.
        words: one sentence for a person.
        steps: how many steps of the escalation have been told when this is.
    """

    incident: Incident
    reason: Reason
    words: str
    steps: int = 0

    @property
    def verdict(self) -> Verdict:
        """How bad it is now."""
        return Verdict.OK if self.reason is Reason.RESOLVED else self.incident.verdict

    @property
    def key(self) -> str:
        """The same for the same news, whoever tells it: the episode, the how-many-eth telling, what it says."""
        incident = self.incident
        return f"{incident.fingerprint} {incident.episode} {incident.count + 1} {self.reason} {self.verdict.value}"


@dataclass(frozen=True, slots=True)
class Letter:
    """One message, who gets it, and the news in it."""

    alert: Alert
    channels: tuple[str, ...]
    news: tuple[News, ...]


def speaks(news: Sequence[News], last_told: float | None, now: float, policy: AlertPolicy) -> bool:
    """Whether the news of one group are told now, or wait until `group_s` after the group's last message are over.

    A CRITICAL that is new waits for nothing.
    """
    if not news:
        return False
    if last_told is None or not 0 <= now - last_told < policy.group_s:
        return True
    return any(n.verdict is Verdict.CRITICAL and n.reason in (Reason.FIRST, Reason.WORSE) for n in news)


def compose(
    news: Iterable[News],
    channels_of: Callable[[News], Sequence[str]],
    *,
    now: float,
    host: str,
    project: str,
) -> tuple[Letter, ...]:
    """Given what is to be told, return the messages: one for each group and set of readers."""
    groups: dict[str, list[News]] = {}
    for one in news:
        groups.setdefault(one.incident.check, []).append(one)
    letters = []
    for group in groups.values():
        wanted: dict[str, list[News]] = {}
        for one in sorted(group, key=_rank):
            for channel in channels_of(one):
                wanted.setdefault(channel, []).append(one)
        shared: dict[tuple[str, ...], list[str]] = {}
        for channel, read in wanted.items():
            shared.setdefault(tuple(one.key for one in read), []).append(channel)
        letters += [
            Letter(_alert(wanted[channels[0]], now, host, project), tuple(channels), tuple(wanted[channels[0]]))
            for channels in shared.values()
        ]
    return tuple(letters)


def thread_of(news: Sequence[News], project: str) -> str:
    """What a message hangs together by.

    A message about one incident: the episode, from beginning to end, so that a mail program and Slack show its whole
    story in one place. One that opens several at once: these, and what follows of any of them comes there as well. One
    that tells of several whose threads differ: the group's own, since it can lie in one place only.
    """
    threads = {one.incident.thread for one in news}
    if threads == {""}:
        episodes = sorted(one.incident.episode for one in news)
        return episodes[0] if len(episodes) == 1 else _digest(*episodes)
    if len(threads) == 1:
        return threads.pop()
    return _digest(project, news[0].incident.check)


def _alert(news: Sequence[News], now: float, host: str, project: str) -> Alert:
    """`news`: of one group, sorted."""
    lines = _LONG if len(news) <= MANY_NOTICES else _SHORT
    return Alert(
        id=_digest(*sorted(one.key for one in news)),
        thread=thread_of(news, project),
        reason=min((one.reason for one in news), key=_URGENT.index),
        verdict=max(one.verdict for one in news),
        time=now,
        host=host,
        project=project,
        notices=tuple(_notice(one, lines) for one in news[:MOST_NOTICES]),
        total=len(news),
    )


def _notice(news: News, lines: int) -> Notice:
    incident = news.incident
    evidence = tuple(_cut(line) for line in incident.evidence[:lines])
    more = len(incident.evidence) - len(evidence)
    return Notice(
        episode=incident.episode,
        fingerprint=incident.fingerprint,
        reason=news.reason,
        check=incident.check,
        subject=incident.subject,
        fault=incident.fault,
        verdict=news.verdict,
        summary=_cut(news.words),
        since=incident.opened,
        advice=incident.advice if news.reason is not Reason.RESOLVED else "",
        run=incident.run,
        evidence=(*evidence, f"... and {more} more lines") if more > 0 else evidence,
        count=incident.count + 1,
        acknowledged_by=incident.acknowledged_by,
    )


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]} ... ({len(line)} characters)"


def _rank(news: News) -> tuple[int, int, float, str]:
    worst_first = -list(Verdict).index(news.verdict)
    return worst_first, _URGENT.index(news.reason), news.incident.opened, news.incident.episode


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def told(news: News, thread: str, now: float, *, is_flapping: bool) -> Incident:
    """The incident of some news after they were told."""
    incident = news.incident
    is_over = news.reason is Reason.RESOLVED
    return replace(
        incident,
        told=now,
        first_told=incident.first_told if incident.first_told is not None else now,
        told_verdict=incident.told_verdict if is_over else incident.verdict,
        count=incident.count + 1,
        thread=incident.thread or thread,
        escalated=max(incident.escalated, news.steps),
        flapping=(incident.flapping or now) if is_flapping else None,
        intended=None,
        held=None,
        silenced=None,
        resolved=now if is_over else None,
    )


def sentence(
    incident: Incident,
    reason: Reason,
    now: float,
    policy: AlertPolicy,
    *,
    is_flapping: bool = False,
    expired: bool = False,
) -> str:
    """Given an incident as it is now and why it is told, return what is said of it."""
    summary = incident.summary
    lasted = format_duration(max(0.0, now - incident.opened))
    if reason is Reason.RESOLVED:
        return _end(incident, now, lasted, expired)
    if is_flapping:
        times, within = len(incident.flaps), format_duration(policy.flap_s)
        if incident.flapping is None:
            return f"{summary} (flapping: it came back {times} times in {within}; told again when it has settled)"
        return f"{summary} (still flapping)"
    if reason is Reason.FIRST:
        return summary
    if reason is Reason.REMINDER and incident.flapping is not None:
        return f"{summary} (it flapped, and is now there to stay)"
    if reason is Reason.REMINDER and incident.silenced is not None:
        return f"{summary} (a silence has ended, and it is still there after {lasted})"
    if reason is Reason.ESCALATED:
        return f"{summary} (for {lasted}, and nobody has acknowledged it)"
    if reason in (Reason.WORSE, Reason.BETTER) and incident.told_verdict not in (None, incident.verdict):
        return f"{summary} (was {incident.told_verdict.value})"
    return f"{summary} (still there after {lasted})" if reason is Reason.REMINDER else summary


def _end(incident: Incident, now: float, lasted: str, expired: bool) -> str:
    was = f"it was {incident.worst.value}: {incident.summary}" if incident.summary else f"it was {incident.worst.value}"
    if expired:
        unseen = format_duration(max(0.0, now - max(incident.looked, incident.seen)))
        return f"closed, because nobody has looked for {unseen}: it may still be there; {was}"
    until = incident.gone if incident.gone is not None else now
    lasted = format_duration(max(0.0, until - incident.opened))
    if incident.told is None and incident.held is not None:
        return f"came and went in the quiet hours, after {lasted}; {was}"
    return f"over after {lasted}; {was}"
