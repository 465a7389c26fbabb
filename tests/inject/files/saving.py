"""What a save does to files, one call after the other, and which errors it meets: for a process of its own as well."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

ALL = ("list", "stat", "read", "create", "write", "mkdir", "fsync", "rename", "unlink")
"""The names of `actions`."""


def error_of(action: Callable[[], object]) -> str:
    """Return the name of the error that an action ends with, or nothing."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def write(path: Path, size: int = 1) -> None:
    with open(path, "wb", buffering=0) as file:
        while size > 0:
            size -= file.write(bytes(size)) or 0


def actions(directory: Path) -> dict[str, Callable[[], object]]:
    """What a save does, by name; `old` is there with ten bytes."""
    return {
        "list": lambda: os.listdir(directory),
        "stat": lambda: os.stat(directory / "old"),
        "read": lambda: (directory / "old").read_bytes(),
        "create": lambda: os.close(os.open(directory / "empty", os.O_CREAT | os.O_WRONLY)),
        "write": lambda: write(directory / "new"),
        "mkdir": lambda: (directory / "sub").mkdir(),
        "fsync": lambda: sync(directory),
        "rename": lambda: os.rename(directory / "old", directory / "older"),
        "unlink": lambda: (directory / "older").unlink(),
    }


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def errors(directory: Path) -> dict[str, str]:
    """Do everything, and return the errors by name."""
    found = {name: error_of(action) for name, action in actions(directory).items()}
    return {name: error for name, error in found.items() if error}


if __name__ == "__main__":
    print(json.dumps(errors(Path(sys.argv[1]))))
