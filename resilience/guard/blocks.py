"""The `with` blocks that a guard hands out: around a save, and around a phase."""

from __future__ import annotations

import time

from resilience.guard.decision import FAILED, SAVED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from resilience.guard.training_guard import TrainingGuard


class Saving:
    """The `with` block around a save."""

    def __init__(self, guard: TrainingGuard) -> None:
        self._guard = guard
        self._began = 0.0
        self._phase = ""

    def __enter__(self) -> Saving:
        guard = self._guard
        guard._saving_depth += 1
        if guard._saving_depth == 1:
            self._began = time.monotonic()
            self._phase, guard._phase = guard._phase, "save"
            if guard._parts is not None and guard._state == RUNNING:
                guard._parts.save_begins(guard.count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        guard = self._guard
        guard._saving_depth -= 1
        if guard._saving_depth:
            return
        seconds = time.monotonic() - self._began
        guard._phase = self._phase
        if guard._parts is not None and guard._state == RUNNING:
            guard._parts.save_ended(guard.count, seconds, error, self._phase)
        guard._settle(SAVED if error is None else FAILED, seconds)


class Phase:
    """What `phase()` returns: leaving its `with` block restores the phase before."""

    def __init__(self, guard: TrainingGuard, before: str) -> None:
        self._guard = guard
        self._before = before

    def __enter__(self) -> Phase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._guard.phase(self._before)
