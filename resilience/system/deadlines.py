"""Which of many things is due next: a heap, so that nothing is asked before its time and nothing is polled."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Deadlines(Generic[KeyT]):
    """Deadlines of things that are known by a key. One thing has one deadline: a new one replaces the old."""

    def __init__(self) -> None:
        self._due: dict[KeyT, float] = {}
        self._heap: list[tuple[float, int, KeyT]] = []
        self._count = 0  # keys need no order

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: KeyT, due: float) -> None:
        """Give a thing its deadline."""
        self._due[key] = due
        self._count += 1
        heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 64 + 4 * len(self._due):  # replaced ones are left behind
            self._heap = [(at, number, key) for number, (key, at) in enumerate(self._due.items())]
            self._count = len(self._heap)
            heapify(self._heap)

    def remove(self, key: KeyT) -> None:
        """Forget a thing. One that has no deadline is no error."""
        self._due.pop(key, None)

    def next(self) -> float | None:
        """The nearest deadline, None when there is none."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[KeyT]:
        """Take out and return what is due, the longest overdue first."""
        found = []
        while (due := self.next()) is not None and due <= now:
            key = heappop(self._heap)[2]
            del self._due[key]
            found.append(key)
        return found
