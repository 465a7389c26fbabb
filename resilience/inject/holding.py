"""Programs that hold a fault on their hosts: how they are started, and what they have in common."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from resilience.base.processes import is_same
from resilience.errors import ResilError

READY = "ready"
"""What a holder says on stdout when the fault has begun; anything else is why it could not."""
START_S = 60.0
"""How long a holder may take to start: srun waits for a slot, and a Python starts on each node from a shared disk."""
END_S = 2.0
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_started: list[subprocess.Popen[bytes]] = []
"""The holders that this process has started: their standard input ends with it."""


def start_holders(argv: Sequence[str], count: int) -> subprocess.Popen[bytes]:
    """Start a holder, or an srun of several, and return it once `count` of them are ready.

    Raise ResilError with what they say instead.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    for one in [one for one in _started if one.poll() is not None]:
        one.stdin.close()  # type: ignore[union-attr]
        _started.remove(one)
    _started.append(process)
    assert process.stdin is not None and process.stdout is not None
    heard, until = b"", time.monotonic() + START_S
    while heard.count(f"{READY}\n".encode()) < count:
        more = b""
        if select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            more = os.read(process.stdout.fileno(), 4096)
        if not more:
            said = heard.decode(errors="replace").replace(f"{READY}\n", "").strip()
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.terminate()
            raise ResilError(f"the fault did not begin: {said or 'its process said nothing'}")
        heard += more
    process.stdout.close()
    return process


def guarded(hold: Callable[[], None], clean_up: Callable[[], None], most_s: float = 1e9) -> int:
    """Hold a fault in a child of this process. If the child is killed, clean up; if this process is, the child gets
    SIGTERM. `hold` waits for the signals of ENDS, undoes what it has begun, and raises ResilError or OSError if it
    cannot begin; after `most_s` it is killed, as it may wait for a file server. Return the exit code of the program.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, signal.SIGCHLD})
    os.chdir("/")
    guardian = os.getpid()
    holder = os.fork()
    if holder == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        code = 1
        try:
            if os.getppid() == guardian:
                hold()
                code = 0
        except (ResilError, OSError) as error:
            say(str(error))
        os._exit(code)
    close_outputs()
    ended = status = 0
    while not ended:
        signalled = signal.sigtimedwait({*ENDS, signal.SIGCHLD}, most_s)
        if signalled is None or signalled.si_signo != signal.SIGCHLD:
            os.kill(holder, signal.SIGKILL if signalled is None else signal.SIGTERM)
        ended, status = os.waitpid(holder, os.WNOHANG)
    if status:
        clean_up()
    return 0


def say(line: str) -> None:
    """Write a line to whoever has started this program, if that listens."""
    with suppress(OSError):
        os.write(1, line.encode() + b"\n")


def close_outputs() -> None:
    """Let go of whoever has started this program."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)


def send(number: int, pids: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    """Send a signal to processes, each given by pid and start; return the pids that got it, and those that are gone."""
    sent, gone, refused = list[int](), list[int](), list[int]()
    for pid, ticks in pids:
        if not is_same(pid, ticks):
            gone.append(pid)
            continue
        try:
            os.kill(pid, number)
            sent.append(pid)
        except ProcessLookupError:
            gone.append(pid)
        except PermissionError:
            refused.append(pid)
    return {"sent": sent, "gone": gone, "refused": refused}
