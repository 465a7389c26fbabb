"""Bounds on the largest absolute value of each tensor of a training, learned from its own clean steps. Pure.

A published guard compares one optimizer moment with a constant, `m < 20.0`: made for one network and learning rate,
blind to -1e17, and multiplied into an update that stays NaN if the moment is NaN. Here a tensor is abnormal if its
largest absolute value is NaN or infinite, above `ceiling`, or above `times` its own largest one in the recent clean
steps: both signs, and every tensor by its own history. Healthy values and damaged ones lie many powers of ten apart (He
et al., ISCA 2023), so that the exact factor matters little.
"""

from __future__ import annotations

from operator import gt, le
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_LIMIT = 1.0
"""Values up to this are normal in any case: gradients that have nearly vanished may grow a thousandfold."""
LEAST_STEPS = 20
"""A tensor is compared with its own history from so many clean steps on; before, with the ceiling only."""


class Abnormal(NamedTuple):
    """A tensor whose largest absolute value is out of bounds.

    Attributes:
        name: such as `exp_avg of layer1.weight`.
        value: its largest absolute value; NaN if it has one.
        limit: the largest normal value.
    """

    name: str
    value: float
    limit: float

    def __str__(self) -> str:
        value = {"nan": "NaN", "inf": "infinite"}.get(str(self.value), f"{self.value:.3g}")
        return f"{self.name} is {value}, at most {self.limit:.3g} is normal"


class Bounds:
    """The limits of a list of tensors.

    The maximum of the recent clean steps is that of the current and of the previous half of the window, so that a step
    costs one comparison for each tensor, not one for each step of the window. A tensor that was zero in all of them has
    no history of its own: the ceiling holds.
    """

    def __init__(self, *, times: float = 100.0, ceiling: float = 1e6, window: int = 100) -> None:
        """Compare with `times` the largest value of at least the last `window / 2` clean steps, at most `window`."""
        self._times, self._ceiling = times, ceiling
        self._half = max(1, window // 2)
        self._names: tuple[str, ...] = ()
        self._current: list[float] = []
        self._previous: list[float] = []
        self._steps = 0  # clean steps of these tensors
        self._limits: list[float] = []

    @property
    def is_armed(self) -> bool:
        """Return whether tensors are compared with their history, not with the ceiling only."""
        return self._steps >= LEAST_STEPS

    def judge(self, names: Sequence[str], values: Sequence[float]) -> list[Abnormal]:
        """Return the tensors that are out of bounds, in the order of `names`. Changes nothing."""
        limits = self._limits if self._is_known(names) else [self._ceiling] * len(values)
        if all(map(le, values, limits)):  # false for NaN
            return []
        return [
            Abnormal(name, value, limit)
            for name, value, limit in zip(names, values, limits, strict=True)
            if not value <= limit
        ]

    def accept(self, names: Sequence[str], values: Sequence[float]) -> None:
        """Learn from a clean step."""
        if not self._is_known(names):
            self._rename(names)
        self._steps += 1
        has_grown = any(map(gt, values, self._current))
        if has_grown:
            self._current = list(map(max, self._current, values))
        if self._steps % self._half == 0:
            self._previous, self._current = self._current, list(values)
            has_grown = True
        if self._steps == LEAST_STEPS or (has_grown and self.is_armed):
            self._limits = [self._limit(max(both)) for both in zip(self._current, self._previous, strict=True)]

    def _limit(self, largest: float) -> float:
        """Return the largest normal value: never below one of a clean step, which a spike of the data may have been."""
        limit = max(LEAST_LIMIT, self._times * largest) if largest > 0 else self._ceiling
        return max(largest, min(self._ceiling, limit))

    def _is_known(self, names: Sequence[str]) -> bool:
        return tuple(names) == self._names

    def _rename(self, names: Sequence[str]) -> None:
        """Take another list of tensors: the optimizer has made its state, or layers were frozen. It is armed anew."""
        known = dict(zip(self._names, map(max, self._current, self._previous), strict=True))
        self._names = tuple(names)
        self._current = [known.get(name, 0.0) for name in names]
        self._previous = [0.0] * len(names)
        self._limits = [self._ceiling] * len(names)
        self._steps = 0
