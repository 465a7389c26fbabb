"""Layouts of checkpoint files: where each number lies. One file per layout, which exports `LAYOUT`.

Nothing is ever unpickled into an object of a framework, and no framework is imported (HDF5 needs h5py): the numbers of
a checkpoint of 100 GB are found from its headers, and read one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from io import FileIO
from math import prod
from pathlib import Path
from typing import NamedTuple

from resilience.errors import CheckpointError, UsageError
from resilience.inject.checkpoint.number_types import NumberType
from resilience.messages import quoted


class Piece(NamedTuple):
    """A box of a location's numbers in one file.

    Attributes:
        begin, shape: the box, in elements.
        offset: of its first element, in bytes.
        strides: from one element to the next of each dimension, in bytes.
        file: relative to the checkpoint; empty: the checkpoint is a file.
        archive: where the zip file around it begins, and its size, in bytes; None: there is none.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    file: str = ""
    archive: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """An array of numbers in a checkpoint.

    Attributes:
        name: as in the file, with `/` between what is nested.
        type: of its numbers; None: it has no bits to change, such as a text.
        type_name: as the file calls the type.
        shape: of the whole array.
        pieces: where it lies; none: the layout reads and writes it by its name.
        is_big_endian: the byte order.
    """

    name: str
    type: NumberType | None
    type_name: str
    shape: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    is_big_endian: bool = False

    @property
    def count(self) -> int:
        """Return how many numbers it has."""
        return prod(self.shape)

    def index_of(self, number: int) -> tuple[int, ...]:
        """Return the index of an element, given its number in C order. Any number of dimensions."""
        index = []
        for length in reversed(self.shape):
            number, place = divmod(number, length)
            index.append(place)
        return tuple(reversed(index))

    def place(self, index: Sequence[int]) -> tuple[Piece, int]:
        """Return the piece of an element and its offset. Raise CheckpointError if the checkpoint lacks it."""
        for piece in self.pieces:
            if all(low <= i < low + n for i, low, n in zip(index, piece.begin, piece.shape, strict=True)):
                steps = zip(index, piece.begin, piece.strides, strict=True)
                return piece, piece.offset + sum((i - low) * stride for i, low, stride in steps)
        raise CheckpointError(f"no file of the checkpoint has {self.name} {list(index)}", hint="is a shard missing?")


@dataclass(frozen=True, slots=True)
class Change:
    """New bits of one element."""

    location: Location
    index: tuple[int, ...]
    bits: int


Reader = Callable[[Location, Sequence[int]], int]
"""Returns the bits of an element. Raises CheckpointError, OSError."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout of checkpoints.

    Attributes:
        name: for people and sequences.
        recognizes: whether a path is one, given its first bytes (none of a directory). A look, and no guarantee.
        locations: what is in it. Raises CheckpointError if it is damaged; OSError.
        reading: opens it for reading elements.
        store: writes changes into a copy. Raises OSError.
    """

    name: str
    recognizes: Callable[[Path, bytes], bool]
    locations: Callable[[Path], list[Location]]
    reading: Callable[[Path], AbstractContextManager[Reader]]
    store: Callable[[Path, Sequence[Change]], None]


def layouts() -> Iterator[Layout]:
    """Yield each layout."""
    for name in sorted(entry.stem for entry in Path(__file__).parent.glob("[a-z]*.py")):
        yield import_module(f"{__name__}.{name}").LAYOUT


def find_layout(path: Path) -> Layout:
    """Return the layout of a checkpoint. Raise UsageError if it has none that is known; OSError."""
    head = b"" if path.is_dir() else read_at(path, 0, 4096)
    if not head and not path.is_dir():
        raise UsageError(f"{path} is empty", hint="is the save complete?")
    if path.suffix == ".distcp":
        raise UsageError(
            f"{path} is a part of a distributed checkpoint", hint=f"name its directory: {quoted(path.parent)}"
        )
    for layout in layouts():
        if layout.recognizes(path, head):
            return layout
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        inside = f"name a file in it: {', '.join(names[:3])}" if names else "name a file"
        raise UsageError(f"the directory {path} is no distributed checkpoint: it has no .metadata", hint=inside)
    if head.startswith(b"\x80"):
        raise UsageError(
            f"{path} is a bare pickle: where its numbers are cannot be told without running it",
            hint="save it with torch.save of PyTorch 1.6 or newer, or as safetensors",
        )
    known = "HDF5, safetensors, .npy and .npz, torch.save, and directories of torch.distributed.checkpoint"
    raise UsageError(f"{path} is no checkpoint of a known layout, or it is damaged", hint=f"known are {known}")


# ---- numbers at an offset of a file ---------------------------------------------------------------------------------


@contextmanager
def reading_at(root: Path) -> Iterator[Reader]:
    """Open a checkpoint for reading elements at their offsets."""
    files: dict[str, FileIO] = {}

    def read(location: Location, index: Sequence[int]) -> int:
        assert location.type is not None
        piece, offset = location.place(index)
        name = piece.file
        if name not in files:
            files[name] = opened.enter_context(open(root / name, "rb", buffering=0))  # noqa: SIM115
        raw = os.pread(files[name].fileno(), location.type.size, offset)
        if len(raw) < location.type.size:
            raise CheckpointError(f"{root / name} ends before {location.name} {list(index)}", hint="is it truncated?")
        return from_bytes(raw, location)

    with ExitStack() as opened:
        yield read


def store_at(root: Path, changes: Sequence[Change]) -> None:
    """Write changes at their offsets. Raise OSError."""
    for change in changes:
        piece, offset = change.location.place(change.index)
        with open(root / piece.file, "r+b", buffering=0) as file:
            file.seek(offset)
            file.write(to_bytes(change.bits, change.location))


def from_bytes(raw: bytes, location: Location) -> int:
    """Return the bits of a stored number; of a truth value, its last one."""
    bits = int.from_bytes(raw, "big" if location.is_big_endian else "little")
    return bits & 1 if location.type is not None and location.type.kind == "bool" else bits


def to_bytes(bits: int, location: Location) -> bytes:
    """Return a number as it is stored."""
    assert location.type is not None
    return bits.to_bytes(location.type.size, "big" if location.is_big_endian else "little")


def contiguous(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the strides of an array without gaps, in C order, in bytes."""
    strides: list[int] = []
    for length in reversed(shape):
        strides.append(size)
        size *= length
    return tuple(reversed(strides))


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Return bytes of a file; fewer where it ends. Raise OSError."""
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        return file.read(size)


def damaged(path: Path, why: object) -> CheckpointError:
    """Return the error of a file that does not follow its layout."""
    return CheckpointError(f"{path} is damaged: {why}", hint="is the save complete? resil ckpt verify")


def unique(locations: Iterable[Location]) -> list[Location]:
    """Return the locations sorted by name, since the same seed has to give the same bytes; a second one of a name, such
    as of the keys 1 and "1", as `name#2`."""
    found: dict[str, Location] = {}
    for one in sorted(locations, key=lambda location: location.name):
        name, number = one.name, 1
        while name in found:
            number += 1
            name = f"{one.name}#{number}"
        found[name] = replace(one, name=name)
    return list(found.values())
