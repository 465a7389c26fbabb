"""Remembers every incident: one file each, which `cat` can read and nobody locks.

What a person does (an acknowledgement) lies in a file of its own, so that a watchdog that writes at the same moment
cannot undo it.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from typing import Any

from resilience.alerts.incident import Incident, incident_from_json, incident_to_json
from resilience.alerts.ledger_copy import LedgerCopy
from resilience.errors import StateDirectoryError, UsageError
from resilience.system.files import NotRegularFile
from resilience.system.spare_folder import SpareFolder

_INCIDENT = ".json"
_ACKNOWLEDGED = ".ack"
_OF_PEOPLE = ("acknowledged_by", "acknowledged_at", "acknowledged_note")


class Ledger:
    """The incidents of one state directory: the open ones, and those that ended of late.

    Attributes:
        folder: where the files lie.
        trouble: what could not be read or was set aside, one sentence each.
    """

    def __init__(self, folder: SpareFolder, copy: LedgerCopy | None = None) -> None:
        """`copy`: what this node remembers for the case that the folder does not answer."""
        self.folder = folder
        self.trouble: tuple[str, ...] = ()
        self._copy = copy
        self._written: dict[str, bytes] = {}
        self._open: dict[str, bytes] = {}
        self._acknowledged: dict[str, str] = {}

    def incidents(self, now: float | None = None) -> tuple[Incident, ...]:
        """Every incident that is remembered, the latest first.

        A damaged file is set aside and said in `trouble`; its fault is then news again. `now`: where the folder does
        not answer, what this node remembers of it counts.
        """
        names = self.folder.names()
        if self.folder.trouble:
            self._say(f"the alert state is in trouble: {self.folder.trouble}")
        acknowledged = {name.removesuffix(_ACKNOWLEDGED) for name in names if name.endswith(_ACKNOWLEDGED)}
        found = []
        for name in names:
            if name.endswith(_INCIDENT):
                incident = self._read(name, acknowledged)
                if incident is not None:
                    found.append(incident)
        if now is not None and self._copy is not None and self._is_lost():
            known = {incident.fingerprint for incident in found}
            copied = [one for one in self._copy.load(now) if one.fingerprint not in known]
            self._open |= {one.fingerprint + _INCIDENT: _file_of(one) for one in copied}
            found += [self._with_people(one) if one.episode in acknowledged else one for one in copied]
        return tuple(sorted(found, key=lambda incident: (incident.opened, incident.episode), reverse=True))

    def find(self, text: str, now: float | None = None) -> Incident:
        """The incident whose id begins so; `now` as in `incidents`.

        Raise UsageError if there is none, or several; StateDirectoryError if nobody can know.
        """
        wanted = text.strip().lower()
        incidents = self.incidents(now)
        fits = [incident for incident in incidents if wanted and incident.episode.startswith(wanted)]
        if len(fits) > 1:
            raise UsageError(
                f"several incidents begin with {text!r}",
                hint="which one: " + ", ".join(f"{i.episode} ({i.check} {i.subject})" for i in fits[:8]),
            )
        for incident in incidents:
            if not fits and any(wanted and episode.startswith(wanted) for episode in incident.earlier):
                state = "came back as" if incident.is_open else "came back, and ended, as"
                raise UsageError(
                    f"{text!r} is over, and {state} {incident.episode}: {incident.check} {incident.subject}",
                    hint=f"its id is {incident.episode} now",
                )
        if not fits and self.folder.trouble:
            is_forbidden = os.strerror(errno.EACCES) in self.folder.trouble
            raise StateDirectoryError(
                f"whether there is an incident {text!r} cannot be known: {self.folder.trouble}",
                hint="its owner can set `[run] group`, so that the whole group sees it" if is_forbidden else "",
                transient=not is_forbidden,
            )
        if not fits:
            from difflib import get_close_matches

            near = get_close_matches(wanted, [incident.episode for incident in incidents], n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "see them all: resil alert list"
            raise UsageError(f"there is no incident {text!r}", hint=hint)
        return fits[0]

    def keep(self, incident: Incident, *, durable: bool = False) -> None:
        """Remember an incident as it is now. Raise StateDirectoryError if no folder takes it.

        Not forced to disk unless asked: a power cut then costs a duplicate, and a thousand incidents take a moment.
        """
        name, content = incident.fingerprint + _INCIDENT, _file_of(incident)
        self._note_open(name, incident, content)
        if self._written.get(name) != content:
            self.folder.write(name, content, durable=durable)
            self._written[name] = content
        if self._acknowledged.get(name, incident.episode) != incident.episode:
            self.folder.remove(self._acknowledged.pop(name) + _ACKNOWLEDGED)  # of the episode before

    def forget(self, incident: Incident) -> None:
        """Remove what is remembered of an incident."""
        self._written.pop(incident.fingerprint + _INCIDENT, None)
        self._open.pop(incident.fingerprint + _INCIDENT, None)
        self.folder.remove(incident.fingerprint + _INCIDENT)
        if incident.acknowledged_by:
            self.folder.remove(incident.episode + _ACKNOWLEDGED)

    def save_copy(self, now: float) -> None:
        """Let this node remember what is open, as it was read and kept here."""
        if self._copy is not None:
            self._copy.save(self._open.values(), now)

    def acknowledge(self, episode: str, by: str, note: str, now: float) -> Incident:
        """Note that somebody has taken an incident on: no more reminders, no further escalation.

        Raise UsageError if there is no such incident or it is over, StateDirectoryError if it cannot be written where
        the watchdogs read it.
        """
        incident = self.find(episode, now)
        if not incident.is_open:
            raise UsageError(f"{incident.episode} is over already: {incident.check} {incident.subject}")
        record = {"acknowledged_by": by, "acknowledged_at": now, "acknowledged_note": note}
        name = incident.episode + _ACKNOWLEDGED
        self.folder.trouble = ""
        self.folder.write(name, _text(record), durable=True)
        if self.folder.trouble and not self._is_ours():
            self.folder.remove(name)  # in our own spare folder, the watchdogs of its owner would never see it
            raise StateDirectoryError(
                f"the acknowledgement was not kept: {self.folder.trouble}",
                hint="ask the owner of the run to set `[run] group`, so that the whole group may acknowledge",
            )
        return replace(incident, acknowledged_by=by, acknowledged_at=now, acknowledged_note=note)

    def unacknowledge(self, episode: str) -> Incident:
        """Take an acknowledgement back: reminders go on. Raise UsageError if there is no such incident."""
        incident = self.find(episode)
        self.folder.remove(incident.episode + _ACKNOWLEDGED)
        return replace(incident, acknowledged_by="", acknowledged_at=None, acknowledged_note="")

    def _is_lost(self) -> bool:
        """Whether the disk of the incidents does not answer, or is not there at all."""
        return bool(self.folder.trouble) or not self.folder.folder.parent.parent.is_dir()

    def _note_open(self, name: str, incident: Incident, content: bytes) -> None:
        if incident.is_open:
            self._open[name] = content
        else:
            self._open.pop(name, None)

    def _is_ours(self) -> bool:
        """Whether the watchdogs that write here are this person's, as far as can be told: then the spare is read."""
        if self.folder.is_away:  # it was found here, so this person's watchdogs were here, and look here again
            return True
        try:
            return self.folder.folder.stat().st_uid == os.getuid()
        except OSError:
            return True

    def _read(self, name: str, acknowledged: set[str]) -> Incident | None:
        content = b""
        try:
            found = self.folder.read(name)
            if found is None:
                return None
            content = found
            incident = incident_from_json(json.loads(content))
            if incident.fingerprint + _INCIDENT != name:
                raise ValueError("it is about another incident")
        except (
            NotRegularFile,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
        ) as error:
            aside = self.folder.set_aside(name)
            self._say(f"the incident file {name} makes no sense ({_reason(error)}); it was set aside as {aside}")
            return None
        except StateDirectoryError as error:
            self._say(f"an incident cannot be read: {error.message}")
            return None
        self._written[name] = content
        self._note_open(name, incident, content)
        return self._with_people(incident) if incident.episode in acknowledged else incident

    def _with_people(self, incident: Incident) -> Incident:
        name = incident.episode + _ACKNOWLEDGED
        try:
            content = self.folder.read(name)
            if content is None:
                return incident
            record = json.loads(content)
            self._acknowledged[incident.fingerprint + _INCIDENT] = incident.episode
            return replace(
                incident,
                acknowledged_by=str(record["acknowledged_by"]),
                acknowledged_at=float(record["acknowledged_at"]),
                acknowledged_note=str(record.get("acknowledged_note", "")),
            )
        except (
            NotRegularFile,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
        ) as error:
            aside = self.folder.set_aside(name)
            self._say(f"the acknowledgement {name} makes no sense ({_reason(error)}); it was set aside as {aside}")
        except StateDirectoryError as error:
            self._say(f"an acknowledgement cannot be read: {error.message}")
        return incident

    def _say(self, sentence: str) -> None:
        if sentence not in self.trouble:
            self.trouble = (*self.trouble, sentence)


def _file_of(incident: Incident) -> bytes:
    """What its file says: what people did lies in another."""
    record = incident_to_json(incident)
    for name in _OF_PEOPLE:
        del record[name]
    return _text(record)


def _text(record: dict[str, Any]) -> bytes:
    """JSON that `cat` shows as people write; bytes that are no text (a file's name) become escapes."""
    try:
        return json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, indent=1).encode() + b"\n"


def _reason(error: Exception) -> str:
    if isinstance(error, NotRegularFile):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
