"""The step and the phase that the output of a program names, for those who have the output before a file has it."""

from __future__ import annotations

from resilience.watch.checks._log.digest import digest
from resilience.watch.checks._log.reading import LogState


class OutputStep:
    """What the lines of a program tell of its progress, as `resil watch log` reads them."""

    def __init__(self) -> None:
        self._state = LogState()

    def read(self, lines: bytes, now: float) -> None:
        """Read further whole lines, written at `now`, in seconds since the epoch."""
        self._state = digest(self._state, lines, written=now)

    @property
    def is_counted(self) -> bool:
        """Return whether lines that count steps were found."""
        return bool(self._state.kind)

    @property
    def step(self) -> int | None:
        """Return the newest step, or None if no line has named one."""
        return None if self._state.step is None else max(0, int(self._state.step))

    @property
    def phase(self) -> str:
        """Return what the program does beside training, or an empty text."""
        return self._state.phase
