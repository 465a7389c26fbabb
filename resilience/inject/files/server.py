"""The processes of a mounted fault: a server, and a guardian that unmounts when the server is killed.

    python -m resilience.inject.files.server DIRECTORY UNTIL BEHAVIOUR

Each of the two undoes the fault when the other is killed, and when the time UNTIL (seconds since 1970) has come. After
the undo the server goes on as long as a process has a file of it open: what was opened during the fault keeps working.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from resilience.inject.files import mounting
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.passthrough import Passthrough

READY = "ready"
_PR_SET_PDEATHSIG = 1
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: list[str]) -> int:
    """Mount and serve until it is time, as a guardian and a server. Say `ready`, or what went wrong, on stdout."""
    directory, until, behaviour = Path(argv[1]), float(argv[2]), Behaviour.from_json(argv[3])
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOP, signal.SIGCHLD})
    with suppress(OSError):
        os.setsid()
    guardian = os.getpid()
    server = os.fork()
    if server == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        os._exit(_serve(directory, until, behaviour) if os.getppid() == guardian else 1)
    _close_outputs()
    while True:
        signalled = signal.sigwait({*_STOP, signal.SIGCHLD})
        if signalled != signal.SIGCHLD:
            os.kill(server, signal.SIGTERM)
            continue
        ended, status = os.waitpid(server, os.WNOHANG)
        if ended:
            break
    mounting.unmount(directory)
    return os.waitstatus_to_exitcode(status)


def _serve(directory: Path, until: float, behaviour: Behaviour) -> int:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each file that the kernel remembers
    os.umask(0)
    os.chdir("/")
    real = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        device = mounting.mount(directory)
    except mounting.ResilError as error:
        _say(str(error))
        return 1
    server = Passthrough(device, real, behaviour)
    threads = server.start()
    _say(READY)
    _close_outputs()
    signal.sigtimedwait(_STOP, max(0.0, until - time.time()))
    server.end_fault()
    _flush(directory)
    mounting.unmount(directory)
    for thread in threads:
        thread.join()
    return 0


def _flush(directory: Path) -> None:
    """Write what is in the page cache (of a memory map) through, while the server can still be reached."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        ctypes.CDLL(None).syncfs(descriptor)
        os.close(descriptor)


def _say(line: str) -> None:
    with suppress(OSError):
        os.write(1, line.encode() + b"\n")


def _close_outputs() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
