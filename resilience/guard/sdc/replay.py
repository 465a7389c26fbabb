"""Decides about an abnormal step by its replay: the same step again, from the same state with the same data. Pure.

Arithmetic cannot undo an update: in 32 bits a moment that has taken a gradient of 1e8 has lost what it was before. So
the state is copied before each step (`ring.py`), and the replay is exact where the training is: the same inputs give
the same bits. That tells a fault of the hardware from the training's own: only hardware computes other bits from the
same inputs.

If the replay is abnormal too, with the same bits or about the same value, nobody can tell from this process alone: a
gradient that explodes because of the data or the learning rate repeats, and so does damage from before the copies, or a
unit that is always wrong in the same way. So such a repetition alone is never evidence against a node. About the same,
because on a GPU some operations add in any order, and a spike of the data then has other low bits.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from resilience.guard.sdc.bounds import Abnormal


class Verdict(StrEnum):
    """What an abnormal step was."""

    TRANSIENT = "transient"
    """The replay was clean: the first computation was wrong. The training goes on from the replay."""
    UNSTABLE = "unstable"
    """The replay was abnormal as well, with another value: the hardware computes wrong values again and again."""
    REPEATED = "repeated"
    """The replay was abnormal in the same way: the training's own, damage from before, or a unit that is stuck."""


ALIKE = 2.0
"""Two values are about the same if their ratio is less."""


class Finding(NamedTuple):
    """What one rank found abnormal in a step.

    Attributes:
        rank, node: of it.
        digest: of its gradients, parameters, optimizer state and buffers, before the update.
        what: as words.
        worst: the largest abnormal value; infinite for NaN.
    """

    rank: int
    node: str
    digest: str
    what: str
    worst: float

    def text(self) -> str:
        """Return what the rank reports to the others; `parse_finding` reads it."""
        return f"{_FOUND}{self.node} {self.digest} {self.worst!r}: {self.what}"


class Sighting(NamedTuple):
    """An abnormal step, the same on every rank.

    Attributes:
        step: by the guard's count.
        findings: of the ranks that found something, in their order.
    """

    step: int
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> float:
        """Return the largest abnormal value of all ranks."""
        return max(one.worst for one in self.findings)


_FOUND = "sdc on "
"""How a rank begins what it has found, by which the others tell it from a broken connection."""


def parse_finding(fault: str) -> Finding | None:
    """Return the finding in a fault of the agreement: `rank 3: sdc on n17 DIGEST 1e+17: WHAT`; or None."""
    match = re.fullmatch(rf"rank (\d+): {_FOUND}(\S*) (.*?) ([-+.e\d]+|inf): (.*)", fault, re.DOTALL)
    return Finding(int(match[1]), match[2], match[3], match[5], float(match[4])) if match else None


def worst_of(found: Sequence[Abnormal]) -> float:
    """Return the largest of abnormal values; infinite for NaN."""
    return max(one.value if one.value == one.value else math.inf for one in found)


def words_of(found: Sequence[Abnormal]) -> str:
    """Return the abnormal tensors of a rank as words."""
    others = f", and {len(found) - 1} others" if len(found) > 1 else ""
    return f"{str(found[0])[:300]}{others}"


WRONG_COMPUTATIONS = {Verdict.TRANSIENT: 1, Verdict.UNSTABLE: 2, Verdict.REPEATED: 0}
"""How many computations the hardware is proven to have got wrong: facts for the evidence about its node."""


def decide(first: Sighting, again: Sighting | None) -> Verdict:
    """Given the abnormal step and what its replay found, None if it was clean, return what it was."""
    if again is None:
        return Verdict.TRANSIENT
    found = {one.rank: one for one in again.findings}
    is_alike = any(_is_alike(one, found[one.rank]) for one in first.findings if one.rank in found)
    return Verdict.REPEATED if first.step == again.step and is_alike else Verdict.UNSTABLE


def _is_alike(one: Finding, other: Finding) -> bool:
    low, high = sorted((one.worst, other.worst))
    return one.digest == other.digest or low == high or high < ALIKE * low


def words_of_sighting(first: Sighting, world: int) -> str:
    """Return who has found what in an abnormal step, in words."""
    one = first.findings[0]
    others = f" (and {len(first.findings) - 1} other ranks)" if len(first.findings) > 1 else ""
    return f"{f'rank {one.rank} on {one.node}{others}: ' if world > 1 else ''}{one.what}, at step {first.step}"


def describe(
    verdict: Verdict, first: Sighting, *, world: int, replayed: int, before: int = 0, goes_on: bool = False
) -> str:
    """Return the verdict as a sentence without a full stop, for people.

    `replayed`: how many steps were. `before`: how often this rank has been wrong before, and the replay clean.
    `goes_on`: a step that was abnormal in the same way again is applied.
    """
    what = words_of_sighting(first, world)
    steps = f"{replayed} steps were" if replayed > 1 else "the step was"
    if verdict is Verdict.TRANSIENT:
        again = f". It is the hardware's: this rank was wrong {before} times before" if before else ""
        return f"{what}. The training did not cause it: {steps} replayed, clean, and it goes on from there{again}"
    if verdict is Verdict.UNSTABLE:
        return f"{what}: replayed, it has another value that is abnormal: the hardware computes wrong values"
    if goes_on:
        return (
            f"{what}: replayed, it is the same again, so it is most likely the training's own (its data, its learning "
            "rate). It is applied, because it is below sdc_ceiling, and the training goes on. If it happens often, "
            "raise sdc_times"
        )
    return (
        f"{what}: replayed, it is the same again. Either it is the training's own (its data, its learning rate), or "
        "the state was damaged before, or a unit is always wrong in the same way: see whether another node gets past "
        "this step. If such values are normal for this training, raise sdc_ceiling"
    )
