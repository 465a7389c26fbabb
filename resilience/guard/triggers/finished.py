"""Stops a training before its first step if the run is already finished."""

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
    """Checks once, at the start, whether an earlier job has finished the run.

    Later checks would find the file that this training writes itself at its end. A failed check does not stop the
    training.
    """

    name = "finished"
    ranks = "first"
    shared = True

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._path = os.path.join(place.run_dir, layout.FINISHED)
        self._run = place.run or os.path.basename(place.run_dir.rstrip("/"))
        self._recorder = recorder
        self._has_checked = False

    def poll(self) -> Request | None:
        """Check, at the first call only."""
        if self._has_checked:
            return None
        self._has_checked = True
        try:
            odd = kind_of(os.lstat(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._recorder.warn(f"cannot check whether the run is finished: {error}; the training continues")
            return None
        if odd:
            self._recorder.warn(f"{self._path} is {odd}, not a regular file: the run does not count as finished")
            return None
        why = f"the run is already finished (to train further: resil clear {self._run} --finished)"
        return Request(self.name, why, save=False, exit_code=EXIT_DONE)
