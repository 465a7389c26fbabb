"""The outbox: queued alerts, one file for each alert and channel; delivered messages; dead letters.

At-least-once delivery: a message is removed only after the channel accepted it and the outbox recorded the delivery. A
crash in between costs one duplicate with the same id; recording first would lose the message. Several nodes may use
these directories concurrently without locks: claims (claims.py) only make duplicates rare.

    outbox/   queued messages      <alert id>.<channel>
    sent/     delivered messages, kept for a week to detect duplicates and for `resil alert show`
    dead/     dead letters, which are not retried: `resil alert flush --retry-dead`
    threads/  what a channel needs for the next message of a thread, such as the ts of a Slack message
    channels/ state of each channel
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channel_health import ChannelStore, expire
from resilience.alerts.digest import (
    FOLD_AT,
    DigestLine,
    bounded,
    compose_digest,
    digest_id,
    lines_of,
    merge,
)
from resilience.errors import StateDirectoryError
from resilience.messages import cut
from resilience.records import from_record, to_json, to_record
from resilience.system.fallback_directory import FallbackDirectory
from resilience.system.files import NotRegularFile

LIMIT_BYTES = 16384
"""Maximum size of a queued alert: evidence is truncated first, then the last notices, which are still counted."""
DEMOTE_TRIES = 3
"""A message that failed this often is sent after the others: it may be the only one that the channel rejects."""
SENT_RETENTION_S = 7 * 86400.0
MAX_SENT = 2000
MAX_DEAD_LETTERS = 1000
MAX_COVERS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:@-]{0,150}\.[A-Za-z0-9_-]{1,60}")
_EVIDENCE_STEPS = (2000, 500, 120, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One alert for one channel.

    Attributes:
        channel: the channel's name in resil.toml.
        queued: when the message was queued, seconds since the epoch.
        tries: number of failed deliveries.
        error, hint: of the last failure; of a dead letter, the reason.
        ended: when the message was delivered or given up; 0 while queued.
        answer: the channel's answer to the delivered message.
        host: the node that last sent the message.
        lines: of a digest: a line for each incident.
        covers: of a digest: names of the entries that the digest replaces.
        left_out: of a digest: number of incidents without a line.
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
    lines: tuple[DigestLine, ...] = ()
    covers: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def name(self) -> str:
        """The name of the file: the alert's id and the channel."""
        return entry_name(self.alert.id, self.channel)

    @property
    def is_digest(self) -> bool:
        """Return True if the entry replaces others."""
        return bool(self.covers)

    def incidents(self) -> tuple[DigestLine, ...]:
        """Return a line for each incident in the message."""
        return self.lines or lines_of(self.alert)


def entry_name(alert_id: str, channel: str) -> str:
    """Return the file name for an alert's id and a channel. Raise ValueError if the name could leave the directory."""
    name = f"{alert_id}.{channel}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an entry")
    return name


def channel_of(name: str) -> str:
    """Return the channel of an entry's name."""
    return name.rpartition(".")[2]


def encode(entry: Entry) -> bytes:
    """Return an entry as JSON, unescaped where possible so that `cat` shows readable text."""
    record = to_record(entry, complete=True)
    if entry.covers:  # thousands of lines: omit their empty fields
        record["lines"] = [{k: v for k, v in line.items() if v not in ("", 0.0)} for line in record["lines"]]
    else:
        del record["lines"], record["covers"], record["left_out"]
    return to_json(record)


def decode(raw: bytes) -> Entry:
    """Return the entry that `encode` wrote. Raise ValueError for any other content."""
    try:
        return from_record(Entry, json.loads(raw), strict=True)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not an entry: {type(error).__name__}: {error}") from error


def without_secrets(alert: Alert) -> Alert:
    """Return the alert without secrets of the known forms: lines of logs and outputs are quoted in alerts."""
    from resilience.system.redaction import redact

    def lines(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(redact("\n".join(given)).split("\n")) if given else ()  # a private key has several

    notices = tuple(
        replace(one, summary=redact(one.summary), advice=redact(one.advice), evidence=lines(one.evidence))
        for one in alert.notices
    )
    return replace(alert, title=redact(alert.title), body=lines(alert.body), notices=notices)


def trimmed(alert: Alert, limit_bytes: int = LIMIT_BYTES) -> Alert:
    """Return the alert truncated to `limit_bytes`: ten thousand alerts must fit on a nearly full disk."""

    def size(candidate: Alert) -> int:
        return len(json.dumps(to_record(candidate, complete=True), ensure_ascii=False).encode("utf-8", "surrogatepass"))

    for characters in _EVIDENCE_STEPS:
        if size(alert) <= limit_bytes:
            return alert
        alert = replace(
            alert,
            body=_head_and_tail(alert.body, limit_bytes // 2 if characters else 0),
            notices=tuple(
                replace(
                    notice,
                    evidence=tuple(line[:characters] for line in notice.evidence[: characters // 50]),
                    summary=cut(notice.summary, max(500, characters)),
                    advice=cut(notice.advice, max(500, characters)),
                )
                for notice in alert.notices
            ),
        )
    while size(alert) > limit_bytes and len(alert.notices) > 1:
        alert = replace(alert, notices=alert.notices[: len(alert.notices) // 2])
    return alert


def _head_and_tail(lines: tuple[str, ...], most_bytes: int) -> tuple[str, ...]:
    """Return the first and last lines that fit: errors are usually at the end of an output."""
    if sum(len(line.encode("utf-8", "surrogatepass")) + 3 for line in lines) <= most_bytes:
        return lines
    head: list[str] = []
    tail: list[str] = []
    room = most_bytes - 60
    for first, last in zip(lines, reversed(lines), strict=True):
        for kept, line in ((tail, last), (head, first)):
            short = cut(line, 1000)
            room -= len(short.encode("utf-8", "surrogatepass")) + 3
            if room < 0 or len(head) + len(tail) >= len(lines):
                left_out = len(lines) - len(head) - len(tail)
                return (*head, f"... ({left_out} lines left out)", *reversed(tail))
            kept.append(short)
    return lines


def sending_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries that may be sent next: the head of each thread, the most urgent thread first.

    Within a thread the oldest is sent first, so that no resolution arrives before its incident, also if the incident is
    in a digest. Digests come first, then by verdict, then the oldest; messages that failed often come last.
    """
    everything = tuple(entries)
    in_digests = {line.episode for entry in everything if entry.is_digest for line in entry.lines}
    heads: dict[str, Entry] = {}
    for entry in sorted(everything, key=_age):
        heads.setdefault(entry.alert.thread, entry)
    free = (e for e in heads.values() if e.is_digest or not any(n.episode in in_digests for n in e.alert.notices))
    return tuple(sorted(free, key=_urgency))


def _age(entry: Entry) -> tuple[float, int, float, str]:
    """Return the sort key within a thread; at the same time, FIRST comes first and RESOLVED last."""
    ends = {Reason.FIRST: 0, Reason.RESOLVED: 2}.get(entry.alert.reason, 1)
    return entry.alert.time, ends, entry.queued, entry.alert.id


def _urgency(entry: Entry) -> tuple[bool, bool, int, float, str]:
    alert = entry.alert
    return entry.tries >= DEMOTE_TRIES, not entry.is_digest, -alert.verdict.severity, alert.time, alert.id


class Outbox:
    """The outbox of one state directory."""

    def __init__(self, directory: FallbackDirectory) -> None:
        """`directory`: the directory of queued messages; the others are its siblings.

        `channels` stores the state of the channels, `damaged` the names of queued files that were damaged.
        """
        self._queue = directory
        self._sent = directory.sibling("sent")
        self._dead = directory.sibling("dead")
        self.channels = ChannelStore(directory)
        self._covers: dict[str, frozenset[str]] = {}
        self.damaged: set[str] = set()

    @property
    def error(self) -> str:
        """The error of the outbox's disk, or empty."""
        return self._queue.error or self._sent.error or self._dead.error

    @property
    def claims(self) -> Path:
        """The directory of claims: on the shared disk, visible to other nodes, or on this node if that disk fails."""
        home, fallback = self._queue.primary, self._queue.fallback
        return (fallback if fallback is not None and self.error else home).with_name("claims")

    def put(self, alert: Alert, channel: str, now: float) -> bool:
        """Queue an alert for a channel; return False if the same alert is queued, delivered, or a dead letter.

        The alert is durable on return. Raise StateDirectoryError if no disk accepts it.
        """
        name = entry_name(alert.id, channel)
        waiting = self._names_of(channel)
        if self._is_known(name, waiting):
            return False
        if len(waiting) >= FOLD_AT:
            self.fold(channel, now, host=alert.host, project=alert.project)
        self._queue.write(name, encode(Entry(alert=trimmed(without_secrets(alert)), channel=channel, queued=now)))
        self.damaged.discard(name)
        return True

    def _is_known(self, name: str, waiting: Sequence[str]) -> bool:
        # Reading a damaged message quarantines it.
        if name in waiting and self._read(self._queue, name) is not None:
            return True
        if self._has(self._sent, name) or self._has(self._dead, name):
            return True
        return any(
            name in self._covered(directory, digest)
            for directory, names in ((self._queue, waiting), (self._sent, self._digests_sent(channel_of(name))))
            for digest in names
            if digest.startswith("digest-")
        )

    def _covered(self, directory: FallbackDirectory, digest: str) -> frozenset[str]:
        """Return the names that a digest replaces. They determine its name, so each digest is read once."""
        if digest not in self._covers:
            entry = self._read(directory, digest)
            if entry is None:
                return frozenset()
            self._covers[digest] = frozenset(entry.covers)
        return self._covers[digest]

    def _digests_sent(self, channel: str) -> tuple[str, ...]:
        return tuple(name for name in self._sent.names() if name.startswith("digest-") and channel_of(name) == channel)

    @staticmethod
    def _has(directory: FallbackDirectory, name: str) -> bool:
        try:
            return directory.read(name) is not None
        except StateDirectoryError:
            return False  # if in doubt, send: a duplicate is better than no message

    def fold(self, channel: str, now: float, *, host: str, project: str) -> Entry | None:
        """Replace all messages queued for a channel by one digest and return it; None if no message is queued.

        The digest is written before the replaced messages are removed; after a crash in between the next reader
        completes the removal. Raise StateDirectoryError if no disk accepts the digest.
        """
        entries = self.pending(channel)
        if not entries:
            return None
        if len(entries) == 1 and entries[0].is_digest:
            return entries[0]
        names = [entry.name for entry in entries]
        lines, left_out = bounded(merge(line for entry in entries for line in entry.incidents()))
        left_out += sum(entry.left_out + _without_notice(entry) for entry in entries)
        covers = [*names, *(name for entry in entries for name in entry.covers)][:MAX_COVERS]
        alert = compose_digest(lines, id=digest_id(names), now=now, host=host, project=project, left_out=left_out)
        digest = Entry(
            alert=trimmed(alert),
            channel=channel,
            queued=min(entry.queued for entry in entries),
            lines=lines,
            covers=tuple(covers),
            left_out=left_out,
        )
        self._queue.write(digest.name, encode(digest))
        for name in names:
            self._queue.remove(name)
        return digest

    def names(self) -> tuple[str, ...]:
        """Return the names of the queued messages and digests. Cheap: one directory listing."""
        return tuple(name for name in self._queue.names() if "." in name)

    def _names_of(self, channel: str) -> tuple[str, ...]:
        return tuple(name for name in self.names() if channel_of(name) == channel)

    def pending(self, channel: str | None = None) -> tuple[Entry, ...]:
        """Return the queued messages of one channel or of all, the oldest first.

        Damaged files are quarantined. Messages that a digest replaces or that were delivered already are left over from
        a crash and removed.
        """
        names = self.names() if channel is None else self._names_of(channel)
        entries = [entry for name in names if (entry := self._read(self._queue, name)) is not None]
        covered = {name for entry in entries for name in entry.covers}
        kept = []
        for entry in entries:
            if entry.name in covered or self._has(self._sent, entry.name):
                with suppress(StateDirectoryError):
                    self._queue.remove(entry.name)
            else:
                kept.append(entry)
        return tuple(sorted(kept, key=lambda entry: (entry.queued, entry.name)))

    def reload(self, name: str) -> Entry | None:
        """Return an entry, read again; None if another node has delivered it."""
        if self._has(self._sent, name):
            with suppress(StateDirectoryError):
                self._queue.remove(name)
            return None
        return self._read(self._queue, name)

    def dead(self) -> tuple[Entry, ...]:
        """Return the dead letters, the oldest first."""
        return self._all(self._dead)

    def sent(self) -> tuple[Entry, ...]:
        """Return the messages delivered in the last days, the oldest first."""
        return self._all(self._sent)

    def _all(self, directory: FallbackDirectory) -> tuple[Entry, ...]:
        entries = (self._read(directory, name) for name in directory.names() if "." in name)
        return tuple(sorted((e for e in entries if e is not None), key=lambda entry: (entry.ended, entry.name)))

    def _read(self, directory: FallbackDirectory, name: str) -> Entry | None:
        try:
            raw = directory.read(name)
            if raw is None:
                return None
            entry = decode(raw)
            if entry.name != name:
                raise ValueError("content of another entry")
        except (NotRegularFile, ValueError) as error:
            aside = directory.quarantine(name)
            if directory is self._queue:
                self.damaged.add(name)
            directory.error = f"a damaged message ({error}) was moved to {aside}"
            return None
        except StateDirectoryError as error:
            directory.error = error.message
            return None
        return entry

    def delivered(self, entry: Entry, now: float, answer: str, host: str) -> None:
        """Record a delivery, then remove the message. Raise StateDirectoryError if it cannot be removed."""
        done = replace(entry, ended=now, answer=answer, host=host, error="", hint="")
        if not done.is_digest:  # the delivered message has the evidence
            notices = tuple(replace(notice, evidence=()) for notice in done.alert.notices[:20])
            done = replace(done, alert=replace(done.alert, notices=notices, body=()))
        with suppress(StateDirectoryError):  # files can be removed from a full disk
            self._sent.write(entry.name, encode(done))
        self._queue.remove(entry.name)

    def failed(self, entry: Entry, error: str, hint: str, host: str) -> None:
        """Record a failed delivery; the message stays queued."""
        self._queue.write(entry.name, encode(replace(entry, tries=entry.tries + 1, error=error, hint=hint, host=host)))

    def give_up(self, entry: Entry, error: str, hint: str, now: float, host: str) -> None:
        """Move a message to the dead letters, which are not retried."""
        given_up = replace(entry, tries=entry.tries + 1, error=error, hint=hint, ended=now, host=host)
        self._dead.write(entry.name, encode(given_up))
        self._queue.remove(entry.name)

    def requeue(self, entry: Entry) -> None:
        """Queue a dead letter again."""
        self._queue.write(entry.name, encode(replace(entry, tries=0, error="", hint="", ended=0.0)))
        self._dead.remove(entry.name)

    def discard(self, entry: Entry) -> None:
        """Delete a dead letter."""
        self._dead.remove(entry.name)

    def cleanup(self, now: float) -> None:
        """Remove old messages and old channel state, once an hour. Best effort."""
        if not self.channels.is_cleanup_due(now):
            return
        expire(self._sent, "ended", now - SENT_RETENTION_S, MAX_SENT)
        expire(self._dead, "ended", 0.0, MAX_DEAD_LETTERS)
        self.channels.cleanup(now)

    def flush_fallback(self) -> None:
        """Move the files of the fallback directory back, as far as the disk accepts them."""
        for directory in (self._queue, self._sent, self._dead):
            with suppress(StateDirectoryError):
                directory.flush_fallback()


def _without_notice(entry: Entry) -> int:
    """Return the number of incidents that an alert counts without a notice."""
    return 0 if entry.is_digest else max(0, entry.alert.total - len(entry.alert.notices))
