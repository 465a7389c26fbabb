"""Which checkpoints to keep, and why. Pure: nothing here deletes anything.

A checkpoint is kept if any rule of the policy keeps it, or if it is pinned or labelled. Below that is a floor that no
policy reaches: a checkpoint goes only when those of two later steps are verified, and never if the run was last resumed
from it. So the newest two verified ones stay, and all that are newer; with fewer than two verified ones, all stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

from resilience.errors import UsageError
from resilience.quantities import format_duration

FLOOR = 2
"""Of how many later steps a checkpoint must be verified before one is deleted."""


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the `n` checkpoints with the best value of a metric.

    Attributes:
        metric: its name, as in `guard.saving(metrics={"loss": 2.31})`.
        n: how many.
        mode: `min` if a lower value is better, else `max`.
    """

    metric: str
    n: int = 1
    mode: str = "min"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What to keep: the union of these. 0 turns a rule off.

    Attributes:
        latest: the newest ones, by step.
        every_steps: the first at or after each multiple of this many steps.
        every_hours: the first of each period of this many hours, counted from the epoch.
        within_s: those that became durable within the last seconds.
        best: those with the best value of a metric.
    """

    latest: int = 2
    every_steps: int = 0
    every_hours: float = 0.0
    within_s: float = 0.0
    best: Best | None = None

    def __post_init__(self) -> None:
        """Raise UsageError if nothing would be kept."""
        if not (self.latest or self.every_steps or self.every_hours or self.within_s or self.best):
            raise UsageError("these retention settings would keep no checkpoint", hint="for instance latest = 2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One checkpoint, as far as retention is concerned.

    Attributes:
        name: in its directory.
        step: number of completed steps: the order of checkpoints, which no clock changes.
        attempt: number of the attempt that saved it; 0: unknown.
        at: when it became durable, in seconds since the epoch.
        label: its name for people; empty without one.
        metrics: numbers that were saved with it.
        is_pinned: whether a person wants it kept.
        is_verified: whether it was read again after its commit, and was equal.
        size_bytes: of its files.
        is_foreign: sealed, in a directory whose framework manages its own checkpoints.
    """

    name: str
    step: int
    attempt: int = 0
    at: float = 0.0
    label: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    is_pinned: bool = False
    is_verified: bool = False
    size_bytes: int = 0
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """This checkpoint stays."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """This checkpoint goes."""

    name: str
    reason: str
    size_bytes: int


def plan(
    candidates: Iterable[Candidate], policy: Policy, now: float, *, resumed_from: str = ""
) -> tuple[Kept | Deleted, ...]:
    """Say of each checkpoint whether it stays, and why; the oldest first.

    Foreign ones stay, and count for nothing: their framework may delete them at any time. `now`: seconds since the
    epoch. `resumed_from`: name of the checkpoint that was last resumed from. Raise UsageError if a checkpoint would be
    deleted although none has the metric of `best`: a misspelt name would delete the best ones.
    """
    ordered = sorted(candidates, key=lambda one: one.step)  # of one step, the last one replaces the others
    ours = [one for one in ordered if not one.is_foreign]
    reasons = {one.name: "sealed: its framework manages it (manage = false)" for one in ordered if one.is_foreign}
    if resumed_from:
        reasons[resumed_from] = "last resumed from"
    for name, reason in (*_by_policy(ours, policy, now), *_by_floor(ours)):
        reasons.setdefault(name, reason)
    verdicts = tuple(
        Kept(one.name, reasons[one.name])
        if one.name in reasons
        else Deleted(one.name, f"no rule keeps it, and {FLOOR} newer ones are verified", one.size_bytes)
        for one in ordered
    )
    if policy.best is not None and any(isinstance(one, Deleted) for one in verdicts):
        _require(policy.best.metric, ours)
    return verdicts


def _by_policy(ours: Sequence[Candidate], policy: Policy, now: float) -> Iterator[tuple[str, str]]:
    """Yield names and reasons; `ours` has the oldest first."""
    yield from ((one.name, "pinned") for one in ours if one.is_pinned)
    yield from ((one.name, f"labelled {one.label}") for one in ours if one.label)
    if policy.latest:
        yield from ((one.name, f"one of the latest {policy.latest}") for one in ours[-policy.latest :])
    if best := policy.best:
        sign = 1 if best.mode == "min" else -1
        known = [one for one in ours if not isnan(one.metrics.get(best.metric, float("nan")))]
        known.sort(key=lambda one: (sign * one.metrics[best.metric], -one.step))
        yield from (
            (one.name, f"{best.metric} = {one.metrics[best.metric]:g} is among the best") for one in known[: best.n]
        )
    if policy.every_steps:
        firsts = _firsts(ours, [one.step // policy.every_steps for one in ours])
        yield from ((one.name, f"every {policy.every_steps} steps") for one in firsts if one.step >= policy.every_steps)
    if policy.every_hours:
        firsts = _firsts(ours, [one.at // (policy.every_hours * 3600) for one in ours])
        yield from ((one.name, f"every {policy.every_hours:g} h") for one in firsts)
    if policy.within_s:
        young = (one for one in ours if now - one.at <= policy.within_s)
        yield from ((one.name, f"younger than {format_duration(policy.within_s)}") for one in young)


def _by_floor(ours: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
    """Yield the names of those that fewer than two verified ones of later steps supersede.

    After a return to an earlier step, those that the older attempt left there supersede nothing that is saved now.
    """
    verified = [one for one in reversed(ours) if one.is_verified]
    for one in ours:
        steps: set[int] = set()
        for other in verified:
            if other.step <= one.step or len(steps) == FLOOR:
                break
            if not 0 < other.attempt < one.attempt:
                steps.add(other.step)
        if len(steps) < FLOOR:
            yield one.name, f"{'only one' if steps else 'no'} newer one is verified"


def _firsts(ours: Sequence[Candidate], periods: Sequence[float]) -> list[Candidate]:
    """Return the oldest candidate of each period: it stays the oldest whatever is saved or deleted later."""
    found: dict[float, Candidate] = {}
    for one, period in zip(ours, periods, strict=True):
        found.setdefault(period, one)
    return list(found.values())


def _require(metric: str, ours: Sequence[Candidate]) -> None:
    names = sorted({name for one in ours for name in one.metrics})
    if metric not in names:
        known = f"they have {', '.join(names)}" if names else "they have no metrics"
        raise UsageError(
            f"no checkpoint has the metric {metric!r} of `best`, so none is deleted: {known}",
            hint=f"save it: guard.saving(metrics={{{metric!r}: ...}}), or correct [checkpoints] best",
        )
