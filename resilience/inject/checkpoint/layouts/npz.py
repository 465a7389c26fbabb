"""Files of numpy: `.npy`, and `.npz`, a zip file of them. Read by ourselves: numpy is not needed.

An array in a compressed `.npz` has no offsets: it is unpacked to be read, and the whole file is packed anew.
Format: numpy/lib/_format_impl.py, versions 1 to 3.
"""

from __future__ import annotations

import ast
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilience.inject.checkpoint.layouts import (
    Change,
    Layout,
    Location,
    Piece,
    Reader,
    contiguous,
    damaged,
    from_bytes,
    read_at,
    reading_at,
    store_at,
    to_bytes,
    unique,
)
from resilience.inject.checkpoint.layouts._zips import Archive, store_in_archives
from resilience.inject.checkpoint.number_types import TYPES

_MAGIC = b"\x93NUMPY"
_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "float"}
_MOST_HEADER_BYTES = 2**20
_MOST_UNPACKED_BYTES = 2**30
"""Of compressed arrays that are kept for the next reads."""


def _recognizes(path: Path, head: bytes) -> bool:
    if head.startswith(_MAGIC):
        return True
    names = Archive(path).members if head.startswith(b"PK\3\4") else ()
    return any(name.endswith(".npy") for name in names)


def _locations(path: Path) -> list[Location]:
    if read_at(path, 0, 6) == _MAGIC:
        size = path.stat().st_size
        return [_location(path, "array", size, read_at(path, 0, 12 + _MOST_HEADER_BYTES), 0, None)]
    archive = Archive(path)
    found = []
    for name, member in archive.members.items():
        if not name.endswith(".npy"):
            continue
        if member.is_plain:
            one = _location(
                path,
                name,
                member.size,
                read_at(path, member.offset, min(member.size, 12 + _MOST_HEADER_BYTES)),
                member.offset,
                archive.extent,
            )
        else:
            content = archive.read(name)
            one = _location(path, name, len(content), content, None, None)
        found.append(one)
    return unique(found)


def _location(
    path: Path,
    name: str,
    size: int,
    head: bytes,
    offset: int | None,
    archive: tuple[int, int] | None,
) -> Location:
    """Return the array of a `.npy`; without `offset`, it has pieces of the unpacked member, named after it."""
    name = name.removesuffix(".npy")
    try:
        if head[:6] != _MAGIC:
            raise ValueError("no magic")
        is_first = head[6] == 1
        length = int(struct.unpack("<H" if is_first else "<I", head[8 : 10 if is_first else 12])[0])
        begin = 10 if is_first else 12
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length:,} bytes")
        header: dict[str, Any] = ast.literal_eval(head[begin : begin + length].decode("latin1"))
        descr, shape = header["descr"], tuple(map(int, header["shape"]))
        is_fortran = bool(header["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, struct.error, IndexError, RecursionError) as error:
        raise damaged(path, f"its array {name} has no readable header ({type(error).__name__})") from None
    if not isinstance(descr, str) or descr[1:2] not in _KINDS:
        return Location(name, None, str(descr), shape)
    width = int(descr[2:] or 0) * 8 // (2 if descr[1] == "c" else 1)
    kind = TYPES.get("bool" if descr[1] == "b" else f"{_KINDS[descr[1]]}{width}")
    if kind is None:
        return Location(name, None, descr, shape)
    step = kind.size * (2 if descr[1] == "c" else 1)
    strides = contiguous(shape[::-1], step)[::-1] if is_fortran else contiguous(shape, step)
    if descr[1] == "c":
        shape, strides = (*shape, 2), (*strides, kind.size)
    place = Location(name, kind, kind.name, shape)
    data = begin + length
    if data + place.count * kind.size > size:
        raise damaged(path, f"its array {name} is cut off")
    piece = Piece(
        (0,) * len(shape), shape, data + (offset or 0), strides, f"{name}.npy" if offset is None else "", archive
    )
    return Location(name, kind, kind.name, shape, (piece,), descr[0] == ">")


@contextmanager
def _reading(path: Path) -> Iterator[Reader]:
    unpacked: dict[str, bytes] = {}
    with reading_at(path) as read_plain:

        def read(location: Location, index: Sequence[int]) -> int:
            assert location.type is not None
            piece, offset = location.place(index)
            if not piece.file:
                return read_plain(location, index)
            if piece.file not in unpacked:
                if sum(map(len, unpacked.values())) > _MOST_UNPACKED_BYTES:
                    unpacked.clear()
                unpacked[piece.file] = Archive(path).read(piece.file)
            return from_bytes(unpacked[piece.file][offset : offset + location.type.size], location)

        yield read


def _store(path: Path, changes: Sequence[Change]) -> None:
    packed: dict[str, list[tuple[int, bytes]]] = {}
    plain = []
    for change in changes:
        piece, offset = change.location.place(change.index)
        if piece.file:
            packed.setdefault(piece.file, []).append((offset, to_bytes(change.bits, change.location)))
        else:
            plain.append(change)
    if plain:
        is_bare = plain[0].location.pieces[0].archive is None
        (store_at if is_bare else store_in_archives)(path, plain)
    if packed:
        _pack(path, packed)


def _pack(path: Path, packed: dict[str, list[tuple[int, bytes]]]) -> None:
    """Write the zip file anew, with other bytes in some members; their times, their order and all else stay."""
    other = path.with_name(f"{path.name.removesuffix('.tmp')}.packed.tmp")
    try:
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
            for info in old.infolist():
                content = bytearray(old.read(info))
                for offset, raw in packed.get(info.filename, ()):
                    content[offset : offset + len(raw)] = raw
                new.writestr(info, bytes(content))
        other.replace(path)
    finally:
        other.unlink(missing_ok=True)


LAYOUT = Layout("npz", _recognizes, _locations, _reading, _store)
