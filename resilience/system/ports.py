"""Interfaces of the clock and of what runs programs, so that tests can answer instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from resilience.system.process import Completed


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Runner(Protocol):
    """Runs programs with a deadline."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """Run to the end. Raise a ProbeError if the program could not be run or did not end in time."""
        ...

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Yield the lines of its standard output. Raise CommandFailed at the end if it failed."""
        ...
