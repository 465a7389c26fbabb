"""A page of shared memory on which workers note where they are, and read whether to stop or to share.

It needs no system call and no lock, so it costs next to nothing at each folder; and it can be read when the one who
wrote it hangs in the kernel.
"""

from __future__ import annotations

import mmap
import struct

_SLOT_BYTES = 4096
_HEAD = struct.Struct("<QH")
_IDLE, _NUMBERED = 0xFFFF, 0xFFFE
LONGEST = _SLOT_BYTES - _HEAD.size


class Board:
    """One slot for each thread of each worker. Byte 0: stop; byte 1: somebody has nothing to do."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, _SLOT_BYTES * (slots + 1))
        for slot in range(slots):
            self.rest(slot, 0)

    @property
    def stopped(self) -> bool:
        """Whether everybody is to come to an end."""
        return self._memory[0] != 0

    def stop(self) -> None:
        """Tell everybody to come to an end."""
        self._memory[0] = 1

    @property
    def hungry(self) -> bool:
        """Whether somebody has nothing to do."""
        return self._memory[1] != 0

    @hungry.setter
    def hungry(self, value: bool) -> None:
        self._memory[1] = value

    def enter(self, slot: int, path: bytes, count: int) -> None:
        """Note what is about to be looked at; `count` is different each time."""
        told = path[:LONGEST]
        start = _SLOT_BYTES * (slot + 1)
        self._memory[start + _HEAD.size : start + _HEAD.size + len(told)] = told
        _HEAD.pack_into(self._memory, start, count, len(told))

    def verify(self, slot: int, number: int) -> None:
        """Note which of the known folders is about to be verified: shorter to write than its path."""
        _HEAD.pack_into(self._memory, _SLOT_BYTES * (slot + 1), number, _NUMBERED)

    def tick(self, slot: int, count: int) -> None:
        """Note that it goes on in the same folder."""
        self._memory[_SLOT_BYTES * (slot + 1) : _SLOT_BYTES * (slot + 1) + 8] = count.to_bytes(8, "little")

    def rest(self, slot: int, count: int) -> None:
        """Note that there is nothing to do."""
        _HEAD.pack_into(self._memory, _SLOT_BYTES * (slot + 1), count, _IDLE)

    def where(self, slot: int) -> tuple[int, bytes | int | None]:
        """The count, and what is being looked at: a path (its first LONGEST bytes), the number of a known folder, or
        None for resting."""
        start = _SLOT_BYTES * (slot + 1)
        count, length = _HEAD.unpack_from(self._memory, start)
        if length == _IDLE:
            return count, None
        if length == _NUMBERED:
            return count, count
        return count, self._memory[start + _HEAD.size : start + _HEAD.size + length]
