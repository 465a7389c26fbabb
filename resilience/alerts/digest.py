"""Digests: one message for many that could not be delivered in time, with a line for each incident. Pure.

A line says when an incident began, its verdicts, and whether it is over. Lines are merged by the incident's id, so a
long outage costs by the incidents and not by the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.finding import Verdict
from resilience.quantities import format_duration

DIGEST_OVER, DIGEST_AGE_S = 5, 900.0
"""More messages than this, the oldest of them older than that, become one."""
STORM_OVER = 20
"""More messages than this become one, however young they are."""
FOLD_AT = 100
"""As many messages of one channel are folded into one file, however young they are."""
NEWS = "news"
"""The check of a line that is about no incident."""
MOST_LINES = 2000
MOST_NOTICES = 40
SUMMARY_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One incident in a digest.

    Attributes:
        episode, fingerprint, check, subject, fault, run, since, acknowledged_by: as in the notice.
        verdict: the last verdict; OK when the incident is over.
        worst: the worst verdict.
        summary: the last summary that was not the end.
        time: of the newest alert in the line.
        bad: of the newest alert in the line that was not the end; 0 where there is none.
        ended: when the end was noticed; 0 while the incident lasts.
        count: how many alerts are in the line.
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
"""Fields that a line and a notice have in common."""
_ORDER = {verdict: number for number, verdict in enumerate(Verdict)}


def lines_of(alert: Alert) -> tuple[Line, ...]:
    """The incidents of one alert; a message about none is a line that is over at once."""
    if alert.title:
        return (_news(alert),)
    return tuple(_line(notice, alert.time) for notice in alert.notices)


def _line(notice: Notice, time: float) -> Line:
    over = notice.reason is Reason.RESOLVED or notice.verdict is Verdict.OK
    return Line(
        **{name: getattr(notice, name) for name in _SHARED},
        verdict=Verdict.OK if over else notice.verdict,
        worst=notice.verdict,
        summary=_short(notice.summary),
        advice=_short(notice.advice),
        time=time,
        ended=time if over else 0.0,
        bad=0.0 if over else time,
    )


def _news(alert: Alert) -> Line:
    return Line(
        episode=alert.id,
        fingerprint=alert.id,
        check=NEWS,
        subject=alert.host,
        verdict=Verdict.OK,
        worst=Verdict.OK,
        summary=_short(alert.title),
        since=alert.time,
        time=alert.time,
        ended=alert.time,
    )


def merge(lines: Iterable[Line]) -> tuple[Line, ...]:
    """One line for each incident, in the order of `ranked`. The newest alert counts, whatever the order."""
    merged: dict[str, Line] = {}
    for line in lines:
        known = merged.get(line.episode)
        merged[line.episode] = line if known is None else _join(known, line)
    return ranked(merged.values())


def _join(one: Line, other: Line) -> Line:
    # Of the same moment, the end comes last.
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


def ranked(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Incidents that last before those that are over; of those the worst first, then the oldest."""
    return tuple(sorted(lines, key=lambda x: (x.ended > 0, -_ORDER[x.verdict], -_ORDER[x.worst], x.since, x.episode)))


def bounded(lines: Sequence[Line]) -> tuple[tuple[Line, ...], int]:
    """The first lines, and how many incidents were left out."""
    return tuple(lines[:MOST_LINES]), max(0, len(lines) - MOST_LINES)


def is_due(count: int, oldest: float, now: float) -> bool:
    """Whether so many queued messages, the oldest of that time, become one."""
    return count > STORM_OVER or (count > DIGEST_OVER and now - oldest > DIGEST_AGE_S)


def digest_id(names: Iterable[str]) -> str:
    """The id of a digest, made of the names that it replaces: two processes that fold the same make the same id."""
    return "digest-" + hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


def compose_digest(lines: Sequence[Line], *, id: str, now: float, host: str, project: str, left_out: int = 0) -> Alert:
    """The message that stands for all of them. `lines` as `merge` made them; `left_out` are only counted.

    The first MOST_NOTICES have a notice of their own; the others are in `total`.
    """
    over = not left_out and all(line.ended for line in lines)
    return Alert.of(
        *(_notice(line) for line in lines),
        id=id,
        most=MOST_NOTICES,
        reason=Reason.RESOLVED if over else Reason.FIRST,
        verdict=max((line.verdict for line in lines), default=Verdict.UNKNOWN),
        time=now,
        host=host,
        project=project,
        total=len(lines) + left_out,
        is_digest=True,
    )


def _notice(line: Line) -> Notice:
    return Notice(
        **{name: getattr(line, name) for name in _SHARED},
        reason=Reason.RESOLVED if line.ended else Reason.FIRST,
        verdict=line.verdict,
        summary=story(line),
        advice="" if line.ended else line.advice,
        count=line.count,
    )


def story(line: Line) -> str:
    """An incident in one line. For instance, `was CRITICAL, over after 2 h 10 min: 99% used`."""
    if not line.ended or line.check == NEWS:
        return line.summary
    was = f"was {line.worst.value}, " if line.worst is not Verdict.OK else ""
    return f"{was}over after {format_duration(max(0.0, line.ended - line.since))}: {line.summary}"


def _short(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARACTERS else text[: SUMMARY_CHARACTERS - 3] + "..."
