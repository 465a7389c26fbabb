"""A log watchdog as the engine runs it: target by target, each reading from a child, and as JSON from look to look."""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from resilience.finding import Finding
from resilience.records import from_record, to_record
from resilience.runs.context import Context
from resilience.system.world import SystemClock
from resilience.watch.checks.log import CHECK
from resilience.watch.reading import Timed
from tests.fakes import FakeClock, make_world


class LogWatcher:
    """One watchdog over many ticks. Without a clock it lives in real time."""

    def __init__(self, folder: Path, *paths: str | Path, clock: FakeClock | None = None, **settings: Any) -> None:
        self.clock = clock or SystemClock()
        self.settings = CHECK.Settings(paths=tuple(map(str, paths)), **settings)
        self.scene = Context(
            world=make_world(folder, clock=self.clock, cwd=folder), project=folder, state_dir=folder / "runs",
            run="gpt", group="", scheduler=_no_scheduler,
        )  # fmt: skip
        self.memory: dict[str, Timed[Any]] = {}

    def look(self) -> list[Finding]:
        """One tick: what is said of logs and runs."""
        return [finding for finding in self.look_at_all() if finding.fault or finding.looked != (finding.summary,)]

    def look_at_all(self) -> list[Finding]:
        """One tick: what is said of patterns and the state directory as well."""
        readings: dict[str, Timed[Any]] = {}
        for target in CHECK.targets(self.settings, self.scene):
            for subject, reading in CHECK.probe(target, self.settings, self.scene, self.memory).items():
                record = json.loads(json.dumps(marshal.loads(marshal.dumps(to_record(reading)))))
                readings[subject] = Timed(self.clock.now(), from_record(CHECK.Reading, record))
        self.memory |= readings
        return [
            finding
            for subject, timed in readings.items()
            for finding in CHECK.judge(subject, (timed,), self.settings, self.clock.now())
        ]

    def one(self) -> Finding:
        """One tick that has one finding."""
        found = self.look()
        assert len(found) == 1, found
        return found[0]

    def until(self, is_true: Callable[[Finding], bool]) -> Finding:
        """Look until a finding is as wanted."""
        from tests.guard.guards import wait_until

        last: list[Finding] = []

        def looked() -> bool:
            last[:] = [finding for finding in self.look() if is_true(finding)]
            return bool(last)

        wait_until(looked)
        return last[0]


def _no_scheduler() -> NoReturn:
    raise AssertionError("the log watchdog asks no scheduler")


def write(path: Path, content: str | bytes, *, at: float, append: bool = False) -> Path:
    """Write a log whose last write was at a time of a clock set by hand."""
    with open(path, "ab" if append else "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.utime(path, (at, at))
    return path
