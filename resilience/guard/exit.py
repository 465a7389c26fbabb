"""A decided exit happens: if the process does not end in time, all stacks are written and it is ended by force."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Decision
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


class ForcedExit:
    """Armed by a decision to stop."""

    def __init__(self, place: Place, settings: GuardSettings, recorder: Recorder) -> None:
        self._place = place
        self._settings = settings
        self._recorder = recorder

    def arm(self, decision: Decision, slowest_save_s: float | None) -> None:
        """A stop was given to the training."""

    def left(self, decision: Decision | None) -> None:
        """The guard was closed."""
