"""What the other channels are told when one is broken, and when it works again. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.backoff import TOLD_EVERY_S, Health
from resilience.alerts.message import OURS
from resilience.finding import Verdict
from resilience.quantities import format_duration

CHECK = OURS
FAULT = "delivery"


def episode_of(channel: str, now: float) -> str:
    """The id of a breakdown: the same for all nodes that notice it on the same day."""
    return hashlib.sha256(f"{channel} {int(now // TOLD_EVERY_S)}".encode()).hexdigest()[:8]


def broken(channel: str, health: Health, *, episode: str, now: float, host: str, project: str, waiting: int) -> Alert:
    """Say that a channel delivers nothing, why, and what to do."""
    lasting = f" for {format_duration(now - health.since)}" if now - health.since >= 60 else ""
    waits = f"; {waiting} of its messages {'waits' if waiting == 1 else 'wait'}" if waiting else ""
    return _alert(
        channel,
        Reason.FIRST,
        Verdict.WARNING,
        episode=episode,
        now=now,
        host=host,
        project=project,
        since=health.since,
        summary=f"it does not deliver{lasting}: {health.error}{waits}",
        advice="; ".join(filter(None, (health.hint, f"resil alert test {channel}"))),
    )


def damaged(channel: str, names: Sequence[str], *, now: float, host: str, project: str) -> Alert:
    """Say that messages were lost on the disk where they waited. `names`: of their files."""
    episode = hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    what = "a message that waited for it was" if len(names) == 1 else f"{len(names)} messages that waited for it were"
    return _alert(
        channel,
        Reason.FIRST,
        Verdict.WARNING,
        episode=episode,
        now=now,
        host=host,
        project=project,
        since=now,
        summary=f"{what} damaged on the disk: somebody was not told of something; the incidents are known",
        advice="resil alert list --all",
        fault="damaged",
    )


def mended(channel: str, *, episode: str, since: float, now: float, host: str, project: str) -> Alert:
    """Say that it works again."""
    return _alert(
        channel,
        Reason.RESOLVED,
        Verdict.OK,
        episode=episode,
        now=now,
        host=host,
        project=project,
        since=since,
        summary="it delivers again",
        advice="",
    )


def _alert(
    channel: str,
    reason: Reason,
    verdict: Verdict,
    *,
    episode: str,
    now: float,
    host: str,
    project: str,
    since: float,
    summary: str,
    advice: str,
    fault: str = FAULT,
) -> Alert:
    notice = Notice(
        episode=episode,
        fingerprint=f"{CHECK} {channel} {fault}",
        reason=reason,
        check=CHECK,
        subject=f"channel {channel}",
        fault=fault,
        verdict=verdict,
        summary=summary,
        since=since,
        advice=advice,
    )
    return Alert(
        id=f"{episode}-{reason.value.lower()}",
        thread=episode,
        reason=reason,
        verdict=verdict,
        time=now,
        host=host,
        project=project,
        notices=(notice,),
    )
