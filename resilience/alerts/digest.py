"""Digests: one message that replaces many that could not be delivered in time, with one line per incident. Pure.

A line has the start of an incident, its verdicts, and whether it is resolved. Lines are merged by incident id, so a
digest grows with the number of incidents, not of messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.finding import Verdict
from resilience.messages import cut
from resilience.quantities import format_duration

DIGEST_OVER, DIGEST_AGE_S = 5, 900.0
"""More messages than this become a digest if the oldest of them is older than that."""
STORM_OVER = 20
"""More messages than this become a digest at any age."""
FOLD_AT = 100
"""This many queued messages of one channel are folded into one file at any age."""
ANNOUNCEMENT = "news"
"""The check of a line about no incident (an announcement)."""
MAX_LINES = 2000
MAX_NOTICES = 40
SUMMARY_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestLine:
    """One incident in a digest.

    Attributes:
        episode, fingerprint, check, subject, fault, run, since, acknowledged_by: as in the notice.
        verdict: the last verdict; OK once the incident is resolved.
        worst: the worst verdict.
        summary: the last summary before the resolution.
        time: time of the newest alert in the line.
        bad: time of the newest alert that did not report the resolution; 0 if there is none.
        ended: time of the resolution; 0 while the incident is open.
        count: number of alerts in the line.
    """

    episode: str
    verdict: Verdict
    worst: Verdict
    fingerprint: str = ""
    check: str = ""
    subject: str = ""
    fault: str = ""
    summary: str = ""
    since: float = 0.0
    time: float = 0.0
    run: str = ""
    advice: str = ""
    acknowledged_by: str = ""
    ended: float = 0.0
    bad: float = 0.0
    count: int = 1


_SHARED = ("episode", "fingerprint", "check", "subject", "fault", "run", "since", "acknowledged_by")
"""Fields that lines and notices share."""


def lines_of(alert: Alert) -> tuple[DigestLine, ...]:
    """Return a line for each incident of an alert; an announcement is one line that is resolved already."""
    if alert.title:
        return (_announcement(alert),)
    return tuple(_line(notice, alert.time) for notice in alert.notices)


def _line(notice: Notice, time: float) -> DigestLine:
    over = notice.is_over
    return DigestLine(
        **{name: getattr(notice, name) for name in _SHARED},
        verdict=Verdict.OK if over else notice.verdict,
        worst=notice.verdict,
        summary=cut(notice.summary, SUMMARY_CHARACTERS),
        advice=cut(notice.advice, SUMMARY_CHARACTERS),
        time=time,
        ended=time if over else 0.0,
        bad=0.0 if over else time,
    )


def _announcement(alert: Alert) -> DigestLine:
    return DigestLine(
        episode=alert.id,
        fingerprint=alert.id,
        check=ANNOUNCEMENT,
        subject=alert.host,
        verdict=Verdict.OK,
        worst=Verdict.OK,
        summary=cut(alert.title, SUMMARY_CHARACTERS),
        since=alert.time,
        time=alert.time,
        ended=alert.time,
    )


def merge(lines: Iterable[DigestLine]) -> tuple[DigestLine, ...]:
    """Return one line per incident, sorted by `ranked`. The newest alert wins, whatever the order of the lines."""
    merged: dict[str, DigestLine] = {}
    for line in lines:
        known = merged.get(line.episode)
        merged[line.episode] = line if known is None else _merge_two(known, line)
    return ranked(merged.values())


def _merge_two(one: DigestLine, other: DigestLine) -> DigestLine:
    # At the same time, the resolution comes last.
    older, newer = sorted((one, other), key=lambda line: (line.time, line.ended))
    last_bad = older if older.bad > newer.bad else newer
    return replace(
        newer,
        since=min(older.since, newer.since),
        worst=max(older.worst, newer.worst),
        summary=last_bad.summary,
        bad=last_bad.bad,
        acknowledged_by=newer.acknowledged_by or older.acknowledged_by,
        count=older.count + newer.count,
    )


def ranked(lines: Iterable[DigestLine]) -> tuple[DigestLine, ...]:
    """Return the lines sorted: open before resolved, then the worst first, then the oldest."""
    return tuple(sorted(lines, key=lambda x: (x.ended > 0, -x.verdict.severity, -x.worst.severity, x.since, x.episode)))


def bounded(lines: Sequence[DigestLine]) -> tuple[tuple[DigestLine, ...], int]:
    """Return the first MAX_LINES lines, and the number of lines left out."""
    return tuple(lines[:MAX_LINES]), max(0, len(lines) - MAX_LINES)


def is_due(count: int, oldest: float, now: float) -> bool:
    """Return True if `count` queued messages become a digest. `oldest`: when the oldest of them was queued."""
    return count > STORM_OVER or (count > DIGEST_OVER and now - oldest > DIGEST_AGE_S)


def digest_id(names: Iterable[str]) -> str:
    """Return the id of a digest, derived from the names of the entries that the digest replaces.

    Two processes that fold the same entries produce the same id.
    """
    return "digest-" + hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


def compose_digest(
    lines: Sequence[DigestLine], *, id: str, now: float, host: str, project: str, left_out: int = 0
) -> Alert:
    """Return the digest of `lines`, as merged by `merge`. `left_out` incidents are only counted.

    The first MAX_NOTICES lines have a notice; the others are included in `total`.
    """
    over = not left_out and all(line.ended for line in lines)
    return Alert.of(
        *(_notice(line) for line in lines),
        id=id,
        most=MAX_NOTICES,
        reason=Reason.RESOLVED if over else Reason.FIRST,
        verdict=max((line.verdict for line in lines), default=Verdict.UNKNOWN),
        time=now,
        host=host,
        project=project,
        total=len(lines) + left_out,
        is_digest=True,
    )


def _notice(line: DigestLine) -> Notice:
    return Notice(
        **{name: getattr(line, name) for name in _SHARED},
        reason=Reason.RESOLVED if line.ended else Reason.FIRST,
        verdict=line.verdict,
        summary=summary_of(line),
        advice="" if line.ended else line.advice,
        count=line.count,
    )


def summary_of(line: DigestLine) -> str:
    """Return one line about an incident. For example, `was CRITICAL, resolved after 2 h 10 min: 99% used`."""
    if not line.ended or line.check == ANNOUNCEMENT:
        return line.summary
    was = f"was {line.worst.value}, " if line.worst is not Verdict.OK else ""
    return f"{was}resolved after {format_duration(max(0.0, line.ended - line.since))}: {line.summary}"
