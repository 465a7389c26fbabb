"""How often `resil watch log` cries wolf, and how long it takes to find a hang: a day of each simulated trainer.

`python -m benchmarks.log_watchdog_days [--only NAME] [--seed N] [--held-out N]` prints a table and exits with 1 if a
target is missed: at most one false alarm in 1,000 hours, and every hang found within three times the longest pause so
far or 30 minutes. tests/watch/trainers has the trainers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.measure import Claim, Options, Report
from resilience.finding import Verdict
from tests.watch.trainers import all_trainers
from tests.watch.trainers.watching import KINDS, Result, false_rate, watch_day

MOST_FALSE = 1.0
"""False alarms in 1,000 hours."""
QUICK = ("Megatron", "HuggingFaceWithoutBar", "Timm", "JsonLines")
HEAD = ("trainer", "step line every", "longest pause", "warnings", "critical", "notices", *KINDS, "")


def run(options: Options) -> Report:
    """Watch a day of each trainer, or six hours of a few."""
    names = QUICK if options.quick else tuple(all_trainers())
    results = list(watch_all(names, hours=6.0 if options.quick else 24.0))
    print(table(results))
    late = sum(not delay.is_in_time for result in results for delay in result.delays)
    claims = (
        Claim("false alarms in 1,000 hours", false_rate(results), MOST_FALSE, "alarms"),
        Claim("hangs found too late, or never", late, 0.0, f"of {sum(len(one.delays) for one in results)} hangs"),
    )
    return Report("the log watchdog over days of simulated trainers", (), totals(results), claims)


def main(arguments: Sequence[str]) -> int:
    """Watch the trainers that were asked for, print their table, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_watchdog_days", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="this trainer; may be repeated")
    parser.add_argument(
        "--held-out", nargs="?", type=int, choices=(1, 2), const=1, default=0, metavar="N",
        help="trainers that the watchdog was not tuned with: the first set, or the second",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of all chances (default 0)")
    parser.add_argument("--hours", type=float, default=24.0, help="of the healthy day (default 24)")
    parser.add_argument("--tick", type=float, default=60.0, metavar="SECONDS", help="between two probes (default 60)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default 1)")
    parser.add_argument("--alarms", action="store_true", help="print each false alarm and late hang")
    wanted = parser.parse_args(arguments)
    known = all_trainers(wanted.held_out)
    names = wanted.only or tuple(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no trainer {unknown[0]!r}; there are: {', '.join(known)}")
    results = []
    began = time.monotonic()
    for result in watch_all(
        names, hours=wanted.hours, tick_s=wanted.tick, seed=wanted.seed, held_out=wanted.held_out, jobs=wanted.jobs
    ):
        results.append(result)
        if wanted.alarms:
            print("\n".join(_details(result)), flush=True)
        elif sys.stderr.isatty():
            print(f"\r{len(results)} of {len(names)}", end="", file=sys.stderr, flush=True)
    print(table(results))
    print("\n".join(("", *totals(results), f"took {time.monotonic() - began:.0f} s")))
    return (
        0 if false_rate(results) <= MOST_FALSE and all(one.is_in_time for two in results for one in two.delays) else 1
    )


def watch_all(
    names: Iterable[str],
    *,
    hours: float = 24.0,
    tick_s: float = 60.0,
    seed: int = 0,
    held_out: int = 0,
    jobs: int = 1,
) -> Iterator[Result]:
    """Yield the result of each trainer."""
    tasks = [(name, hours, tick_s, seed, held_out) for name in names]
    if jobs == 1:
        yield from map(_watch, tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_watch, tasks)


def _watch(task: tuple[str, float, float, int, int]) -> Result:
    name, hours, tick_s, seed, held_out = task
    trainer = all_trainers(held_out)[name]
    with tempfile.TemporaryDirectory(prefix="resil-trainer-") as scratch:
        return watch_day(trainer, name, Path(scratch), seed=seed, hours=hours, tick_s=tick_s)


def table(results: Sequence[Result]) -> str:
    """Return a row for each trainer, in Markdown: a hang's delay, and in brackets the time until it was CRITICAL."""
    rows = [HEAD, *(_row(result) for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _row(result: Result) -> tuple[str, ...]:
    delays = {delay.kind: delay for delay in result.delays}
    cells = []
    for kind in KINDS:
        delay = delays.get(kind)
        if delay is None:
            cells.append("")
            continue
        late = "" if delay.is_in_time else "**"
        critical = "" if delay.critical_s == delay.first_s else f" ({_minutes(delay.critical_s)})"
        cells.append(f"{late}{_minutes(delay.first_s)}{late}{critical}")
    warnings = result.count(Verdict.WARNING) + result.count(Verdict.UNKNOWN)
    return (
        result.name, f"{result.interval_s:.0f} s", _minutes(result.pause_s), str(warnings),
        str(result.count(Verdict.CRITICAL)), str(result.notices), *cells, "" if result.is_right else "NOT MET",
    )  # fmt: skip


def _minutes(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds / 60:.0f} min"


def totals(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the sums, in words."""
    hours = sum(result.hours for result in results)
    noisy = [result for result in results if result.false_alarms]
    due = sum(alarm.is_due for result in results for alarm in result.alarms)
    lines = [
        f"{len(results)} trainers, {hours:.0f} h: {sum(one.false_alarms for one in results)} false alarms from "
        f"{len(noisy)} of them, {false_rate(results):.1f} in 1,000 h (target {MOST_FALSE:g}); {due} more in pauses "
        "longer than the bound of hangs",
        f"alarms by verdict: {sum(one.count(Verdict.WARNING) for one in results)} WARNING, "
        f"{sum(one.count(Verdict.CRITICAL) for one in results)} CRITICAL, "
        f"{sum(one.count(Verdict.UNKNOWN) for one in results)} UNKNOWN; "
        f"{sum(one.notices for one in results)} notices that the form of a log is unknown",
    ]
    for kind in KINDS:
        delays = [delay for result in results for delay in result.delays if delay.kind == kind]
        found = sorted(delay.first_s for delay in delays if delay.first_s is not None)
        if delays:
            late = sum(not delay.is_in_time for delay in delays)
            median = _minutes(statistics.median(found)) if found else "never"
            longest = _minutes(found[-1] if found else None)
            lines.append(
                f"hangs, {kind}: {len(delays)}, found after {median} (median), {longest} at most; never found "
                f"{len(delays) - len(found)}, late or never {late}"
            )
    return tuple(lines)


def _details(result: Result) -> Iterator[str]:
    """Yield what went wrong, for who tunes the watchdog."""
    yield f"{result.name}: {'right' if result.is_right else 'WRONG'}"
    for alarm in result.alarms:
        due = ", due" if alarm.is_due else ""
        length = (alarm.end - alarm.begin) / 60
        when = f"{alarm.begin / 60:.0f} min, for {length:.0f} min{due}"
        yield f"    {when}: {alarm.verdict.name} {alarm.fault}: {alarm.summary[:220]}"
    for delay in result.delays:
        if not delay.is_in_time:
            yield (
                f"    hang ({delay.kind}) at {delay.since / 60:.0f} min, to find within {_minutes(delay.bound_s)}: "
                f"{_minutes(delay.first_s)}: {delay.summary[:220]}"
            )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
