"""How much one rank waits for the others, and how long its steps take, in windows of looks at its collectives. Pure.

Ranks of a synchronous training have the same step time; the slow one arrives last at each collective, so it waits least
inside them. The share of looks that find a rank inside needs no communication, and no clock that ranks have in common.
"""

from __future__ import annotations

LOOKS = 60
"""A window has at least so many looks, a minute, and less than twice as many; or one step that takes longer."""
KEPT = 24
"""Windows, and pauses: ten that count, if another rank has windows twice as long, or saves alone."""
TRAIN = "train"


class Windows:
    """The last windows of one rank.

    A window begins and ends with a multiple of its length in steps, a power of two, so that those of all ranks are the
    same, or halves of each other, without an agreement.

    Attributes:
        kept: oldest first, each (steps done at its end, its length in steps, steps, looks, looks inside a collective,
            seconds by this node's clock); the last four without pauses. The first window is not kept: a start is slow.
        pauses: the last stretches (steps done at the begin, at the end, seconds) in which the rank did not only train.
            One that takes less than the interval of samples may be missed.
    """

    __slots__ = (
        "_cell",
        "_is_train",
        "_is_warm",
        "_is_whole",
        "_last",
        "_looks",
        "_paused_s",
        "_sampled",
        "_size",
        "_sums",
        "kept",
        "pauses",
    )

    def __init__(self) -> None:
        self.kept: list[tuple[int, int, int, int, int, float]] = []
        self.pauses: list[tuple[int, int, float]] = []
        self._last: tuple[int, int, int, float] | None = None
        self._is_train = self._is_warm = False
        self._sampled: tuple[str, float] = (TRAIN, 0.0)
        self._paused_s = 0.0
        self._size = 1
        self._cell = self._looks = 0
        self._sums = (0, 0, 0, 0.0)
        self._is_whole = False

    def update(self, steps: int, looks: int, inside: int, phase: str, now: float) -> None:
        """Store a sample of the rank's shared memory at time `now`. Everything is counted from step to step."""
        last = self._last
        self._is_train &= phase == TRAIN
        if self._sampled[0] != TRAIN:
            self._paused_s += now - self._sampled[1]
        self._sampled = phase, now
        if last is not None and steps == last[0]:
            return
        if last is None or steps < last[0]:  # back to a checkpoint
            self._begin(steps, is_whole=False)
        else:
            self._count(last[0], steps, looks - last[1], inside - last[2], now - last[3])
        self._last, self._is_train = (steps, looks, inside, now), phase == TRAIN

    def _count(self, begin: int, end: int, looks: int, inside: int, seconds: float) -> None:
        self._looks += looks
        if self._is_train:
            sums = self._sums
            self._sums = (sums[0] + end - begin, sums[1] + looks, sums[2] + inside, sums[3] + seconds)
        else:
            if self.pauses and self.pauses[-1][1] == begin:
                begin, _, before_s = self.pauses.pop()
                self._paused_s += before_s
            self.pauses = [*self.pauses, (begin, end, self._paused_s)][-KEPT:]
            self._paused_s = 0.0
        while end // self._size > self._cell and self._looks < LOOKS and self._cell % 2 == 0 and self._is_whole:
            self._size, self._cell = 2 * self._size, self._cell // 2
        if end // self._size > self._cell:
            self._close(end)

    def _close(self, steps: int) -> None:
        if self._is_whole:
            if self._is_warm and self._sums[1]:
                self.kept = [*self.kept, ((self._cell + 1) * self._size, self._size, *self._sums)][-KEPT:]
            self._is_warm |= self._looks >= LOOKS
            if self._looks >= 4 * LOOKS:
                self._size = max(1, self._size // 2)
        self._begin(steps, is_whole=True)

    def _begin(self, steps: int, *, is_whole: bool) -> None:
        self._cell, self._is_whole = steps // self._size, is_whole
        self._looks, self._sums = 0, (0, 0, 0, 0.0)
