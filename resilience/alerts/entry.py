"""One message that waits for one channel: its JSON, and in which order they are sent. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from resilience.alerts.alert import Alert, Reason, alert_from_json, alert_to_json
from resilience.alerts.digest import Line, line_from_json, line_to_json, lines_of
from resilience.finding import Verdict

LIMIT_BYTES = 16384
"""An alert is never longer in the outbox: evidence is cut first, then the last notices, which are still counted."""
SINK_TRIES = 3
"""A message that failed so often lets others go first: it may be the only one that the channel does not like."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:@-]{0,150}\.[A-Za-z0-9_-]{1,60}")
_EVIDENCE_STEPS = (2000, 500, 120, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One alert for one channel.

    Attributes:
        channel: the name of its table in resil.toml.
        queued: when it was put into the outbox, seconds since the epoch.
        tries: how often it was sent and not taken.
        error, hint: what came back last; for a dead letter, why it is one.
        ended: when it was delivered, or given up; 0 while it waits.
        answer: what the channel said when it took it.
        host: the node that sent it last.
        lines: of a digest: what became of each incident.
        covers: of a digest: the names of the entries that it stands for.
        left_out: of a digest: how many incidents have no line.
    """

    alert: Alert
    channel: str
    queued: float
    tries: int = 0
    error: str = ""
    hint: str = ""
    ended: float = 0.0
    answer: str = ""
    host: str = ""
    lines: tuple[Line, ...] = ()
    covers: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def name(self) -> str:
        """The name of its file: the alert's id and the channel."""
        return entry_name(self.alert.id, self.channel)

    @property
    def is_digest(self) -> bool:
        """Whether it stands for others."""
        return bool(self.covers)

    def incidents(self) -> tuple[Line, ...]:
        """What it tells of, a line each."""
        return self.lines or lines_of(self.alert)


def entry_name(alert_id: str, channel: str) -> str:
    """Given an alert's id and a channel, return the name of the file. Raise ValueError if that could leave the folder.

    An id is made by us and is never odd; the file's name is where it would do harm.
    """
    name = f"{alert_id}.{channel}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an entry")
    return name


def channel_of(name: str) -> str:
    """Given an entry's name, return its channel."""
    return name.rpartition(".")[2]


def encode(entry: Entry) -> bytes:
    """An entry as JSON that `cat` shows as people write."""
    record = {
        "alert": alert_to_json(entry.alert),
        "channel": entry.channel,
        "queued": entry.queued,
        "tries": entry.tries,
        "error": entry.error,
        "hint": entry.hint,
        "ended": entry.ended,
        "answer": entry.answer,
        "host": entry.host,
    }
    if entry.covers:
        record |= {
            "lines": [line_to_json(line) for line in entry.lines],
            "covers": list(entry.covers),
            "left_out": entry.left_out,
        }
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:  # a file's name that is no text
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decode(raw: bytes) -> Entry:
    """The entry that `encode` wrote. Raise ValueError if it is none."""
    try:
        record = json.loads(raw)
        return Entry(
            alert=alert_from_json(record["alert"]),
            channel=str(record["channel"]),
            queued=float(record["queued"]),
            tries=int(record.get("tries", 0)),
            error=str(record.get("error", "")),
            hint=str(record.get("hint", "")),
            ended=float(record.get("ended", 0.0)),
            answer=str(record.get("answer", "")),
            host=str(record.get("host", "")),
            lines=tuple(line_from_json(line) for line in record.get("lines", ())),
            covers=tuple(map(str, record.get("covers", ()))),
            left_out=int(record.get("left_out", 0)),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no entry: {type(error).__name__}: {error}") from error


def trimmed(alert: Alert, limit_bytes: int = LIMIT_BYTES) -> Alert:
    """The alert, cut to what may lie in the outbox: ten thousand of them must fit where the disk is nearly full."""

    def size(candidate: Alert) -> int:
        return len(json.dumps(alert_to_json(candidate), ensure_ascii=False).encode("utf-8", "surrogatepass"))

    for characters in _EVIDENCE_STEPS:
        if size(alert) <= limit_bytes:
            return alert
        alert = replace(
            alert,
            body=_middle_cut(alert.body, limit_bytes // 2 if characters else 0),
            notices=tuple(
                replace(
                    notice,
                    evidence=tuple(line[:characters] for line in notice.evidence[: characters // 50]),
                    summary=_cut(notice.summary, max(500, characters)),
                    advice=_cut(notice.advice, max(500, characters)),
                )
                for notice in alert.notices
            ),
        )
    while size(alert) > limit_bytes and len(alert.notices) > 1:
        alert = replace(alert, notices=alert.notices[: len(alert.notices) // 2])
    return alert


def _middle_cut(lines: tuple[str, ...], most_bytes: int) -> tuple[str, ...]:
    """The first lines and the last that fit: the end of an output is where it says what went wrong."""
    if sum(len(line.encode("utf-8", "surrogatepass")) + 3 for line in lines) <= most_bytes:
        return lines
    head: list[str] = []
    tail: list[str] = []
    room = most_bytes - 60
    for first, last in zip(lines, reversed(lines), strict=True):
        for kept, line in ((tail, last), (head, first)):
            short = _cut(line, 1000)
            room -= len(short.encode("utf-8", "surrogatepass")) + 3
            if room < 0 or len(head) + len(tail) >= len(lines):
                left_out = len(lines) - len(head) - len(tail)
                return (*head, f"... ({left_out} lines left out)", *reversed(tail))
            kept.append(short)
    return lines


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """What may be sent next: the head of each thread, the most urgent thread first.

    Within a thread the oldest goes first, and nothing overtakes it: nobody is told of the end before the beginning,
    also where the beginning is in a digest. Digests come first, then CRITICAL, and of those whoever waits longest; a
    message that failed often lets the other threads pass.
    """
    everything = tuple(entries)
    in_digests = {line.episode for entry in everything if entry.is_digest for line in entry.lines}
    heads: dict[str, Entry] = {}
    for entry in sorted(everything, key=_age):
        heads.setdefault(entry.alert.thread, entry)
    free = (e for e in heads.values() if e.is_digest or not any(n.episode in in_digests for n in e.alert.notices))
    return tuple(sorted(free, key=_urgency))


def _age(entry: Entry) -> tuple[float, int, float, str]:
    """Alerts of the same moment: the beginning first, the end last."""
    ends = {Reason.FIRST: 0, Reason.RESOLVED: 2}.get(entry.alert.reason, 1)
    return entry.alert.time, ends, entry.queued, entry.alert.id


def _urgency(entry: Entry) -> tuple[bool, bool, int, float, str]:
    verdict = list(Verdict).index(entry.alert.verdict)
    return entry.tries >= SINK_TRIES, not entry.is_digest, -verdict, entry.alert.time, entry.alert.id
