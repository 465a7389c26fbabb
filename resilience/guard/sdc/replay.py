"""Decides about an abnormal step by its replay: the same step again, from the same state with the same data. Pure.

Arithmetic cannot undo an update: in 32 bits a moment that has taken a gradient of 1e8 has lost what it was before. So
the state is copied before each step (`ring.py`), and the replay is exact where the training is: the same inputs give
the same bits. That tells a fault of the hardware from the training's own: only hardware computes other bits from the
same inputs.

If the replay is abnormal too, with the same bits, nobody can tell from this process alone: a gradient that explodes
because of the data or the learning rate repeats bit by bit, and so does damage from before the copies, or a unit that
is always wrong in the same way. So such a repetition alone is never evidence against a node.
"""

from __future__ import annotations

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
    """The replay was abnormal as well, with other bits: the hardware computes wrong values again and again."""
    REPEATED = "repeated"
    """The replay was abnormal with the same bits: the training's own, damage from before, or a unit that is stuck."""


class Finding(NamedTuple):
    """What one rank found abnormal in a step.

    Attributes:
        rank, node: of it.
        digest: of its gradients, parameters, optimizer state and buffers, before the update.
        what: as words.
    """

    rank: int
    node: str
    digest: str
    what: str

    def text(self) -> str:
        """Return what the rank reports to the others; `parse_finding` reads it."""
        return f"{_FOUND}{self.node} {self.digest}: {self.what}"


class Sighting(NamedTuple):
    """An abnormal step, the same on every rank.

    Attributes:
        step: by the guard's count.
        findings: of the ranks that found something, in their order.
    """

    step: int
    findings: tuple[Finding, ...]


_FOUND = "sdc on "
"""How a rank begins what it has found, by which the others tell it from a broken connection."""


def parse_finding(fault: str) -> Finding | None:
    """Return the finding in a fault of the agreement: `rank 3: sdc on n17 DIGEST: WHAT`; None if it is another."""
    rank, _, rest = fault.removeprefix("rank ").partition(": ")
    words, _, what = rest.removeprefix(_FOUND).partition(": ")
    node, _, digest = words.partition(" ")
    return Finding(int(rank), node, digest, what) if rest.startswith(_FOUND) and rank.isdecimal() else None


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
    return Verdict.REPEATED if _bits(first) == _bits(again) else Verdict.UNSTABLE


def _bits(sighting: Sighting) -> tuple[int, tuple[tuple[int, str], ...]]:
    return sighting.step, tuple((one.rank, one.digest) for one in sighting.findings)


def words_of_sighting(first: Sighting, world: int) -> str:
    """Return who has found what in an abnormal step, in words."""
    one = first.findings[0]
    others = f" (and {len(first.findings) - 1} other ranks)" if len(first.findings) > 1 else ""
    return f"{f'rank {one.rank} on {one.node}{others}: ' if world > 1 else ''}{one.what}, at step {first.step}"


def describe(verdict: Verdict, first: Sighting, *, world: int, replayed: int, before: int = 0) -> str:
    """Return the verdict as a sentence without a full stop, for people.

    `replayed`: how many steps were. `before`: how often this rank has been wrong before, and the replay clean.
    """
    what = words_of_sighting(first, world)
    steps = f"{replayed} steps were" if replayed > 1 else "the step was"
    if verdict is Verdict.TRANSIENT:
        again = f". It is the hardware's: this rank was wrong {before} times before" if before else ""
        return f"{what}. The training did not cause it: {steps} replayed, clean, and it goes on from there{again}"
    if verdict is Verdict.UNSTABLE:
        return f"{what}: replayed, it is abnormal again, with other bits: the hardware computes wrong values"
    return (
        f"{what}: replayed, it has the same bits. Either it is the training's own (its data, its learning rate), or "
        "the state was damaged before, or a unit is always wrong in the same way: see whether another node gets past "
        "this step. If such values are normal for this training, raise sdc_ceiling or sdc_times"
    )
