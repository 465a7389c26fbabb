"""Formats of checkpoint files: what holds for each complete one, seen from names and headers. One file per format.

Nothing is ever unpickled, and no framework is imported. A format judges only the files that it recognizes, and gives no
opinion of others: a wrong fault would cost a save, because a commit refuses what has one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

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
            if directory not in self.directories:
                self.directories |= {parent: [] for parent in _parents(directory) if parent not in self.directories}
            self.directories[directory].append(name)

    def read(self, path: str, size: int = -1, offset: int = 0) -> bytes:
        """Return bytes of a file; from its end with a negative offset; fewer where it ends. Raise OSError."""
        with open(os.path.join(self.root, path), "rb", buffering=0) as file:
            if offset:
                file.seek(max(self.sizes[path] + offset, 0) if offset < 0 else offset)
            wanted = self.sizes[path] if size < 0 else size
            found = bytearray()
            while len(found) < wanted and (more := file.read(wanted - len(found))):
                found += more
        return bytes(found)

    def read_json(self, path: str) -> Any:
        """Return the value in a file, None if it is too long to be parsed, or the Fault. Raise OSError."""
        if self.sizes[path] > MOST_JSON_BYTES:
            return None
        try:
            return json.loads(self.read(path))
        except (ValueError, RecursionError) as error:
            return Fault(path, "JSON", str(error), "cannot be parsed")


class Format(Protocol):
    """One format of checkpoint files; exported as FORMAT by the file with its name."""

    def check(self, content: Content) -> Fault | None:
        """Return the first fault of the files of this format. Reads headers only. Raise OSError if it cannot read."""


def check_content(content: Content) -> Fault | None:
    """Return the first fault that any format finds, or None. Raise OSError if a file cannot be read."""
    from importlib import import_module

    for name in sorted(os.listdir(os.path.dirname(__file__))):
        if name.endswith(".py") and not name.startswith("_"):
            plugin: Format = import_module(f"{__name__}.{name[:-3]}").FORMAT
            fault = plugin.check(content)
            if fault is not None:
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


def _parents(directory: str) -> list[str]:
    """Return `a`, `a/b` and `a/b/c`, given `a/b/c`."""
    parts = directory.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def joined(directory: str, name: str) -> str:
    """Return the path of a name in a directory of `Content.directories`."""
    return f"{directory}/{name}" if directory else name
