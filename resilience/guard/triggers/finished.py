"""A run that is finished needs no training: seen before the first step only."""

from __future__ import annotations

import os

from resilience import layout
from resilience.base.files import kind_of
from resilience.guard.decision import EXIT_DONE, BuiltInTrigger, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder


class FinishedRun(BuiltInTrigger):
    """Asks once, at the start: whether an earlier job has finished the run.

    Later looks would see what this very training writes when it is done. "I could not look" is no reason not to train.
    """

    name = "finished"
    ranks = "first"
    shared = True

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._path = os.path.join(place.run_dir, layout.FINISHED)
        self._run = place.run or os.path.basename(place.run_dir.rstrip("/"))
        self._recorder = recorder
        self._has_looked = False

    def poll(self) -> Request | None:
        """Look, the first time."""
        if self._has_looked:
            return None
        self._has_looked = True
        try:
            odd = kind_of(os.lstat(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._recorder.warn(f"cannot see whether the run is finished: {error}; it is trained on")
            return None
        if odd:
            self._recorder.warn(f"{self._path} is {odd}, not a regular file: the run does not count as finished")
            return None
        why = f"the run is finished already (to train on: resil clear {self._run} --finished)"
        return Request(self.name, why, save=False, exit_code=EXIT_DONE)
