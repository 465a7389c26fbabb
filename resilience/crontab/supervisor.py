"""Starts what runs, each with a supervisor of its own, and hears how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from resilience.model.cron import Entry, Ignored, Outcome, RunRecord
from resilience.model.cron_settings import CronSettings
from resilience.system.clock import SystemClock
from resilience.system.cron_folder import CronFolder
from resilience.system.ports import Clock


class Started(NamedTuple):
    """Whether a run began.

    Attributes:
        record: RUNNING: it is under way, and its end comes from `poll` or `wait`. SKIPPED or REFUSED: it did not begin,
            and this is written nowhere yet: whoever asked writes it into the history.
        hint: what to try where it was refused.
    """

    record: RunRecord
    hint: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it is under way."""
        return self.record.outcome is Outcome.RUNNING


class Supervised:
    """The runs that this scheduler has under way."""

    def __init__(
        self,
        folder: CronFolder,
        settings: CronSettings,
        *,
        project: Path,
        environment: Callable[[Entry, int], Mapping[str, str]],
        refuse: Callable[[Entry], Ignored | None] = lambda entry: None,
        secrets: Iterable[str] = (),
        clock: Clock | None = None,
        host: str = "",
    ) -> None:
        """`environment` gives what an entry's run sees (environment.py: `environment_of`); `refuse` is asked again in
        the last moment before it runs; `secrets` must stand in no output, those read in this process besides."""
        self._clock = clock or SystemClock()

    @property
    def running(self) -> tuple[RunRecord, ...]:
        """What is under way now, as RUNNING records, oldest first."""
        raise NotImplementedError

    def start(self, entry: Entry, slot: int) -> Started:
        """Begin the run of a slot that was taken before, and return at once. Never raises ResilError."""
        raise NotImplementedError

    def poll(self) -> tuple[RunRecord, ...]:
        """The ends since the last question. They are in the history already, or their summary says why not."""
        raise NotImplementedError

    def wait(self, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False) -> tuple[RunRecord, ...]:
        """As `poll`, but wait up to so long for the first one. `is_over` is asked each half second and ends it early;
        where nothing is under way, return at once."""
        raise NotImplementedError

    def end_all(self, grace_s: float, why: str = "the scheduler was told to end") -> tuple[RunRecord, ...]:
        """End all that is under way (TERM, KILL when the grace is nearly over); return their ends: CUT_SHORT."""
        raise NotImplementedError


def settle(folder: CronFolder, *, now: float, host: str = "") -> tuple[RunRecord, ...]:
    """Close the books of runs whose supervisor died: write CUT_SHORT (or the end that could not be written before) into
    the history, remove the mark, and return what was written. For the begin of each tick."""
    raise NotImplementedError
