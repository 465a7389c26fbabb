"""Copies the output of a command byte for byte to this process's own, and keeps its newest part.

Where stdout and stderr are one file or terminal, they are one pipe, so that their order stays as well. As without a
supervisor, a reader that has exited is the command's own SIGPIPE, and a slow reader slows the command down.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import sys
import termios
import threading
from collections import deque

CHUNK_BYTES = 65536
NEWEST_BYTES = 2**17
"""The most output that is kept in memory until it is sent to be recorded."""
QUIET_S = 0.5
"""After the end of the command, its output is over once the pipe was empty for this long, though another process may
still hold the pipe."""
LONGEST_S = 10.0
"""How long output of other processes is copied after the end of the command."""


class Newest:
    """The newest output that was not taken yet, of all streams. Safe from every thread."""

    def __init__(self, most_bytes: int = NEWEST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._chunks: deque[bytes] = deque()
        self._size = self._left_out = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk, and drop the oldest ones beyond the limit."""
        with self._lock:
            self._chunks.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._chunks[0]) >= self._most:
                dropped = len(self._chunks.popleft())
                self._size -= dropped
                self._left_out += dropped

    def take(self) -> tuple[int, bytes]:
        """Return how many bytes were dropped, and the bytes after them; forget both."""
        with self._lock:
            left_out, chunks = self._left_out, b"".join(self._chunks)
            self._chunks.clear()
            self._size = self._left_out = 0
        return left_out, chunks


class Tee:
    """One stream of the command.

    Attributes:
        descriptors: of this process, those that it is copied for: (1,), (2,) or (1, 2).
        write_end: of the pipe, for the command; closed by `start`.
        is_held: whether another process held the pipe at the end, and its further output is lost.
        error: why output could not be written and was lost; empty if none was.
    """

    def __init__(self, descriptors: tuple[int, ...], newest: Newest) -> None:
        self.descriptors = descriptors
        self.is_held = False
        self.error = ""
        self._newest = newest
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        self._copied_bytes = self._seen_bytes = self._own_bytes = 0
        self._is_writing = False
        self._ended_at = self._changed_at = 0.0
        self._thread = threading.Thread(target=self._copy, name="resil-tee", daemon=True)

    def start(self) -> None:
        """Begin to copy; the command must have been started."""
        os.close(self.write_end)
        self._thread.start()

    def drain(self, now: float) -> None:
        """Begin to end: the command has. What it has written is copied, however slow the reader is."""
        self._ended_at = self._changed_at = now
        self._own_bytes = self._copied_bytes + self._waiting_bytes()

    def is_over(self, now: float) -> bool:
        """Return whether all output was copied, or only other processes hold the pipe still. Both in monotonic s."""
        if not self._thread.is_alive():
            return True
        waiting = self._waiting_bytes()
        if self._is_writing or waiting or self._copied_bytes != self._seen_bytes:
            self._seen_bytes, self._changed_at = self._copied_bytes, now
        is_late = waiting > 0 and self._copied_bytes > self._own_bytes and now > self._ended_at + LONGEST_S
        self.is_held = is_late or now > self._changed_at + QUIET_S
        return self.is_held

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the copying."""
        self._thread.join(timeout_s)

    def _copy(self) -> None:
        try:
            while not self.is_held and (chunk := os.read(self._read_end, CHUNK_BYTES)):
                self._is_writing = True
                self._newest.add(chunk)
                try:
                    _write(self.descriptors[0], chunk)
                except BrokenPipeError:
                    return
                except OSError as error:  # a full disk, a terminal that is gone: the command goes on
                    self.error = error.strerror or str(error)
                self._copied_bytes += len(chunk)
                self._is_writing = False
        finally:
            os.close(self._read_end)  # the command gets SIGPIPE, as it would without a supervisor

    def _waiting_bytes(self) -> int:
        try:
            return int.from_bytes(fcntl.ioctl(self._read_end, termios.FIONREAD, bytes(4)), sys.byteorder)
        except OSError:  # closed just now
            return 0


def _write(descriptor: int, chunk: bytes) -> None:
    rest: bytes | memoryview = chunk
    while rest:
        try:
            written = os.write(descriptor, rest)
        except BlockingIOError:  # another process has made the file description non-blocking
            watch = select.poll()
            watch.register(descriptor, select.POLLOUT)
            watch.poll()
            continue
        if written == len(rest):
            return
        rest = memoryview(rest)[written:]


def streams() -> list[tuple[int, ...]]:
    """Return which of stdout and stderr to copy: [(1, 2)] if they are one file, else [(1,), (2,)].

    A closed one is not copied; it becomes /dev/null, so that no file of this process takes its number.
    """
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for descriptor in (0, 1, 2):
        try:
            info = os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(opened, True)
            continue
        if descriptor:
            key = info.st_dev, info.st_ino
            found[key] = (*found.get(key, ()), descriptor)
    return list(found.values())
