"""The disk behind a mounted fault: what it refuses, how late it is, and how much space is left. Shared by threads."""

from __future__ import annotations

import os
import threading
import time

from resilience.inject.files.behaviour import Behaviour


class Disk:
    """A disk that behaves as it was told, until `end`."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._room = behaviour.space_bytes or 0
        self._busy_until = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def end(self) -> None:
        """Be healthy from now on; who waits goes on at once."""
        self._behaviour = Behaviour()
        self._ended.set()

    def refuse(self, kind: str) -> None:
        """Let an operation of a class wait as the fault has it, and raise OSError if it fails."""
        behaviour = self._behaviour
        if kind and behaviour.delay_s:
            self._ended.wait(behaviour.delay_s)
        if kind in behaviour.on:
            raise OSError(behaviour.error, "")

    def move(self, size: int) -> None:
        """Wait until so many bytes are through, behind those of the others."""
        if (rate := self._behaviour.bytes_per_s) is None:
            return
        with self._lock:
            self._busy_until = max(self._busy_until, time.monotonic()) + size / rate
            wait_s = self._busy_until - time.monotonic()
        self._ended.wait(wait_s)

    def take(self, size: int) -> None:
        """Take space for something. Raise OSError if it does not fit."""
        if self._take(size, least=size) < size:
            raise OSError(self._behaviour.error, "")

    def take_for(self, descriptor: int, offset: int, size: int) -> int:
        """Take space for a write to a file, and return how many of its bytes fit. Raise OSError if none does.

        What is written over data takes none; a hole is told from data by the blocks of the whole file.
        """
        if self._behaviour.space_bytes is None:
            return size
        status = os.fstat(descriptor)
        holes = max(0, status.st_size - status.st_blocks * 512)
        inside = max(0, min(size, max(0, status.st_size - offset)) - holes)
        fits = inside + self._take(size - inside)
        if not fits and size:
            raise OSError(self._behaviour.error, "")
        return fits

    def give_back(self, size: int) -> None:
        """Have so much more space: something was deleted."""
        with self._lock:
            self._room += max(0, size)

    def free(self, really: int) -> int:
        """Return how many bytes are free, of those that really are."""
        return really if self._behaviour.space_bytes is None else min(really, self._room)

    def _take(self, size: int, least: int = 0) -> int:
        if self._behaviour.space_bytes is None:
            return size
        with self._lock:
            taken = min(max(0, size), self._room)
            if taken < least:
                return 0
            self._room -= taken
            return taken
