"""How much memory a save needs besides what the training uses: a copy of the state, a buffer to write from. Pure."""

from __future__ import annotations

import collections

from resilience.guard.pace import SAVES

SAVE_LOOKS = 50
"""The next look at a save comes after 1/50 of the time that it has taken: ten minutes of save cost 370 looks. Of a use
that rises until the save's end 2 % may be missed so, and are added; a peak shorter than 20 ms may be missed at all."""


class SaveMemory:
    """The largest of the recent rises during a save, in bytes; 0 until one was measured.

    A rise is what is given back when the save ends, or is durable if it went on in the background: from the highest use
    while the training waited for it, or the last one in flight, down to where it was before. What stays in use is no
    need of the next save, and what a leak takes meanwhile is none of this one.

    Attributes:
        since: when the training was first seen to wait for the present save (monotonic seconds); None while it trains.
        is_in_flight: whether a save was in flight at the last look.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.is_in_flight = False
        self._rises: collections.deque[int] = collections.deque(maxlen=SAVES)
        self._used = self._peak = 0
        self._before: int | None = None

    def look(self, now: float, used_bytes: int, *, is_saving: bool, is_in_flight: bool) -> None:
        """Take a sample at `now` (monotonic seconds). With both, a save waits for the one in flight."""
        if is_saving and not is_in_flight:
            self.since = now if self.since is None else self.since
        else:
            self.since = None
        if is_saving or is_in_flight:
            if self._before is None:
                self._before, self._peak = min(self._used or used_bytes, used_bytes), 0
            self._peak = max(self._peak, used_bytes) if is_saving else self._peak
        elif self._before is not None:
            self._rises.append(max(0, max(self._peak, self._used) - max(self._before, used_bytes)))
            self._before = None
        self._used, self.is_in_flight = used_bytes, is_in_flight

    def learned(self) -> list[int]:
        """The recent rises, for `restore` in another process."""
        return list(self._rises)

    def restore(self, rises: list[int]) -> None:
        """Remember what another process has measured."""
        self._rises.extendleft(reversed(rises[max(0, len(rises) + len(self._rises) - SAVES) :]))

    @property
    def is_measuring(self) -> bool:
        """Whether a save was under way at the last look."""
        return self._before is not None

    @property
    def bytes(self) -> int:
        """What a save would need now, without what the last one still holds: that is in use already."""
        still_held = 0 if self._before is None else max(0, self._used - self._before)
        rise = max(0, max(self._rises, default=0) - still_held)
        return rise + rise // SAVE_LOOKS
