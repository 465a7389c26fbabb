"""The `with` blocks that a guard hands out: around a save, and around a phase."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from resilience.guard.training_guard import TrainingGuard


class Saving:
    """The `with` block around a save. An exception in it passes through; what asked for the save hears that it failed.

    One inside another is part of the outer one: trainers call each other's save methods.
    """

    def __init__(self, guard: TrainingGuard) -> None:
        self._guard = guard
        self._began = 0.0

    def __enter__(self) -> Saving:
        self._began = time.monotonic()
        self._guard._enter_save()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._guard._leave_save(time.monotonic() - self._began, error)


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
