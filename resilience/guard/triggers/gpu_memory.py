"""Gpu memory."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Request
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


class GpuMemory:
    """Watches it."""

    name = "gpu_memory"

    def __init__(self, place: Place, settings: GuardSettings, recorder: Recorder) -> None:
        self._settings = settings

    def poll(self) -> Request | None:
        """Look."""
        return None

    def done(self, outcome: str) -> None:
        """Nothing follows."""
