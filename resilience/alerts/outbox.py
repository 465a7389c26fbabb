"""The outbox: alerts that are not delivered yet, one file for each channel, and what became of those that were.

At least once: a message is removed only after the channel took it and that was written down. A crash in between costs
one duplicate, which its id shows; to write it down first would lose it instead. Several nodes may work in these folders
at the same time, and no lock is needed for nothing to be lost: claims (claims.py) only make duplicates rare.

    outbox/   what waits           <alert id>.<channel>
    sent/     what was delivered, for a week: the same news is recognised, and people can look
    dead/     what no waiting will deliver: `resil alert flush --retry-dead`
    threads/  what a channel wants to remember of a conversation: the ts of a Slack message
    channels/ how each channel fares
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from resilience.alerts.alert import Alert
from resilience.alerts.channel_memory import ChannelMemory, bound
from resilience.alerts.digest import FOLD_AT, bounded, compose_digest, digest_id, merge
from resilience.alerts.entry import Entry, channel_of, decode, encode, entry_name, trimmed
from resilience.errors import StateDirectoryError
from resilience.system.files import NotRegularFile
from resilience.system.spare_folder import SpareFolder

SENT_KEPT_S = 7 * 86400.0
SENT_MOST = 2000
DEAD_MOST = 1000
COVERS_MOST = 10_000


class Outbox:
    """The outbox of one state directory."""

    def __init__(self, folder: SpareFolder) -> None:
        """`folder`: where what waits lies; the other folders lie beside it.

        `memory` is what is remembered of the channels, `damaged` the names of what waited and could not be read.
        """
        self._waiting = folder
        self._sent = folder.beside("sent")
        self._dead = folder.beside("dead")
        self.memory = ChannelMemory(folder)
        self._covers: dict[str, frozenset[str]] = {}
        self.damaged: set[str] = set()

    @property
    def trouble(self) -> str:
        """What is wrong with the disk that the outbox lies on; empty when it answers."""
        return self._waiting.trouble or self._sent.trouble or self._dead.trouble

    @property
    def claims(self) -> Path:
        """Where claims on channels lie: on the shared disk, or they would tell other nodes nothing.

        Where that disk is in trouble, on this node: a claim is not worth a touch that hangs.
        """
        home, spare = self._waiting.folder, self._waiting.spare
        return (spare if spare is not None and self.trouble else home).with_name("claims")

    # ---- putting in

    def put(self, alert: Alert, channel: str, now: float) -> bool:
        """Queue an alert for a channel; return False when this news waits there, was delivered, or was given up.

        It is on a disk when this returns. Raise StateDirectoryError if no disk takes it.
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
        # A damaged message that waits is set aside by the look, and then it is not there.
        if name in waiting and self._read(self._waiting, name) is not None:
            return True
        if self._has(self._sent, name) or self._has(self._dead, name):
            return True
        return any(
            name in self._covered(folder, digest)
            for folder, names in ((self._waiting, waiting), (self._sent, self._digests_sent(channel_of(name))))
            for digest in names
            if digest.startswith("digest-")
        )

    def _covered(self, folder: SpareFolder, digest: str) -> frozenset[str]:
        """What a digest stands for. Its name is made of that, so it is read once."""
        if digest not in self._covers:
            entry = self._read(folder, digest)
            if entry is None:
                return frozenset()
            self._covers[digest] = frozenset(entry.covers)
        return self._covers[digest]

    def _digests_sent(self, channel: str) -> tuple[str, ...]:
        return tuple(name for name in self._sent.names() if name.startswith("digest-") and channel_of(name) == channel)

    @staticmethod
    def _has(folder: SpareFolder, name: str) -> bool:
        try:
            return folder.read(name) is not None
        except StateDirectoryError:
            return False  # who cannot know whether it was told tells it: once too often is better than never

    def fold(self, channel: str, now: float, *, host: str, project: str) -> Entry | None:
        """Make one digest of all that waits for a channel, and return it; None when nothing waits.

        The digest is written first, then what it stands for is removed; a crash in between leaves both, and whoever
        looks next finishes the removal. Raise StateDirectoryError if no disk takes the digest.
        """
        entries = self.pending(channel)
        if not entries:
            return None
        if len(entries) == 1 and entries[0].is_digest:
            return entries[0]
        names = [entry.name for entry in entries]
        lines, left_out = bounded(merge(line for entry in entries for line in entry.incidents()))
        left_out += sum(entry.left_out + _untold(entry) for entry in entries)
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

    # ---- looking

    def names(self) -> tuple[str, ...]:
        """The names of what waits, digests as one. Cheap: one listing."""
        return tuple(name for name in self._waiting.names() if "." in name)

    def _names_of(self, channel: str) -> tuple[str, ...]:
        return tuple(name for name in self.names() if channel_of(name) == channel)

    def pending(self, channel: str | None = None) -> tuple[Entry, ...]:
        """What waits, for one channel or for all, the oldest first.

        What cannot be read as an entry is set aside. What a digest stands for, or was delivered from elsewhere, is
        removed: a crash left it.
        """
        names = self.names() if channel is None else self._names_of(channel)
        entries = [entry for name in names if (entry := self._read(self._waiting, name)) is not None]
        covered = {name for entry in entries for name in entry.covers}
        kept = []
        for entry in entries:
            if entry.name in covered or self._was_sent(entry.name):
                with suppress(StateDirectoryError):
                    self._waiting.remove(entry.name)
            else:
                kept.append(entry)
        return tuple(sorted(kept, key=lambda entry: (entry.queued, entry.name)))

    def _was_sent(self, name: str) -> bool:
        with suppress(StateDirectoryError):
            return self._sent.read(name) is not None
        return False

    def waits(self, name: str) -> Entry | None:
        """An entry that still waits, read anew; None when another node has dealt with it."""
        if self._was_sent(name):
            with suppress(StateDirectoryError):
                self._waiting.remove(name)
            return None
        return self._read(self._waiting, name)

    def dead(self) -> tuple[Entry, ...]:
        """The dead letters, the oldest first."""
        return self._all(self._dead)

    def dead_names(self) -> tuple[str, ...]:
        """The names of the dead letters. Cheap: one listing."""
        return tuple(name for name in self._dead.names() if "." in name)

    def sent(self) -> tuple[Entry, ...]:
        """What was delivered in the last days, the oldest first."""
        return self._all(self._sent)

    def _all(self, folder: SpareFolder) -> tuple[Entry, ...]:
        entries = (self._read(folder, name) for name in folder.names() if "." in name)
        return tuple(sorted((e for e in entries if e is not None), key=lambda entry: (entry.ended, entry.name)))

    def _read(self, folder: SpareFolder, name: str) -> Entry | None:
        try:
            raw = folder.read(name)
            if raw is None:
                return None
            entry = decode(raw)
            if entry.name != name:
                raise ValueError("its content is another's")
        except (NotRegularFile, ValueError) as error:
            aside = folder.set_aside(name)
            if folder is self._waiting:
                self.damaged.add(name)
            folder.trouble = f"a damaged message was set aside ({error}): {aside}"
            return None
        except StateDirectoryError as error:
            folder.trouble = error.message
            return None
        return entry

    # ---- what became of it

    def delivered(self, entry: Entry, now: float, answer: str, host: str) -> None:
        """Write down that a channel took it, then remove it. Raise StateDirectoryError if neither was possible."""
        done = replace(entry, ended=now, answer=answer, host=host, error="", hint="")
        if not done.is_digest:  # what was said is known; the evidence was in the message
            notices = tuple(replace(notice, evidence=()) for notice in done.alert.notices[:20])
            done = replace(done, alert=replace(done.alert, notices=notices, body=()))
        try:
            self._sent.write(entry.name, encode(done))
        except StateDirectoryError:
            self._waiting.remove(entry.name)  # a full disk still lets go of a file
            return
        self._waiting.remove(entry.name)

    def failed(self, entry: Entry, error: str, hint: str, host: str) -> None:
        """Write down that it was not taken this time."""
        self._waiting.write(
            entry.name, encode(replace(entry, tries=entry.tries + 1, error=error, hint=hint, host=host))
        )

    def give_up(self, entry: Entry, error: str, hint: str, now: float, host: str) -> None:
        """Move it to the dead letters: no waiting will help."""
        given_up = replace(entry, tries=entry.tries + 1, error=error, hint=hint, ended=now, host=host)
        self._dead.write(entry.name, encode(given_up))
        self._waiting.remove(entry.name)

    def revive(self, entry: Entry) -> None:
        """Put a dead letter back."""
        self._waiting.write(entry.name, encode(replace(entry, tries=0, error="", hint="", ended=0.0)))
        self._dead.remove(entry.name)

    def discard(self, entry: Entry) -> None:
        """Remove a dead letter for good."""
        self._dead.remove(entry.name)

    def sweep(self, now: float) -> None:
        """Forget what is old, once an hour: what was sent, threads that ended long ago. Best effort."""
        if not self.memory.is_sweep_due(now):
            return
        bound(self._sent, "ended", now - SENT_KEPT_S, SENT_MOST)
        bound(self._dead, "ended", 0.0, DEAD_MOST)
        self.memory.sweep(now)

    def bring_home(self) -> None:
        """Move what the spare folder took while the disk was in trouble, as far as that goes."""
        for folder in (self._waiting, self._sent, self._dead):
            with suppress(StateDirectoryError):
                folder.bring_home()


def _untold(entry: Entry) -> int:
    """How many incidents an alert counts without a notice: they can only be counted on."""
    return 0 if entry.is_digest else max(0, entry.alert.total - len(entry.alert.notices))
