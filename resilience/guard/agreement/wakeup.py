"""How other threads wake the control thread, which waits for sockets: a socket of its own."""

from __future__ import annotations

import contextlib
import socket


class Wakeup:
    """Becomes readable when somebody rings.

    Attributes:
        ear: what to wait for.
    """

    def __init__(self) -> None:
        self.ear, self._bell = socket.socketpair()
        for end in (self.ear, self._bell):
            end.setblocking(False)

    def ring(self) -> None:
        """Wake the thread. Safe from every thread, and when it is over."""
        with contextlib.suppress(OSError):  # full: it will wake; closed: nobody is there
            self._bell.send(b".")

    def heard(self) -> None:
        """Make it quiet again."""
        with contextlib.suppress(BlockingIOError):
            while self.ear.recv(4096):
                pass

    def close(self) -> None:
        """Nobody rings any more."""
        self.ear.close()
        self._bell.close()
