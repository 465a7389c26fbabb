"""Saves as a training leaves them, and a look at a directory of checkpoints that believes nothing."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import xxhash

from resilience.checkpoints import fence
from resilience.checkpoints.commit import commit
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import OWN, part_name

RUN = "run-1"
FILES = ("model.bin", "optimizer/0.bin", "optimizer/deep/1.bin")


def content(step: int, attempt: int, files: tuple[str, ...] = FILES) -> dict[str, bytes]:
    """What an attempt saves at a step."""
    return {name: f"{step} {attempt} {name} ".encode() * 50 for name in files}


def new_store(path: Path, attempt: int = 1) -> StoreDirectory:
    """A directory of checkpoints in which an attempt has begun."""
    store = StoreDirectory.create(path, RUN)
    fence.begin(store, attempt)
    return store


def write_part(store: StoreDirectory, step: int, attempt: int = 1, save: int = 1, **more: Any) -> str:
    """Write a save, complete but not committed; return the name of its part."""
    name = part_name(step, attempt, save)
    for path, raw in content(step, attempt, **more).items():
        (store.path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (store.path / name / path).write_bytes(raw)
    return name


def committed(store: StoreDirectory, step: int, attempt: int = 1, save: int = 1) -> str:
    """Save and commit; return the checkpoint's name."""
    name: str = commit(store, write_part(store, step, attempt, save), {"run": RUN})["name"]
    return name


def read(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Everything in a checkpoint but our own files. Fails unless its manifest names exactly that, with its digests."""
    found = {
        str(path.relative_to(checkpoint.path)): path.read_bytes()
        for path in checkpoint.path.rglob("*")
        if path.is_file() and path.relative_to(checkpoint.path).parts[0] != OWN
    }
    manifest = checkpoint.manifest()
    digest = xxhash.xxh3_128_hexdigest if manifest.algorithm == "xxh3_128" else lambda raw: f"{zlib.crc32(raw):08x}"
    assert {entry.path: (entry.size, entry.digest) for entry in manifest.files} == {
        path: (len(raw), digest(raw)) for path, raw in found.items()
    }
    return found


def listed(store: StoreDirectory) -> dict[int, int]:
    """The attempt that saved each listed step, after a look at each byte of it."""
    found = {}
    for checkpoint in store.checkpoints():
        attempt = checkpoint.manifest().attempt
        assert read(checkpoint) == content(checkpoint.step, attempt), f"{checkpoint.name} is not what was saved"
        found[checkpoint.step] = attempt
    return found
