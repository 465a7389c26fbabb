"""What a tick of `resil watch log` over ten thousand logs takes, with and without anything new in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import BenchmarkError, Claim, Options, Report, Row, Spread, interleave
from resilience.finding import Verdict
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.ports import System
from resilience.watch.watch import watch
from resilience.watch.watchdogs import load_watchdog

LINE = b"iteration %8d/ 500000 | consumed samples: %12d | elapsed time per iteration (s): 1.05 | lm loss: 2.1E+00 |\n"
TARGET_S = 1.0


def run(options: Options) -> Report:
    """Time whole ticks: targets, child, probe, judgement, findings, memory; against a bare stat of each log."""
    count = 1000 if options.quick else 10_000
    directory = options.scratch / "logs"
    directory.mkdir()
    paths = [directory / f"job{number:05d}.out" for number in range(count)]
    step = 0

    def write() -> None:
        nonlocal step
        step += 1
        for path in paths:
            with open(path, "ab") as file:
                file.write(LINE % (step, 2048 * step))

    for _ in range(10):
        write()
    system = System(cwd=options.scratch)
    project = Project(system, load(system))
    watchdog = load_watchdog(project, "log", {"paths": [f"{directory}/*.out"]})

    def tick() -> None:
        (report,) = watch(project, [watchdog])
        if report.verdict is not Verdict.OK or len(report.findings) != count + 1:
            raise BenchmarkError(f"{len(report.findings)} findings: {report.findings[0].summary}")

    first = Spread((_timed(tick),))

    def changed() -> float:
        write()
        return _timed(tick)

    def bare() -> float:
        return _timed(lambda: [os.stat(path).st_mtime for path in _listed(directory)])  # noqa: PTH116

    samples = {"bare": bare, "unchanged": lambda: _timed(tick), "changed": changed}
    taken = interleave(samples, min(options.samples, 7))
    rows = tuple(
        Row(f"tick, {what}", taken[name], f"scandir and stat of {count}", taken["bare"])
        for what, name in (("nothing new", "unchanged"), ("a new step in each", "changed"))
    )
    scale = count / 10_000
    claims = tuple(
        Claim(f"a tick over {count} logs, {what}, least", min(spread.values), TARGET_S * scale, "s")
        for what, spread in (("nothing new", taken["unchanged"]), ("a new step in each", taken["changed"]))
    )
    notes = (f"the first look, which reads the end of each log: {first.show('s')}",)
    return Report("the log watchdog over many logs", rows=rows, claims=claims, notes=notes)


def _listed(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
