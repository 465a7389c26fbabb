"""Judges nodes by the evidence: which are excluded, until when and why, and how many of them a run may avoid. Pure.

Nothing of this is stored: whoever has the same evidence comes to the same result. That a weak sign counts from the
second one within five minutes is the rule of ByteRobust (arXiv 2509.16293) for alerts that may be transient; which Xids
are of the hardware, and which never count (13, 31, 43: a program's), is in docs/reference/xid.md. Nobody publishes how
long evidence counts and nodes are kept out; ours: a chain of jobs of a day each shows a bad node again in three days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from resilience.cluster import Node
from resilience.messages import cut, plural
from resilience.nodes.evidence import Evidence, Source

WEIGHTS: Mapping[Source, float] = {
    Source.XID: 1.0,
    Source.CHECK: 1.0,
    Source.COMMON: 1.0,
    Source.NAMED: 0.5,
    Source.SDC: 0.5,
    Source.SOFT_XID: 0.25,
    Source.SLOW: 0.25,
}
"""A node is bad at 1: two failures that name it, or one fact that the others are not needed for."""
SOFT_PAIR_S = 300.0
"""Two soft Xids within this count as one of the hardware."""
MOST_SLOW = 0.5
"""A node that is slow, however often, is never excluded for that alone: the run decides what slowness is worth."""
COUNTS_S = 3 * 86400.0
"""Older evidence counts no more, because nodes are repaired."""
EXCLUDED_S, LONGEST_S = 86400.0, 7 * 86400.0
"""The first exclusion; each one that follows during the probation takes twice as long, up to the longest."""
PROBATION_S = 7 * 86400.0
"""So long after an exclusion a single failure excludes a node again."""
ON_PROBATION = 0.5
MOST_OF_A_RUN = 3
"""If the failures of one run convict more nodes, it is not the nodes."""
CAP_PERCENT = 5.0
"""Of the nodes of a partition so many may be excluded, at least one, and as many as are idle and not needed."""
_OF_RUNS = {Source.NAMED, Source.COMMON, Source.CHECK, Source.SDC}
"""Evidence that blames a node for what may be the run's fault, or that of its storage. A check that compared several
nodes has a run for each of them in `about` (checking.py): what only some of them have is theirs."""
_WORDS: Mapping[Source, str] = {
    Source.XID: "the driver of its GPUs says",
    Source.CHECK: "a check failed",
    Source.COMMON: "attempts fail there that make progress elsewhere",
    Source.NAMED: "a failure names it",
    Source.SDC: "it computes wrong values",
    Source.SOFT_XID: "the driver of its GPUs says, and a restart may heal it",
    Source.SLOW: "it is slow",
}


class State(StrEnum):
    """What a node is to the next job."""

    GOOD = "good"
    SUSPECT = "suspect"
    """There is evidence, and not enough of it."""
    PROBATION = "probation"
    """Its exclusion is over, and the next failure excludes it again, for longer."""
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of a node.

    Attributes:
        score: of the evidence that counts now, or that excluded it; 1 is bad.
        why: the reason in words.
        since, until: of the last exclusion; 0: there was none.
        by_hand: whether a person excluded it.
        allowed: when a person last allowed it; 0: never.
        evidence: all of it, oldest first.
    """

    node: str
    state: State = State.GOOD
    score: float = 0.0
    why: str = ""
    since: float = 0.0
    until: float = 0.0
    by_hand: bool = False
    allowed: float = 0.0
    evidence: tuple[Evidence, ...] = ()


def judge(evidence: Iterable[Evidence], now: float) -> tuple[Standing, ...]:
    """Return the nodes of which anything is known, the worst first."""
    by_node: dict[str, list[Evidence]] = defaultdict(list)
    for one in sorted(evidence, key=lambda one: (one.time, one.key)):
        by_node[one.node].append(one if one.time <= now else replace(one, time=now))  # by a clock that is ahead
    blamed = _runs_that_blame_many(by_node)
    found = [_judge_node(node, mine, blamed, now) for node, mine in by_node.items()]
    return tuple(sorted(found, key=lambda one: (-[*State].index(one.state), -one.score, one.node)))


def _judge_node(node: str, evidence: Sequence[Evidence], ignored: Collection[str], now: float) -> Standing:
    at = Standing(node=node, evidence=tuple(evidence))
    counted: list[Evidence] = []
    length = EXCLUDED_S
    for one in evidence:
        if one.source is Source.ALLOWED:
            at, counted, length = Standing(node=node, allowed=one.time, evidence=at.evidence), [], EXCLUDED_S
        elif one.source is Source.EXCLUDED:
            at = replace(at, since=one.time, until=one.until, by_hand=True, score=1.0, why=_said_by(one))
            counted = []
        elif one.source in WEIGHTS and one.time >= at.until and not (one.source in _OF_RUNS and _run(one) in ignored):
            counted = [*(old for old in counted if one.time - old.time < COUNTS_S), one]
            is_again = at.until > 0 and one.time < at.until + PROBATION_S
            if (score := _score(counted)) >= (ON_PROBATION if is_again else 1.0):
                length = min(LONGEST_S, 2 * length) if is_again else EXCLUDED_S
                why, until = _reason(counted), one.time + length
                at = replace(at, since=one.time, until=until, by_hand=False, score=score, why=why)
                counted = []
    if now < at.until:
        return replace(at, state=State.EXCLUDED)
    counted = [one for one in counted if now - one.time < COUNTS_S]
    if at.until > 0 and now < at.until + PROBATION_S:
        return replace(at, state=State.PROBATION, score=_score(counted), why=_reason(counted) or f"it was: {at.why}")
    at = replace(at, score=_score(counted), why=_reason(counted))
    return replace(at, state=State.SUSPECT) if counted else at


def _runs_that_blame_many(by_node: Mapping[str, Sequence[Evidence]]) -> set[str]:
    """Return the runs that convict many nodes by themselves: their program or their storage is the cause."""
    convicted: dict[str, set[str]] = defaultdict(set)
    for node, evidence in by_node.items():
        mine: dict[str, list[Evidence]] = defaultdict(list)
        for one in evidence:
            if one.source in _OF_RUNS:
                mine[_run(one)] = [old for old in mine[_run(one)] if one.time - old.time < COUNTS_S] + [one]
                if _score(mine[_run(one)]) >= 1:
                    convicted[_run(one)].add(node)
    return {run for run, nodes in convicted.items() if len(nodes) > MOST_OF_A_RUN}


def _run(one: Evidence) -> str:
    """Return what the evidence is about, without the attempt."""
    return one.about.rpartition(" ")[0]


def _score(counted: Sequence[Evidence]) -> float:
    slow = sum(WEIGHTS[Source.SLOW] for one in counted if one.source is Source.SLOW)
    soft = [one.time for one in counted if one.source is Source.SOFT_XID]
    pair = any(later - earlier < SOFT_PAIR_S for earlier, later in pairwise(soft))
    rest = {Source.SLOW, Source.SOFT_XID}
    score = sum(WEIGHTS[one.source] * one.share for one in counted if one.source not in rest)
    return round(score + min(slow, MOST_SLOW) + (1.0 if pair else WEIGHTS[Source.SOFT_XID] * bool(soft)), 3)


def _reason(counted: Sequence[Evidence]) -> str:
    by_source: dict[Source, list[Evidence]] = defaultdict(list)
    for one in counted:
        by_source[one.source].append(one)
    ordered = sorted(by_source.items(), key=lambda pair: -WEIGHTS[pair[0]])
    times = {source: f" ({len(found)} times)" if len(found) > 1 else "" for source, found in ordered}
    return "; ".join(f"{_WORDS[source]}{times[source]}: {cut(found[-1].why, 160)}" for source, found in ordered)


def _said_by(one: Evidence) -> str:
    return f"{one.by or 'a user'}: {one.why}" if one.why else f"by {one.by or 'a user'}"


# ---- how many a run may avoid --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The nodes that a run avoids, each with the reason.

    Attributes:
        avoid: to be excluded.
        beyond: excluded ones that it must use nevertheless, each with the reason for that.
        gone: excluded ones that the scheduler does not know: sbatch refuses a job that names them.
    """

    avoid: Mapping[str, str]
    beyond: Mapping[str, str]
    gone: tuple[str, ...] = ()


def choose(
    standings: Iterable[Standing],
    nodes: Sequence[Node],
    partitions: Collection[str],
    needed: int,
    *,
    kept: Collection[str] = (),
    given: Collection[str] = (),
) -> Choice:
    """Return which excluded nodes jobs of `needed` nodes in these partitions avoid.

    `partitions`: an empty name stands for all of them, where that of the job is unknown. `kept`: nodes that are
    excluded from these jobs already: the number of idle nodes changes each minute, and they stay excluded. `given`:
    nodes that the user excludes.
    """
    bad = sorted(
        (one for one in standings if one.state is State.EXCLUDED),
        key=lambda one: (not one.by_hand, one.node not in kept, one.since),
    )
    mine = [node for node in nodes if not {"", *node.partitions}.isdisjoint(partitions)]
    usable = {node.name for node in mine if node.is_usable and node.name not in given}
    names = {one.node for one in bad}
    spares = sum(node.state == "IDLE" and node.name in usable - names for node in mine) - needed
    cap = max(1, int(len(mine) * CAP_PERCENT / 100), spares)
    known, own = {node.name for node in nodes}, {node.name for node in mine}
    avoid: dict[str, str] = {}
    beyond: dict[str, str] = {}
    automatic = 0
    for one in bad:
        if one.node not in own or one.node in given:
            continue
        if len(usable - avoid.keys() - {one.node}) < max(1, needed):
            beyond[one.node] = f"the run needs {plural(needed, 'node')}, and no other is left"
        elif one.by_hand or one.node in kept or automatic < cap:
            avoid[one.node] = one.why
            automatic += not one.by_hand
        else:
            beyond[one.node] = f"{plural(cap, 'node')} of {len(mine)} may be excluded"
    return Choice(avoid=avoid, beyond=beyond, gone=tuple(sorted(names - known)))
