"""Ranks with the same stacks are one group, and the ranks that differ are named. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from resilience.ranks.stacks import Frame, Stacks, Where, place_of, where

NAMED = 2
"""Odd ranks that the sentence names."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks whose main threads have the same Python frames.

    Attributes:
        place: the innermost place in the user's code, such as `train.py:41 in step`.
        function: the one that shows where they are, such as `all_reduce`.
    """

    ranks: tuple[int, ...]
    where: Where
    function: str
    place: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class OddRank:
    """A rank that differs from the others, its host, and why."""

    rank: int
    host: str
    why: str


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups, the largest first; the odd ranks, the surest first; and one sentence about both."""

    groups: tuple[Group, ...]
    odd: tuple[OddRank, ...]
    sentence: str


def group(
    stacks: Mapping[int, Stacks],
    silent: Mapping[int, str] | None = None,
    hosts: Mapping[int, str] | None = None,
    inside: Collection[int] = (),
) -> Groups:
    """Given the stacks by rank, why ranks did not answer, and the hosts of ranks, return groups and odd ranks.

    `inside`: ranks that stand still inside a collective, as torch's flight recorder tells where no Python frame does:
    in the backward pass of DistributedDataParallel, or in `loss.item()` with NCCL.

    A rank that did not answer is odd, even if its stacks were read from outside. So is a rank outside of a collective
    while others wait in one, however many they are: a collective waits for its last rank. Else the ranks that are not
    in a group of more than half of all are odd; without such a group no rank is.
    """
    silent, hosts = silent or {}, hosts or {}
    by_frames: dict[tuple[tuple[Frame, ...], bool], list[int]] = {}
    for rank, found in sorted(stacks.items()):
        frames = found.main.frames if found.main is not None else ()
        by_frames.setdefault((frames, rank in inside), []).append(rank)
    groups = [_group(ranks, stacks[ranks[0]], *key) for key, ranks in by_frames.items()]
    groups.sort(key=lambda one: (-len(one.ranks), one.ranks))
    why = dict(sorted(silent.items()))
    for one in _odd_groups(groups, len(stacks)):
        why |= {rank: describe(one) for rank in one.ranks if rank not in why}
    odd = tuple(OddRank(rank, hosts.get(rank, ""), reason) for rank, reason in why.items())
    return Groups(tuple(groups), odd, _sentence(groups, odd, len({*stacks, *silent})))


def _group(ranks: Sequence[int], found: Stacks, frames: tuple[Frame, ...], is_inside: bool) -> Group:
    word, function = where(found)
    if is_inside and word in (Where.CODE, Where.GPU):
        word = Where.COLLECTIVE
    return Group(tuple(ranks), word, function, place_of(found), frames)


def _odd_groups(groups: Sequence[Group], ranks: int) -> list[Group]:
    outside = [one for one in groups if one.where is not Where.COLLECTIVE]
    if outside and len(outside) < len(groups):
        return outside[::-1]
    return list(groups[1:])[::-1] if groups and 2 * len(groups[0].ranks) > ranks else []


def describe(one: Group) -> str:
    """Return where a group is: `in a collective (all_reduce) at train.py:41 in step`. Pure."""
    function = f" ({one.function})" if one.where in (Where.COLLECTIVE, Where.GPU) else ""
    return f"{one.where.value}{function}" + (f" at {one.place}" if one.place else "")


def _sentence(groups: Sequence[Group], odd: Sequence[OddRank], ranks: int) -> str:
    if not groups and len(odd) > NAMED:
        return f"none of {ranks} ranks has answered"
    differ = {one.rank for one in odd}
    rest = [one for one in groups if not differ >= set(one.ranks)]
    if not odd and len(rest) == 1:
        return f"{'the only rank' if ranks == 1 else f'all {ranks} ranks'}: {describe(rest[0])}"
    if not odd:
        return f"{ranks} ranks are at {len(rest)} places, and no group is larger than half of them"
    parts = [f"rank {one.rank}{f' on {one.host}' if one.host else ''}: {one.why}" for one in odd[:NAMED]]
    if len(odd) > NAMED:
        parts = [f"{len(odd)} of {ranks} ranks differ, {parts[0]}"]
    if len(rest) == 1:
        others = ranks - len(odd)
        parts.append(f"the other{f' {others} ranks' if others > 1 else ''}: {describe(rest[0])}")
    elif rest:
        parts.append(f"the other {ranks - len(odd)} ranks are at {len(rest)} places")
    return "; ".join(parts)


def numbers(ranks: Sequence[int]) -> str:
    """Return sorted numbers as ranges: `0-2, 5`. Pure."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
