"""`resil simulate`: what would have happened to a run under other rules, failures and costs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from resilience.cli.ckpt_plan import (
    NUMBER,
    Found,
    InFlightOption,
    NodesOption,
    RateOption,
    RestartOption,
    SaveOption,
    StallOption,
    StepOption,
    look,
)
from resilience.cli.options import ConfigOption, JsonOption, RunArgument, open_project, single_command
from resilience.cli.output import clean, paint, print_json, print_table
from resilience.errors import UsageError
from resilience.messages import plural
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.simulate.failures import Capacity
    from resilience.simulate.outcome import Band, Formulas, Outcome, Point, Replay
    from resilience.simulate.scenario import Rates, Scenario, Trace

EPILOG = (
    "Examples: resil simulate; resil simulate gpt --interval 30min --spares 1; "
    "resil simulate --nodes 128 --failures rsc-1 --stall-s 5 --save-s 90 --queue-h 2 --sweep interval --svg sweep.svg"
)
LIVES, DAYS, PERSON_H, ARRAY, GPUS = 200, 30.0, 12.0, 10, 8
LARGEST_TRACE = 2**26
_HOURS: dict[str, Any] = {"metavar": "HOURS", "min": 0.0, "max": 1e6, "show_default": False}
_FEW: dict[str, Any] = {"metavar": "N", "min": 0, "max": 10_000, "show_default": False}


@single_command(EPILOG)
def simulate(
    run: RunArgument = "",
    days: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0.001, max=1e4, help="The training without any loss.", show_default=False),
    ] = None,
    nodes: NodesOption = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of a node.", **NUMBER | {"max": 10_000})] = None,
    failures: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Where failures come from: llama3, rsc-1 or rsc-2 (published rates), or a CSV of failures, of rates, "
            "or of the GPUs that there were.",
        ),
    ] = "",
    failures_per_node_day: RateOption = None,
    save_s: SaveOption = None,
    stall_s: StallOption = None,
    step_s: StepOption = None,
    restart_s: RestartOption = None,
    in_flight: InFlightOption = None,
    interval: Annotated[str, typer.Option(metavar="EVERY", help="How often it saves: auto, 30min or 500 steps.")] = "",
    queue_h: Annotated[float | None, typer.Option(help="Mean wait of a job in the queue.", **_HOURS)] = None,
    walltime_h: Annotated[float | None, typer.Option(help="Time limit of a job; 0: none.", **_HOURS)] = None,
    spares: Annotated[int | None, typer.Option(help="Spare nodes of each job.", **_FEW)] = None,
    breaker: Annotated[
        int | None, typer.Option(help="Failures in a row that open the breaker; 0: it never does.", **_FEW)
    ] = None,
    keep_queued: Annotated[
        int | None, typer.Option(help="Jobs that resil keeps queued; 0: a person queues all.", **_FEW)
    ] = None,
    array: Annotated[
        int, typer.Option(metavar="N", min=1, max=10**6, help="Tasks that a person queues at once.")
    ] = ARRAY,
    person_h: Annotated[
        float, typer.Option(metavar="HOURS", min=0.0, max=1e4, help="From an alert until a person acts.")
    ] = PERSON_H,
    lives: Annotated[int, typer.Option(metavar="N", min=1, max=10**6, help="How often the run is simulated.")] = LIVES,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same answer.")] = 1,
    sweep: Annotated[
        Literal["interval", "spares", "breaker"] | None,
        typer.Option(help="Compare several values of this.", show_default=False),
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also draw the sweep as SVG.")] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show what would have happened to a run: how much of the time it trains, and when it is finished.

    Simulates the run many times under failures, with the rules of real runs for saving and for the breaker. Of a RUN,
    its own ledger says what failures, waits and saves were; options replace that. With --nodes and no RUN, a
    calculator.
    """
    from resilience.simulate.failures import Capacity
    from resilience.simulate.outcome import Point, formulas_of, is_at_random, lives_of, outcome_of, replay_of

    if svg is not None and sweep is None:
        raise UsageError("--svg draws a sweep, and there is none", hint="--sweep interval")
    if failures and failures_per_node_day is not None:
        raise UsageError("--failures and --failures-per-node-day are two ways to say the same", hint="give one of them")
    found = Found()
    for name, value in (
        ("stall_s", stall_s), ("durable_s", save_s), ("step_s", step_s), ("restart_s", restart_s),
        ("in_flight", in_flight), ("nodes", nodes), ("gpus_per_node", gpus_per_node), ("spares", spares),
        ("breaker", breaker), ("keep_queued", keep_queued), ("walltime_s", _seconds_of(walltime_h) or None),
        ("work_s", None if days is None else 86_400 * days),
    ):  # fmt: skip
        found.add(name, value, "given")
    if walltime_h == 0:
        found.add("walltime_s", math.inf, "given")
    if queue_h is not None:
        _add_waits(found, queue_h)
    found.add("every", _every(interval), "given")
    source: Any = _source(found, failures, failures_per_node_day, gpus_per_node or GPUS)
    if run or nodes is None:
        source = _look(found, config, run) if source is None else _look(found, config, run) and source
    scenario = _scenario(found, array, 3600 * person_h)
    outcome, formulas, replay, points = None, None, None, list[Point]()
    if isinstance(source, Capacity):
        if sweep:
            raise UsageError("a trace of GPUs is replayed, not swept", hint="--interval, once for each value")
        with _progress(lives) as tick:
            replay = replay_of(scenario, source, lives, seed, tick)
    elif source is None:
        raise UsageError(
            "how often failures come is unknown", hint="--failures rsc-1, or --failures-per-node-day 0.0065"
        )
    else:
        scenario = replace(scenario, source=source)
        formulas = formulas_of(scenario) if is_at_random(scenario) else None
        if sweep:
            points = _sweep(scenario, sweep, lives, seed)
        else:
            with _progress(lives) as tick:
                outcome = outcome_of(scenario, lives_of(scenario, lives, seed, tick))
    if svg is not None and sweep is not None:
        _draw(svg, scenario, sweep, points)
    if as_json:
        document = {"outcome": outcome, "formulas": formulas, "sweep": points, "replay": replay}
        print_json("simulation", _head(found, scenario, lives, seed) | document)
        return
    title = f"{format_duration(scenario.work_s)} of training on {plural(scenario.nodes, 'node')}"
    title = f"{clean(found.run)}: {title}" if found.run else title
    print(paint(f"{title}, {plural(lives, 'life', 'lives')}, seed {seed}", "bold"))
    print()
    print_table(("", "", ""), list(_inputs(found, scenario, is_replay=replay is not None)), indent=2)
    print()
    if outcome is not None:
        _show_outcome(scenario, outcome, formulas)
    elif replay is not None:
        _show_replay(scenario, replay)
    else:
        _show_sweep(str(sweep), points)


# ---- what is known --------------------------------------------------------------------------------------------------


def _seconds_of(hours: float | None) -> float | None:
    return None if hours is None else 3600 * hours


def _add_waits(found: Found, mean_h: float) -> None:
    from resilience.simulate.scenario import random_waits

    found.add("queue_s", random_waits(3600 * mean_h), "given, distributed exponentially")


def _every(text: str) -> Any:
    from resilience.cadence import parse_every

    return parse_every(text) if text else None


def _source(found: Found, name: str, rate: float | None, gpus_per_node: int) -> Rates | Trace | Capacity | None:
    """Return where failures come from, if an option says it."""
    from resilience.attempts.failure import FailureClass
    from resilience.simulate.failures import BUNDLED, bundled, parse_failures
    from resilience.simulate.scenario import Rate, Rates

    if rate is not None:
        found.add("source", "", "given")
        return Rates((Rate(FailureClass.NODE_FAILURE, rate),) if rate else ())
    if name in BUNDLED:
        found.add("source", name, BUNDLED[name])
        return bundled(name)
    if not name:
        return None
    from resilience.system.files import explain_os_error, read_regular

    path = Path(name)
    try:
        text = read_regular(path, LARGEST_TRACE)
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    if text is None:
        raise UsageError(f"there is no file {name}", hint=f"one of {', '.join(BUNDLED)}, or the path of a CSV")
    found.add("source", name, name)
    return parse_failures(text[0].decode("utf-8", "replace"), name, gpus_per_node)


def _look(found: Found, config: Path | None, run: str) -> Trace | Rates:
    """Add what the ledger and the settings of a run say, and return its failures."""
    from resilience.attempts.breaker import nodes_of
    from resilience.attempts.ledger import read_ledger, totals_of
    from resilience.simulate.failures import trace_of_ledger
    from resilience.simulate.scenario import Rates

    project = open_project(config)
    directory = project.existing(run)
    look(found, project, directory)
    now, settings = project.system.clock.now(), project.loaded.settings
    rows, policy = read_ledger(directory), settings.act
    ledger = f"the ledger: {plural(len(rows), 'attempt')}"
    found.add("nodes", max((len(nodes_of(row)) for row in rows), default=0) or None, ledger)
    waits = tuple(row.queue_s for row in rows if row.queue_s is not None)
    found.add("queue_s", waits or None, f"the waits of {plural(len(waits), 'attempt')}")
    found.add("work_s", totals_of(rows, now).trained_s or None, "so long it has trained until now")
    found.add("spares", settings.nodes.spares, "[nodes]")
    enabled = "[act]" if policy.enabled else "[act] is not enabled"
    found.add("breaker", policy.failures if policy.enabled else 0, enabled)
    found.add("keep_queued", max(policy.keep_queued if policy.enabled else 0, policy.requeue), enabled)
    found.add("policy", policy, "[act]")
    trace = trace_of_ledger(rows, now, policy)
    found.add("source", "", f"{ledger}, replayed from random places" if trace and trace.failures else ledger)
    return trace or Rates()


def _scenario(found: Found, array: int, person_s: float) -> Scenario:
    from resilience.cadence import AUTO, Every
    from resilience.settings.sections import ActSettings
    from resilience.simulate.scenario import Scenario

    assumed = {
        "work_s": 86_400 * DAYS, "nodes": 1, "gpus_per_node": GPUS, "queue_s": (0.0,), "walltime_s": math.inf,
        "spares": 0, "breaker": ActSettings().failures, "keep_queued": 0, "every": AUTO,
    }  # fmt: skip
    for name, value in assumed.items():
        found.add(name, value, "assumed")
    known = found.known()  # adds what it assumes of saves
    values, every = found.values, found.values["every"]
    if every.steps and not known.costs.step_s:
        raise UsageError(f"how long {every.steps} steps take is unknown", hint="--step-s SECONDS")
    if every.steps:
        every = Every(seconds=every.steps * known.costs.step_s + known.costs.stall_s)
    elif not every.seconds:
        every = AUTO
    policy = values.get("policy", ActSettings())
    breaker = values["breaker"]
    policy = replace(
        policy, failures=breaker, neutral=policy.neutral if breaker else 0, keep_queued=values["keep_queued"],
        requeue=False,
    )  # fmt: skip
    return Scenario(
        **{name: values[name] for name in ("work_s", "nodes", "gpus_per_node", "queue_s", "walltime_s", "spares")},
        costs=known.costs,
        every=every,
        redo_max_s=known.redo_max_s,
        policy=policy,
        array=array,
        person_s=person_s,
    )


# ---- the work -------------------------------------------------------------------------------------------------------


def _sweep(scenario: Scenario, what: str, lives: int, seed: int) -> list[Point]:
    from resilience.simulate.outcome import Point, choices, lives_of, outcome_of

    chosen = list(choices(scenario, what))
    with _progress(lives * len(chosen)) as tick:
        return [
            Point(name, interval_s, outcome_of(one, lives_of(one, lives, seed, tick)))
            for name, interval_s, one in chosen
        ]


def _draw(path: Path, scenario: Scenario, what: str, points: list[Point]) -> None:
    from resilience.simulate.chart import render
    from resilience.system.files import write_atomic

    axis = {"interval": "from one save to the next", "spares": "spare nodes of each job"}.get(what, "failures in a row")
    title = f"{format_duration(scenario.work_s)} of training on {plural(scenario.nodes, 'node')}: {what}"
    write_atomic(path, render(title, axis, points), mode=0o644, durable=False)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Count on a terminal (standard error) how many lives of `total` are simulated, if that takes longer."""
    if not total or not sys.stderr.isatty():
        yield lambda done: None
        return
    done, shown = 0, time.monotonic() + 1

    def tick(more: int) -> None:
        nonlocal done, shown
        done += more
        if time.monotonic() >= shown:
            shown = time.monotonic() + 0.2
            sys.stderr.write(f"\rsimulated {done:,} of {total:,} lives\x1b[K")
            sys.stderr.flush()

    try:
        yield tick
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


# ---- the screen -----------------------------------------------------------------------------------------------------


def _head(found: Found, scenario: Scenario, lives: int, seed: int) -> dict[str, Any]:
    names = (
        "work_s",
        "nodes",
        "gpus_per_node",
        "costs",
        "every",
        "redo_max_s",
        "walltime_s",
        "spares",
        "array",
        "person_s",
    )
    given = {name: getattr(scenario, name) for name in names}
    given |= {
        "queue_s": sum(scenario.queue_s) / len(scenario.queue_s),
        "mtbf_s": scenario.mtbf.likely_s,
        "breaker": scenario.policy.failures,
        "keep_queued": scenario.policy.keep_queued,
    }
    return {"run": found.run, "seed": seed, "lives": lives, "scenario": given, "sources": found.sources}


def _inputs(found: Found, scenario: Scenario, *, is_replay: bool) -> Iterator[tuple[str, str, str]]:
    sources, costs = found.sources, scenario.costs
    rate = str(scenario.mtbf).removeprefix("failures are ") if scenario.mtbf.likely_s < math.inf else "none"
    yield "failures", "GPUs that come and go" if is_replay else rate, clean(sources["source"])
    yield "stall", _time(costs.stall_s), sources["stall_s"]
    yield "durable", _time(costs.durable_s), sources["durable_s"]
    yield "restart", _time(costs.restart_s), sources.get("restart_s", "assumed")
    every = "auto" if scenario.every.is_auto else _time(scenario.every.seconds)
    yield "interval", every, sources["every"]
    yield "queue", f"{_time(sum(scenario.queue_s) / len(scenario.queue_s))} on average", sources["queue_s"]
    yield "time limit", _time(scenario.walltime_s).replace("never", "none"), sources["walltime_s"]
    yield "spares", str(scenario.spares), sources["spares"]
    opens = scenario.policy.failures
    yield "breaker", f"opens after {plural(opens, 'failure')}" if opens else "never opens", sources["breaker"]
    queued, person = scenario.policy.keep_queued, _time(scenario.person_s)
    kept = f"{queued} kept queued" if queued else f"{scenario.array} at a time, by a person"
    yield "jobs", kept, sources["keep_queued"]
    yield "person", f"acts after {person}", ""


def _show_outcome(scenario: Scenario, outcome: Outcome, formulas: Formulas | None) -> None:
    rows = [
        ("ETTR", *_cells(outcome.ettr, _percent)),
        ("without queue and holds", *_cells(outcome.ettr_running, _percent)),
        ("days to finish", *_cells(outcome.days, _days)),
        ("GPU hours lost", *_cells(outcome.lost_gpu_hours, _whole)),
        ("jobs", *_cells(outcome.jobs, _whole)),
        ("jobs burnt", *_cells(outcome.burnt, _whole)),
    ]
    print_table(("", "MEAN", "10 %", "MEDIAN", "90 %"), rows)
    print()
    print("  of the time: " + ", ".join(f"{name} {_percent(share)}" for name, share in outcome.shares.items()))
    if formulas is not None:
        ways = f"Daly {_percent(formulas.daly)}, Meta's E[ETTR] {_percent(formulas.meta)}"
        simulated = _percent(outcome.ettr_running.mean)
        print(f"  closed forms at {_time(formulas.interval_s)}, without queue and holds: {ways}; simulated {simulated}")
    if outcome.finished < 1:
        from resilience.simulate.life import LONGEST, MOST_ATTEMPTS, MOST_S

        longest = _time(LONGEST * scenario.work_s + MOST_S)
        left = paint(f"{_percent(1 - outcome.finished)} of the lives do not finish", "red")
        print(f"  {left}: they were given up after {longest} or {MOST_ATTEMPTS:,} attempts")


def _show_sweep(what: str, points: list[Point]) -> None:
    best = max(points, key=lambda one: one.outcome.ettr.mean)
    rows = []
    for one in points:
        outcome = one.outcome
        bands = (f"{_percent(outcome.ettr.low)} to {_percent(outcome.ettr.high)}",
                 f"{_days(outcome.days.low)} to {_days(outcome.days.high)}")  # fmt: skip
        rows.append((
            ">" if one is best else "",
            one.name if one.interval_s != one.interval_s else _time(one.interval_s),
            _percent(outcome.ettr.mean), bands[0], _days(outcome.days.median), bands[1],
            _whole(outcome.lost_gpu_hours.mean), _whole(outcome.burnt.mean),
        ))  # fmt: skip
    headers = ("", what.upper(), "ETTR", "10 TO 90 %", "DAYS", "10 TO 90 %", "GPU HOURS LOST", "BURNT")
    print_table(headers, rows)


def _show_replay(scenario: Scenario, replay: Replay) -> None:
    gpus = scenario.nodes * scenario.gpus_per_node
    rate = f" = {replay.formula / scenario.costs.step_s:.3g} steps/s" if scenario.costs.step_s else ""
    formula = (f"{_percent(replay.formula)}{rate}", plural(replay.formula_failures, "failure"))
    simulated = (_percent(replay.simulated), f"{replay.interruptions:.1f} attempts on average")
    headers = ("", f"NEW WORK IN {format_duration(round(replay.length_s)).upper()}", "")
    print_table(headers, [("PCcheck's formula", *formula), ("simulated", *simulated)])
    print()
    print(
        "  the formula takes each 4 GPUs that come or go for a failure, and ignores waits for GPUs and how few are left"
    )
    print(f"  the simulation needs all {gpus} GPUs, waits until they are there, and loses what was not durable")


def _cells(band: Band, show: Callable[[float], str]) -> tuple[str, ...]:
    return show(band.mean), show(band.low), show(band.median), show(band.high)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _days(days: float) -> str:
    return f"{days:.1f}" if math.isfinite(days) else "never"


def _whole(count: float) -> str:
    return f"{count:,.1f}" if count < 10 and count != int(count) else f"{count:,.0f}"


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "never"
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds))
