"""A watchdog for tests of the engine: it does what its settings and the fields of its class say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilience.finding import Figure, Finding, Verdict
from resilience.runs.context import Context
from resilience.watch.reading import Memory, Target, Timed
from resilience.watch.watchdogs import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class ASettings:
    """Settings of a test.

    Attributes:
        paths: what to look at.
        limit: from how much on it is bad.
    """

    paths: tuple[str, ...] = ("/a",)
    limit: int = 90


@dataclass(frozen=True, slots=True)
class AReading:
    used: int
    words: tuple[str, ...] = ()


def used_of(readings: Sequence[Timed[AReading]]) -> list[int]:
    return [timed.reading.used for timed in readings]


@dataclass
class ACheck:
    """Each part can be replaced by a function."""

    summary: str = "what a test looks at"
    Settings: type = ASettings
    Reading: type = AReading
    memory: Memory = field(default_factory=lambda: Memory(count=3))
    argument: str = "paths"
    example: str = "resil watch a /a"
    look: Callable[..., Any] = lambda target, before: {target.name: AReading(10)}
    say: Callable[..., Any] | None = None
    find: Callable[..., Any] | None = None
    calls: list[str] = field(default_factory=list)

    def targets(self, settings: ASettings, context: Context) -> Sequence[Target]:
        return self.find() if self.find is not None else [Target(path, (path,)) for path in settings.paths]

    def probe(
        self, target: Target, settings: ASettings, context: Context, before: Mapping[str, Timed[AReading]]
    ) -> Mapping[str, AReading]:
        return self.look(target, before)  # type: ignore[no-any-return]

    def judge(
        self, subject: str, readings: Sequence[Timed[AReading]], settings: ASettings, now: float
    ) -> Sequence[Finding]:
        if self.say is not None:
            return self.say(subject, readings)  # type: ignore[no-any-return]
        used = readings[-1].reading.used
        verdict = Verdict.CRITICAL if used >= settings.limit else Verdict.OK
        figures = (Figure(label="used", value=used, unit="%", crit=settings.limit),)
        fault = "" if verdict is Verdict.OK else "space"
        summary = f"{used}% used, before {used_of(readings[:-1])}"
        return [Finding(subject=subject, verdict=verdict, fault=fault, summary=summary, figures=figures)]


def a_watchdog(check: ACheck | None = None, name: str = "a", *, is_requested: bool = True, **settings: Any) -> Watchdog:
    return Watchdog(name, "a", check or ACheck(), ASettings(**settings), is_requested)
