"""Pins: checkpoints that a person wants kept, each a small file in `.resil/pins/` with the reason."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from resilience.base.files import read_regular, replace_file
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import PINS

_END = ".json"


@dataclass(frozen=True, slots=True)
class Pin:
    """Why a checkpoint is kept.

    Attributes:
        why: in a person's words.
        who: name of the user.
        at: when it was pinned, in seconds since the epoch; 0: unknown.
    """

    why: str = ""
    who: str = ""
    at: float = 0.0


def pin(store: StoreDirectory, name: str, entry: Pin) -> None:
    """Keep a checkpoint whatever the retention settings say. Pinning it again replaces the reason. Raise OSError."""
    _path(store, "").mkdir(exist_ok=True)
    replace_file(_path(store, name), json.dumps(asdict(entry)) + "\n", mode=0o644, durable=True)


def unpin(store: StoreDirectory, name: str) -> bool:
    """Leave a checkpoint to the retention settings again; return whether it was pinned. Raise OSError."""
    try:
        _path(store, name).unlink()
    except FileNotFoundError:
        return False
    return True


def is_pinned(store: StoreDirectory, name: str) -> bool:
    """Return whether a checkpoint is pinned. Its file decides, not the content. Raise OSError."""
    try:
        os.lstat(_path(store, name))
    except FileNotFoundError:
        return False
    return True


def read_pins(store: StoreDirectory) -> dict[str, Pin]:
    """Return the pins by name of the checkpoint; a damaged file pins, without a reason. Raise OSError."""
    try:
        names = sorted(os.listdir(_path(store, "")))
    except FileNotFoundError:
        return {}
    return {
        name.removesuffix(_END): _read(_path(store, name.removesuffix(_END)))
        for name in names
        if name.endswith(_END) and not name.startswith(".")  # a temporary file
    }


def _path(store: StoreDirectory, name: str) -> Path:
    return store.own / PINS / (name + _END) if name else store.own / PINS


def _read(path: Path) -> Pin:
    try:
        found = read_regular(path)
        record = json.loads(found[0] if found else b"")
        return Pin(str(record["why"]), str(record["who"]), float(record["at"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Pin()
