"""The loss: not a number, infinite, or far from what it was."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from resilience.guard.decision import Request
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


class Loss:
    """Looks at each loss that the training gives; the training thread calls `look`."""

    name = "loss"

    def __init__(self, place: Place, settings: GuardSettings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder

    def look(self, loss: Any, step: int) -> Request | None:
        """Judge one loss."""
        return None

    def hear(self, triggers: Iterable[str], outcome: str) -> None:
        """A decision was obeyed that these triggers asked for."""
