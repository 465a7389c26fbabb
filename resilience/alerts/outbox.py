"""The outbox: queued alerts, one file for each channel, and the messages that were delivered or given up.

At least once: a message is removed only after the channel took it and the outbox recorded that. A crash in between
costs one duplicate, which its id shows; to record first would lose the message. Several nodes may work in these
directories at the same time without a lock and lose nothing: claims (claims.py) only make duplicates rare.

    outbox/   queued messages      <alert id>.<channel>
    sent/     delivered messages, for a week: repeats are recognised, and people can read them
    dead/     dead letters, which no retry will deliver: `resil alert flush --retry-dead`
    threads/  what a channel needs for the next message of a thread: the ts of a Slack message
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
    Line,
    bounded,
    compose_digest,
    digest_id,
    lines_of,
    merge,
)
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.records import from_record, to_record
from resilience.system.fallback_directory import FallbackDirectory
from resilience.system.files import NotRegularFile

LIMIT_BYTES = 16384
"""An alert is never longer in the outbox: evidence is cut first, then the last notices, which are still counted."""
SINK_TRIES = 3
"""A message that failed so often lets others go first: it may be the only one that the channel does not take."""
SENT_KEPT_S = 7 * 86400.0
SENT_MOST = 2000
DEAD_MOST = 1000
COVERS_MOST = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:@-]{0,150}\.[A-Za-z0-9_-]{1,60}")
_EVIDENCE_STEPS = (2000, 500, 120, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One alert for one channel.

    Attributes:
        channel: the name of its table in resil.toml.
        queued: when the message was put into the outbox, seconds since the epoch.
        tries: how often the message was sent and not taken.
        error, hint: of the last try; for a dead letter, why it is one.
        ended: when the message was delivered, or given up; 0 while it is queued.
        answer: the channel's answer when it took the message.
        host: the node that sent the message last.
        lines: of a digest: a line for each incident.
        covers: of a digest: the names of the entries that it replaces.
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
        """The name of the file: the alert's id and the channel."""
        return entry_name(self.alert.id, self.channel)

    @property
    def is_digest(self) -> bool:
        """Whether the entry replaces others."""
        return bool(self.covers)

    def incidents(self) -> tuple[Line, ...]:
        """A line for each incident in the message."""
        return self.lines or lines_of(self.alert)


def entry_name(alert_id: str, channel: str) -> str:
    """Given an alert's id and a channel, return the name of the file. Raise ValueError if that could leave the
    directory.

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
    record = to_record(entry, complete=True)
    if entry.covers:  # there may be thousands of lines: without their empty fields
        record["lines"] = [{k: v for k, v in line.items() if v not in ("", 0.0)} for line in record["lines"]]
    else:
        del record["lines"], record["covers"], record["left_out"]
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:  # a file's name that is no text
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decode(raw: bytes) -> Entry:
    """The entry that `encode` wrote. Raise ValueError for any other content."""
    try:
        return from_record(Entry, json.loads(raw), strict=True)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it is no entry: {type(error).__name__}: {error}") from error


def trimmed(alert: Alert, limit_bytes: int = LIMIT_BYTES) -> Alert:
    """The alert, cut to what may lie in the outbox: ten thousand of them must fit where the disk is nearly full."""

    def size(candidate: Alert) -> int:
        return len(json.dumps(to_record(candidate, complete=True), ensure_ascii=False).encode("utf-8", "surrogatepass"))

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
    """The entries that may be sent next: the head of each thread, the most urgent thread first.

    Within a thread the oldest goes first, and nothing overtakes it: no end arrives before its beginning, also
    where the beginning is in a digest. Digests come first, then CRITICAL, and of those the oldest; a
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


class Outbox:
    """The outbox of one state directory."""

    def __init__(self, directory: FallbackDirectory) -> None:
        """`directory`: the directory of queued messages; the others lie beside it.

        `channels` stores the state of the channels, `damaged` holds the names of queued files that were unreadable.
        """
        self._waiting = directory
        self._sent = directory.sibling("sent")
        self._dead = directory.sibling("dead")
        self.channels = ChannelStore(directory)
        self._covers: dict[str, frozenset[str]] = {}
        self.damaged: set[str] = set()

    @property
    def error(self) -> str:
        """The error of the outbox's disk; empty when it answers."""
        return self._waiting.error or self._sent.error or self._dead.error

    @property
    def claims(self) -> Path:
        """The directory of claims on channels: on the shared disk, where other nodes see them.

        Where that disk fails, on this node: a claim is not worth a touch that hangs.
        """
        home, fallback = self._waiting.primary, self._waiting.fallback
        return (fallback if fallback is not None and self.error else home).with_name("claims")

    def put(self, alert: Alert, channel: str, now: float) -> bool:
        """Queue an alert for a channel; return False when the same alert is queued, was delivered, or was given up.

        The alert is on a disk when this returns. Raise StateDirectoryError if no disk takes it.
        """
        name = entry_name(alert.id, channel)
        waiting = self._names_of(channel)
        if self._is_known(name, waiting):
            return False
        if len(waiting) >= FOLD_AT:
            self.fold(channel, now, host=alert.host, project=alert.project)
        self._waiting.write(name, encode(Entry(alert=trimmed(alert), channel=channel, queued=now)))
        self.damaged.discard(name)
        return True

    def _is_known(self, name: str, waiting: Sequence[str]) -> bool:
        # Reading a damaged message sets it aside.
        if name in waiting and self._read(self._waiting, name) is not None:
            return True
        if self._has(self._sent, name) or self._has(self._dead, name):
            return True
        return any(
            name in self._covered(directory, digest)
            for directory, names in ((self._waiting, waiting), (self._sent, self._digests_sent(channel_of(name))))
            for digest in names
            if digest.startswith("digest-")
        )

    def _covered(self, directory: FallbackDirectory, digest: str) -> frozenset[str]:
        """The names that a digest replaces. Its own name is made of them, so it is read once."""
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
            return False  # if in doubt, send: once too often is better than never

    def fold(self, channel: str, now: float, *, host: str, project: str) -> Entry | None:
        """Make one digest of all messages that are queued for a channel, and return it; None when there are none.

        The digest is written first, then the messages that it replaces are removed; a crash in between leaves both,
        and the next reader finishes the removal. Raise StateDirectoryError if no disk takes the digest.
        """
        entries = self.pending(channel)
        if not entries:
            return None
        if len(entries) == 1 and entries[0].is_digest:
            return entries[0]
        names = [entry.name for entry in entries]
        lines, left_out = bounded(merge(line for entry in entries for line in entry.incidents()))
        left_out += sum(entry.left_out + _without_notice(entry) for entry in entries)
        covers = [*names, *(name for entry in entries for name in entry.covers)][:COVERS_MOST]
        alert = compose_digest(lines, id=digest_id(names), now=now, host=host, project=project, left_out=left_out)
        digest = Entry(
            alert=trimmed(alert),
            channel=channel,
            queued=min(entry.queued for entry in entries),
            lines=lines,
            covers=tuple(covers),
            left_out=left_out,
        )
        self._waiting.write(digest.name, encode(digest))
        for name in names:
            self._waiting.remove(name)
        return digest

    def names(self) -> tuple[str, ...]:
        """The names of the queued messages, digests as one. Cheap: one listing."""
        return tuple(name for name in self._waiting.names() if "." in name)

    def _names_of(self, channel: str) -> tuple[str, ...]:
        return tuple(name for name in self.names() if channel_of(name) == channel)

    def pending(self, channel: str | None = None) -> tuple[Entry, ...]:
        """The queued messages of one channel or of all, the oldest first.

        A file that is no entry is set aside. A message that a digest replaces, or that was delivered from elsewhere, is
        removed: a crash left it.
        """
        names = self.names() if channel is None else self._names_of(channel)
        entries = [entry for name in names if (entry := self._read(self._waiting, name)) is not None]
        covered = {name for entry in entries for name in entry.covers}
        kept = []
        for entry in entries:
            if entry.name in covered or self._has(self._sent, entry.name):
                with suppress(StateDirectoryError):
                    self._waiting.remove(entry.name)
            else:
                kept.append(entry)
        return tuple(sorted(kept, key=lambda entry: (entry.queued, entry.name)))

    def waits(self, name: str) -> Entry | None:
        """An entry that is still queued, read anew; None when another node has dealt with it."""
        if self._has(self._sent, name):
            with suppress(StateDirectoryError):
                self._waiting.remove(name)
            return None
        return self._read(self._waiting, name)

    def dead(self) -> tuple[Entry, ...]:
        """The dead letters, the oldest first."""
        return self._all(self._dead)

    def sent(self) -> tuple[Entry, ...]:
        """The messages of the last days that were delivered, the oldest first."""
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
                raise ValueError("its content is another's")
        except (NotRegularFile, ValueError) as error:
            aside = directory.quarantine(name)
            if directory is self._waiting:
                self.damaged.add(name)
            directory.error = f"a damaged message was set aside ({error}): {aside}"
            return None
        except StateDirectoryError as error:
            directory.error = error.message
            return None
        return entry

    def delivered(self, entry: Entry, now: float, answer: str, host: str) -> None:
        """Record that a channel took a message, then remove it. Raise StateDirectoryError if it cannot be removed."""
        done = replace(entry, ended=now, answer=answer, host=host, error="", hint="")
        if not done.is_digest:  # the evidence was in the message
            notices = tuple(replace(notice, evidence=()) for notice in done.alert.notices[:20])
            done = replace(done, alert=replace(done.alert, notices=notices, body=()))
        with suppress(StateDirectoryError):  # a full disk still lets go of a file
            self._sent.write(entry.name, encode(done))
        self._waiting.remove(entry.name)

    def failed(self, entry: Entry, error: str, hint: str, host: str) -> None:
        """Record a try that failed."""
        self._waiting.write(
            entry.name, encode(replace(entry, tries=entry.tries + 1, error=error, hint=hint, host=host))
        )

    def give_up(self, entry: Entry, error: str, hint: str, now: float, host: str) -> None:
        """Move a message to the dead letters: no retry will help."""
        given_up = replace(entry, tries=entry.tries + 1, error=error, hint=hint, ended=now, host=host)
        self._dead.write(entry.name, encode(given_up))
        self._waiting.remove(entry.name)

    def requeue(self, entry: Entry) -> None:
        """Queue a dead letter again."""
        self._waiting.write(entry.name, encode(replace(entry, tries=0, error="", hint="", ended=0.0)))
        self._dead.remove(entry.name)

    def discard(self, entry: Entry) -> None:
        """Remove a dead letter for good."""
        self._dead.remove(entry.name)

    def cleanup(self, now: float) -> None:
        """Remove old messages and the state of threads that ended long ago, once an hour. Best effort."""
        if not self.channels.is_cleanup_due(now):
            return
        expire(self._sent, "ended", now - SENT_KEPT_S, SENT_MOST)
        expire(self._dead, "ended", 0.0, DEAD_MOST)
        self.channels.cleanup(now)

    def flush_fallback(self) -> None:
        """Move the files of the fallback directory home, as far as the disk takes them."""
        for directory in (self._waiting, self._sent, self._dead):
            with suppress(StateDirectoryError):
                directory.flush_fallback()


def _without_notice(entry: Entry) -> int:
    """How many incidents an alert counts without a notice."""
    return 0 if entry.is_digest else max(0, entry.alert.total - len(entry.alert.notices))
