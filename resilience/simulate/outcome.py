"""Many lives of a run, what they have in common, and the formulas beside them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from resilience.cadence import Costs, Every, decide, loss_of
from resilience.simulate.failures import Capacity, preemptions
from resilience.simulate.life import Life, live
from resilience.simulate.scenario import DAY_S, Rates, Scenario

LOW, HIGH = 0.1, 0.9
PARTS = ("trained", "redone", "restart", "save", "queue", "held")
FACTORS = (0.125, 0.25, 0.5, 0.707, 1.0, 1.414, 2.0, 4.0, 8.0)
"""The intervals of a sweep, as multiples of Daly's."""
COUNTS = {"spares": (0, 1, 2, 4, 8), "breaker": (0, 1, 2, 3, 5, 10)}
"""And the values of the other sweeps."""
INSTANCE_GPUS = 4
"""Of the machines of PCcheck's trace, as its formula has them."""

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Band:
    """Of each life a number: the mean, the median, and what 10 and 90 % of the lives are below."""

    mean: float
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What many lives have in common.

    Attributes:
        ettr: trained of all time from the first submission to the end (Kokolis et al.); the mean is that of all time of
            all lives.
        ettr_running: trained of the time with nodes: without the queue and what was held.
        days: until the run is finished; infinite for those that do not.
        lost_gpu_hours: of all GPUs of its jobs, idle spares included, what was no training that counts.
        burnt, jobs: jobs that ended without a new checkpoint, and all.
        shares: of all time, by what it went into: PARTS. They sum up to 1.
        finished: the share of the lives that ended with the work done.
    """

    ettr: Band
    ettr_running: Band
    days: Band
    lost_gpu_hours: Band
    burnt: Band
    jobs: Band
    shares: dict[str, float]
    finished: float


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a sweep, as text and as the interval in seconds; NaN: it is no interval, or `auto`."""

    name: str
    interval_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulas:
    """What the literature's closed forms say at an interval: ETTR without the queue, time limits, people, spares.

    Attributes:
        daly: J. T. Daly's complete model, FGCS 22(3), 2006, with the lag of saves.
        meta: Kokolis et al., HPCA 2025: (1 - N r_f (u_0 + dt / 2)) / (1 + w / dt). For small losses, at least 0.
    """

    interval_s: float
    daly: float
    meta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A published trace of GPUs, by PCcheck's formula and by a simulation, over its own length.

    Attributes:
        formula: share of the time that PCcheck's formula counts as new work.
        failures: as the formula counts them: one for each four GPUs that come or go.
        simulated: share in which this job trained steps that count.
        attempts: of this job, on average.
    """

    formula: float
    failures: int
    simulated: float
    attempts: float
    length_s: float


def lives_of(scenario: Scenario, count: int, seed: int, tick: Tick = lambda: None) -> list[Life]:
    """Return so many lives. Two scenarios with the same seed meet the same luck, as far as they live alike."""
    found = []
    for number in range(count):
        found.append(live(scenario, f"{seed}-{number}"))
        tick()
    return found


def outcome_of(scenario: Scenario, lives: Sequence[Life]) -> Outcome:
    """Return what lives of a scenario have in common."""
    sums = {name: sum(getattr(one, f"{name}_s") for one in lives) for name in PARTS}
    wall_s, running_s = sum(one.wall_s for one in lives), sum(one.running_s for one in lives)
    gpus = scenario.gpus_per_node
    allocated = gpus * (scenario.nodes + scenario.spares)

    def ratio(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    ettr = _band([ratio(one.trained_s, one.wall_s) for one in lives])
    running = _band([ratio(one.trained_s, one.running_s) for one in lives])
    lost = [(allocated * one.running_s - gpus * scenario.nodes * one.trained_s) / 3600 for one in lives]
    return Outcome(
        ettr=replace(ettr, mean=ratio(sums["trained"], wall_s)),
        ettr_running=replace(running, mean=ratio(sums["trained"], running_s)),
        days=_band([one.wall_s / DAY_S if one.is_finished else math.inf for one in lives]),
        lost_gpu_hours=_band(lost),
        burnt=_band([one.burnt for one in lives]),
        jobs=_band([one.jobs for one in lives]),
        shares={name: ratio(seconds, wall_s) for name, seconds in sums.items()},
        finished=sum(one.is_finished for one in lives) / len(lives),
    )


def _band(values: Sequence[float]) -> Band:
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
        return below if above == below else below + (above - below) * (place % 1)

    return Band(mean=sum(ordered) / len(ordered), low=at(LOW), median=at(0.5), high=at(HIGH))


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def choices(scenario: Scenario, what: str) -> Iterator[tuple[str, float, Scenario]]:
    """Yield the scenarios of a sweep, each with its name and its interval, which is not a number for `auto`."""
    if what == "interval":
        best_s = best_interval_s(scenario)
        yield "auto", math.nan, replace(scenario, every=Every(is_auto=True))
        for factor in FACTORS:
            seconds = max(factor * best_s, scenario.costs.stall_s + max(1.0, scenario.costs.step_s))
            yield f"{factor:g}", seconds, replace(scenario, every=Every(seconds=seconds))
    for count in COUNTS.get(what, ()):
        if what == "spares":
            yield str(count), math.nan, replace(scenario, spares=count)
        else:
            yield str(count), math.nan, replace(scenario, policy=replace(scenario.policy, failures=count))


def best_interval_s(scenario: Scenario) -> float:
    """Return the interval that production's rules choose where they know how often failures come."""
    return decide(scenario.costs, scenario.mtbf, redo_max_s=scenario.redo_max_s).interval_s


# ---- formulas -------------------------------------------------------------------------------------------------------


def formulas_of(scenario: Scenario) -> Formulas:
    """Return the closed forms at the interval of a scenario; of `auto`, at the one it would choose if it knew."""
    costs, mtbf_s = scenario.costs, scenario.mtbf.likely_s
    interval_s = best_interval_s(scenario) if scenario.every.is_auto else scenario.every.seconds
    lost = loss_of(interval_s, costs, mtbf_s).lost
    return Formulas(interval_s=interval_s, daly=1 - lost, meta=meta_ettr(interval_s, costs, mtbf_s))


def meta_ettr(interval_s: float, costs: Costs, mtbf_s: float) -> float:
    """Return E[ETTR] of Kokolis et al.; dt is the time that is trained between two saves, 1 / mtbf_s = N r_f."""
    train_s = max(interval_s - costs.stall_s, 1e-9)
    return max(0.0, 1 - (costs.restart_s + train_s / 2) / mtbf_s) / (1 + costs.stall_s / train_s)


def pccheck_share(capacity: Capacity, interval_s: float, costs: Costs) -> tuple[float, int]:
    """Return the goodput of PCcheck's artefact as a share of the time, and its number of failures.

    run_goodput_model.py of eth-easl/pccheck (0d43e46): goodput = (T - redo * failures) / (iteration with saves) / T,
    redo = load + f t / 2 + t min(T_w / t, f N) / 2. Additions count as failures, as does the first row.
    """
    failures, before = 0, 0
    for _, gpus in capacity.points:
        failures += abs(gpus - before) // INSTANCE_GPUS
        before = gpus
    train_s = max(interval_s - costs.stall_s, 1e-9)
    redo_s = costs.restart_s + train_s / 2 + min(costs.durable_s, train_s * costs.in_flight) / 2
    share = (capacity.length_s - redo_s * failures) / capacity.length_s * train_s / interval_s
    return max(0.0, share), failures


def replay_of(scenario: Scenario, capacity: Capacity, count: int, seed: int, tick: Tick = lambda: None) -> Replay:
    """Return what a trace of GPUs does to a job, from its first row to its last."""
    trace = preemptions(capacity, scenario.nodes, scenario.gpus_per_node)
    scenario = replace(scenario, source=trace, work_s=trace.length_s)
    lives = []
    for number in range(count):
        lives.append(live(scenario, f"{seed}-{number}", until_s=trace.length_s))
        tick()
    interval_s = best_interval_s(scenario) if scenario.every.is_auto else scenario.every.seconds
    share, failures = pccheck_share(capacity, interval_s, scenario.costs)
    return Replay(
        formula=share,
        failures=failures,
        simulated=sum(one.trained_s for one in lives) / (len(lives) * trace.length_s),
        attempts=sum(one.attempts for one in lives) / len(lives),
        length_s=trace.length_s,
    )


def is_at_random(scenario: Scenario) -> bool:
    """Return whether the formulas apply: failures come at random, and a restart heals each."""
    source = scenario.source
    return isinstance(source, Rates) and bool(source.rates) and not any(rate.lasts_s for rate in source.rates)
