"""Checkpoint files of callbacks: moved into place whole, the newest found, old ones removed. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_NAME = re.compile(r"resil-(?:(?P<label>.+)-)?step=(?P<step>\d+)\.ckpt")


def checkpoint_path(folder: str | os.PathLike[str], step: int, label: str = "") -> Path:
    """Given the step after which it is saved, return where: `resil-step=00001200.ckpt`, `resil-<label>-step=...`."""
    named = f"{label.replace('/', '_')}-" if label else ""
    return Path(folder) / f"resil-{named}step={step:08d}.ckpt"


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the checkpoint in `folder` with the most steps, or None when there is none."""
    found = _found(Path(folder))
    return str(found[-1]) if found else None


def move_into_place(part: Path, path: Path) -> None:
    """Give a file or folder that was written beside it its name, on disk before the name is: whole or not there."""
    for file in [part, *part.rglob("*")] if part.is_dir() else [part]:
        _sync(file)
    if path.is_dir():
        shutil.rmtree(path)
    part.replace(path)
    _sync(path.parent)


def remove_older(folder: Path, keep: int) -> None:
    """Keep the newest `keep` checkpoints and all that have a label. Never the newest one: `keep` is 1 at least."""
    plain = [path for path in _found(folder) if path.name.startswith("resil-step=")]
    for path in plain[: -max(1, keep)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _found(folder: Path) -> list[Path]:
    named = [(match, path) for path in folder.glob("resil-*.ckpt") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted((int(match["step"]), path) for match, path in named)]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
