"""A run that is finished needs no training: seen before the first step only."""

from __future__ import annotations

import os

from resilience.guard.decision import EXIT_DONE, Request
from resilience.model import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.place import Place


class FinishedRun:
    """Asks once, at the start: whether an earlier job has finished the run."""

    name = "finished"
    ranks = "first"
    shared = True

    def __init__(self, place: Place) -> None:
        self._path = os.path.join(place.run_dir, layout.FINISHED)
        self._has_looked = False

    def poll(self) -> Request | None:
        """Look, the first time."""
        if self._has_looked:
            return None
        self._has_looked = True
        if not os.path.isfile(self._path):
            return None
        return Request(self.name, "the run is finished already", save=False, exit_code=EXIT_DONE)

    def done(self, outcome: str) -> None:
        """Nothing follows."""
