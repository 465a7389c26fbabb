"""Compares the replicas of a training every few steps: tells rank 0 the digest of this rank's state, and reads the
answer some steps later. No rank waits."""

from __future__ import annotations

import math

from resilience.guard.agreement.reports import OF_STEPS, SAME
from resilience.guard.sdc.replicas import Replica, parse_difference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.sdc.replicas import Difference

MOST_UNANSWERED = 16
"""Comparisons that rank 0 has not answered; with more, a rank does not send the next."""


class Comparison:
    """The comparisons in which one rank takes part."""

    def __init__(self, every: int, group: str, place: RankInfo, recorder: Recorder, agreement: Any) -> None:
        """Compare every so many steps, never with 0; ranks with the same word as `group` must be equal."""
        self._every, self._group = every if place.world > 1 else 0, group
        self._place, self._recorder, self._agreement = place, recorder, agreement
        self._unanswered: dict[str, int] = {}
        self._has_told = False
        self._equal_step = 0

    def is_due(self, step: int) -> bool:
        """Return whether this rank is to tell its digest after a step: after the first one as well, because ranks that
        never were equal are no replicas."""
        if not self._every or (step % self._every and self._has_told):
            return False
        if len(self._unanswered) > MOST_UNANSWERED:
            why = "do all ranks have the same sdc and sdc_replicas_every, and do all call sdc.run?"
            self._recorder.warn(
                f"sdc: replicas are compared no more, because not every rank answers: {why}", key="same"
            )
            return False
        return True

    def tell(self, step: int, rewound: int, digest: str, largest: float) -> None:
        """Tell rank 0 the digest of this rank's state. `rewound`: by how many steps the training has gone back."""
        self._has_told = True
        key = f"{SAME}{step}.{rewound}{OF_STEPS}"
        largest = largest if math.isfinite(largest) else math.inf
        self._agreement.report(key, text=Replica(digest, largest, self._group, self._place.host).line())
        self._unanswered[key] = step

    def read(self) -> tuple[Difference, int, int] | None:
        """Return how replicas differ, after which step, and the last one after which they were equal; None if they do
        not, or if nobody has answered yet. Once they differ, they are compared no more."""
        for key, step in list(self._unanswered.items()):
            answer = self._agreement.reported(key)
            if answer is None:
                return None
            del self._unanswered[key]
            difference = parse_difference(answer.text)
            if difference is None:
                self._equal_step = self._equal_step if answer.faults else max(self._equal_step, step)
                continue
            self._every = 0
            self._unanswered.clear()
            if self._equal_step:
                return difference, step, self._equal_step
            if self._place.is_first:  # shards, stages, experts: no proof of anything
                self._recorder.warn(
                    f"sdc: after step {step} {difference}. They never were equal in this attempt, so replicas are not "
                    "compared. If that is as it must be, name the sets of equal ranks by guard.sdc(state, group=...), "
                    "or set sdc_replicas_every = 0. Otherwise the ranks have begun with different states"
                )
        return None
