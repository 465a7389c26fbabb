"""The state of a training before each of its last steps, and the data of those steps, in the memory of the host."""

from __future__ import annotations

import random
import sys
from collections import deque
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT_STEPS = 2
"""Damage to moments and weights is seen at the next step at the latest, so that the step before is replayed as well."""


class Snapshot(NamedTuple):
    """What is needed to do a step again.

    Attributes:
        step: the number of the step, by the guard's count.
        batch: its data: the very object that the training passed, not a copy.
        state: what `State.capture` returned before it.
        generators: the states of Python's and numpy's global random generators.
        layout: what `State.layout` returned before it.
    """

    step: int
    batch: Any
    state: Any
    generators: tuple[Any, Any]
    layout: object


class Ring:
    """The last `KEPT_STEPS` snapshots, oldest first."""

    def __init__(self) -> None:
        self.snapshots: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Add the snapshot of the next step. One that does not follow the last one makes the others useless, and so do
        layers that were frozen or added in between: a replay would not do that again."""
        last = self.snapshots[-1] if self.snapshots else snapshot
        if last is not snapshot and (last.step + 1, last.layout) != (snapshot.step, snapshot.layout):
            self.snapshots.clear()
        self.snapshots.append(snapshot)

    def oldest_to_reuse(self) -> Any:
        """Remove a snapshot that is not needed any more, and return its state, whose memory can be used again."""
        return self.snapshots.popleft().state if len(self.snapshots) >= KEPT_STEPS else None


def capture_generators() -> tuple[Any, Any]:
    """Return the states of the global random generators; of numpy's only if the training uses numpy."""
    numpy_random = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy_random is None else numpy_random.get_state()


def restore_generators(states: tuple[Any, Any]) -> None:
    """Set the global random generators."""
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy.random"].set_state(states[1])
