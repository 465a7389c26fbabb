"""Pins: checkpoints that a person wants kept, each a small file in `.resil/pins/` with the reason."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from resilience.checkpoints.directory import StoreDirectory, list_names, read_record, write_record
from resilience.checkpoints.names import PINS


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
    (store.own / PINS).mkdir(parents=True, exist_ok=True)
    write_record(_path(store, name), asdict(entry), durable=True)


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
    pins = {}
    for file_name in sorted(list_names(store.own / PINS)):
        name, is_ours = file_name.removesuffix(".json"), file_name.endswith(".json")
        if is_ours and not name.startswith("."):  # a temporary file
            pins[name] = Pin()
            with suppress(OSError, ValueError, TypeError, KeyError):
                record = read_record(_path(store, name))
                pins[name] = Pin(str(record["why"]), str(record["who"]), float(record["at"]))
    return pins


def _path(store: StoreDirectory, name: str) -> Path:
    return store.own / PINS / f"{name}.json"
