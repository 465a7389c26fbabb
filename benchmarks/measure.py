"""Times whole processes and functions in turn, so that what else the machine does hits each of them alike.

On a shared machine a figure of one minute says little about the next. What is compared here is compared in one run, a
sample of each after a sample of the other, the order turned round every time; the ratio of the medians is the result.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Sample = Callable[[], float]
"""Does the work once and returns what it took, in the unit of its row."""

MIB = 2**20


class BenchmarkError(Exception):
    """A sample did not do what it is timed for; its time would mean nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure.

    Attributes:
        quick: smaller inputs and fewer samples: to see that it works, not to be quoted.
        samples: how many of each, at least.
        scratch: an empty directory to work in, removed afterwards.
    """

    quick: bool
    samples: int
    scratch: Path


@dataclass(frozen=True, slots=True)
class Spread:
    """The samples of one thing, in seconds or bytes."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def show(self, unit: str) -> str:
        """`12.3 ms (11.9-20.1)`: the median, the least and the most."""
        scale, name = _scale(self.median, unit)
        low, high = min(self.values) / scale, max(self.values) / scale
        return f"{_digits(self.median / scale)} {name} ({_digits(low)}-{_digits(high)})"


@dataclass(frozen=True, slots=True)
class Row:
    """One claim.

    Attributes:
        what: what is claimed about.
        measured: its samples.
        baseline_name: what it is held against.
        baseline: the samples of that, taken in turn with the others.
        target: the ratio it may not exceed, or None for a row that only informs.
        unit: `s` or `B`.
    """

    what: str
    measured: Spread
    baseline_name: str
    baseline: Spread
    target: float | None = None
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """Median by median."""
        return self.measured.median / self.baseline.median

    @property
    def verdict(self) -> str:
        """`met`, `not met`, or nothing where there is no target."""
        if self.target is None:
            return ""
        return "met" if self.ratio <= self.target else "NOT MET"


@dataclass(frozen=True, slots=True)
class Claim:
    """A target that is no ratio: what was measured, and what it may be at the most.

    Attributes:
        what: what is claimed about.
        value: what was measured.
        most: the target, in the same unit; NaN for none.
        unit: as it is shown: `ns`, `ms`, `x`, `%`, `steps`.
    """

    what: str
    value: float
    most: float
    unit: str

    @property
    def verdict(self) -> str:
        """`met` or `NOT MET`; nothing where there is no target."""
        if self.most != self.most:
            return ""
        return "met" if self.value <= self.most else "NOT MET"

    def __str__(self) -> str:
        target = f" (target <= {self.most:g} {self.unit}: {self.verdict})" if self.verdict else ""
        return f"{self.what}: {_digits(self.value)} {self.unit}{target}"


@dataclass(frozen=True, slots=True)
class Report:
    """What one benchmark found: its rows, claims that are no ratios, and what a reader of them must know."""

    title: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A command line to time as a whole process.

    Attributes:
        env: its whole environment.
        prepare: called before each sample, outside the time taken.
        codes: exit codes that mean that it did its work: a watchdog's are verdicts.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    prepare: Callable[[], None] = field(default=lambda: None)
    codes: Collection[int] = (0,)

    def __call__(self) -> float:
        """Run it in this process's directory and return its wall time in seconds. Raise BenchmarkError if it fails."""
        self.prepare()
        return run_process(self.argv, self.env, self.codes)


def run_process(argv: Sequence[str], env: Mapping[str, str], codes: Collection[int] = (0,)) -> float:
    """Run a program to its end, its output thrown away, and return its wall seconds. Raise BenchmarkError if it fails.

    By posix_spawn: subprocess.Popen costs a millisecond, a tenth of the shortest process here.
    """
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), env, file_actions=nowhere)
    _, status = os.waitpid(pid, 0)
    took_s = time.perf_counter() - began
    code = os.waitstatus_to_exitcode(status)
    if code not in codes:
        raise BenchmarkError(f"exit code {code}: {' '.join(argv)}")
    return took_s


def timed(work: Callable[[], object], repeat: int = 1) -> Sample:
    """A sample of a function: the wall seconds of one call, averaged over `repeat` calls in a row."""

    def sample() -> float:
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        return (time.perf_counter() - began) / repeat

    return sample


def interleave(samples: Mapping[str, Sample], count: int, warm_ups: int = 1) -> dict[str, Spread]:
    """Take `count` samples of each in turn, A B C C B A A B C ..., after `warm_ups` of each that do not count."""
    order = list(samples)
    taken: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(-warm_ups, count):
        for name in order if turn % 2 else reversed(order):
            value = samples[name]()
            if turn >= 0:
                taken[name].append(value)
    return {name: Spread(tuple(values)) for name, values in taken.items()}


def interpreter_environment(**added: str) -> dict[str, str]:
    """The environment for timed Pythons: this one's, without what changes how Python starts.

    PYTHONDONTWRITEBYTECODE above all: with it every start compiles anew, which nobody's shell has.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RESIL_", "_TYPER"))}
    return kept | added


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table that can be read as it is."""
    head = ("what", "median (min-max)", "baseline", "its median (min-max)", "ratio", "target", "")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    target = "" if row.target is None else f"<= {show_ratio(row.target)}"
    measured, baseline = row.measured.show(row.unit), row.baseline.show(row.unit)
    return row.what, measured, row.baseline_name, baseline, show_ratio(row.ratio), target, row.verdict


def show_ratio(ratio: float) -> str:
    """`1.31x`, or `1/34` for what is far below one."""
    return f"1/{_digits(1 / ratio)}" if ratio < 0.2 else f"{_digits(ratio)}x"


def _scale(value: float, unit: str) -> tuple[float, str]:
    if unit == "B":
        return MIB, "MiB"
    if value >= 1:
        return 1.0, "s"
    return (1e-3, "ms") if value >= 1e-3 else (1e-6, "us")


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
