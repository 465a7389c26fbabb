"""SLURM's array expressions: `1-10%1`, `0-7:2`, `3,5,9`. Pure. Grammar: sbatch(1), --array."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from resilience.errors import UsageError

# ASCII: SLURM counts with 0 to 9 only. 18 digits: int() refuses very long texts with an error of its own.
_PART = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
_NUMBER = re.compile(r"[0-9]{1,18}")
MAX_TASKS = 4_000_001
"""More than SLURM's own upper bound of MaxArraySize (slurm.conf(5)): an expression beyond it is a slip."""


@dataclass(frozen=True, slots=True)
class ArrayExpression:
    """Which tasks an array has, and how many may run at once.

    Attributes:
        ranges: (first, last, step) each.
        throttle: the number after `%`, or None. None and 0 both mean: no limit (seen with sbatch 22.05).
    """

    ranges: tuple[tuple[int, int, int], ...]
    throttle: int | None = None

    @classmethod
    def parse(cls, text: str) -> ArrayExpression:
        """Given an expression, return it. Raise UsageError if sbatch would refuse it."""
        body, percent, limit = text.strip().partition("%")
        if percent and _NUMBER.fullmatch(limit) is None:
            raise _bad(text, "what follows % must be a number")
        ranges = []
        for part in body.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise _bad(text, f"{part!r} is not an index or a range")
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            if last < first:
                raise _bad(text, f"the range {part!r} runs backwards")
            if step == 0:
                raise _bad(text, f"the step in {part!r} is zero")
            ranges.append((first, last, step))
        expression = cls(tuple(ranges), int(limit) if percent else None)
        if expression.count > MAX_TASKS:
            raise _bad(text, f"that would be {expression.count} tasks")
        return expression

    @property
    def count(self) -> int:
        """How many tasks. An index written twice is one task, as it is to SLURM."""
        written = sum((last - first) // step + 1 for first, last, step in self.ranges)
        ends = sorted((first, last) for first, last, _ in self.ranges)
        apart = all(before[1] < after[0] for before, after in pairwise(ends))
        return written if apart or written > MAX_TASKS else len(self.indices())

    @property
    def largest(self) -> int:
        """The largest index; it must stay below the cluster's MaxArraySize."""
        return max(last - (last - first) % step for first, last, step in self.ranges)

    def indices(self) -> tuple[int, ...]:
        """Every index once, sorted."""
        return tuple(sorted({i for first, last, step in self.ranges for i in range(first, last + 1, step)}))

    def __str__(self) -> str:
        parts = []
        for first, last, step in self.ranges:
            parts.append(str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else ""))
        return ",".join(parts) + ("" if self.throttle is None else f"%{self.throttle}")


def serial_array(text: str) -> ArrayExpression:
    """Given what a person writes after `--array`, return the array meant.

    A bare number is how many jobs: `10` gives `1-10%1`. Without `%` the jobs run one after another. Raise UsageError if
    that is no array, or one of no jobs.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        if int(stripped) == 0:
            raise UsageError("an array of 0 jobs would queue nothing", hint="--array 10 queues ten, one after another")
        stripped = f"1-{stripped}"
    expression = ArrayExpression.parse(stripped)
    return expression if expression.throttle is not None else ArrayExpression(expression.ranges, 1)


def _bad(text: str, why: str) -> UsageError:
    return UsageError(
        f"{text!r} is not an array: {why}", hint="--array 10 (ten, one after another), 1-10%2, 0-20:5 or 3,5,9"
    )
