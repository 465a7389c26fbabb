"""The process that holds a fault of files: it begins it, waits, and undoes it.

    python -m resilience.inject.files.holder NAME HOW DIRECTORY UNTIL BEHAVIOUR [CONTROL]

NAME is the injection's id, by which `stop` finds the holder. HOW is `mount` (a FUSE server over the directory), `fill`
(a file without a name takes the space), or `preload` (CONTROL tells the library of trainings that were started with
it). The fault ends on SIGTERM, at UNTIL (seconds since 1970), and when one of the two processes is killed: a guardian
undoes what the holder leaves, and the holder ends with its guardian. After the undo the server of a mount lives as long
as a file of it is open: what a process has opened during the fault keeps working.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from resilience.base.mounts import current_mounts
from resilience.inject.files import ballast, mounting, preload
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.disk import Disk
from resilience.inject.files.passthrough import Passthrough
from resilience.inject.holding import ENDS, READY, close_outputs, guarded, say
from resilience.inject.processes import all_pids, is_own, words_of

STOP_S = 20.0
"""How long a holder may take to undo a fault; then it is killed."""
POLL_S = 0.05
MODULE = "resilience.inject.files.holder"


def main(argv: list[str]) -> int:
    """Hold the fault, as a guardian and a holder. Return 0 once it is undone."""
    name, how, directory, until = argv[1], argv[2], Path(argv[3]), float(argv[4])
    behaviour, control = Behaviour.from_json(argv[5]), Path(argv[6]) if len(argv) > 6 else None
    os.umask(0)
    return guarded(
        lambda: hold(name, how, directory, until, behaviour, control),
        lambda: clean_up(name, how, directory, control),
    )


def hold(name: str, how: str, directory: Path, until: float, behaviour: Behaviour, control: Path | None) -> None:
    """Begin a fault, say so, and undo it when it is time. Raise ResilError or OSError if it cannot begin."""
    if how == "mount":
        _hold_mount(name, directory, until, behaviour)
    elif how == "fill":
        with ballast.fill(directory, keep_bytes=behaviour.space_bytes or 0):
            _wait(until)
    else:
        assert control is not None
        preload.write(control, preload.line(behaviour, directory, until))
        _wait(until)
        clean_up(name, how, directory, control)


def is_on(name: str, how: str, directory: Path, control: Path | None) -> bool:
    """Return whether the fault is there; what fills a file system goes with its process."""
    if how == "mount":
        return mounting.mounted_at(directory, current_mounts(), name) is not None
    return bool(holders(name)) if how == "fill" else control is not None and control.exists()


def clean_up(name: str, how: str, directory: Path, control: Path | None) -> None:
    """Undo what a holder that was killed has left. Raise ResilError if that fails."""
    if how == "mount":
        mounting.unmount(directory, name)
    elif how == "preload" and control is not None:
        control.unlink(missing_ok=True)


def stop(name: str, how: str, directory: Path, control: Path | None) -> None:
    """End a fault of this host, from any process: ask its holder, and do it instead of one that does not.

    Raise ResilError if the fault remains.
    """
    asked, deadline = set[int](), time.monotonic() + STOP_S
    while (found := holders(name)) or is_on(name, how, directory, control):
        for pid in set(found) - asked:
            _signal(pid, signal.SIGTERM)
            asked.add(pid)
        if not is_on(name, how, directory, control):
            return  # a server whose files are still open remains
        if not found or time.monotonic() > deadline:
            for pid in found:
                _signal(pid, signal.SIGKILL)
            clean_up(name, how, directory, control)
            return
        time.sleep(POLL_S)


def holders(name: str) -> list[int]:
    """Return the processes of this user that hold a fault: a guardian and a holder."""
    return [pid for pid in all_pids() if {name, MODULE} <= set(words_of(pid)) and is_own(pid)]


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _hold_mount(name: str, directory: Path, until: float, behaviour: Behaviour) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each file that the kernel remembers
    real = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    disk, device = Disk(behaviour), mounting.mount(directory, name, read_only=behaviour.error == errno.EROFS)
    threads = Passthrough(device, real, disk).start()
    _wait(until)
    disk.end()
    _flush(directory)
    mounting.unmount(directory, name)
    for thread in threads:
        thread.join()


def _flush(directory: Path) -> None:
    """Have the kernel write what it has of memory maps, while the server can still be reached."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        ctypes.CDLL(None).syncfs(descriptor)
        os.close(descriptor)


def _wait(until: float) -> None:
    say(READY)
    close_outputs()
    signal.sigtimedwait(ENDS, max(0.0, until - time.time()))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
