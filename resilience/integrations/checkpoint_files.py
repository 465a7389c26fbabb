"""Checkpoint files of callbacks: complete even if the job is killed at any moment; finds the newest, removes old ones.

Standard library only. A checkpoint gets its name by a rename and loses it by a rename; no file is written or deleted
under that name.

    replaced-by-resil-1f2e3d4c-<name>   complete: the previous checkpoint, valid until a new one has the name
    removed-by-resil-1f2e3d4c-<name>    to be deleted; after a kill, the next call deletes the rest
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"(?:replaced-by-resil-[0-9a-f]{8}-)?resil-(?:.+-)?step=(\d+)\.ckpt")
_PART = re.compile(r"resil-step=(\d+)\.part")
_REPLACED, _REMOVED = (f"{why}-by-resil-{'[0-9a-f]' * 8}-?*" for why in ("replaced", "removed"))


def checkpoint_path(directory: str | os.PathLike[str], step: int, label: str = "") -> Path:
    """Return the path of the checkpoint of a step: `resil-step=00001200.ckpt`, `resil-<label>-step=...`."""
    named = f"{label.replace('/', '_')}-" if label else ""
    return Path(directory) / f"resil-{named}step={step:08d}.ckpt"


def newest_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """Return the checkpoint in `directory` with the most steps, `.../...step=00001200.ckpt`, or None without one.

    Raise OSError if the directory exists but cannot be listed: returning None would restart the training from scratch.
    """
    found = _found(Path(directory))
    return str(found[-1][1]) if found else None


def move_into_place(part: Path, path: Path) -> None:
    """Sync a file or directory to disk, then rename it to `path`: a checkpoint is complete or absent.

    A file replaces a file by one rename. A directory takes two, because NFS cannot exchange two names atomically
    (RENAME_EXCHANGE, rename(2)): the old directory becomes `replaced-by-resil-...`, then `part` becomes `path`. If the
    job is killed between the two, `newest_checkpoint` returns the replaced one, and the next call here or of
    `remove_older` restores its name. The replaced one is deleted once the new one is on disk; a failure is logged.

    Raise OSError if `part` cannot be synced or renamed, leaving `path` unchanged; or if the directory cannot be synced
    after the rename, keeping both.
    """
    _sync(part, inside=True)
    if os.path.lexists(path) and (part.is_dir() or path.is_dir()):
        path.rename(_renamed("replaced", path))
    try:
        part.replace(path)
    except OSError:
        _try(_clear, path.parent)  # restores the name
        raise
    _sync(path.parent)
    _try(_clear, path.parent)


def remove_older(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and those with a label. Always keeps the newest one.

    Also removes `resil-step=<n>.part` once a checkpoint has more steps: left by a job that was killed during the write.
    Of a symbolic link, only the link is removed. Raises no OSError, because the checkpoint is safe: a failure is
    logged, and the next call retries.
    """
    _try(_clear, directory, max(1, keep))


def _clear(directory: Path, keep: int | None = None) -> None:
    """Delete renamed checkpoints, also those of a call that was killed, and with `keep`, older ones."""
    for path in list(directory.glob(_REPLACED)):
        own = directory / path.name.split("-", 4)[4]
        _try(Path.rename, path, _renamed("removed", own) if os.path.lexists(own) else own)
    plain = [(step, path) for step, path in _found(directory) if path.name.startswith("resil-step=")]
    if keep and plain:
        newest, _ = plain[-1]
        incomplete = [(step, path) for step, path in _found(directory, _PART) if step < newest]
        for _, path in plain[:-keep] + incomplete:
            _try(Path.rename, path, _renamed("removed", path))
    if removed := list(directory.glob(_REMOVED)):
        _sync(directory)  # otherwise a power cut might undo the rename but not the deletes
    for path in removed:
        _try(_delete, path)


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)  # deletes as much as possible
    if path.exists():
        shutil.rmtree(path)  # raises the reason


def _try(act: Callable[..., object], path: Path, *arguments: object) -> None:
    try:
        act(path, *arguments)
    except FileNotFoundError:
        pass  # another process of the run was faster
    except OSError as error:
        logging.getLogger(__name__).warning("resil: cannot clean up %s: %s. The next save retries", path, error)


def _renamed(why: str, path: Path) -> Path:
    return path.with_name(f"{why}-by-resil-{os.urandom(4).hex()}-{path.name}")


def _found(directory: Path, name: re.Pattern[str] = _NAME) -> list[tuple[int, Path]]:
    """Return the complete checkpoints, or other paths that match `name`, with their steps, fewest first."""
    paths = list(directory.iterdir()) if os.path.lexists(directory) else []
    return sorted((int(match[1]), path) for path in paths if (match := name.fullmatch(path.name)))


def _sync(path: Path, *, inside: bool = False) -> None:
    """Sync a file or directory, with `inside` its content first. Does not follow links or open FIFOs (they block)."""
    if inside and path.is_dir():
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
                    _sync(Path(entry), inside=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network and FUSE file systems cannot sync a directory at all
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
