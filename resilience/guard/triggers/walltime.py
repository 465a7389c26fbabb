"""Walltime."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Request
    from resilience.guard.pace import Pace
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


class Walltime:
    """Watches it."""

    name = "walltime"
    ranks = "first"

    def __init__(self, place: Place, settings: GuardSettings, recorder: Recorder, pace: Pace) -> None:
        self._settings = settings

    def poll(self) -> Request | None:
        """Look."""
        return None

    def done(self, outcome: str) -> None:
        """Nothing follows."""
