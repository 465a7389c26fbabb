"""How long the guard waits for saves in flight before it gives them up, and what it says meanwhile."""

from __future__ import annotations

import math
import time

from resilience.guard.exit import SAVES
from resilience.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.loop import LoopState
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.saves import SaveBlock
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer

DAY_S = 86_400.0
BEFORE_END_S = 5.0
"""A save in flight is abandoned this long before the job's end, which leaves time to report the failure; of less than
four times as long, after three quarters."""
UNKNOWN_SAVE_S = 20.0
"""Assumed duration of a save in flight after an error, if no save was measured."""
REPORT_EVERY_S = 30.0


class Drain:
    """The wait for saves in flight.

    Args:
        left_s: returns how many seconds are left until the forced exit; infinity if none is due.
    """

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        loop: LoopState,
        timer: StepTimer,
        left_s: Callable[[], float],
    ) -> None:
        self._place, self._settings, self._recorder = place, settings, recorder
        self._loop, self._timer = loop, timer
        self._left_s = left_s
        self._reported_s = 0.0

    def limit_s(self) -> float:
        """Return how long a save in flight may still take: three times the slowest save or `exit_timeout_s`, whichever
        is longer, but not beyond the job's end. After an error or a hung save: three times the slowest save."""
        slowest_s = self._timer.slowest_save_s
        if self._loop.is_unrecoverable or self._loop.hangs:
            wait_s = SAVES * (UNKNOWN_SAVE_S if slowest_s is None else max(1.0, slowest_s))
        else:
            wait_s = max(self._settings.exit_timeout_s or DAY_S, SAVES * (slowest_s or 0.0))
        left_s = self._left_s()
        if self._place.end_time is not None:
            left_s = min(left_s, self._place.end_time - time.time())
        return max(0.0, wait_s if left_s == math.inf else min(wait_s, left_s - min(BEFORE_END_S, left_s / 4)))

    def report(self, saving: SaveBlock, waited_s: float) -> None:
        """Report every half minute that the training waits for a save in flight."""
        if waited_s < self._reported_s:
            self._reported_s = 0.0
        if waited_s >= self._reported_s + REPORT_EVERY_S:
            self._reported_s = waited_s
            slowest_s = self._timer.slowest_save_s
            usual = "" if slowest_s is None else f"; the slowest save took {format_duration(round(slowest_s))}"
            self._recorder.say(
                f"rank {self._place.rank} has waited {waited_s:.0f} s for the save of step {saving.step} to be "
                f"durable{usual}"
            )
