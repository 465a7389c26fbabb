"""Remembers the silences: one file each, which `cat` can read, until a while after they end."""

from __future__ import annotations

import hashlib
import json

from resilience.alerts.incident import Incident
from resilience.alerts.silence import Silence, silence_from_json, silence_to_json
from resilience.errors import StateDirectoryError, UsageError
from resilience.system.files import NotRegularFile
from resilience.system.spare_folder import SpareFolder

_SILENCE = ".json"

KEPT_S = 7 * 86400.0
"""How long a silence that has ended is kept, so that people can see who had silenced what."""


def silence_id(silence_of: str, by: str, now: float) -> str:
    """An id for a new silence: 8 hex digits, from what it is about, by whom and when."""
    text = f"{silence_of}\0{by}\0{now!r}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:8]


class Silences:
    """The silences of one state directory.

    Attributes:
        trouble: what could not be read or was set aside, one sentence each.
    """

    def __init__(self, folder: SpareFolder) -> None:
        self.folder = folder
        self.trouble: tuple[str, ...] = ()

    def add(self, silence: Silence) -> None:
        """Keep a silence. Raise StateDirectoryError if no folder takes it."""
        content = json.dumps(silence_to_json(silence), indent=1).encode() + b"\n"
        self.folder.write(silence.id + _SILENCE, content)

    def all(self, now: float) -> tuple[Silence, ...]:
        """The silences that hold now, the one that ends first, first."""
        found = [silence for silence in self._all() if not silence.is_over(now)]
        return tuple(sorted(found, key=lambda silence: (silence.until, silence.id)))

    def remove(self, text: str) -> Silence:
        """End the silence whose id begins so, and return it. Raise UsageError if there is none, or several."""
        wanted = text.strip().lower()
        fits = [silence for silence in self._all() if wanted and silence.id.startswith(wanted)]
        if len(fits) != 1:
            said = f"several silences begin with {text!r}" if fits else f"there is no silence {text!r}"
            known = ", ".join(silence.id for silence in fits or self._all())
            raise UsageError(said, hint=f"there are: {known}" if known else "there is none at all")
        self.folder.remove(fits[0].id + _SILENCE)
        return fits[0]

    def prune(self, now: float) -> None:
        """Forget the silences that ended long ago."""
        for silence in self._all():
            if now - silence.until > KEPT_S:
                self.folder.remove(silence.id + _SILENCE)

    def _all(self) -> list[Silence]:
        found = []
        for name in self.folder.names():
            if not name.endswith(_SILENCE):
                continue
            try:
                content = self.folder.read(name)
                if content is not None:
                    found.append(silence_from_json(json.loads(content)))
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
                self._say(f"the silence {name} makes no sense ({error}); it was set aside as {aside}")
            except StateDirectoryError as error:
                self._say(f"a silence cannot be read: {error.message}")
        return found

    def _say(self, sentence: str) -> None:
        if sentence not in self.trouble:
            self.trouble = (*self.trouble, sentence)


def silencing(silences: tuple[Silence, ...], incident: Incident, now: float) -> Silence | None:
    """Given the silences, return the one that covers an incident and ends last, or None. Pure."""
    covering = [
        silence
        for silence in silences
        if not silence.is_over(now)
        and silence.covers(
            check=incident.check,
            subject=incident.subject,
            run=incident.run,
            fault=incident.fault,
            episode=incident.episode,
        )
    ]
    return max(covering, key=lambda silence: silence.until, default=None)
