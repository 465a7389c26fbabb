"""What the watch for silent data corruption finds, what it takes for one that is none, and what it costs."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks._peers import peers_interpreter, run_program
from benchmarks.measure import Claim, Options, Report, Row, Spread

NETS = ("mlp", "cnn", "transformer")
CLEAN_STEPS, INJECTIONS, BELOW = 36_000, 2_000, 400
MOST_MISSED_PERCENT = 1.0


def run(options: Options) -> Report:
    """Train three small networks without faults, then inject values into them, then time their steps."""
    python, note = peers_interpreter()

    def program(*arguments: str) -> dict[str, Any]:
        line = run_program("_sdc_nets", arguments, python=python, scratch=options.scratch, deadline_s=3600)
        found: dict[str, Any] = json.loads(line)
        return found

    scale = 100 if options.quick else 1
    clean = {net: program("clean", net, str(CLEAN_STEPS // scale)) for net in NETS}
    injected = {net: program("inject", net, str(INJECTIONS // scale)) for net in NETS}
    below = {net: program("below", net, str(BELOW // scale)) for net in NETS}
    cost = program("cost", str(options.samples))

    steps = sum(one["steps"] for one in clean.values())
    false = sum(len(one["found"]) for one in clean.values())
    results = sum((Counter(one["results"]) for one in injected.values()), Counter[str]())
    count = results.total()
    missed = sum(number for what, number in results.items() if what.endswith(("not caught", "later")))
    low, high = wilson(missed, count)
    unequal = sum(one["same"] is not True for one in injected.values())
    claims = (
        Claim(f"false alarms in {steps:,} clean steps of {len(NETS)} networks", false, 0, "alarms"),
        Claim(
            f"of {count:,} injected values not found by the next step (95 %: {low:.2f} to {high:.2f} %)",
            100 * missed / count,
            MOST_MISSED_PERCENT,
            "%",
        ),
        Claim("networks whose parameters then differ from those of a training without faults", unequal, 0, "networks"),
    )
    rows = tuple(
        Row(
            f"{name}, {one['parameters']:,} parameters: a step that is watched", Spread(tuple(one["with"])),
            "a step", Spread(tuple(one["without"])),
        )
        for name, one in cost.items()
    )  # fmt: skip
    shares = sum((Counter(one["results"]) for one in below.values()), Counter[str]())
    notes = (
        note,
        *(f"{what}: {number:,}" for what, number in sorted(results.items())),
        *(f"values below the bounds, of the largest of its tensor: {line}" for line in _shares(shares)),
        *(f"{name}: {_ratio(one['with'], one['without'])}" for name, one in cost.items()),
    )
    return Report("seconds of one core for each step", rows, notes, claims)


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of a share, in percent (E. B. Wilson, J. Am. Stat. Assoc. 22, 209, 1927)."""
    share = hits / count
    centre, spread = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    return tuple(100 * max(0.0, (centre + sign * spread) / (1 + z * z / count)) for sign in (-1, 1))  # type: ignore[return-value]


def _shares(results: Counter[str]) -> list[str]:
    """Return for each kind and size of value how many were found."""
    kinds: dict[str, Counter[bool]] = {}
    for what, number in results.items():
        label, _, told = what.partition(" times ")
        kinds.setdefault(f"{label} times", Counter())[told != "not caught"] += number
    return [f"{label}: {found[True]} of {found.total()} found" for label, found in sorted(kinds.items())]


def _ratio(with_it: Sequence[float], without: Sequence[float]) -> str:
    """Return the ratio of the medians with its bootstrap interval: pairs of samples were taken in turn."""
    source = random.Random(0)
    pairs = list(zip(with_it, without, strict=True))
    drawn = sorted(
        statistics.median(one for one, _ in chosen) / statistics.median(one for _, one in chosen)
        for chosen in (source.choices(pairs, k=len(pairs)) for _ in range(2000))
    )
    ratio = statistics.median(with_it) / statistics.median(without)
    return f"a watched step takes {ratio:.2f} times as long (95 %: {drawn[50]:.2f} to {drawn[1949]:.2f})"
