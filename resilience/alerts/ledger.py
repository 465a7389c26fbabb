"""Stores incidents, acknowledgements and silences: one plain-text file each, without locks.

An acknowledgement has a file of its own, so that a watchdog that saves the incident at the same time cannot overwrite
it. A copy of the open incidents is kept on this node for ticks in which the ledger's disk does not respond: without the
copy, every known fault would be notified again whenever a file system fails.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from resilience.alerts.incident import Incident, Silence, hex_digest, read_incident
from resilience.base.switches import name_of_user
from resilience.errors import StateDirectoryError, UsageError
from resilience.records import from_record, to_json, to_record
from resilience.system.fallback_directory import FallbackDirectory
from resilience.system.files import NotRegularFile, own_directory, read_regular, write_atomic

COPY_MAX_AGE_S = 3600.0
"""An older copy is ignored: other nodes may have updated the ledger since."""
COPY_LIMIT_BYTES = 64 * 2**20
SILENCE_RETENTION_S = 7 * 86400.0
"""How long an expired silence is kept, for users who want to see earlier silences."""

_JSON = ".json"
_ACKNOWLEDGED = ".ack"
_DAMAGED = (NotRegularFile, UsageError, ValueError, KeyError, TypeError, RecursionError)

ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Acknowledgement:
    """Content of an acknowledgement's file: fields of the incident."""

    acknowledged_by: str
    acknowledged_at: float
    acknowledged_note: str = ""


class LedgerCopy:
    """This node's copy of the open incidents: one file, readable by this user only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> tuple[Incident, ...]:
        """Return the incidents that were open at this node's last tick; empty without a valid, recent copy."""
        with suppress(StateDirectoryError, *_DAMAGED):
            found = read_regular(self._path, COPY_LIMIT_BYTES)
            if found is not None and found[1].st_uid == os.getuid():
                document = json.loads(found[0])
                if abs(now - float(document["time"])) < COPY_MAX_AGE_S:
                    return tuple(map(read_incident, document["incidents"]))
        return ()

    def save(self, contents: Iterable[bytes], now: float) -> None:
        """Save the files of the open incidents. Best effort."""
        if own_directory(self._path.parent) is None:
            return
        text = b'{"time": %s, "incidents": [%s]}\n' % (repr(now).encode(), b",".join(contents))
        with suppress(StateDirectoryError):
            write_atomic(self._path, text, durable=False)


class _Store:
    """JSON files in one directory.

    Attributes:
        directory: the directory of the files.
        errors: one sentence for each file that could not be read or was quarantined.
    """

    def __init__(self, directory: FallbackDirectory) -> None:
        self.directory = directory
        self.errors: tuple[str, ...] = ()

    def _read(self, name: str, what: str, parse: Callable[[bytes, int], ContentT]) -> ContentT | None:
        """Return the parsed content of a file; None if missing, unreadable, or damaged (then it is quarantined).

        `parse` gets the content and the uid of the file's owner.
        """
        try:
            found = self.directory.read_owned(name)
            return None if found is None else parse(*found)
        except _DAMAGED as error:
            aside = self.directory.quarantine(name)
            self._report(f"the {what} {name} is damaged ({_explain(error)}); moved to {aside}")
        except StateDirectoryError as error:
            self._report(f"the {what} {name} cannot be read: {error.message}")
        return None

    def _write_for_watchdogs(self, name: str, content: bytes, what: str, verb: str, *, is_known: bool = True) -> None:
        """Write a file where the watchdogs read it. Raise StateDirectoryError if that is impossible.

        `is_known`: whether this node has incidents of this state, which shows that this user's watchdogs run here.
        """
        self.directory.error = ""
        self.directory.write(name, content)
        if self.directory.error and not (is_known if self.directory.is_unavailable else self._is_ours()):
            self.directory.remove(name)  # the owner's watchdogs do not read this user's fallback directory
            raise StateDirectoryError(
                f"the {what} was not saved: {self.directory.error}",
                hint=f"ask the owner of the run to set `[run] group`, so that the whole group may {verb}",
            )

    def _is_ours(self) -> bool:
        """Return True if, as far as known, this user's watchdogs write here: they read the fallback directory."""
        try:
            return self._directory_of_watchdogs().stat().st_uid == os.getuid()
        except PermissionError:
            return False
        except OSError:  # the directory does not exist yet, or its disk fails
            return True

    def _directory_of_watchdogs(self) -> Path:
        return self.directory.primary

    def _report(self, sentence: str) -> None:
        if sentence not in self.errors:
            self.errors = (*self.errors, sentence)


class Ledger(_Store):
    """The incidents of one state directory: open and recently resolved ones."""

    def __init__(self, directory: FallbackDirectory, copy: LedgerCopy | None = None) -> None:
        """`copy`: this node's copy of the open incidents, used if the directory does not respond."""
        super().__init__(directory)
        self._copy = copy
        self._written: dict[str, bytes] = {}
        self._open: dict[str, bytes] = {}
        self._acknowledged: dict[str, str] = {}

    def incidents(self, now: float | None = None) -> tuple[Incident, ...]:
        """Return all incidents, the latest first.

        A damaged file is quarantined and reported in `errors`; its fault becomes a new incident. With `now`, this
        node's copy is used if the directory does not respond.
        """
        names = self.directory.names()
        if self.directory.error:
            self._report(f"error in the alert state: {self.directory.error}")
        acknowledged = {name.removesuffix(_ACKNOWLEDGED) for name in names if name.endswith(_ACKNOWLEDGED)}
        found = []
        for name in names:
            if name.endswith(_JSON) and (incident := self._load(name)) is not None:
                found.append(incident)
        if now is not None and self._copy is not None and self._is_unreachable():
            known = {incident.fingerprint for incident in found}
            copied = [one for one in self._copy.load(now) if one.fingerprint not in known]
            self._open |= {one.fingerprint + _JSON: _encode(one) for one in copied}
            found += copied
        found = [self._with_acknowledgement(one) if one.episode in acknowledged else one for one in found]
        return tuple(sorted(found, key=lambda incident: (incident.opened, incident.episode), reverse=True))

    def find(self, text: str, now: float | None = None) -> Incident:
        """Return the incident whose id starts with `text`; `now` as in `incidents`.

        Raise UsageError unless exactly one matches, StateDirectoryError if the incidents cannot be read.
        """
        prefix = text.strip().lower()
        incidents = self.incidents(now)
        found = [incident for incident in incidents if prefix and incident.episode.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"several incident ids begin with {text!r}",
                hint="one of: " + ", ".join(f"{i.episode} ({i.check} {i.subject})" for i in found[:8]),
            )
        for incident in incidents:
            if any(prefix and earlier.startswith(prefix) for earlier in incident.earlier):
                state = "the fault came back as" if incident.is_open else "the fault came back and was resolved as"
                raise UsageError(
                    f"{text!r} is resolved; {state} {incident.episode}: {incident.check} {incident.subject}",
                    hint=f"use the new id: {incident.episode}",
                )
        if self.directory.error:
            is_forbidden = os.strerror(errno.EACCES) in self.directory.error
            raise StateDirectoryError(
                f"cannot look up incident {text!r}: {self.directory.error}",
                hint="ask its owner to set `[run] group`, so that the whole group may read it" if is_forbidden else "",
                transient=not is_forbidden,
            )
        from difflib import get_close_matches

        near = get_close_matches(prefix, [incident.episode for incident in incidents], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "list them all: resil alert list"
        raise UsageError(f"there is no incident {text!r}", hint=hint)

    def open(self, incident: Incident) -> Incident:
        """Save the first incident of a fault under a new random id, and return it.

        If a watchdog on another node has just opened the same fault, return the incident with that id: both then queue
        the same message, and the outbox keeps one. If no directory accepts the file, the id is the same for an hour,
        so that the next tick does not send the message again.
        """
        opened = replace(incident, episode=os.urandom(4).hex())
        name, content = opened.fingerprint + _JSON, _encode(opened)
        try:
            if not self.directory.create(name, content) and (other := self._load(name)) is not None:
                return replace(incident, episode=other.episode, number=other.number, earlier=other.earlier)
        except StateDirectoryError as error:
            self._report(f"cannot write the alert state: {error.message}")
            place = str(self.directory.primary)
            return replace(incident, episode=hex_digest(8, place, name, str(int(incident.opened // 3600))))
        self._written[name] = content
        self._track_open(name, opened, content)
        return opened

    def save(self, incident: Incident, *, durable: bool = False) -> None:
        """Save an incident. Raise StateDirectoryError if no directory accepts the file.

        Without `durable` there is no fsync: saving a thousand incidents stays fast, and a power cut may cost a
        duplicate notification.
        """
        name, content = incident.fingerprint + _JSON, _encode(incident)
        self._track_open(name, incident, content)
        if self._written.get(name) != content:
            self.directory.write(name, content, durable=durable)
            self._written[name] = content
        if self._acknowledged.get(name, incident.episode) != incident.episode:
            self.directory.remove(self._acknowledged.pop(name) + _ACKNOWLEDGED)  # of the previous incident

    def remove(self, incident: Incident) -> None:
        """Remove an incident and its acknowledgement."""
        self._written.pop(incident.fingerprint + _JSON, None)
        self._open.pop(incident.fingerprint + _JSON, None)
        self.directory.remove(incident.fingerprint + _JSON)
        if incident.acknowledged_by:
            self.directory.remove(incident.episode + _ACKNOWLEDGED)

    def save_copy(self, now: float) -> None:
        """Save this node's copy of the open incidents, as last read or saved."""
        if self._copy is not None:
            self._copy.save(self._open.values(), now)

    def acknowledge(self, incident: Incident, by: str, note: str, now: float) -> Incident:
        """Acknowledge an open incident: stops reminders and further escalation.

        Raise StateDirectoryError if the acknowledgement cannot be written where the watchdogs read it.
        """
        acknowledged = _Acknowledgement(acknowledged_by=by, acknowledged_at=now, acknowledged_note=note)
        record = to_record(acknowledged, complete=True)
        name = incident.episode + _ACKNOWLEDGED
        self._write_for_watchdogs(name, to_json(record, indent=1), "acknowledgement", "acknowledge")
        return replace(incident, **record)

    def unacknowledge(self, incident: Incident) -> Incident:
        """Remove an acknowledgement: reminders resume."""
        self.directory.remove(incident.episode + _ACKNOWLEDGED)
        return replace(incident, acknowledged_by="", acknowledged_at=None, acknowledged_note="")

    def _is_unreachable(self) -> bool:
        """Return True if the disk of the incidents does not respond or is missing."""
        return bool(self.directory.error) or not self.directory.primary.parent.parent.is_dir()

    def _track_open(self, name: str, incident: Incident, content: bytes) -> None:
        if incident.is_open:
            self._open[name] = content
        else:
            self._open.pop(name, None)

    def _load(self, name: str) -> Incident | None:
        def parse(content: bytes, _owner: int) -> Incident:
            incident = read_incident(json.loads(content))
            if incident.fingerprint + _JSON != name:
                raise ValueError("content of another incident")
            self._written[name] = content
            self._track_open(name, incident, content)
            return incident

        return self._read(name, "incident file", parse)

    def _with_acknowledgement(self, incident: Incident) -> Incident:
        def parse(content: bytes, owner: int) -> Incident:
            acknowledged = from_record(_Acknowledgement, json.loads(content), strict=True)
            acknowledged = replace(acknowledged, acknowledged_by=_author(acknowledged.acknowledged_by, owner))
            self._acknowledged[incident.fingerprint + _JSON] = incident.episode
            return replace(incident, **to_record(acknowledged, complete=True))

        return self._read(incident.episode + _ACKNOWLEDGED, "acknowledgement", parse) or incident


class Silences(_Store):
    """The silences of one state directory: active and recently expired ones."""

    def add(self, silence: Silence, *, is_known: bool = True) -> None:
        """Save a silence. Raise StateDirectoryError if it cannot be written where the watchdogs read it.

        `is_known`: whether this node has incidents of this state.
        """
        content = to_json(to_record(silence, complete=True), indent=1)
        self._write_for_watchdogs(silence.id + _JSON, content, "silence", "silence", is_known=is_known)

    def active(self, now: float) -> tuple[Silence, ...]:
        """Return the active silences, the next to expire first."""
        found = [silence for silence in self._all() if not silence.is_expired(now)]
        return tuple(sorted(found, key=lambda silence: (silence.until, silence.id)))

    def remove(self, text: str) -> Silence:
        """Expire the silence whose id starts with `text`; return it. Raise UsageError unless exactly one matches."""
        prefix = text.strip().lower()
        found = [silence for silence in self._all() if prefix and silence.id.startswith(prefix)]
        if len(found) != 1:
            error = f"several silence ids begin with {text!r}" if found else f"there is no silence {text!r}"
            known = ", ".join(silence.id for silence in found or self._all())
            raise UsageError(error, hint=f"there are: {known}" if known else "no silence is active")
        self.directory.remove(found[0].id + _JSON)
        return found[0]

    def prune(self, now: float) -> None:
        """Remove silences that expired long ago."""
        for silence in self._all():
            if now - silence.until > SILENCE_RETENTION_S:
                self.directory.remove(silence.id + _JSON)

    def _directory_of_watchdogs(self) -> Path:
        return self.directory.primary.parent  # the silence directory itself may belong to another user

    def _all(self) -> list[Silence]:
        def parse(content: bytes, owner: int) -> Silence:
            silence = from_record(Silence, json.loads(content), strict=True)
            return replace(silence, by=_author(silence.by, owner))

        names = [name for name in self.directory.names() if name.endswith(_JSON)]
        return [silence for name in names if (silence := self._read(name, "silence", parse)) is not None]


def silence_id(silence_of: str, by: str, now: float) -> str:
    """Return the id of a new silence: 8 hex digits, derived from its patterns, user and time."""
    return hex_digest(8, silence_of, by, repr(now))


def _author(written: str, owner: int) -> str:
    """Return the author of a file: its owner. The name in a file of this user's own was written by this user."""
    return written if owner == os.getuid() else name_of_user(owner)


def _encode(incident: Incident) -> bytes:
    """Return the content of an incident's file, without the acknowledgement, which has a file of its own."""
    record = to_record(incident, complete=True)
    for name in _Acknowledgement.__dataclass_fields__:
        del record[name]
    return to_json(record, indent=1)


def _explain(error: Exception) -> str:
    if isinstance(error, NotRegularFile | UsageError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
