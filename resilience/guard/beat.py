"""The memory that each step stores into: where the training is, readable from another process without asking it.

One anonymous file in memory (memfd_create(2)) per rank. It has no name, so nothing is left behind when the training is
killed, and its pages outlive neither the training nor those who map it.

Layout, little endian: word 0 steps, word 1 polls ever made, bytes 64 to 127 the phase, UTF-8, padded with NUL.
"""

from __future__ import annotations

import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 4096
_PHASE = slice(64, 128)


class BeatSlot:
    """One rank's memory.

    Attributes:
        words: what the training thread stores into: unsigned 64 bit words.
        descriptor: of the memory, to be handed to another process; -1 where there is no memfd_create.
    """

    def __init__(self) -> None:
        try:
            self.descriptor = os.memfd_create("resil-beat", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, SIZE)
            self._map = mmap.mmap(self.descriptor, SIZE)
        except OSError:
            self.descriptor = -1
            self._map = mmap.mmap(-1, SIZE)
        self.words: Any = memoryview(self._map).cast("Q")

    def set_phase(self, phase: str) -> None:
        """Say what the training is doing: `train`, `eval`, `save`, `start` or a word of its own."""
        raw = phase.encode("utf-8", "replace")[:63]
        self._map[_PHASE] = raw.ljust(64, b"\0")

    def read(self) -> tuple[int, int, str]:
        """Return (steps, polls, phase)."""
        return self.words[0], self.words[1], read_phase(self._map)


def read_phase(memory: mmap.mmap) -> str:
    """The phase in a mapped slot."""
    return bytes(memory[_PHASE]).rstrip(b"\0").decode("utf-8", "replace")
