"""Checkpoints of each layout for tests, made without frameworks, or recorded from them."""

from __future__ import annotations

import json
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from resilience.inject.checkpoint.layouts import Location, find_layout
from resilience.inject.checkpoint.number_types import TYPES
from tests.checkpoints.trees import RECORDED

CODES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
         "F8_E5M2": "float8_e5m2", "I64": "int64", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip
ARRAYS: dict[str, tuple[str, Sequence[int]]] = {
    "conv1.weight": ("F32", (4, 3, 3, 3)), "conv1.bias": ("F32", (4,)), "conv10.weight": ("F32", (2, 2)),
    "five": ("F32", (2, 2, 2, 2, 2)), "scalar": ("F32", ()), "empty": ("F32", (0, 3)), "double": ("F64", (3,)),
    "half": ("F16", (8,)), "brain": ("BF16", (8,)), "e4": ("F8_E4M3", (8,)), "e5": ("F8_E5M2", (8,)),
    "steps": ("I64", (2,)), "small": ("I8", (4,)), "byte": ("U8", (4,)), "mask": ("BOOL", (3,)),
    "odd": ("F4", (4,)),
}  # fmt: skip


def numbers(kind: str, count: int, seed: int = 1) -> bytes:
    """Small numbers of a type, as bytes."""
    from resilience.inject.checkpoint.number_types import encode

    chosen, one = random.Random(seed), TYPES[kind]
    values = [chosen.gauss(0, 0.05) if one.kind == "float" else chosen.randrange(2 if one.width == 1 else 100)
              for _ in range(count)]  # fmt: skip
    return b"".join(
        (encode(value, one) if one.width > 1 else int(value)).to_bytes(one.size, "little") for value in values
    )


def safetensors(path: Path, arrays: Mapping[str, tuple[str, Sequence[int]]] = ARRAYS, seed: int = 1) -> Path:
    header, data = {}, b""
    for number, (name, (code, shape)) in enumerate(arrays.items()):
        count = 1
        for length in shape:
            count *= length
        raw = numbers(CODES[code], count, seed + number) if code in CODES else bytes(count)
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def npy(kind: str, shape: tuple[int, ...], raw: bytes, *, fortran: bool = False) -> bytes:
    text = repr({"descr": kind, "fortran_order": fortran, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + raw


def npz(path: Path, *, compressed: bool = False, seed: int = 1) -> Path:
    members = {
        "w.npy": npy("<f4", (4, 5), numbers("float32", 20, seed)),
        "columns.npy": npy("<f8", (3, 2), numbers("float64", 6, seed + 1), fortran=True),
        "big.npy": npy(">f4", (2,), numbers("float32", 2, seed + 2)),
        "complex.npy": npy("<c8", (2,), numbers("float32", 4, seed + 3)),
        "names.npy": npy("<U1", (2,), bytes(8)),
        "objects.npy": npy("|O", (1,), b"x"),
        "n.npy": npy("<i4", (), numbers("int32", 1, seed + 4)),
    }
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = how
            archive.writestr(info, content)
    return path


def hdf5(path: Path, seed: int = 1) -> Path:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: HDF5 is not tried (pip install h5py)")
    import numpy

    made = numpy.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file["conv1/w"] = made.normal(0, 0.05, (3, 3, 2, 4)).astype("f4")
        file["conv1/b"] = made.normal(0, 0.05, 4).astype(">f2")
        file["conv10/w"] = made.normal(0, 0.05, 3)
        packed = {"compression": "gzip", "chunks": (5, 5), "fletcher32": True, "shuffle": True}
        file.create_dataset("packed", data=made.normal(0, 0.05, (20, 10)), **packed)
        file.create_dataset("unwritten", (3,), "f4")
        file["five"] = numpy.ones((2, 2, 2, 2, 2), "f4")
        file["n"] = numpy.int64(5)
        file["flag"] = numpy.array([True])
        file["complex"] = numpy.ones(2, "c16")
        file["names"] = ["a", "b"]
        file["empty"] = h5py.Empty("f4")
        file.create_dataset("outside", (4,), "f4", external=[(str(path) + ".outside", 0, 16)])
        file["again"] = file["conv10/w"]
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "safetensors": lambda directory: safetensors(directory / "model.safetensors"),
    "npz": lambda directory: npz(directory / "model.npz"),
    "npz packed": lambda directory: npz(directory / "model.npz", compressed=True),
    "npy": lambda directory: _written(directory / "w.npy", npy("<f4", (4, 5), numbers("float32", 20))),
    "torch": lambda directory: Path(shutil.copy(RECORDED / "torch" / "state.pt", directory / "model.pt")),
    "dcp": lambda directory: Path(shutil.copytree(RECORDED / "dcp", directory / "model")),
    "hdf5": lambda directory: hdf5(directory / "model.h5"),
}
"""By layout; each makes a checkpoint in a directory."""


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def leaves(path: Path) -> dict[str, tuple[int, ...]]:
    """The bits of each number of a checkpoint, by location."""
    layout = find_layout(path)
    locations = [one for one in layout.locations(path) if one.type is not None]
    with layout.reading(path) as read:
        return {one.name: tuple(read(one, one.index_of(i)) for i in range(one.count)) for one in locations}


def kinds(path: Path) -> dict[str, Location]:
    return {one.name: one for one in find_layout(path).locations(path)}


def raw_bytes(path: Path) -> dict[str, bytes]:
    """All bytes of a checkpoint, by file."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}
