"""Checkpoint files of callbacks: whole wherever the job is killed, the newest found, old ones removed.

Standard library only. Nothing is written or deleted under a checkpoint's name: a rename gives it, a rename takes it.

    replaced-by-resil-1f2e3d4c-<name>   whole: it had the name before, and counts until the name is taken again
    removed-by-resil-1f2e3d4c-<name>    no checkpoint any more; should we be killed, the next call deletes the rest
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
    """Given the step after which it is saved, return where: `resil-step=00001200.ckpt`, `resil-<label>-step=...`."""
    named = f"{label.replace('/', '_')}-" if label else ""
    return Path(directory) / f"resil-{named}step={step:08d}.ckpt"


def newest_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """Return the checkpoint in `directory` with the most steps, `.../...step=00001200.ckpt`, or None when there is
    none.

    Raise OSError if the directory is there and cannot be listed: a training that took this for None would begin anew.
    """
    found = _found(Path(directory))
    return str(found[-1][1]) if found else None


def move_into_place(part: Path, path: Path) -> None:
    """Give a file or directory that was written beside it its name, on disk before the name is: whole or not there.

    A file replaces a file by one rename. A directory takes two, because NFS does not exchange two names at once
    (RENAME_EXCHANGE, rename(2)): what is at `path` becomes `replaced-by-resil-...`, then `part` becomes `path`. A job
    that is killed between the two loses nothing: `newest_checkpoint` returns the replaced one, and the next call here
    or of `remove_older` gives it its name back. It is deleted once the new one is on disk; if that fails, it is logged.

    Raise OSError if `part` cannot be synced or renamed, and leave what was at `path`; or if the directory cannot be
    synced after the rename, and keep both.
    """
    _sync(part, inside=True)
    if os.path.lexists(path) and (part.is_dir() or path.is_dir()):
        path.rename(_renamed("replaced", path))
    try:
        part.replace(path)
    except OSError:
        _try(_clear, path.parent)  # gives the name back
        raise
    _sync(path.parent)
    _try(_clear, path.parent)


def remove_older(directory: Path, keep: int) -> None:
    """Keep the newest `keep` checkpoints and all that have a label. Never the newest one: `keep` is 1 at least.

    `resil-step=<n>.part` goes as well once a checkpoint has more steps: a job was killed while it wrote it.
    Of a symbolic link the link is removed. Raise no OSError, because the checkpoint is safe: what cannot be deleted is
    logged, and the next call tries it again.
    """
    _try(_clear, directory, max(1, keep))


def _clear(directory: Path, keep: int | None = None) -> None:
    """Delete what was renamed, also by a call that was killed, and given `keep` what is older."""
    for path in list(directory.glob(_REPLACED)):
        own = directory / path.name.split("-", 4)[4]
        _try(Path.rename, path, _renamed("removed", own) if os.path.lexists(own) else own)
    plain = [(step, path) for step, path in _found(directory) if path.name.startswith("resil-step=")]
    if keep and plain:
        newest, _ = plain[-1]
        given_up = [(step, path) for step, path in _found(directory, _PART) if step < newest]
        for _, path in plain[:-keep] + given_up:
            _try(Path.rename, path, _renamed("removed", path))
    if removed := list(directory.glob(_REMOVED)):
        _sync(directory)  # or a power cut might undo the rename and not the deletes
    for path in removed:
        _try(_delete, path)


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)  # a file that cannot be deleted keeps the space of no other
    if path.exists():
        shutil.rmtree(path)  # and here says why


def _try(act: Callable[..., object], path: Path, *arguments: object) -> None:
    try:
        act(path, *arguments)
    except FileNotFoundError:
        pass  # a twin was faster
    except OSError as error:
        logging.getLogger(__name__).warning("resil: could not clean up %s: %s. The next save tries again", path, error)


def _renamed(why: str, path: Path) -> Path:
    return path.with_name(f"{why}-by-resil-{os.urandom(4).hex()}-{path.name}")


def _found(directory: Path, name: re.Pattern[str] = _NAME) -> list[tuple[int, Path]]:
    """Return the whole checkpoints, or what else has such a name, with their steps, fewest first."""
    paths = list(directory.iterdir()) if os.path.lexists(directory) else []
    return sorted((int(match[1]), path) for path in paths if (match := name.fullmatch(path.name)))


def _sync(path: Path, *, inside: bool = False) -> None:
    """Sync a file or directory, first what is `inside`. Links are not followed and FIFOs not opened (they block)."""
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
