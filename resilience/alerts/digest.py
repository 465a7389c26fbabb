"""Many messages that could not be delivered in time, told as one: a line for each incident. Pure.

A line holds what became of one incident while nobody could be told: when it began, how bad it was, and whether it is
over. Lines are merged by the incident's episode, so a long outage costs by the incidents and not by the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

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
    """One incident, as the digest tells it.

    Attributes:
        episode, fingerprint, check, subject, fault, run, since, acknowledged_by: as in the notice.
        verdict: how bad it was last; OK when it is over.
        worst: how bad it was at the worst.
        summary: what was said last while it was bad.
        time: of the newest alert in it.
        bad: of the newest alert in it that was not the end; 0 where there is none.
        ended: when its end was noticed; 0 while it lasts.
        count: how many alerts are in this line.
    """

    episode: str
    fingerprint: str
    check: str
    subject: str
    fault: str
    verdict: Verdict
    worst: Verdict
    summary: str
    since: float
    time: float
    run: str = ""
    advice: str = ""
    acknowledged_by: str = ""
    ended: float = 0.0
    bad: float = 0.0
    count: int = 1


_FIELDS = tuple(field.name for field in fields(Line))
_ORDER = {verdict: number for number, verdict in enumerate(Verdict)}


def lines_of(alert: Alert) -> tuple[Line, ...]:
    """The incidents of one alert; a message about none is a line that is over as it is told."""
    if alert.title:
        return (_news(alert),)
    return tuple(_line(notice, alert.time) for notice in alert.notices)


def _line(notice: Notice, time: float) -> Line:
    over = notice.reason is Reason.RESOLVED or notice.verdict is Verdict.OK
    return Line(
        episode=notice.episode,
        fingerprint=notice.fingerprint,
        check=notice.check,
        subject=notice.subject,
        fault=notice.fault,
        run=notice.run,
        verdict=Verdict.OK if over else notice.verdict,
        worst=notice.verdict,
        summary=_short(notice.summary),
        advice=_short(notice.advice),
        since=notice.since,
        time=time,
        ended=time if over else 0.0,
        bad=0.0 if over else time,
        acknowledged_by=notice.acknowledged_by,
    )


def _news(alert: Alert) -> Line:
    return Line(
        episode=alert.id,
        fingerprint=alert.id,
        check=NEWS,
        subject=alert.host,
        fault="",
        verdict=Verdict.OK,
        worst=Verdict.OK,
        summary=_short(alert.title),
        since=alert.time,
        time=alert.time,
        ended=alert.time,
    )


def merge(lines: Iterable[Line]) -> tuple[Line, ...]:
    """One line for each incident, in the order of `ranked`. The newest word about it counts, whatever the order."""
    merged: dict[str, Line] = {}
    for line in lines:
        known = merged.get(line.episode)
        merged[line.episode] = line if known is None else _join(known, line)
    return ranked(merged.values())


def _join(one: Line, other: Line) -> Line:
    # Of the same moment, the end comes last.
    older, newer = sorted((one, other), key=lambda line: (line.time, line.ended))
    told_while_bad = older if older.bad > newer.bad else newer
    return replace(
        newer,
        since=min(older.since, newer.since),
        worst=max(older.worst, newer.worst),
        summary=told_while_bad.summary,
        bad=told_while_bad.bad,
        acknowledged_by=newer.acknowledged_by or older.acknowledged_by,
        count=older.count + newer.count,
    )


def ranked(lines: Iterable[Line]) -> tuple[Line, ...]:
    """What lasts before what is over, the worst first, and of those the oldest: who waited longest for it is first."""
    return tuple(sorted(lines, key=lambda x: (x.ended > 0, -_ORDER[x.verdict], -_ORDER[x.worst], x.since, x.episode)))


def bounded(lines: Sequence[Line], most: int = MOST_LINES) -> tuple[tuple[Line, ...], int]:
    """The first `most` lines, and how many incidents were left out."""
    return tuple(lines[:most]), max(0, len(lines) - most)


def is_due(count: int, oldest: float, now: float) -> bool:
    """Whether so many waiting messages, the oldest queued then, are told as one."""
    return count > STORM_OVER or (count > DIGEST_OVER and now - oldest > DIGEST_AGE_S)


def digest_id(names: Iterable[str]) -> str:
    """The id of a digest, made of the names of what it stands for: who folds the same gets the same."""
    return "digest-" + hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


def compose_digest(lines: Sequence[Line], *, id: str, now: float, host: str, project: str, left_out: int = 0) -> Alert:
    """The message that stands for all of them. `lines` as `merge` made them; `left_out` are only counted.

    The first MOST_NOTICES have a notice of their own; the others are in `total`.
    """
    lasting = [line for line in lines if not line.ended]
    over = not lasting and not left_out
    shown = [_notice(line) for line in lines[:MOST_NOTICES]]
    verdict = max((line.verdict for line in lines), default=Verdict.UNKNOWN)
    return Alert(
        id=id,
        thread=id,
        reason=Reason.RESOLVED if over else Reason.FIRST,
        verdict=verdict,
        time=now,
        host=host,
        project=project,
        notices=tuple(shown),
        total=len(lines) + left_out,
        is_digest=True,
    )


def _notice(line: Line) -> Notice:
    return Notice(
        episode=line.episode,
        fingerprint=line.fingerprint,
        reason=Reason.RESOLVED if line.ended else Reason.FIRST,
        check=line.check,
        subject=line.subject,
        fault=line.fault,
        run=line.run,
        verdict=line.verdict,
        summary=story(line),
        advice="" if line.ended else line.advice,
        since=line.since,
        count=line.count,
        acknowledged_by=line.acknowledged_by,
    )


def story(line: Line) -> str:
    """What became of an incident, in one line. For instance, `was CRITICAL, over after 2 h 10 min: 99% used`."""
    if not line.ended or line.check == NEWS:
        return line.summary
    was = f"was {line.worst.value}, " if line.worst is not Verdict.OK else ""
    return f"{was}over after {format_duration(max(0.0, line.ended - line.since))}: {line.summary}"


def line_to_json(line: Line) -> dict[str, Any]:
    """A line as JSON's own types, without what is empty: there may be thousands."""
    record = {name: value for name in _FIELDS if (value := getattr(line, name)) not in ("", 0.0)}
    return record | {"verdict": line.verdict.value, "worst": line.worst.value}


def line_from_json(record: Mapping[str, Any]) -> Line:
    """The line that `line_to_json` wrote. Raise KeyError, TypeError or ValueError if it is none."""
    known = {name: record[name] for name in _FIELDS if name in record}
    plain: dict[str, Any] = {"summary": "", "fault": "", "since": 0.0, "time": 0.0}
    return Line(**plain | known | {"verdict": Verdict(record["verdict"]), "worst": Verdict(record["worst"])})


def _short(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARACTERS else text[: SUMMARY_CHARACTERS - 3] + "..."
