"""A log watchdog as the engine runs it: each target probed in a child, with readings stored as JSON between ticks."""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from resilience.errors import SchedulerUnavailable
from resilience.finding import Finding
from resilience.records import from_record, to_record
from resilience.runs.context import Context
from resilience.system.ports import SystemClock
from resilience.watch.checks.log import CHECK
from resilience.watch.reading import Timed
from tests.lab.fakes import FakeClock, make_system
from tests.lab.waiting import until
from tests.watch.checks.outcome import outcome

MINUTE, HOUR = 60.0, 3600.0


class LogWatcher:
    """One watchdog over many ticks, in real time unless given a clock."""

    def __init__(
        self,
        directory: Path,
        *paths: str | Path,
        clock: FakeClock | None = None,
        scheduler: Callable[..., Any] | None = None,
        **settings: Any,
    ) -> None:
        self.directory, self.fake_clock = directory, clock
        self.clock = clock or SystemClock()
        self.settings = CHECK.Settings(paths=tuple(map(str, paths)), **settings)
        self.context = Context(
            system=make_system(directory, clock=self.clock, cwd=directory), project=directory, state_dir=directory /
            "runs", run="gpt", group="", scheduler=scheduler or _no_scheduler,
        )  # fmt: skip
        self.memory: dict[str, Timed[Any]] = {}

    def anew(self, *paths: str | Path, **settings: Any) -> LogWatcher:
        """Return a watchdog of the same directory and clock without readings; by default with the same paths."""
        return LogWatcher(self.directory, *(paths or self.settings.paths), clock=self.fake_clock, **settings)

    def write(self, text: str | bytes, name: str | Path = "", *, age_s: float = 0.0) -> Path:
        """Append to a log, by default the first one, with a write this long ago."""
        path = self.directory / (name or self.settings.paths[0])
        return write(path, text, at=self.clock.now() - age_s, append=True)

    def findings(self) -> list[Finding]:
        """Run one tick; return the findings about logs and runs."""
        return [finding for finding in self.all_findings() if finding.fault or finding.looked != (finding.summary,)]

    def all_findings(self) -> list[Finding]:
        """Run one tick; return all findings, including those about patterns and the state directory."""
        readings: dict[str, Timed[Any]] = {}
        for target in CHECK.targets(self.settings, self.context):
            for subject, reading in CHECK.probe(target, self.settings, self.context, self.memory).items():
                record = json.loads(json.dumps(marshal.loads(marshal.dumps(to_record(reading)))))
                readings[subject] = Timed(self.clock.now(), from_record(CHECK.Reading, record))
        self.memory |= readings
        return [
            finding
            for subject, timed in readings.items()
            for finding in CHECK.judge(subject, (timed,), self.settings, self.clock.now())
        ]

    def finding(self) -> Finding:
        """Run one tick; return its only finding."""
        found = self.findings()
        assert len(found) == 1, found
        return found[0]

    def outcome(self) -> str:
        """Run one tick; return the verdict and the fault of its only finding."""
        return outcome(self.finding())

    def outcomes(self) -> dict[str, str]:
        """Run one tick; return the verdict and the fault of each log by file name."""
        return {Path(finding.subject).name: outcome(finding) for finding in self.findings()}

    def until(self, is_expected: Callable[[Finding], bool]) -> Finding:
        """Tick until a finding is as expected."""
        return until(lambda: [finding for finding in self.findings() if is_expected(finding)])[0]


def _no_scheduler(*_: str) -> NoReturn:
    raise SchedulerUnavailable("squeue does not answer")


def write(path: Path, content: str | bytes, *, at: float, append: bool = False) -> Path:
    """Write a log with a last write at a time of the fake clock."""
    with open(path, "ab" if append else "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.utime(path, (at, at))
    return path
