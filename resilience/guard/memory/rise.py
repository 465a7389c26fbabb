"""A rise of the last seconds: whether it lasts, and whether what is left is used up too soon for a save. Pure.

The trend of `forecast` needs a minute of readings. A leak of 120 MB/s fills 400 MB in three seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

REACH = 2.0
"""A rise is believed for so many times as long as it has lasted. So it must have taken half of what is left: loading
and buffers that take less than a third of the free memory ask for nothing, however fast they are."""
KEPT = 4.0
"""Looks are kept for so many times the time that a step and a save need: a leak of one lump per step shows three lumps
in it, also where the save takes no time."""
MOST_LOOKS = 32
"""Looks kept for each limit: the newer half as they came, the older half ever further apart."""
JUMPS = 2
BESIDES_JUMPS = 1 / 8
"""The largest two rises between looks are data that was loaded at once: so much of the rise must come on top."""
OF_LATE = 1 / 6
"""A steady rise has a third of itself in the last third of the time. At half of that it is still going on."""


@dataclass(frozen=True, slots=True)
class Look:
    """The use of a limit at one moment.

    Attributes:
        at: monotonic seconds.
        is_exact: whether nothing else is in it: no file cache that came since it was last looked up, nothing that a
            save in flight holds.
    """

    at: float
    used_bytes: int
    is_exact: bool = True


class RecentUse:
    """The last looks at one limit.

    Attributes:
        looks: in order, the newest last.
        known_bytes: the highest exact use before these: what comes back up to there is no leak but, say, an evaluation.
    """

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.known_bytes = 0

    def add(self, look: Look, keep_s: float) -> None:
        """Remember a look, and those of the last `keep_s` seconds."""
        self.looks.append(look)
        if len(self.looks) > MOST_LOOKS:
            del self.looks[1 : MOST_LOOKS // 2 : 2]
        while self.looks[0].at < look.at - keep_s:
            gone = self.looks.pop(0)
            if gone.is_exact:
                self.known_bytes = max(self.known_bytes, gone.used_bytes)

    def forget_inexact(self) -> None:
        """Drop the looks that had something else in them: the use seems to have fallen since."""
        self.looks = [look for look in self.looks if look.is_exact]

    def fills_in_s(self, room_bytes: int) -> float:
        """In how many seconds `room_bytes` are used up at the steepest rise up to now; infinity if nothing rises."""
        last = self.looks[-1]
        rises = [(last.used_bytes - one.used_bytes) / (last.at - one.at) for one in self.looks if one.at < last.at]
        per_s = max(rises, default=0.0)
        return max(0, room_bytes) / per_s if per_s > 0 else float("inf")


def rush(looks: list[Look], *, room_bytes: int, need_s: float, known_bytes: int = 0) -> float | None:
    """Given the last looks, return in how many seconds `room_bytes` are used up; None where `need_s` is left or more.

    None also where nothing is certain: the rise must be still going on, be no jump, have taken at least 1/`REACH` of
    what it has yet to take, and go where the use never was before (`known_bytes`). Of all the times that it may have
    begun at, the one counts that tells the earliest end. For instance, after 0, 30, 60, 90 and 120 bytes at seconds 0
    to 4, with 60 bytes of room and 2 s needed: 2.0.
    """
    last, left_s = looks[-1], float("inf")
    for index, first in enumerate(looks[:-1]):
        # What came faster than half of the needed time counts as if it had taken so long.
        span_s = max(last.at - first.at, need_s / REACH)
        rise = last.used_bytes - max(first.used_bytes, known_bytes)
        if rise > 0 and room_bytes * span_s <= rise * need_s and _lasts(looks[index:]):
            left_s = min(left_s, max(0.0, room_bytes * span_s / rise))
    return left_s if left_s <= need_s else None


def _lasts(looks: list[Look]) -> bool:
    """Whether looks show a rise that is no jump and goes on."""
    last = looks[-1]
    rises = sorted(later.used_bytes - one.used_bytes for one, later in pairwise(looks))
    rise = sum(rises)
    of_late = last.at - (last.at - looks[0].at) / 3
    before = next(one for one in reversed(looks) if one.at <= of_late)
    return sum(rises[:-JUMPS]) >= BESIDES_JUMPS * rise and last.used_bytes - before.used_bytes >= OF_LATE * rise
