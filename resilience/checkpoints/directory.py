"""A directory of checkpoints: what is in it, from the directory and never from memory or a pointer."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.base.files import NOT_REGULAR, create_file, exists, read_regular, replace_file, sync_directory
from resilience.checkpoints.manifest import DamagedManifest, Manifest, from_text, new_token
from resilience.checkpoints.names import (
    ATTEMPTS,
    BAD,
    MANIFEST,
    OWN,
    PINS,
    SEALS,
    STORE,
    TRASH,
    VERIFIED,
    number_of,
    parse_committed,
    parse_part,
    parse_seal,
)
from resilience.errors import CheckpointError

FORMAT = 1
MOST_MANIFEST_BYTES = 2**30
"""A manifest of two million files has about 200 MB."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One committed or sealed checkpoint. Says nothing of its content: see `verify.py`.

    Attributes:
        store: path of the directory of checkpoints.
        name: its name there.
        step: number of completed steps.
        seal: file name of its manifest in `.resil/seals/`; empty if its own directory holds it.
    """

    store: Path
    name: str
    step: int
    seal: str = ""

    @property
    def path(self) -> Path:
        """Return the path to load from."""
        return self.store / self.name

    @property
    def is_sealed(self) -> bool:
        """Return whether a framework named it."""
        return bool(self.seal)

    @property
    def manifest_path(self) -> Path:
        """Return the path of its manifest."""
        return self.store / OWN / SEALS / self.seal if self.seal else self.path / OWN / MANIFEST

    def manifest(self) -> Manifest:
        """Read its manifest. Raise DamagedManifest if there is none or it is damaged; NewerManifest; OSError."""
        try:
            found = read_regular(self.manifest_path, limit_bytes=MOST_MANIFEST_BYTES)
        except OSError as error:
            if error.errno in {*NOT_REGULAR, errno.ENOTDIR}:
                raise DamagedManifest(f"{self.manifest_path} is not a file") from None
            raise
        if found is None:
            raise DamagedManifest(f"{self.manifest_path} does not exist")
        manifest = from_text(found[0], str(self.manifest_path))
        if manifest.step != self.step:
            raise DamagedManifest(f"{self.manifest_path} is of step {manifest.step}, not of {self.step}")
        return manifest


class StoreDirectory:
    """A directory of checkpoints.

    Attributes:
        path: of the directory.
        own: `.resil/` in it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """No I/O: see `open` and `create`."""
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self.own = self.path / OWN

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> StoreDirectory:
        """Return an existing one. Raise CheckpointError if the path is none, or one of a newer version; OSError."""
        store = cls(path)
        store.run()
        return store

    @classmethod
    def create(cls, path: str | os.PathLike[str], run: str = "") -> StoreDirectory:
        """Return the directory of a run, created if it does not exist.

        Raise CheckpointError if it is of another run; OSError.
        """
        store = cls(path)
        store.path.mkdir(parents=True, exist_ok=True)
        for path in (store.own, *(store.own / name for name in (SEALS, PINS, VERIFIED, ATTEMPTS)), store.path / TRASH):
            path.mkdir(exist_ok=True)  # before the disk is full: then they could not be made
        text = json.dumps({"format": FORMAT, "run": run, "id": new_token()}) + "\n"
        if not os.path.lexists(store.own / STORE) and create_file(store.own / STORE, text, mode=0o644):
            sync_directory(store.own)
        owner = store.run()
        if run and owner and owner != run:
            raise CheckpointError(
                f"{store.path} holds the checkpoints of the run {owner}, not of {run}",
                hint="give each run a directory of its own: [checkpoints] path",
            )
        return store

    def is_there(self) -> bool:
        """Return whether the path holds checkpoints of a store, or will: `cp store/*` leaves our own directory behind,
        and what was committed is committed nevertheless. Raise OSError."""
        return exists(self.own / STORE) or self._has_committed()

    def _has_committed(self) -> bool:
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return any(parse_committed(name) is not None and exists(self.path / name / OWN / MANIFEST) for name in names)

    def run(self) -> str:
        """Return the name of the run whose checkpoints it holds; empty: of none. Raise CheckpointError; OSError."""
        return self._record()[0]

    def ident(self) -> str:
        """Return the random text that tells it from another directory with its path. Raise CheckpointError; OSError."""
        return self._record()[1]

    def _record(self) -> tuple[str, str]:
        found = read_regular(self.own / STORE)
        if found is None:
            if not os.path.isdir(self.path):
                raise CheckpointError(f"{self.path} does not exist", hint="check the path, and that it is mounted")
            if self._has_committed():
                return "", ""
            raise CheckpointError(
                f"{self.path} is not a directory of checkpoints: it has no {OWN}/{STORE}",
                hint="a Store creates one when its guard starts; to seal what a framework saved: resil ckpt adopt",
            )
        try:
            record = json.loads(found[0])
            version, run, ident = int(record["format"]), str(record.get("run", "")), str(record.get("id", ""))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{self.own / STORE} is damaged: {error}", hint="remove that file") from None
        if version > FORMAT:
            raise CheckpointError(f"{self.path} was written by a newer version of resil", hint="use that version")
        return run, ident

    def checkpoints(self) -> list[Checkpoint]:
        """Return the committed and sealed checkpoints, the oldest step first. Reads names only. Raise OSError.

        Of one step, the one that replaces the others is last.
        """
        seals = [(file_name, *seal) for file_name in list_names(self.own / SEALS) if (seal := parse_seal(file_name))]
        sealed, there = {name for _, _, name in seals}, set()
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:  # there may be two million that are none
                if entry.name in sealed:
                    there.add(entry.name)
                step = parse_committed(entry.name)
                if step is not None and not entry.is_file(follow_symlinks=False):
                    found.append(Checkpoint(self.path, entry.name, step))
        found += [Checkpoint(self.path, name, step, file_name) for file_name, step, name in seals if name in there]
        return sorted(found, key=lambda one: (one.step, one.is_sealed, number_of(one.name), one.name))

    def find(self, name: str | int) -> Checkpoint:
        """Return the checkpoint with that name or step. Raise CheckpointError with the nearest ones; OSError."""
        found = self.checkpoints()
        for one in reversed(found):
            if name in (one.name, one.step) or str(name) == str(one.step):
                return one
        newest = ", ".join(one.name for one in found[-3:])
        hint = f"the newest are {newest}" if newest else "there is none yet"
        raise CheckpointError(f"no checkpoint {name} in {self.path}", hint=f"{hint}: resil ckpt list")

    def parts(self) -> list[str]:
        """Return the names of saves in flight, or left by killed ones. Raise OSError."""
        return sorted(name for name in os.listdir(self.path) if parse_part(name) is not None)

    def bad(self) -> list[str]:
        """Return the names in `.bad/`, without the reasons. Raise OSError."""
        names = list_names(self.path / BAD)
        return sorted(name for name in names if not name.endswith(".json") and not name.startswith("."))  # of a kill

    def trash(self) -> list[str]:
        """Return the names in `.trash/`. Raise OSError."""
        return sorted(list_names(self.path / TRASH))


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in a small file; empty if there is none, or it is damaged. Raise OSError."""
    found = read_regular(os.fspath(path))
    try:
        record = json.loads(found[0]) if found else {}
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(path: str | os.PathLike[str], record: dict[str, Any], *, durable: bool = False) -> None:
    """Write, atomically, what `read_record` reads. Raise OSError."""
    replace_file(os.fspath(path), json.dumps(record) + "\n", mode=0o644, durable=durable)


def list_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names in a directory; none if it does not exist. Raise OSError."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
