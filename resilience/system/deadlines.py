"""A priority queue of deadlines, which avoids polling."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Deadlines(Generic[KeyT]):
    """Deadlines by key. A new deadline of a key replaces the previous one."""

    def __init__(self) -> None:
        self._due: dict[KeyT, float] = {}
        self._heap: list[tuple[float, int, KeyT]] = []
        self._count = 0  # tie-breaker: keys need not be ordered

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: KeyT, due: float) -> None:
        """Set the deadline of a key."""
        self._due[key] = due
        self._count += 1
        heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 64 + 4 * len(self._due):  # replaced entries remain in the heap
            self._heap = [(at, number, key) for number, (key, at) in enumerate(self._due.items())]
            self._count = len(self._heap)
            heapify(self._heap)

    def remove(self, key: KeyT) -> None:
        """Remove a key, if present."""
        self._due.pop(key, None)

    def next(self) -> float | None:
        """Return the next deadline, or None."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[KeyT]:
        """Remove and return the keys that are due, the longest overdue first."""
        found = []
        while (due := self.next()) is not None and due <= now:
            key = heappop(self._heap)[2]
            del self._due[key]
            found.append(key)
        return found
