"""Directories of `torch.distributed.checkpoint`: `.metadata` names the pieces of each tensor in the files of all ranks.

An index is one of the whole tensor, however many ranks saved it: a sequence replays on a checkpoint of another number
of ranks. Format: torch/distributed/checkpoint/metadata.py and filesystem.py, 2.13.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from resilience.checkpoints.formats.dcp import METADATA
from resilience.inject.checkpoint.layouts import (
    Layout,
    Location,
    damaged,
    read_at,
    reading_at,
    unique,
)
from resilience.inject.checkpoint.layouts._pickles import Placeholder, name_of, read_pickle, sizes
from resilience.inject.checkpoint.layouts._zips import store_in_archives
from resilience.inject.checkpoint.layouts.torch_zip import read_tensors


def _recognizes(path: Path, head: bytes) -> bool:
    return path.is_dir() and (path / METADATA).is_file()


def _locations(root: Path) -> list[Location]:
    path = root / METADATA
    try:
        metadata = read_pickle(path.read_bytes())
        entries, storage = metadata.get("state_dict_metadata"), metadata.get("storage_data")
        wanted = {str(name): entry for name, entry in entries.items() if isinstance(entry, Placeholder)}
        parts: dict[str, list[tuple[Any, Any]]] = {}
        for index, info in storage.items():
            parts.setdefault(str(index.get("fqn")), []).append((index, info))
    except (ValueError, AttributeError) as error:
        raise damaged(path, error) from None
    return unique(_location(root, name, entry, parts.get(name, [])) for name, entry in wanted.items())


def _location(root: Path, name: str, entry: Placeholder, parts: list[tuple[Any, Any]]) -> Location:
    shape = sizes(entry.get("size"))
    if shape is None:
        return Location(name, None, "bytes")
    found, pieces = None, []
    for index, info in parts:
        begin = sizes(index.get("offset")) or (0,) * len(shape)
        file, offset, length = (info.get(word) for word in ("relative_path", "offset", "length"))
        path = root / str(file)
        if not path.resolve().is_relative_to(root.resolve()):
            raise damaged(root / METADATA, f"{name} lies outside of it, in {file}")
        if not path.is_file() or path.stat().st_size < offset + length:
            raise damaged(root, f"{file}, which has a part of {name}, is {'cut off' if path.exists() else 'missing'}")
        if read_at(path, offset, 4) != b"PK\3\4":
            return Location(name, None, "a serialization of its own", shape)
        (one,) = read_tensors(path, offset, length, str(file))
        if one.type is None:
            return Location(name, None, one.type_name, shape)
        (piece,) = one.pieces
        if len(piece.shape) != len(shape) and len(piece.shape) != len(shape) + 1:
            raise damaged(path, f"{name} has {len(piece.shape)} dimensions, and {METADATA} knows {len(shape)}")
        found = one
        pieces.append(piece._replace(begin=(*begin, *(0,) * (len(piece.shape) - len(begin)))))
    if found is None:
        kind = name_of((entry.get("properties") or Placeholder()).get("dtype")) if entry.get("properties") else ""
        return Location(name, None, kind or "a tensor without data", shape)
    whole = shape if len(pieces[0].shape) == len(shape) else (*shape, 2)
    return replace(found, name=name, shape=whole, pieces=tuple(pieces))


LAYOUT = Layout("dcp", _recognizes, _locations, reading_at, store_in_archives)
