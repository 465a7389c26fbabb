"""`resil simulate`: what would have happened to a run under other rules, failures and costs."""

from __future__ import annotations

import math
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
from resilience.cli.output import print_json
from resilience.cli.show_simulation import Answer, counting, document_of, show
from resilience.errors import UsageError
from resilience.messages import plural

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.simulate.failures import Capacity
    from resilience.simulate.scenario import Rates, Scenario, Trace

EPILOG = (
    "Examples: resil simulate; resil simulate gpt --interval 30min --spares 1; "
    "resil simulate --nodes 128 --failures rsc-1 --stall-s 5 --save-s 90 --queue-h 2 --sweep interval --svg sweep.svg"
)
LIVES, DAYS, PERSON_H, ARRAY, GPUS = 200, 30.0, 12.0, 10, 8
LARGEST_TRACE, SHORTEST_MTBF_S = 2**26, 60.0
AXES = {"interval": "from one save to the next", "spares": "spare nodes of each job", "breaker": "failures in a row"}
"""Of the picture of a sweep."""
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
    from resilience.cadence import parse_every
    from resilience.simulate.chart import render
    from resilience.simulate.scenario import random_waits
    from resilience.system.files import write_atomic

    if svg is not None and sweep is None:
        raise UsageError("--svg draws a sweep, and there is none", hint="--sweep interval")
    if failures and failures_per_node_day is not None:
        raise UsageError("--failures and --failures-per-node-day are two ways to say the same", hint="give one of them")
    found = Found()
    for name, value in (
        ("stall_s", stall_s), ("durable_s", save_s), ("step_s", step_s), ("restart_s", restart_s),
        ("in_flight", in_flight), ("nodes", nodes), ("gpus_per_node", gpus_per_node), ("spares", spares),
        ("breaker", breaker), ("keep_queued", keep_queued),
        ("work_s", None if days is None else 86_400 * days),
        ("walltime_s", None if walltime_h is None else 3600 * walltime_h or math.inf),
        ("queue_s", None if queue_h is None else random_waits(3600 * queue_h)),
        ("every", parse_every(interval) if interval else None),
    ):  # fmt: skip
        found.add(name, value, "given")
    source = _source(found, failures, failures_per_node_day, gpus_per_node or GPUS)
    if run or nodes is None:
        past = _look(found, config, run)
        source = past if source is None else source
    if source is None:
        hint = "--failures rsc-1, or --failures-per-node-day 0.0065"
        raise UsageError("how often failures come is unknown", hint=hint)
    scenario = _scenario(found, source, array, 3600 * person_h)
    if scenario.mtbf.likely_s < SHORTEST_MTBF_S:
        text, origin = f"a failure each {scenario.mtbf.likely_s:.2g} s", found.sources["failures"]
        hint = "failures are of one node in a day, and all nodes of the job count"
        if origin.startswith("the ledger"):
            text, hint = f"{text} by {origin}", "--failures rsc-1 takes those of a cluster of Meta"
        raise UsageError(f"{text}: no run lives under that", hint=hint)
    answer = _answer(found, scenario, source, lives, seed, sweep)
    if svg is not None:
        write_atomic(
            svg, render(f"{answer.title}: {sweep}", AXES[str(sweep)], answer.points), mode=0o644, durable=False
        )
    if as_json:
        print_json("simulation", document_of(answer))
    else:
        show(answer)


# ---- what is known --------------------------------------------------------------------------------------------------


def _source(found: Found, name: str, rate: float | None, gpus_per_node: int) -> Rates | Trace | Capacity | None:
    """Return where failures come from, if an option says it."""
    from resilience.attempts.failure import FailureClass
    from resilience.simulate.failures import BUNDLED, bundled, parse_failures
    from resilience.simulate.scenario import Rate, Rates

    if rate is not None:
        found.add("failures", "", "given")
        return Rates((Rate(FailureClass.NODE_FAILURE, rate),) if rate else ())
    if name in BUNDLED:
        found.add("failures", name, BUNDLED[name])
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
    found.add("failures", name, name)
    return parse_failures(text[0].decode("utf-8", "replace"), name, gpus_per_node)


def _look(found: Found, config: Path | None, run: str) -> Trace | Rates:
    """Add what the ledger and the settings of a run say, and return its failures."""
    from resilience.attempts.breaker import nodes_of
    from resilience.attempts.ledger import read_ledger, totals_of
    from resilience.quantities import parse_slurm_time_s
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
    if "restart_s" not in found.values:
        found.add("restart_s", *_starts(project, directory))
    found.add("work_s", totals_of(rows, now).trained_s or None, "so long its attempts have run until now")
    if "time" in settings.sbatch:
        limit_s = parse_slurm_time_s(str(settings.sbatch["time"]))
        found.add("walltime_s", math.inf if limit_s is None else float(limit_s), "[sbatch]")
    found.add("spares", settings.nodes.spares, "[nodes]")
    enabled = "[act]" if policy.enabled else "[act] is not enabled"
    found.add("breaker", policy.failures if policy.enabled else 0, enabled)
    found.add("keep_queued", int(policy.enabled and max(policy.keep_queued, policy.requeue)), enabled)
    gpus = settings.launcher.get("gpus_per_node")
    found.add("gpus_per_node", gpus if isinstance(gpus, int) and gpus > 0 else None, "[template]")
    found.add("policy", policy, "[act]")
    trace = trace_of_ledger(rows, now, policy)
    found.add("failures", "", f"{ledger}, replayed from random places" if trace and trace.failures else ledger)
    return trace or Rates()


def _starts(project: Project, directory: RunDirectory) -> tuple[float | None, str]:
    """Return how many seconds attempts took until their first step, by the ledger of time, and how that is known."""
    from statistics import median

    from resilience.report.goodput import Category
    from resilience.report.reading import read_goodput

    attempts = read_goodput(project, directory, ask_scheduler=False).by_attempt
    starts = [
        one.ms.get(Category.START_UP, 0) + one.ms.get(Category.RESTORE, 0)
        for one in attempts
        if one.steps or one.redone_steps
    ]
    return (median(starts) / 1000 if starts else None), f"median of the starts of {plural(len(starts), 'attempt')}"


def _scenario(found: Found, source: Rates | Trace | Capacity, array: int, person_s: float) -> Scenario:
    from resilience.cadence import AUTO, Every
    from resilience.settings.sections import ActSettings
    from resilience.simulate.failures import Capacity
    from resilience.simulate.scenario import Rates, Scenario

    is_replay = isinstance(source, Capacity)
    assumed = {
        "work_s": 86_400 * DAYS, "nodes": 1, "gpus_per_node": GPUS, "queue_s": (0.0,), "walltime_s": math.inf,
        "spares": 0, "breaker": ActSettings().failures, "keep_queued": int(is_replay), "every": AUTO, "restart_s": 0.0,
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
        source=Rates() if isinstance(source, Capacity) else source,
        redo_max_s=known.redo_max_s,
        policy=policy,
        array=array,
        person_s=person_s,
    )


def _answer(
    found: Found, scenario: Scenario, source: Rates | Trace | Capacity, lives: int, seed: int, sweep: str | None
) -> Answer:
    from resilience.simulate import outcome
    from resilience.simulate.failures import Capacity

    answer = Answer(found, scenario, lives, seed)
    if isinstance(source, Capacity):
        if sweep:
            raise UsageError("a trace of GPUs is replayed, not swept", hint="--interval, once for each value")
        with counting(lives) as tick:
            replay = outcome.replay_of(scenario, source, lives, seed, tick)
        return replace(answer, replay=replay, scenario=replace(scenario, work_s=replay.length_s))
    if outcome.is_at_random(scenario):
        answer = replace(answer, formulas=outcome.formulas_of(scenario))
    chosen = list(outcome.choices(scenario, sweep or ""))
    with counting(lives * max(1, len(chosen))) as tick:
        if not chosen:
            return replace(answer, outcome=outcome.outcome_of(scenario, outcome.lives_of(scenario, lives, seed, tick)))
        points = [
            outcome.Point(name, interval_s, outcome.outcome_of(one, outcome.lives_of(one, lives, seed, tick)))
            for name, interval_s, one in chosen
        ]
    return replace(answer, sweep=sweep or "", points=tuple(points))
