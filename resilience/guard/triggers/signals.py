"""Signals to the process: a handler that sets a flag, and nothing else."""

from __future__ import annotations

import collections
import signal
import threading

from resilience.guard.decision import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from resilience.guard.gate import Gate
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


class Signals:
    """The handlers of this process."""

    name = "signal"

    def __init__(self, place: Place, settings: GuardSettings, recorder: Recorder, gate: Gate) -> None:
        self._settings = settings
        self._recorder = recorder
        self._gate = gate
        self._seen: collections.deque[int] = collections.deque()
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Set the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in self._settings.signals:
            number = getattr(signal, f"SIG{name}")
            self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give back what was there before."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            signal.signal(number, before)

    def take(self) -> list[Request]:
        """What came since the last call, as requests."""
        taken = []
        while self._seen:
            taken.append(Request(self.name, f"{signal.Signals(self._seen.popleft()).name} came"))
        return taken

    def poll(self) -> Request | None:
        """The same from the watching thread, for a training that does not step."""
        taken = self.take()
        return taken[0] if taken else None

    def done(self, outcome: str) -> None:
        """Nothing follows."""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen.append(number)
        self._gate.urgent = True
        self._gate.limit = self._gate.poll_limit = 0
