"""A newer attempt of the run has begun: this one stops without saving over what the other reads."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Request
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder


class Superseded:
    """Looks for attempts with a greater number."""

    name = "superseded"
    ranks = "first"
    shared = True

    def __init__(self, place: Place, recorder: Recorder) -> None:
        self._place = place
        self._recorder = recorder

    def poll(self) -> Request | None:
        """Look for a newer attempt."""
        return None

    def done(self, outcome: str) -> None:
        """Nothing follows: this attempt is over."""
