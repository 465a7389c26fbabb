"""The record of an alteration: replayed on another checkpoint, or undone to the byte. Pure.

    {"format": 1, "kind": "resil-alteration", "file": "model.pt", "layout": "torch", "seed": 7, "settings": {...},
     "alterations": [{"location": "conv1.weight", "index": [3, 0, 1, 2], "type": "float32", "flip_type": "float32",
                      "bits": [1], "factor": null, "before": "3dcccccd", "after": "7dcccccd"}],
     "patches": [{"file": "", "size": 1842, "before_sha256": "...", "after_sha256": "...", "old": [[672, "3d"]]}]}

`before` and `after` are the stored bits, in hexadecimal. A patch has the old bytes of a file where they were replaced:
undoing needs no library, and gives the original to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from resilience.errors import UsageError
from resilience.inject.checkpoint.bits import SHORTEST
from resilience.inject.checkpoint.number_types import TYPES
from resilience.inject.checkpoint.plan import Alteration

FORMAT, KIND = 1, "resil-alteration"


@dataclass(frozen=True, slots=True)
class Patch:
    """How a file becomes again what it was.

    Attributes:
        file: relative to the checkpoint; empty: the checkpoint is a file.
        size: of the original, in bytes.
        before_sha256, after_sha256: of the whole file.
        old: offsets, and the bytes that were there.
    """

    file: str
    size: int
    before_sha256: str
    after_sha256: str
    old: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """An alteration that was made.

    Attributes:
        file: name of the original.
        layout: its layout.
        seed: of the random numbers; None of a replay.
        settings: what was asked for.
        alterations: in their order.
        patches: one for each file that changed.
    """

    file: str
    layout: str
    seed: int | None
    settings: dict[str, Any]
    alterations: tuple[Alteration, ...]
    patches: tuple[Patch, ...] = ()


def to_text(record: Record) -> str:
    """Return the text of a record, an alteration per line."""
    head = {"format": FORMAT, "kind": KIND, "file": record.file, "layout": record.layout, "seed": record.seed}
    head |= {"settings": record.settings}
    alterations = [shown(one) for one in record.alterations]
    patches = [asdict(one) | {"old": [[at, old.hex()] for at, old in one.old]} for one in record.patches]
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    for name, rows in (("alterations", alterations), ("patches", patches)):
        lines.append(f"{json.dumps(name)}: [" + "".join(f"\n  {json.dumps(row)}," for row in rows)[:-1] + "]")
    return "{" + ",\n ".join(lines) + "}\n"


def shown(one: Alteration) -> dict[str, Any]:
    """Return an alteration as JSON types."""
    digits = TYPES[one.type].size * 2
    return asdict(one) | {"before": f"{one.before:0{digits}x}", "after": f"{one.after:0{digits}x}"}


def from_text(text: str | bytes, name: str) -> Record:
    """Return the record in a text. `name` is shown in errors. Raise UsageError if it is none."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise ValueError(f"its kind is not {KIND}")
        if found["format"] > FORMAT:
            raise UsageError(f"{name} was written by a newer version of resil", hint="use that version")
        seed = found.get("seed")
        return Record(
            str(found["file"]), str(found["layout"]), None if seed is None else int(seed), dict(found["settings"]),
            tuple(_alterations(found["alterations"])), tuple(_patches(found["patches"])),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        why = f"it lacks {error}" if isinstance(error, KeyError) else error or type(error).__name__
        raise UsageError(
            f"{name} is no sequence of alterations: {why}",
            hint="--save-sequence FILE writes one",
        ) from None


def _alterations(rows: list[dict[str, Any]]) -> Iterator[Alteration]:
    for row in rows:
        stored, flip = TYPES[row["type"]], str(row["flip_type"])
        width = stored.width if flip == SHORTEST else TYPES[flip].width
        index, bits = tuple(map(int, row["index"])), tuple(map(int, row["bits"]))
        factor = None if row["factor"] is None else float(row["factor"])
        if any(not 0 <= bit < width for bit in bits) or any(i < 0 for i in index) or (factor is None) != bool(bits):
            raise ValueError(f"the alteration of {row['location']} {row['index']} has no such bits")
        yield Alteration(
            str(row["location"]), index, stored.name, flip, bits, factor, int(row["before"], 16), int(row["after"], 16)
        )


def _patches(rows: list[dict[str, Any]]) -> Iterator[Patch]:
    for row in rows:
        old = tuple((int(at), bytes.fromhex(text)) for at, text in row["old"])
        file = str(row["file"])
        if file.startswith("/") or ".." in file.split("/"):
            raise ValueError(f"the path {file} leads out of the checkpoint")
        yield Patch(file, int(row["size"]), str(row["before_sha256"]), str(row["after_sha256"]), old)
