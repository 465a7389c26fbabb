"""The screens and the JSON document of `resil simulate`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilience.cli.ckpt_plan import Found, percent_text, seconds_text
from resilience.cli.output import chosen, clean, paint, print_table
from resilience.messages import plural
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.simulate.outcome import Band, Formulas, Outcome, Point, Replay
    from resilience.simulate.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked, with the sources of its numbers, and what was found: an outcome, a sweep, or a replay."""

    found: Found
    scenario: Scenario
    lives: int
    seed: int
    outcome: Outcome | None = None
    formulas: Formulas | None = None
    replay: Replay | None = None
    sweep: str = ""
    points: tuple[Point, ...] = ()

    @property
    def title(self) -> str:
        run = f"{clean(self.found.run)}: " if self.found.run else ""
        nodes, gpus = self.scenario.nodes, self.scenario.nodes * self.scenario.gpus_per_node
        where = f"{plural(nodes, 'node')} ({plural(gpus, 'GPU')})"
        return f"{run}{format_duration(round(self.scenario.work_s))} of training on {where}"


@contextmanager
def counting(total: int) -> Iterator[Callable[[], None]]:
    """Count on a terminal (standard error) how many of `total` lives are simulated, if that takes longer."""
    done, shown = 0, time.monotonic() + 1
    is_shown = False

    def tick() -> None:
        nonlocal done, shown, is_shown
        done += 1
        if sys.stderr.isatty() and time.monotonic() >= shown:
            shown, is_shown = time.monotonic() + 0.2, True
            print(f"\rsimulated {done:,} of {total:,} lives\x1b[K", end="", file=sys.stderr, flush=True)

    try:
        yield tick
    finally:
        if is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def document_of(answer: Answer) -> dict[str, Any]:
    """Return the content of the JSON document."""
    scenario = answer.scenario
    names = ("work_s", "nodes", "gpus_per_node", "costs", "every", "redo_max_s", "walltime_s", "spares", "array")
    given = chosen(scenario, *names, "person_s") | {
        "queue_s": scenario.mean_wait_s,
        "mtbf_s": scenario.mtbf.likely_s,
        "breaker": scenario.policy.failures,
        "keep_queued": scenario.policy.keep_queued,
    }
    return {
        "run": answer.found.run,
        "scenario": given,
        "sources": answer.found.sources,
        **chosen(answer, "lives", "seed", "outcome", "formulas", "replay", "sweep", "points"),
    }


def show(answer: Answer) -> None:
    """Print what was asked, each number with its source, and what was found."""
    print(paint(f"{answer.title}, {plural(answer.lives, 'life', 'lives')}, seed {answer.seed}", "bold"))
    print()
    print_table(("", "", ""), list(_inputs(answer)), indent=2)
    if answer.found.sources["failures"].startswith("the ledger") and answer.scenario.mtbf.likely_s == math.inf:
        hint = "--failures rsc-1 takes those of a cluster of Meta"
        print(f"  {clean(answer.found.run)} has met no failure yet, so none ever comes here: {hint}")
    print()
    if answer.outcome is not None:
        _show_outcome(answer.scenario, answer.outcome, answer.formulas)
    elif answer.replay is not None:
        _show_replay(answer.scenario, answer.replay)
    else:
        _show_sweep(answer)


def _inputs(answer: Answer) -> Iterator[tuple[str, str, str]]:
    scenario, costs, policy = answer.scenario, answer.scenario.costs, answer.scenario.policy
    rate = str(scenario.mtbf).removeprefix("failures are ") if scenario.mtbf.likely_s < math.inf else "none"
    jobs = f"{policy.keep_queued} kept queued" if policy.keep_queued else f"{scenario.array} at a time, by a person"
    opens = f"opens after {plural(policy.failures, 'failure')}" if policy.failures else "never opens"
    rows = {
        "training": (seconds_text(scenario.work_s), "work_s"),
        "GPUs": (f"{scenario.gpus_per_node} in a node", "gpus_per_node"),
        "failures": ("GPUs that come and go" if answer.replay else rate, "failures"),
        "stall": (seconds_text(costs.stall_s), "stall_s"),
        "durable": (seconds_text(costs.durable_s), "durable_s"),
        "restart": (seconds_text(costs.restart_s), "restart_s"),
        "interval": ("auto" if scenario.every.is_auto else seconds_text(scenario.every.seconds), "every"),
        "queue": (f"{seconds_text(scenario.mean_wait_s)} on average", "queue_s"),
        "time limit": (seconds_text(scenario.walltime_s).replace("never", "none"), "walltime_s"),
        "spares": (str(scenario.spares), "spares"),
        "breaker": (opens, "breaker"),
        "jobs": (jobs, "keep_queued"),
        "person": (f"acts after {seconds_text(scenario.person_s)}", ""),
    }
    for name, (text, source) in rows.items():
        if name != answer.sweep:
            yield name, text, clean(answer.found.sources.get(source, ""))


def _show_outcome(scenario: Scenario, outcome: Outcome, formulas: Formulas | None) -> None:
    rows: tuple[tuple[str, Band, Callable[[float], str]], ...] = (
        ("ETTR", outcome.ettr, percent_text),
        ("ETTR with nodes", outcome.ettr_running, percent_text),
        ("days to finish", outcome.days, _days),
        ("GPU hours lost", outcome.lost_gpu_hours, _count),
        ("jobs", outcome.jobs, _count),
        ("jobs burnt", outcome.burnt, _count),
    )
    cells = [(name, *map(show, (band.mean, band.low, band.median, band.high))) for name, band, show in rows]
    print_table(("", "MEAN", "10 %", "MEDIAN", "90 %"), cells)
    print()
    print("  of the time: " + ", ".join(f"{name} {percent_text(share)}" for name, share in outcome.shares.items()))
    if formulas is not None:
        ways = f"Daly {percent_text(formulas.daly)}, Meta's E[ETTR] {percent_text(formulas.meta)}"
        print(f"  formulas, saving each {seconds_text(formulas.interval_s)} and without time limits: with nodes {ways}")
    if outcome.finished < 1:
        from resilience.simulate.life import LONGEST, MOST_ATTEMPTS, MOST_S

        longest = seconds_text(LONGEST * scenario.work_s + MOST_S)
        left = paint(f"{percent_text(1 - outcome.finished)} of the lives do not finish", "red")
        print(f"  {left}: they were given up after {longest} or {MOST_ATTEMPTS:,} attempts")


def _show_sweep(answer: Answer) -> None:
    best = max(answer.points, key=lambda one: one.outcome.ettr.mean)
    rows = [
        (
            ">" if one is best and answer.sweep == "interval" else "",
            one.name if math.isnan(one.interval_s) else seconds_text(one.interval_s),
            percent_text(one.outcome.ettr.mean),
            f"{percent_text(one.outcome.ettr.low)} to {percent_text(one.outcome.ettr.high)}",
            _days(one.outcome.days.median),
            f"{_days(one.outcome.days.low)} to {_days(one.outcome.days.high)}",
            _count(one.outcome.lost_gpu_hours.mean),
            _count(one.outcome.burnt.mean),
        )
        for one in answer.points
    ]
    headers = ("", answer.sweep.upper(), "ETTR", "10 TO 90 %", "DAYS", "10 TO 90 %", "GPU HOURS LOST", "BURNT")
    print_table(headers, rows)


def _show_replay(scenario: Scenario, replay: Replay) -> None:
    gpus = scenario.nodes * scenario.gpus_per_node
    rate = f" = {replay.formula / scenario.costs.step_s:.3g} steps/s" if scenario.costs.step_s else ""
    formula = (f"{percent_text(replay.formula)}{rate}", plural(replay.failures, "failure"))
    simulated = (percent_text(replay.simulated), f"{replay.attempts:.1f} attempts on average")
    print_table(("", "NEW WORK", ""), [("PCcheck's formula", *formula), ("simulated", *simulated)])
    print()
    print(
        "  the formula takes each 4 GPUs that come or go for a failure, and ignores waits for GPUs and how few are left"
    )
    print(f"  the simulation needs all {gpus} GPUs, waits until they are there, and loses what was not durable")


def _days(days: float) -> str:
    return f"{days:.1f}" if math.isfinite(days) else "never"


def _count(count: float) -> str:
    return f"{count:,.1f}" if count < 10 and count != int(count) else f"{count:,.0f}"
