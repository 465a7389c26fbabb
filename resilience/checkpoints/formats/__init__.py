"""Formats of checkpoint files: what holds for each complete one, seen from names and headers. One file per format.

Each file exports `check`, which takes a `Content` and yields the faults of the files that it recognizes. It reads no
more than headers, and raises OSError if it cannot. Nothing is ever unpickled, and no framework is imported. Of files
that look unlike any it knows, a format has no opinion: a wrong fault would cost a save, because a commit refuses it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

MOST_JSON_BYTES = 128 * 2**20
"""Longer texts are not parsed. The header of a safetensors file has at most 100 MB."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Evidence that a checkpoint is damaged or incomplete.

    Attributes:
        file: relative to the checkpoint.
        expected, found: of the file: `3,456 bytes` and `1,024 bytes`.
        what: is wrong with the file: `is truncated`.
    """

    file: str
    expected: str
    found: str
    what: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}: expected {self.expected}, found {self.found}"


class Content:
    """The files of one checkpoint, as formats see them.

    Attributes:
        root: path of the directory that holds them.
        sizes: in bytes, by path relative to the root, with `/`.
        directories: with the names of the files in each; `""` is the root.
    """

    def __init__(self, root: str | os.PathLike[str], sizes: Mapping[str, int]) -> None:
        self.root, self.sizes = os.fspath(root), sizes
        self.directories: dict[str, list[str]] = {"": []}
        for path in sizes:
            directory, _, name = path.rpartition("/")
            parent = directory
            while parent not in self.directories:
                self.directories[parent] = []
                parent = parent.rpartition("/")[0]
            self.directories[directory].append(name)

    def read(self, path: str, size: int = -1, offset: int = 0) -> bytes:
        """Return bytes of a file; from its end with a negative offset; fewer where it ends. Raise OSError."""
        wanted = self.sizes[path] if size < 0 else size
        found = bytearray()
        full_path = os.path.join(self.root, path)
        try:
            with open(full_path, "rb", buffering=0) as file:
                file.seek(max(self.sizes[path] + offset, 0) if offset < 0 else offset)
                while len(found) < wanted and (more := file.read(wanted - len(found))):
                    found += more
        except OSError as error:
            error.filename = full_path
            raise
        return bytes(found)

    def read_json(self, path: str) -> dict[str, Any] | Fault:
        """Return the object in a file: empty if it is too long to be parsed; or the Fault. Raise OSError."""
        try:
            value = json.loads(self.read(path)) if self.sizes[path] <= MOST_JSON_BYTES else {}
            if not isinstance(value, dict):
                raise ValueError(f"a {type(value).__name__}")
        except (ValueError, RecursionError) as error:
            return Fault(path, "an object in JSON", str(error), "cannot be parsed")
        return value


def missing(path: str, expected: str) -> Fault:
    """Return the fault of a file or a directory that is not there."""
    return Fault(path, expected, "none", "is missing")


def check_content(content: Content) -> Fault | None:
    """Return the first fault that any format finds, or None. Raise OSError if a file cannot be read."""
    from importlib import import_module

    for name in sorted(os.listdir(os.path.dirname(__file__))):
        if name.endswith(".py") and not name.startswith("_"):
            check: Callable[[Content], Iterator[Fault]] = import_module(f"{__name__}.{name[:-3]}").check
            for fault in check(content):
                return fault
    return None


def first_gap(found: set[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the first combination of numbers that is missing, when each one counts from 0; None if none is.

    For instance (1, 0), given (0, 0), (0, 1) and (1, 1).
    """
    counts = [max(numbers) + 1 for numbers in zip(*found, strict=True)]
    for place in range(min(prod(counts), len(found) + 1) if found else 0):
        numbers = []
        for count in reversed(counts):
            place, number = divmod(place, count)
            numbers.append(number)
        if (gap := tuple(reversed(numbers))) not in found:
            return gap
    return None


def joined(directory: str, name: str) -> str:
    """Return the path of a name in a directory of `Content.directories`."""
    return f"{directory}/{name}" if directory else name
