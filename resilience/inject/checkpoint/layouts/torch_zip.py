"""Files of `torch.save`, which are zip files: a pickle, and a member for each storage of tensors."""

from __future__ import annotations

from pathlib import Path

from resilience.inject.checkpoint.layouts import (
    Layout,
    Location,
    Piece,
    damaged,
    reading_at,
    unique,
)
from resilience.inject.checkpoint.layouts._pickles import Tensor, read_pickle, tensors
from resilience.inject.checkpoint.layouts._zips import Archive, store_in_archives
from resilience.inject.checkpoint.number_types import TYPES

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "QInt8Storage": "int8", "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}  # fmt: skip
_COMPLEX = {"ComplexFloatStorage": "float32", "ComplexDoubleStorage": "float64"}


def _recognizes(path: Path, head: bytes) -> bool:
    return head.startswith(b"PK\3\4") and _pickle_name(Archive(path)) != ""


def _pickle_name(archive: Archive) -> str:
    return next((name for name in archive.members if name.rpartition("/")[2] == "data.pkl"), "")


def read_tensors(path: Path, begin: int = 0, size: int | None = None, file: str = "") -> list[Location]:
    """Return the tensors of a file, or of a part of it that is a `torch.save` file. Raise CheckpointError; OSError."""
    archive = Archive(path, begin, size)
    pickled = _pickle_name(archive)
    if not pickled:
        raise damaged(path, "it has no data.pkl")
    folder = pickled.removesuffix("data.pkl")
    order = archive.read(f"{folder}byteorder") if f"{folder}byteorder" in archive.members else b"little"
    try:
        found = list(tensors(read_pickle(archive.read(pickled))))
    except ValueError as error:
        raise damaged(path, error) from None
    return unique(_location(path, archive, folder, one, order == b"big", file) for one in found)


def _location(path: Path, archive: Archive, folder: str, one: Tensor, is_big_endian: bool, file: str) -> Location:
    shape, strides, steps = one.shape, one.strides, 1
    if one.type_name in _COMPLEX:  # a real and an imaginary part
        shape, strides, steps = (*shape, 2), (*(2 * step for step in strides), 1), 2
    kind = TYPES.get(_COMPLEX.get(one.type_name) or _STORAGES.get(one.type_name) or one.type_name)
    member = archive.members.get(f"{folder}data/{one.storage.key}")
    if kind is None or member is None or not member.is_plain:
        return Location(one.name, None, one.type_name if member is not None else "a tensor without data", shape)
    place = Location(one.name, kind, kind.name, shape)
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + one.offset * steps
    if place.count and (last + 1) * kind.size > member.size:
        raise damaged(path, f"its tensor {one.name} does not fit into its storage")
    begin = member.offset + one.offset * steps * kind.size
    piece = Piece(
        (0,) * len(shape), shape, begin, tuple(stride * kind.size for stride in strides), file, archive.extent
    )
    return Location(one.name, kind, kind.name, shape, (piece,), is_big_endian)


def _locations(path: Path) -> list[Location]:
    return read_tensors(path)


LAYOUT = Layout("torch", _recognizes, _locations, reading_at, store_in_archives)
