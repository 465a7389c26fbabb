"""Stores incidents, acknowledgements and silences: one file each, which `cat` can read and no process locks.

An acknowledgement lies in a file of its own, so that a watchdog that writes at the same moment cannot undo it. A copy
of the open incidents lies on this node, for the tick in which the disk of the ledger does not answer any more: without
it, every fault would be news again in the very moment when a file system fails.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from resilience.alerts.incident import Incident, Silence, read_incident
from resilience.errors import StateDirectoryError, UsageError
from resilience.records import from_record, to_record
from resilience.system.fallback_directory import FallbackDirectory
from resilience.system.files import NotRegularFile, own_directory, read_regular, write_atomic

COPY_FRESH_S = 3600.0
"""An older copy is not believed: other nodes have gone on since."""
COPY_LIMIT_BYTES = 64 * 2**20
SILENCE_KEPT_S = 7 * 86400.0
"""How long a silence that has ended is kept, so that people can see who had silenced what."""

_JSON = ".json"
_ACKNOWLEDGED = ".ack"
_DAMAGED = (NotRegularFile, UsageError, ValueError, KeyError, TypeError, RecursionError)

ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Acknowledgement:
    """Content of its file: the same fields as in the incident."""

    acknowledged_by: str
    acknowledged_at: float
    acknowledged_note: str = ""


class LedgerCopy:
    """One file, for this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> tuple[Incident, ...]:
        """The incidents that were open at this node's last tick; none where there is no copy that can be believed."""
        with suppress(StateDirectoryError, *_DAMAGED):
            found = read_regular(self._path, COPY_LIMIT_BYTES)
            if found is not None and found[1].st_uid == os.getuid():
                document = json.loads(found[0])
                if abs(now - float(document["time"])) < COPY_FRESH_S:
                    return tuple(map(read_incident, document["incidents"]))
        return ()

    def save(self, contents: Iterable[bytes], now: float) -> None:
        """Save the files of the open incidents. Best effort: a node without a place for the copy has none."""
        if own_directory(self._path.parent) is None:
            return
        text = b'{"time": %s, "incidents": [%s]}\n' % (repr(now).encode(), b",".join(contents))
        with suppress(StateDirectoryError):
            write_atomic(self._path, text, durable=False)


class _Store:
    """JSON files in one directory.

    Attributes:
        directory: where the files lie.
        errors: files that could not be read or were set aside, one sentence each.
    """

    def __init__(self, directory: FallbackDirectory) -> None:
        self.directory = directory
        self.errors: tuple[str, ...] = ()

    def _read(self, name: str, what: str, parse: Callable[[bytes], ContentT]) -> ContentT | None:
        """The parsed content of a file; None where it is missing, damaged (then it is set aside) or unreadable."""
        try:
            content = self.directory.read(name)
            return None if content is None else parse(content)
        except _DAMAGED as error:
            aside = self.directory.quarantine(name)
            self._report(f"the {what} {name} makes no sense ({_explain(error)}); it was set aside as {aside}")
        except StateDirectoryError as error:
            self._report(f"the {what} {name} cannot be read: {error.message}")
        return None

    def _write_for_watchdogs(self, name: str, content: bytes, what: str, verb: str, *, is_known: bool = True) -> None:
        """Write a file where the watchdogs read it. Raise StateDirectoryError where that is impossible.

        `is_known`: whether this node knows incidents of this state, so that this user's watchdogs ran here.
        """
        self.directory.error = ""
        self.directory.write(name, content)
        if self.directory.error and not (is_known if self.directory.is_unavailable else self._is_ours()):
            self.directory.remove(name)  # the owner's watchdogs would never see a file in our own fallback directory
            raise StateDirectoryError(
                f"the {what} was not kept: {self.directory.error}",
                hint=f"ask the owner of the run to set `[run] group`, so that the whole group may {verb}",
            )

    def _is_ours(self) -> bool:
        """Whether the watchdogs that write here are this user's, as far as known: they read the fallback directory."""
        try:
            return self._directory_of_watchdogs().stat().st_uid == os.getuid()
        except PermissionError:
            return False
        except OSError:  # it is not there yet, or its disk fails
            return True

    def _directory_of_watchdogs(self) -> Path:
        return self.directory.primary

    def _report(self, sentence: str) -> None:
        if sentence not in self.errors:
            self.errors = (*self.errors, sentence)


class Ledger(_Store):
    """The incidents of one state directory: the open ones, and those that ended of late."""

    def __init__(self, directory: FallbackDirectory, copy: LedgerCopy | None = None) -> None:
        """`copy`: this node's copy of the open incidents, for when the directory does not answer."""
        super().__init__(directory)
        self._copy = copy
        self._written: dict[str, bytes] = {}
        self._open: dict[str, bytes] = {}
        self._acknowledged: dict[str, str] = {}

    def incidents(self, now: float | None = None) -> tuple[Incident, ...]:
        """Every incident, the latest first.

        A damaged file is set aside and reported in `errors`; its fault is then news again. `now`: where the directory
        does not answer, this node's copy counts.
        """
        names = self.directory.names()
        if self.directory.error:
            self._report(f"the alert state is in trouble: {self.directory.error}")
        acknowledged = {name.removesuffix(_ACKNOWLEDGED) for name in names if name.endswith(_ACKNOWLEDGED)}
        found = []
        for name in names:
            if name.endswith(_JSON) and (incident := self._load(name)) is not None:
                found.append(incident)
        if now is not None and self._copy is not None and self._is_lost():
            known = {incident.fingerprint for incident in found}
            copied = [one for one in self._copy.load(now) if one.fingerprint not in known]
            self._open |= {one.fingerprint + _JSON: _file_of(one) for one in copied}
            found += copied
        found = [self._with_people(one) if one.episode in acknowledged else one for one in found]
        return tuple(sorted(found, key=lambda incident: (incident.opened, incident.episode), reverse=True))

    def find(self, text: str, now: float | None = None) -> Incident:
        """The incident whose id begins with `text`; `now` as in `incidents`.

        Raise UsageError if there is none, or several; StateDirectoryError if the incidents cannot be read.
        """
        wanted = text.strip().lower()
        incidents = self.incidents(now)
        fits = [incident for incident in incidents if wanted and incident.episode.startswith(wanted)]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise UsageError(
                f"several incidents begin with {text!r}",
                hint="which one: " + ", ".join(f"{i.episode} ({i.check} {i.subject})" for i in fits[:8]),
            )
        for incident in incidents:
            if any(wanted and earlier.startswith(wanted) for earlier in incident.earlier):
                state = "came back as" if incident.is_open else "came back, and ended, as"
                raise UsageError(
                    f"{text!r} is over, and {state} {incident.episode}: {incident.check} {incident.subject}",
                    hint=f"its id is {incident.episode} now",
                )
        if self.directory.error:
            is_forbidden = os.strerror(errno.EACCES) in self.directory.error
            raise StateDirectoryError(
                f"whether there is an incident {text!r} cannot be known: {self.directory.error}",
                hint="its owner can set `[run] group`, so that the whole group sees it" if is_forbidden else "",
                transient=not is_forbidden,
            )
        from difflib import get_close_matches

        near = get_close_matches(wanted, [incident.episode for incident in incidents], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see them all: resil alert list"
        raise UsageError(f"there is no incident {text!r}", hint=hint)

    def save(self, incident: Incident, *, durable: bool = False) -> None:
        """Save an incident as it is now. Raise StateDirectoryError if no directory takes it.

        Not forced to disk unless asked: a power cut then costs a duplicate, and a thousand incidents take a moment.
        """
        name, content = incident.fingerprint + _JSON, _file_of(incident)
        self._note_open(name, incident, content)
        if self._written.get(name) != content:
            self.directory.write(name, content, durable=durable)
            self._written[name] = content
        if self._acknowledged.get(name, incident.episode) != incident.episode:
            self.directory.remove(self._acknowledged.pop(name) + _ACKNOWLEDGED)  # of the incident before

    def remove(self, incident: Incident) -> None:
        """Remove an incident and its acknowledgement."""
        self._written.pop(incident.fingerprint + _JSON, None)
        self._open.pop(incident.fingerprint + _JSON, None)
        self.directory.remove(incident.fingerprint + _JSON)
        if incident.acknowledged_by:
            self.directory.remove(incident.episode + _ACKNOWLEDGED)

    def save_copy(self, now: float) -> None:
        """Save this node's copy of the open incidents, as they were read and saved here."""
        if self._copy is not None:
            self._copy.save(self._open.values(), now)

    def acknowledge(self, text: str, by: str, note: str, now: float) -> Incident:
        """Record that a user works on an incident: no more reminders, no further escalation.

        Raise UsageError if there is no such incident or it is over, StateDirectoryError if the acknowledgement cannot
        be written where the watchdogs read it.
        """
        incident = self.find(text, now)
        if not incident.is_open:
            raise UsageError(f"{incident.episode} is over already: {incident.check} {incident.subject}")
        acknowledged = _Acknowledgement(acknowledged_by=by, acknowledged_at=now, acknowledged_note=note)
        record = to_record(acknowledged, complete=True)
        name = incident.episode + _ACKNOWLEDGED
        self._write_for_watchdogs(name, _text(record), "acknowledgement", "acknowledge")
        return replace(incident, **record)

    def unacknowledge(self, text: str) -> Incident:
        """Remove an acknowledgement: reminders go on. Raise UsageError if there is no such incident."""
        incident = self.find(text)
        self.directory.remove(incident.episode + _ACKNOWLEDGED)
        return replace(incident, acknowledged_by="", acknowledged_at=None, acknowledged_note="")

    def _is_lost(self) -> bool:
        """Whether the disk of the incidents does not answer, or is not there at all."""
        return bool(self.directory.error) or not self.directory.primary.parent.parent.is_dir()

    def _note_open(self, name: str, incident: Incident, content: bytes) -> None:
        if incident.is_open:
            self._open[name] = content
        else:
            self._open.pop(name, None)

    def _load(self, name: str) -> Incident | None:
        def parse(content: bytes) -> Incident:
            incident = read_incident(json.loads(content))
            if incident.fingerprint + _JSON != name:
                raise ValueError("it is about another incident")
            self._written[name] = content
            self._note_open(name, incident, content)
            return incident

        return self._read(name, "incident file", parse)

    def _with_people(self, incident: Incident) -> Incident:
        def parse(content: bytes) -> Incident:
            acknowledged = from_record(_Acknowledgement, json.loads(content), strict=True)
            self._acknowledged[incident.fingerprint + _JSON] = incident.episode
            return replace(incident, **to_record(acknowledged, complete=True))

        return self._read(incident.episode + _ACKNOWLEDGED, "acknowledgement", parse) or incident


class Silences(_Store):
    """The silences of one state directory, until a while after they end."""

    def add(self, silence: Silence, *, is_known: bool = True) -> None:
        """Save a silence. Raise StateDirectoryError if it cannot be written where the watchdogs read it.

        `is_known`: whether this node knows incidents of this state.
        """
        content = json.dumps(to_record(silence, complete=True), indent=1).encode() + b"\n"
        self._write_for_watchdogs(silence.id + _JSON, content, "silence", "silence", is_known=is_known)

    def active(self, now: float) -> tuple[Silence, ...]:
        """The silences that hold now, the one that ends first, first."""
        found = [silence for silence in self._all() if not silence.is_over(now)]
        return tuple(sorted(found, key=lambda silence: (silence.until, silence.id)))

    def remove(self, text: str) -> Silence:
        """End the silence whose id begins with `text`, and return it. Raise UsageError if there is none, or several."""
        wanted = text.strip().lower()
        fits = [silence for silence in self._all() if wanted and silence.id.startswith(wanted)]
        if len(fits) != 1:
            said = f"several silences begin with {text!r}" if fits else f"there is no silence {text!r}"
            known = ", ".join(silence.id for silence in fits or self._all())
            raise UsageError(said, hint=f"there are: {known}" if known else "there is none at all")
        self.directory.remove(fits[0].id + _JSON)
        return fits[0]

    def prune(self, now: float) -> None:
        """Remove the silences that ended long ago."""
        for silence in self._all():
            if now - silence.until > SILENCE_KEPT_S:
                self.directory.remove(silence.id + _JSON)

    def _directory_of_watchdogs(self) -> Path:
        return self.directory.primary.parent  # the directory of the silences itself may be another person's

    def _all(self) -> list[Silence]:
        def parse(content: bytes) -> Silence:
            return from_record(Silence, json.loads(content), strict=True)

        names = [name for name in self.directory.names() if name.endswith(_JSON)]
        return [silence for name in names if (silence := self._read(name, "silence", parse)) is not None]


def silence_id(silence_of: str, by: str, now: float) -> str:
    """An id for a new silence: 8 hex digits, from its patterns, its user and the time."""
    text = f"{silence_of}\0{by}\0{now!r}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:8]


def _file_of(incident: Incident) -> bytes:
    """The content of its file: an acknowledgement lies in another."""
    record = to_record(incident, complete=True)
    for name in _Acknowledgement.__dataclass_fields__:
        del record[name]
    return _text(record)


def _text(record: dict[str, Any]) -> bytes:
    """JSON that `cat` shows as people write; bytes that are no text (a file's name) become escapes."""
    try:
        return json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, indent=1).encode() + b"\n"


def _explain(error: Exception) -> str:
    if isinstance(error, NotRegularFile | UsageError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
