"""What saving costs, and whether there is room for it: the report of `resil ckpt plan`. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.cadence import AUTO, Cadence, Costs, Every, Loss, Mtbf, decide, loss_of
from resilience.checkpoints.retention import Candidate, Kept, Policy
from resilience.checkpoints.retention import plan as plan_retention

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The intervals that are compared, as multiples of the chosen one."""
DAY_S = 86_400.0
MOST_SAVES = 20_000
"""So many saves are predicted one by one; of more, the rest is assumed to be kept alike."""
BYTES, INODES = "bytes", "inodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the guard of an earlier or running job has measured, in seconds; None: nothing yet.

    Attributes:
        stall_s: the median wait of the training for a save.
        durable_s: the slowest save, until it was durable.
        saves: how many saves these are of.
        step_s: the duration of a step.
        restart_s: from the start of the process to its first step.
    """

    stall_s: float | None = None
    durable_s: float | None = None
    saves: int = 0
    step_s: float | None = None
    restart_s: float | None = None


def read_measured(text: bytes | str) -> Measured:
    """Return the measurements in the text of `learned/0.json`; none of a damaged file or of another version."""
    try:
        fields = json.loads(text)
        pace, cadence = fields["pace"], fields.get("cadence", {})
        stalls, saves = (sorted(_seconds(one) for one in pace[name]) for name in ("stalls", "saves"))
        step_s, restart_s = (_seconds(cadence.get(name, 0.0)) or None for name in ("step_s", "restart_s"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Measured()
    return Measured(
        stall_s=stalls[len(stalls) // 2] if stalls else None,
        durable_s=saves[-1] if saves else None,
        saves=len(saves),
        step_s=step_s,
        restart_s=restart_s,
    )


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError("not a time")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A limit that checkpoints count against.

    Attributes:
        name: for people: `file system /scratch`, `quota of user alice`.
        kind: bytes or inodes.
        free: how much is left of it.
    """

    name: str
    kind: str
    free: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a training.

    Attributes:
        every: the setting; `auto` also where nothing is set.
        size: of one checkpoint, by kind: bytes and inodes; kinds that are unknown are missing.
        left_s: until the end of the job; None: unknown, or no limit.
        since_save_s: since the last save; None: unknown.
        policy: what is kept; None: nothing is deleted.
        step: the newest step.
        now: seconds since the epoch.
    """

    costs: Costs
    mtbf: Mtbf
    every: Every = AUTO
    redo_max_s: float = 0.0
    size: Mapping[str, float]
    rooms: tuple[Room, ...] = ()
    left_s: float | None = None
    since_save_s: float | None = None
    policy: Policy | None = None
    step: int = 0
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One interval, and what it costs.

    Attributes:
        steps: whole steps; 0: the duration of a step is unknown.
        loss: at the likely MTBF; `worst` and `best` at the bounds of the MTBF.
    """

    interval_s: float
    steps: int
    loss: Loss
    worst: Loss
    best: Loss
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a limit has room.

    Attributes:
        next: what the next checkpoint needs.
        more: what all checkpoints until the horizon need in addition to those that exist.
        next_fits, fits: whether there is room for the next, and for all.
    """

    room: Room
    next: float
    more: float
    next_fits: bool
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The report.

    Attributes:
        cadence: what `auto` decides.
        interval_s: the interval in use: that of the setting, or of `auto`.
        horizon_s: until the end of the job; a day if that is unknown.
        saves: how many saves that are.
        kept: how many of their checkpoints exist at the horizon, besides those that exist now.
        next_s: until the next save; None: unknown.
        is_late: whether the next save would not be durable before the end of the job; None: unknown.
    """

    cadence: Cadence
    interval_s: float
    choices: tuple[Choice, ...]
    horizon_s: float
    saves: int
    kept: int
    more: Mapping[str, float]
    fits: tuple[Fit, ...]
    next_s: float | None
    is_late: bool | None


def plan(known: Known) -> Plan:
    """Return what saving costs at the interval in use and at others, and whether there is room for the checkpoints."""
    costs = known.costs
    cadence = decide(costs, known.mtbf, redo_max_s=known.redo_max_s)
    interval_s = known.every.seconds or known.every.steps * costs.step_s + costs.stall_s * bool(costs.step_s)
    if known.every.is_auto or not (known.every.seconds or costs.step_s):
        interval_s = cadence.interval_s
    horizon_s = DAY_S if known.left_s is None else known.left_s
    first_s = interval_s if known.since_save_s is None else max(0.0, interval_s - known.since_save_s)
    saves = 0 if horizon_s < first_s else 1 + int((horizon_s - first_s) / interval_s)
    kept = _kept(known, saves, interval_s)
    slots = kept + min(saves, costs.in_flight)  # the new ones are written before the old ones go
    more = {kind: slots * size for kind, size in known.size.items()}
    fits = tuple(
        Fit(
            room=room,
            next=known.size[room.kind],
            more=more[room.kind],
            next_fits=known.size[room.kind] <= room.free,
            fits=more[room.kind] <= room.free,
        )
        for room in known.rooms
        if room.kind in known.size
    )
    shortest_s = max(costs.stall_s + costs.step_s, costs.durable_s / costs.in_flight)
    return Plan(
        cadence=cadence,
        interval_s=interval_s,
        choices=tuple(
            _choice(factor * interval_s, known, is_chosen=factor == 1)
            for factor in FACTORS
            if factor == 1 or factor * interval_s > shortest_s
        ),
        horizon_s=horizon_s,
        saves=saves,
        kept=kept,
        more=more,
        fits=fits,
        next_s=None if known.since_save_s is None else first_s,
        is_late=None if known.left_s is None else first_s + costs.durable_s > known.left_s,
    )


def _choice(interval_s: float, known: Known, *, is_chosen: bool) -> Choice:
    costs, mtbf = known.costs, known.mtbf
    return Choice(
        interval_s=interval_s,
        steps=max(1, round((interval_s - costs.stall_s) / costs.step_s)) if costs.step_s else 0,
        loss=loss_of(interval_s, costs, mtbf.likely_s),
        worst=loss_of(interval_s, costs, mtbf.low_s),
        best=loss_of(interval_s, costs, mtbf.high_s),
        is_chosen=is_chosen,
    )


def _kept(known: Known, saves: int, interval_s: float) -> int:
    """Return how many of the coming checkpoints retention keeps, each verified before the next. Those that exist stay:
    this is the most that is needed."""
    if known.policy is None or not saves:
        return saves
    count, best = min(saves, MOST_SAVES), known.policy.best
    steps = round((interval_s - known.costs.stall_s) / known.costs.step_s) if known.costs.step_s else 1
    coming = [
        Candidate(
            name=str(number),
            step=known.step + number * max(1, steps),
            at=known.now + number * interval_s,
            metrics={} if best is None else {best.metric: number if best.mode == "min" else -number},  # the first wins
            is_verified=True,
        )
        for number in range(1, count + 1)
    ]
    verdicts = plan_retention(coming, known.policy, known.now + count * interval_s)
    kept = sum(isinstance(verdict, Kept) for verdict in verdicts)
    return math.ceil(kept * saves / count) if saves > count else kept
