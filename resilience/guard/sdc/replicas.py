"""Compares what ranks say of state that must be equal: the replicas of a data-parallel training. Pure.

Each rank describes its state in one line, without a collective: the digest of its parameters and its optimizer state,
the largest absolute value in them, its group of replicas and its node. Rank 0 compares the lines of a step once it has
those of all ranks.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_NAMED = 8
IMPLAUSIBLE, IMPLAUSIBLE_TIMES = 1e6, 100.0
"""No healthy parameter or moment is above the first, and so many times as large as those of an equal rank."""
GROUP_LIMIT, NODE_LIMIT = 40, 64
"""Longest words of a line, in characters: eight ranks fit into an answer."""


class Replica(NamedTuple):
    """What one rank says of its state.

    Attributes:
        digest: of parameters and optimizer state, bit by bit.
        largest: the largest absolute value in them.
        group: ranks with the same name of a group must be equal.
        node: of the rank.
    """

    digest: str
    largest: float
    group: str
    node: str

    def line(self) -> str:
        """Return this as text; `parse` reads it."""
        words = [self.digest, repr(float(self.largest)), self.group[:GROUP_LIMIT], self.node[:NODE_LIMIT]]
        return json.dumps(words, separators=(",", ":"))


class Difference(NamedTuple):
    """Replicas differ.

    Attributes:
        odd: the ranks that are wrong, and their nodes; empty: nobody knows which.
        suspects: the ranks that may be wrong, if nobody knows which, and their nodes.
        world: of how many ranks.
    """

    odd: tuple[tuple[int, str], ...]
    suspects: tuple[tuple[int, str], ...]
    world: int

    def __str__(self) -> str:
        accused = self.odd or self.suspects
        ranks = " and ".join(f"rank {rank} on {node}" for rank, node in accused)
        if self.odd:
            verb = "has" if len(self.odd) == 1 else "have"
            return f"{ranks} {verb} other parameters or optimizer state than the replicas of {self.world} ranks"
        return f"{ranks} have different parameters or optimizer state, and nobody can tell which of them is wrong"

    def text(self) -> str:
        """Return this as text; `parse_difference` reads it."""
        return json.dumps([list(self.odd), list(self.suspects), self.world], separators=(",", ":"))


def parse(line: str) -> Replica:
    """Return what a rank says. Raise ValueError if it is malformed: it comes from the network."""
    words = json.loads(line)
    if not isinstance(words, list) or len(words) != 4 or not all(type(word) is str for word in words):
        raise ValueError("not a replica")
    return Replica(words[0], float(words[1]), words[2], words[3])


def parse_difference(text: str) -> Difference | None:
    """Return the difference in an answer of rank 0; None if there is none."""
    if not text:
        return None
    try:
        odd, suspects, world = json.loads(text)
        return Difference(_ranks(odd), _ranks(suspects), int(world))
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a difference: {error}"[:200]) from None


def compare(lines: Mapping[int, str]) -> Difference | None:
    """Given the lines of ranks, return how they differ; None if every rank is equal to those of its group.

    The state of more than half of a group is taken as right, and the other ranks are odd. Without such a majority a
    rank is odd whose values are implausible: not finite, or above 1e6 and a hundred times those of the others.
    Otherwise nobody knows. A malformed line is left out.
    """
    groups: dict[str, dict[int, Replica]] = defaultdict(dict)
    for rank, line in sorted(lines.items()):
        try:
            replica = parse(line)
        except ValueError:
            continue
        groups[replica.group][rank] = replica
    odd: list[tuple[int, str]] = []
    suspects: list[tuple[int, str]] = []
    for replicas in groups.values():
        counts = Counter(replica.digest for replica in replicas.values())
        if len(counts) < 2:
            continue
        digest, most = counts.most_common(1)[0]
        wrong = {rank for rank, one in replicas.items() if one.digest != digest}
        if 2 * most <= len(replicas):
            wrong = _implausible(replicas)
        (odd if wrong else suspects).extend((rank, replicas[rank].node) for rank in sorted(wrong or replicas))
    if not odd and not suspects:
        return None
    return Difference(tuple(odd[:MOST_NAMED]), () if odd else tuple(suspects[:MOST_NAMED]), len(lines))


def _implausible(replicas: Mapping[int, Replica]) -> set[int]:
    """Return the ranks with values that no other rank of the group is near to; none if that is every rank."""
    finite = {rank: one.largest for rank, one in replicas.items() if math.isfinite(one.largest)}
    limit = max(IMPLAUSIBLE, IMPLAUSIBLE_TIMES * min(finite.values(), default=0.0))
    wrong = {rank for rank in replicas if rank not in finite or finite[rank] > limit}
    return wrong if len(wrong) < len(replicas) else set()


def _ranks(found: object) -> tuple[tuple[int, str], ...]:
    if not isinstance(found, list):
        raise ValueError("no list of ranks")
    return tuple((int(rank), str(node)) for rank, node in found[:MOST_NAMED])
