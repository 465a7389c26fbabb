"""How the spool's files are written and where they lie: whole or not at all, and errors told as what they mean."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import get_native_id

from resilience.errors import SchedulerUnavailable

SPOOL_VARIABLE = "RESIL_LOCAL_SPOOL"


def spool_path(environ: Mapping[str, str]) -> Path:
    """Where the spool lies: $RESIL_LOCAL_SPOOL, $XDG_STATE_HOME/resil/local, or ~/.local/state/resil/local."""
    if chosen := environ.get(SPOOL_VARIABLE):
        return Path(chosen).absolute()
    state = environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        home = environ.get("HOME") or Path("~").expanduser()
        return Path(home) / ".local" / "state" / "resil" / "local"
    return Path(state) / "resil" / "local"


def replace_file(path: Path, content: str | bytes, *, sync: bool, mode: int = 0o600) -> None:
    """Write a file so that a crash leaves the old one or the new one; with `sync`, so that a power cut does too."""
    raw = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{get_native_id()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            view = memoryview(raw)
            while view:
                view = view[os.write(descriptor, view) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - one system call, named as the manual names it
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell what the file system refuses as SchedulerUnavailable: who cannot look does not know."""
    try:
        yield
    except OSError as error:
        raise unavailable(error, path) from error


def unavailable(error: OSError, path: Path) -> SchedulerUnavailable:
    """The same for one error."""
    return SchedulerUnavailable(
        f"the embedded scheduler's spool cannot be used: {error.filename or path}: {error.strerror or error}",
        hint=f"it lies where ${SPOOL_VARIABLE} says, else in ~/.local/state/resil/local",
        transient=error.errno not in (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS),
    )
