"""Files of safetensors: 8 bytes, a JSON header, tensors. Read by ourselves: the package is not needed."""

from __future__ import annotations

from pathlib import Path

from resilience.checkpoints.formats import Content, Fault
from resilience.checkpoints.formats.safetensors import read_header
from resilience.inject.checkpoint.layouts import (
    Layout,
    Location,
    Piece,
    contiguous,
    damaged,
    reading_at,
    store_at,
    unique,
)
from resilience.inject.checkpoint.number_types import TYPES

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu", "C64": "float32",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def _recognizes(path: Path, head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return path.suffix == ".safetensors" or (head[8:9] == b"{" and 0 < length <= path.stat().st_size - 8)


def _locations(path: Path) -> list[Location]:
    size = path.stat().st_size
    header = read_header(Content(path.parent, {path.name: size}), path.name)
    if isinstance(header, Fault):
        raise damaged(path, f"expected {header.expected}, found {header.found}")
    begin = 8 + header.pop("")
    found = []
    try:
        for name, tensor in header.items():
            kind = TYPES.get(_TYPES.get(tensor["dtype"], ""))
            shape, (start, end) = tuple(map(int, tensor["shape"])), tensor["data_offsets"]
            shape = (*shape, 2) if tensor["dtype"] == "C64" else shape  # a real and an imaginary part
            one = Location(name, kind, tensor["dtype"], shape)
            if begin + end > size or (kind is not None and one.count * kind.size != end - start):
                raise damaged(path, f"tensor {name} does not fit into it")
            if kind is not None:
                piece = Piece((0,) * len(shape), shape, begin + start, contiguous(shape, kind.size))
                one = Location(name, kind, tensor["dtype"], shape, (piece,))
            found.append(one)
    except (TypeError, ValueError, KeyError) as error:
        raise damaged(path, repr(error)) from None
    return unique(found)


LAYOUT = Layout("safetensors", _recognizes, _locations, reading_at, store_at)
