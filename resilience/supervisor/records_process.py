"""The process that uses the run directory, as the supervisor sees it.

A thread would not do: a process of which a thread waits in the kernel for a dead file system cannot end, and the exit
code of the command would be lost. This process is left behind then. No method here waits for a file system.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from resilience.supervisor.command import FORWARDED, say
from resilience.supervisor.tee import Newest

MOST_WAITING = 1000
"""Messages that are kept while the process does not take them; then the oldest are dropped."""
LONGEST_BYTES = 2**18
"""No message is longer."""


class SeenSwitch(NamedTuple):
    """An accepted switch: the identity of its file, its owner, and the reason."""

    identity: tuple[int, int, int]
    who: str
    why: str

    @property
    def as_kill(self) -> str:
        """A sentence about a kill switch."""
        return f"the kill switch was set by {self.who}{f': {self.why}' if self.why else ''}"


class State(NamedTuple):
    """What the process has reported last.

    Attributes:
        has_begun: whether the attempt is claimed, or cannot be.
        attempt: its number; 0 while there is none.
        refusal: exit code and reason if the command must not start; None if it may.
        trouble: why the run directory cannot be used; empty if it can.
        switches: accepted switches by kind.
        is_guarded: whether a guard in the command follows the switches by itself.
    """

    has_begun: bool = False
    attempt: int = 0
    refusal: tuple[int, str] | None = None
    trouble: str = ""
    switches: dict[str, SeenSwitch] = {}  # noqa: RUF012 - never changed in place
    is_guarded: bool = False


class RecordsProcess:
    """The process, and what is to be sent to it. Only the main thread uses it.

    Attributes:
        state: as reported last.
    """

    def __init__(self, work: Callable[[socket.socket], None], newest: Newest) -> None:
        """Fork it, before this process has threads; `work` ends when its peer has closed the connection.

        `newest`: output, which is sent as it comes.
        """
        self.state = State()
        self._newest = newest
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._peer.setblocking(False)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_BYTES)
        gc.freeze()  # a collection would copy the pages that both processes share
        self._pid = os.fork()
        if self._pid == 0:
            _work(work, theirs)
        theirs.close()

    def send(self, what: str, *values: Any) -> None:
        """Queue a message."""
        self._waiting.append(marshal.dumps((what, *values)))

    def exchange(self, timeout_s: float = 0.0) -> bool:
        """Send and receive what is there, or wait for more; return False once the process has ended."""
        if not self._waiting:
            self._send_output()
        poll = select.poll()
        poll.register(self._peer, select.POLLIN | (select.POLLOUT if self._waiting else 0))
        poll.poll(1000 * timeout_s)
        with suppress(OSError):  # no room, or no process
            while self._waiting:
                self._peer.send(self._waiting[0])
                self._waiting.popleft()
        try:
            while raw := self._peer.recv(LONGEST_BYTES):
                self._take(marshal.loads(raw))
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def begin(self, wait_s: float) -> None:
        """Wait until the process has begun, but no longer than this."""
        until = time.monotonic() + wait_s
        while not self.state.has_begun and (left_s := until - time.monotonic()) > 0 and self.exchange(left_s):
            pass

    def end(self, wait_s: float, *values: Any) -> None:
        """Tell the end, and wait until everything is written, but no longer than this: the process is left behind."""
        self._send_output()
        self.send("end", *values)
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0 and self.exchange(left_s):
            pass
        with suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)

    def _send_output(self) -> None:
        left_out, chunk = self._newest.take()
        if chunk:
            self.send("output", left_out, chunk)

    def _take(self, message: tuple[Any, ...]) -> None:
        if message[0] == "say":
            say(message[1])
            return
        state = State(*message[1:])
        self.state = state._replace(switches={kind: SeenSwitch(*one) for kind, one in state.switches.items()})


def _work(work: Callable[[socket.socket], None], peer: socket.socket) -> NoReturn:
    """In the forked process: keep no stream, lock and directory of the caller, and end by no signal to its group."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.closerange(3, peer.fileno())
        os.closerange(peer.fileno() + 1, 65536)
        os.chdir("/")
        for number in FORWARDED:
            signal.signal(number, _ignore)  # unlike SIG_IGN, not inherited by programs
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        work(peer)
    finally:
        os._exit(0)


def _ignore(number: int, frame: object) -> None:
    """Handle a signal."""
