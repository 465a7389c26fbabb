"""Where the spool lies, and what it means when its files cannot be read or written."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from pathlib import Path

from resilience.errors import SchedulerUnavailable, StateDirectoryError

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


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell what the file system refuses as SchedulerUnavailable: who cannot look does not know."""
    try:
        yield
    except OSError as error:
        raise unavailable(error, path) from error
    except StateDirectoryError as error:  # write_atomic's: it speaks of a state_dir, and this is none
        cause = error.__cause__
        raise unavailable(cause if isinstance(cause, OSError) else OSError(error.message), path) from error


def unavailable(error: OSError, path: Path) -> SchedulerUnavailable:
    """The same for one error."""
    return SchedulerUnavailable(
        f"the embedded scheduler's spool cannot be used: {error.filename or path}: {error.strerror or error}",
        hint=f"it lies where ${SPOOL_VARIABLE} says, else in ~/.local/state/resil/local",
        transient=error.errno not in (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS),
    )
