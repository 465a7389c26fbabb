"""Names the ranks that make the others wait, and a run that has become slower than its own past. Pure.

All ranks of a synchronous training take a step in the same time T; one that needs c seconds of it for itself waits
T - c inside collectives. So the share of the time that it does not wait, against the same share of the median rank, is
how much slower it is.

That a rank is late in 8 of 10 windows by its distance from the median is C4's rule; 1.1 (degraded) and 3 (failed) are
Unicron's. Nobody publishes how long windows are: ours have 60 looks, of which 1.5 deviations and 8 of 10 leave no false
alarm in 1,000 simulated trainings (tests/ranks/test_stragglers.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high, median_low

from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.ranks.beats import NodeBeat, RankBeat, Window

WINDOWS, AGREEING = 10, 8
DEVIATIONS = 1.5
LEAST = 0.05
"""A rank that waits less than the median by a smaller share is not late, however equal the others are (C4: 5 %)."""
LEAST_LOOKS = 30
"""Of a window with pauses."""
LEAST_PAUSE_S = 2.0
"""A shorter pause is missed by ranks that are sampled once a second, and hardly changes how long others wait."""
MOST_WAITED = 0.9
"""If the median rank is inside collectives longer than this, they are enqueued and not waited for, as by NCCL."""
MOST_NAMED = 8
LEAST_PAST = 3
"""Earlier readings without which a run has no past."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From which factor on a rank or a run is slow.

    Attributes:
        degraded: told.
        failed: told urgently.
    """

    degraded: float = 1.1
    failed: float = 3.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class RankPace:
    """One rank.

    Attributes:
        step_s: seconds per step, median of its windows; None: unknown.
        waits: share of the time inside collectives, in the windows that count; None: unknown.
        factor: how much longer than the median rank it computes; None: nothing can be said.
        late: in how many of the last ten windows it was late.
        windows: for each, the step at its end, and the share it waited; None if the window does not count.
    """

    rank: int
    host: str
    step: int
    phase: str
    step_s: float | None = None
    waits: float | None = None
    factor: float | None = None
    late: int = 0
    windows: tuple[tuple[int, float | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Straggler:
    """Ranks that make the others wait: one, or all of a host.

    Attributes:
        factor: of the slowest of them.
        why: the sentence for people.
    """

    ranks: tuple[int, ...]
    host: str
    factor: float
    why: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the ranks of an attempt are.

    Attributes:
        step_s: seconds per step of the median rank; None: unknown.
        ranks: by number.
        stragglers: slowest first.
        nothing: why nothing can be said about stragglers; empty if it can.
    """

    step_s: float | None
    ranks: tuple[RankPace, ...]
    stragglers: tuple[Straggler, ...] = ()
    nothing: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """How fast a run was.

    Attributes:
        time: seconds since the epoch.
        world: number of ranks.
        hosts: its nodes.
    """

    time: float
    step_s: float
    world: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """A run that is slower than it was.

    Attributes:
        factor: now against then.
        since: when it was first seen to be slower, in seconds since the epoch.
        new_hosts: nodes that it did not have before.
        why: the sentence for people.
    """

    factor: float
    since: float
    new_hosts: tuple[str, ...]
    why: str


def newest_attempt(beats: Sequence[NodeBeat]) -> list[NodeBeat]:
    """Return the heartbeats of the newest attempt among these."""
    newest = max((beat.attempt for beat in beats), default=0)
    return [beat for beat in beats if beat.attempt == newest]


def judge(nodes: Sequence[NodeBeat], limits: Limits = DEFAULT_LIMITS) -> Pace:
    """Given the heartbeats of all nodes of an attempt, return how fast its ranks are and which of them are late."""
    beats = sorted(
        ((one, node.host) for node in nodes for one in node.ranks if not one.has_left), key=lambda pair: pair[0].rank
    )
    length = max((window.length for one, _ in beats for window in one.windows), default=1)
    merged = {one.rank: _merge(one.windows, length) for one, _ in beats}
    pauses = {(begin, end) for one, _ in beats for begin, end, took_s in one.pauses if took_s >= LEAST_PAUSE_S}
    counted = {one.rank: _without_foreign(pauses, one, merged[one.rank]) for one, _ in beats}
    common = sorted(set[int]().union(*counted.values()).intersection(*counted.values()))
    lates, factors, nothing = _compare(counted, common[-WINDOWS:])
    ranks = []
    for one, host in beats:
        mine = counted[one.rank]
        ranks.append(
            RankPace(
                rank=one.rank,
                host=host,
                step=one.step,
                phase=one.phase,
                step_s=median(each.seconds / each.steps for each in mine.values()) if mine else None,
                waits=_share(list(mine.values())[-WINDOWS:]) if mine else None,
                factor=factors.get(one.rank),
                late=lates.get(one.rank, 0),
                windows=tuple((end, _share([mine[end]]) if end in mine else None) for end in merged[one.rank]),
            )
        )
    known = [one.step_s for one in ranks if one.step_s is not None]
    return Pace(median(known) if known else None, tuple(ranks), _stragglers(ranks, limits), nothing)


def _merge(windows: Sequence[Window], length: int) -> dict[int, Window]:
    """Return windows of this length, by their end; those of ranks whose guards have chosen shorter ones are joined."""
    found: dict[int, Window] = {}
    covered: Counter[int] = Counter()
    for one in windows:
        end = -(-one.end // length) * length
        old = found.get(end, Window(end, length, 0, 0, 0, 0.0))
        sums = (old.steps + one.steps, old.looks + one.looks, old.inside + one.inside, old.seconds + one.seconds)
        found[end] = Window(end, length, *sums)
        covered[end] += one.length
    return {end: one for end, one in sorted(found.items()) if covered[end] == length and one.looks >= LEAST_LOOKS}


def _without_foreign(
    pauses: Collection[tuple[int, int]], rank: RankBeat, windows: dict[int, Window]
) -> dict[int, Window]:
    """Return a rank's windows without those in which it may have waited for another one that paused alone."""
    foreign = [pause for pause in pauses if not any(_overlap(pause, own[:2]) for own in rank.pauses)]
    return {
        end: one
        for end, one in windows.items()
        if not any(_overlap((end - one.length, end), other) for other in foreign)
    }


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _share(windows: Sequence[Window]) -> float:
    return sum(one.inside for one in windows) / sum(one.looks for one in windows)


def _compare(
    counted: Mapping[int, Mapping[int, Window]], ends: Sequence[int]
) -> tuple[dict[int, int], dict[int, float], str]:
    """Return in how many windows each rank was late, how much longer it computes, and why that cannot be said."""
    if len(counted) < 2:
        return {}, {}, "there is one rank, which waits for no other"
    if len(ends) < WINDOWS:
        why = f"{len(ends)} of {WINDOWS} windows are there in which every rank only trained; each takes a minute or two"
        return {}, {}, why
    waits = {rank: _share([windows[end] for end in ends]) for rank, windows in counted.items()}
    middle = median_high(waits.values())
    if middle > MOST_WAITED:
        return {}, {}, f"collectives are open for {middle:.0%} of the time: enqueued and not waited for, as by NCCL"
    lates = dict.fromkeys(counted, 0)
    for end in ends:
        shares = {rank: _share([windows[end]]) for rank, windows in counted.items()}
        for rank in _late(shares, min(windows[end].looks for windows in counted.values())):
            lates[rank] += 1
    return lates, {rank: (1 - share) / (1 - middle) for rank, share in waits.items()}, ""


def _late(shares: dict[int, float], looks: int) -> list[int]:
    """Return the ranks that wait less than the median by more than chance and the spread of the others explain."""
    middle = median_high(shares.values())
    spread = 1.4826 * median_low(abs(share - middle) for share in shares.values())
    chance = math.sqrt(middle * (1 - middle) / looks)
    least = middle - max(DEVIATIONS * max(spread, chance), LEAST)
    return [rank for rank, share in shares.items() if share < least]


def _stragglers(ranks: Sequence[RankPace], limits: Limits) -> tuple[Straggler, ...]:
    slow = {one.rank: one for one in ranks if one.late >= AGREEING and (one.factor or 0) >= limits.degraded}
    found = []
    for host in dict.fromkeys(one.host for one in slow.values()):
        mine = [one for one in ranks if one.host == host]
        if len(mine) > 1 and all(one.rank in slow for one in mine) and len(mine) < len(ranks):
            found.append(_straggler(mine, f"all {len(mine)} ranks of {host}"))
        else:
            found += [_straggler([one], f"rank {one.rank} on {host}") for one in mine if one.rank in slow]
    return tuple(sorted(found, key=lambda one: -one.factor))


def _straggler(ranks: Sequence[RankPace], name: str) -> Straggler:
    worst = max(ranks, key=lambda one: one.factor or 0)
    factor, late = worst.factor or 0.0, min(one.late for one in ranks)
    verb = "take" if len(ranks) > 1 else "takes"
    why = f"{name} {verb} {factor:.2f} times as long as the median rank, last in {late} of {WINDOWS} windows"
    return Straggler(tuple(one.rank for one in ranks), worst.host, factor, why)


def describe(stragglers: Sequence[Straggler]) -> str:
    """Return one line about stragglers."""
    more = len(stragglers) - MOST_NAMED
    return "; ".join(one.why for one in stragglers[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def judge_drift(
    past: Sequence[Past], limits: Limits = DEFAULT_LIMITS, slow_hosts: Collection[str] = ()
) -> Drift | None:
    """Given how fast a run was, oldest first, return by how much it is slower than in the fastest quarter of its past.

    Only times with as many ranks as now are compared. The last two readings must be slower. `slow_hosts` are those
    that are known to make the others wait.
    """
    same = [one for one in past if one.world == past[-1].world and one.step_s > 0] if past else []
    if len(same) < LEAST_PAST + 2:
        return None
    earlier = sorted(one.step_s for one in same[:-2])
    base = median(earlier[: max(LEAST_PAST, len(earlier) // 4)])
    if min(one.step_s for one in same[-2:]) < limits.degraded * base:
        return None
    begin = next(number for number in range(len(same), 0, -1) if same[number - 1].step_s < limits.degraded * base)
    factor, since = same[-1].step_s / base, same[begin].time
    known = {host for one in same[:begin] for host in one.hosts}
    new = tuple(host for host in same[-1].hosts if host not in known)
    if slow_hosts:
        where = f"the others wait for {', '.join(slow_hosts)}"
    elif new and len(new) < len(same[-1].hosts):
        where = f"new since then: {', '.join(new[:MOST_NAMED])}"
    else:
        where = "all its nodes are new since then" if new else "no node is new, and none makes the others wait"
    why = f"{same[-1].step_s:.3g} s per step, {factor:.2f} times as long as the {base:.3g} s it took before with "
    why += f"{plural(same[-1].world, 'rank')}, for {format_duration(max(0.0, past[-1].time - since))}; {where}"
    return Drift(factor, since, new, why)
