"""How long the training's steps and saves take, seen from outside: no clock is read in a step. Pure."""

from __future__ import annotations

import collections

WINDOW = 100
"""How many recent gaps and saves count."""


class Pace:
    """The slowest recent gap between two looks of the training, and the slowest recent save.

    Fed by a thread that samples the training's position. A gap is the time from the sample before the position moved
    to the one that saw it moved again, saves taken out: never less than the truth, and more by one sample at most.

    Attributes:
        slowest_save_s: in seconds; None as long as no save was measured.
    """

    def __init__(self) -> None:
        self._gaps: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._saves: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._position: tuple[int, int] | None = None
        self._last_seen = 0.0
        self._saving_s = 0.0
        self._saving_then = 0.0

    def look(self, now: float, position: tuple[int, int]) -> None:
        """Take a sample at `now` (monotonic seconds)."""
        if position != self._position:
            if self._position is not None and self._position != (0, 0):
                self._gaps.append(max(0.0, now - self._last_seen - (self._saving_s - self._saving_then)))
            self._position = position
            self._last_seen = now
            self._saving_then = self._saving_s

    def saved(self, seconds: float) -> None:
        """A save took so long, on the slowest rank."""
        self._saves.append(seconds)

    def was_saving(self, seconds: float) -> None:
        """So much of the present gap was a save on this rank."""
        self._saving_s += seconds

    @property
    def slowest_step_s(self) -> float | None:
        """In seconds; None as long as nothing moved."""
        return max(self._gaps, default=None)

    @property
    def slowest_save_s(self) -> float | None:
        """In seconds; None as long as no save was measured."""
        return max(self._saves, default=None)
