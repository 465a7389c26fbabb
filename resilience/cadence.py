"""When to save: the interval between checkpoints, from what saves, failures and restarts cost. Pure.

An interval is the time from the start of one save to the start of the next, in seconds of the training's clock.

Sources:
  Young: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
  Daly: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.
  CheckFreq: J. Mohan, A. Phanishayee, V. Chidambaram, CheckFreq: frequent, fine-grained DNN checkpointing, FAST 2021.
  PCcheck: F. Strati, M. Friedman, A. Klimovic, PCcheck: persistent concurrent checkpointing for ML, ASPLOS 2025.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from resilience.errors import QuantityError
from resilience.quantities import format_duration, parse_duration_s

OVERHEAD = 0.035
"""The share of the time that saves may take where no failures justify more (CheckFreq)."""
HYSTERESIS = 0.2
"""An interval stays until a better one differs by more than this share: the measurements vary from save to save."""
FIRST_S = 600.0
"""The interval before any save was measured: early enough to learn what a save costs, and whether it succeeds."""
CONFIDENCE = 0.95
MOST_STEPS = 10**9
_Z = 1.959964
"""The normal quantile at (1 + CONFIDENCE) / 2."""


# ---- what the user sets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Every:
    """The setting `every`: steps, seconds, or `is_auto`; none of them if the guard requests no saves by itself."""

    steps: int = 0
    seconds: float = 0.0
    is_auto: bool = False


AUTO = Every(is_auto=True)


def parse_every(text: str) -> Every:
    """Return the value of `every`. For instance, `500 steps`, `30 min`, `auto`; an empty text gives `Every()`.

    Raise QuantityError for any other text, a bare number included: steps, or seconds.
    """
    word = text.strip().lower()
    if word in ("", "auto"):
        return AUTO if word else Every()
    match = re.fullmatch(r"(?a)(\d{1,10})\s*steps?", word)
    try:
        found = Every(steps=int(match[1])) if match else Every(seconds=parse_duration_s(word))
    except QuantityError:
        found = Every()
    if not (1 <= found.steps <= MOST_STEPS or found.seconds >= 1):
        raise QuantityError(f"{text!r} is no interval between saves", hint="write for instance auto, 500 steps or 30m")
    return found


# ---- failures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtbf:
    """The mean time between failures of a job, in seconds, with the bounds of its 95 % confidence interval.

    Attributes:
        estimate_s: None while no failure was seen: then only the lower bound is known.
        low_s, high_s: the bounds; equal to the estimate where a person has given it.
        failures: number of failures seen; None: given by a person.
        observed_s: for how long.
    """

    estimate_s: float | None
    low_s: float
    high_s: float = math.inf
    failures: int | None = None
    observed_s: float = 0.0

    @property
    def likely_s(self) -> float:
        """Return the estimate; the lower bound if there is none."""
        return self.low_s if self.estimate_s is None else self.estimate_s

    def __str__(self) -> str:
        """Return for instance `one failure in 8 h 20 min (3 in 1 d 1 h; 95 %: 2 h 51 min to 1 d 16 h)`."""
        if self.estimate_s is None and not self.observed_s:
            return "failures are unknown"
        if self.estimate_s is None:
            seen = f"no failure in {format_duration(round(self.observed_s))}"
            return f"{seen} (95 %: at most one in {format_duration(round(self.low_s))})"
        if self.estimate_s == math.inf:
            return "failures are impossible"
        rate = f"one failure in {format_duration(round(self.estimate_s))}"
        if self.failures is None:
            return rate
        bounds = f"{format_duration(round(self.low_s))} to {format_duration(round(self.high_s))}"
        return f"{rate} ({self.failures} in {format_duration(round(self.observed_s))}; 95 %: {bounds})"


@dataclass(frozen=True, slots=True)
class Past:
    """How an attempt of the run ended: after `seconds`, and whether a failure ended it."""

    seconds: float
    is_failure: bool


def mtbf_of_run(attempts: Iterable[Past], restart_s: float) -> Mtbf:
    """Return that of a run from its attempts, the current one included.

    A failure before the first step, `restart_s` after the start, has destroyed no work and does not count.
    """
    known = list(attempts)
    failures = sum(one.is_failure and one.seconds > restart_s for one in known)
    return measured_mtbf(failures, sum(one.seconds for one in known))


def known_mtbf(seconds: float) -> Mtbf:
    """Return a mean time between failures that a person gives."""
    return Mtbf(estimate_s=seconds, low_s=seconds, high_s=seconds)


def mtbf_of_nodes(nodes: int, failures_per_node_day: float) -> Mtbf:
    """Return that of a job on `nodes` nodes, which one failed node ends: 1 / (N r_f).

    A. Kokolis et al., Revisiting reliability in large-scale machine learning research clusters, HPCA 2025, measured
    r_f = 6.5e-3 and 2.34e-3 on two clusters.
    """
    return known_mtbf(86_400.0 / (nodes * failures_per_node_day) if failures_per_node_day else math.inf)


def measured_mtbf(failures: int, observed_s: float) -> Mtbf:
    """Return that of a job with exponentially distributed failures, of which `failures` were seen in `observed_s`.

    The bounds are 2T / chi2(0.975; 2n + 2) and 2T / chi2(0.025; 2n), of a test that ends by time (MIL-HDBK-338B).
    """
    tail = (1 - CONFIDENCE) / 2
    low_s = 2 * observed_s / chi2_quantile(1 - tail, failures + 1)
    if not failures:
        return Mtbf(estimate_s=None, low_s=low_s, failures=0, observed_s=observed_s)
    high_s = 2 * observed_s / chi2_quantile(tail, failures)
    return Mtbf(estimate_s=observed_s / failures, low_s=low_s, high_s=high_s, failures=failures, observed_s=observed_s)


@lru_cache(maxsize=1024)
def chi2_quantile(probability: float, half_degrees: int) -> float:
    """Return the quantile of the chi-square distribution with an even number of degrees of freedom, 2 `half_degrees`.

    Its tail is then a sum of Poisson terms (Abramowitz and Stegun, 26.4.21), which bisection inverts. From 200 degrees
    on, Wilson and Hilferty's approximation (26.4.17), whose error there is less than 0.01 %; only at the probabilities
    of the confidence interval.
    """
    if half_degrees >= 100:
        part = 1 / (9 * half_degrees)
        z = math.copysign(_Z, probability - 0.5)
        return 2 * half_degrees * (1 - part + z * math.sqrt(part)) ** 3
    low, high = 0.0, 1000.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        term = tail = math.exp(-middle / 2)
        for i in range(1, half_degrees):
            term *= middle / 2 / i
            tail += term
        low, high = (middle, high) if 1 - tail < probability else (low, middle)
    return (low + high) / 2


# ---- the interval ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What saves and restarts cost, in seconds.

    Attributes:
        stall_s: how long the training waits for a save.
        durable_s: how long a save takes until it is durable, the slowest one; at least `stall_s`.
        restart_s: from the start of a training to its first step.
        step_s: a step; 0: unknown, and the interval is not rounded to steps.
        in_flight: how many saves may be in flight at once.
    """

    stall_s: float
    durable_s: float
    restart_s: float = 0.0
    step_s: float = 0.0
    in_flight: int = 1

    @property
    def lag_s(self) -> float:
        """Return how long the training goes on before its save is durable."""
        return max(0.0, self.durable_s - self.stall_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often to save.

    Attributes:
        interval_s: from the start of one save to the start of the next.
        steps: whole steps between them; 0 if the duration of a step is unknown.
        bound: what determines the interval: `optimum` (Daly), `overhead` (CheckFreq), `in_flight` (PCcheck),
            `redo_max`, `step` (a save at each step), or `unmeasured`.
        reason: as a sentence without a full stop.
    """

    interval_s: float
    steps: int
    bound: str
    reason: str


def young_s(stall_s: float, mtbf_s: float) -> float:
    """Return Young's optimum of the time to train between saves: the root of 2 delta M."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """Return Daly's higher order optimum of the time to train between saves. Holds where
    failures are frequent, too; the restart cost does not enter it."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    if mtbf_s == math.inf:
        return math.inf
    part = stall_s / (2 * mtbf_s)
    return young_s(stall_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s


def decide(
    costs: Costs | None,
    mtbf: Mtbf,
    *,
    redo_max_s: float = 0.0,
    overhead: float = OVERHEAD,
    current_s: float | None = None,
) -> Cadence:
    """Return how often to save, and why.

    The optimum for the likely mean time between failures, but: saves take at most the share `overhead` of the time,
    unless the optimum is shorter for every MTBF that the failures leave possible; saves are not further ahead of the
    file system than `in_flight` of them, f >= T_w / (N q t) with q = 1 + overhead (PCcheck); and a failure costs at
    most `redo_max_s` of work (0: no limit), as far as the file system allows and saves leave half of the time.

    Args:
        costs: None before a save was measured.
        current_s: the interval in use, which stays if it is possible and within HYSTERESIS.
    """
    if costs is None:
        return _unmeasured(redo_max_s)
    stall_s, step_s = costs.stall_s, costs.step_s
    optimum_s = daly_s(stall_s, mtbf.likely_s)
    lowest = {
        "optimum": 0.0 if optimum_s == math.inf else optimum_s,
        "overhead": min(stall_s / overhead, daly_s(stall_s, mtbf.high_s)),
        "in_flight": costs.durable_s / (costs.in_flight * (1 + overhead)) - stall_s,
        "step": step_s,
    }
    bound = max(lowest, key=lambda name: lowest[name])
    train_s = lowest[bound]
    hard = max(("in_flight", "step"), key=lambda name: lowest[name])
    most_s = redo_max_s - costs.durable_s - stall_s if redo_max_s else math.inf
    least_s = max(lowest[hard], min(stall_s, train_s))
    is_kept = most_s >= least_s
    if train_s > most_s:
        bound, train_s = ("redo_max", most_s) if is_kept else (hard if least_s == lowest[hard] else "half", least_s)
    steps = 0
    if step_s:
        up = {"overhead": math.ceil, "in_flight": math.ceil, "half": math.ceil, "redo_max": math.floor}.get(
            bound, round
        )
        steps = max(1, up(train_s / step_s))
        train_s = steps * step_s
    interval_s = max(train_s + stall_s, 1e-3)
    reason = _reason(bound, costs, mtbf, overhead, redo_max_s)
    if not is_kept:
        reason += f"; redo_max of {format_duration(redo_max_s)} cannot be kept"
    if current_s is not None and _is_alike(current_s, interval_s):
        current_train_s = current_s - stall_s
        if least_s <= current_train_s * (1 + 1e-9) and (current_train_s <= most_s or not is_kept):
            interval_s, steps = current_s, max(1, round(current_train_s / step_s)) if step_s else 0
    return Cadence(interval_s=interval_s, steps=steps, bound=bound, reason=reason)


def _is_alike(current_s: float, other_s: float) -> bool:
    return current_s / (1 + HYSTERESIS) <= other_s <= current_s * (1 + HYSTERESIS)


def _unmeasured(redo_max_s: float) -> Cadence:
    if redo_max_s and redo_max_s < FIRST_S:
        reason = f"no save was measured yet, and redo_max is {format_duration(redo_max_s)}"
        return Cadence(interval_s=redo_max_s, steps=0, bound="redo_max", reason=reason)
    return Cadence(interval_s=FIRST_S, steps=0, bound="unmeasured", reason="no save was measured yet")


def _reason(bound: str, costs: Costs, mtbf: Mtbf, overhead: float, redo_max_s: float) -> str:
    stall, durable = (format_duration(round(seconds, 1)) for seconds in (costs.stall_s, costs.durable_s))
    if bound == "optimum":
        return f"a save stalls the training for {stall}, {mtbf}: Daly's optimum"
    if bound == "overhead":
        return f"a save stalls the training for {stall}: at most {100 * overhead:g} % of the time; {mtbf}"
    if bound == "in_flight":
        return f"a save takes {durable} until it is durable, and at most {costs.in_flight} may be in flight"
    if bound == "redo_max":
        return f"redo_max allows {format_duration(redo_max_s)}, and a save takes {durable} until it is durable"
    if bound == "half":
        return f"a save stalls the training for {stall}: at most half of the time"
    return "a save is cheaper than a step: one at each"


# ---- what an interval costs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What an interval costs.

    Attributes:
        overhead: the share of the time in which the training waits for saves.
        redo_s: the work that a failure destroys, on average.
        most_redo_s: and at most.
        lost: the share of the time that is not new work: saves, redone work and restarts; 1 if nothing is ever done,
            not a number if nothing is known of failures.
    """

    overhead: float
    redo_s: float
    most_redo_s: float
    lost: float


def loss_of(interval_s: float, costs: Costs, mtbf_s: float) -> Loss:
    """Return what an interval costs where a failure comes each `mtbf_s` on average, exponentially distributed.

    The total is Daly's complete model: M e^(R/M) (e^((tau + delta)/M) - 1) / tau for each second of work.
    A save in flight lengthens R by its lag: the work since its start is redone as well.
    """
    train_s = max(interval_s - costs.stall_s, 1e-9)
    overhead = costs.stall_s / interval_s
    redo_s = interval_s / 2 + costs.lag_s
    try:
        failing = math.exp((costs.restart_s + costs.lag_s) / mtbf_s) * math.expm1(interval_s / mtbf_s)
        useful = train_s / (mtbf_s * failing) if mtbf_s < math.inf else 1 - overhead
    except OverflowError:
        useful = 0.0
    except ZeroDivisionError:
        useful = math.nan
    return Loss(overhead=overhead, redo_s=redo_s, most_redo_s=interval_s + costs.durable_s, lost=1 - useful)
