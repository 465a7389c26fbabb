"""Names the rank that keeps the others waiting, from the heartbeats of a training that makes no steps.

Ranks of a synchronous training wait for each other in collectives; the odd one does something else. Each sign has its
own witness: the kernel (state of the process), the node (its heartbeat), the guard's thread (whether it can run), and
torch (inside a collective or not). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from resilience.quantities import format_duration
from resilience.ranks.beats import NodeBeat, RankBeat

LOST_S = 60.0
"""A node whose heartbeat is so much older than that of another is lost: several intervals of heartbeats (10 s)."""
GOES_ON_S = 30.0
"""Ranks that have advanced within this time are not kept waiting."""
THREAD_S = 10.0
"""The guard's thread runs once a second; after so long without, something keeps it from running."""
MOST_NAMED = 8
LOST = "no heartbeat of the node"
ROUTINE = ("futex", "hrtimer", "do_nanosleep", "poll_", "do_poll", "do_select", "do_sys_poll", "ep_", "do_epoll")
"""Functions of the kernel in which a program waits for its own threads, timers and sockets; others are named, such as
`request_wait_answer` of a hung FUSE server, in which a process may wait in state S."""


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Which ranks keep the others waiting, as far as their signs tell.

    Attributes:
        ranks: their numbers; empty if no minority of the ranks is odd.
        hosts: their nodes.
        why: what they do, and how many they are; or what all do. Empty without any sign.
        is_witnessed: whether a sign besides the number of steps says so, and no rank evaluates, saves or starts.
        cpu_s: CPU seconds that these ranks have used.
        io_bytes: bytes that they have read and written.
        entered: collectives that all ranks together have entered, if all are inside one.
    """

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    why: str = ""
    is_witnessed: bool = False
    cpu_s: float = 0.0
    io_bytes: int = 0
    entered: int = 0


@dataclass(frozen=True, slots=True)
class _Rank:
    beat: RankBeat
    node: NodeBeat

    @property
    def blocked_s(self) -> float:
        """How long the guard's thread has not run, in seconds."""
        return self.node.time - self.beat.looked if self.beat.looked else 0.0

    @property
    def is_inside(self) -> bool | None:
        """Return whether it is inside a collective; None if the guard has not looked since its last step: a library
        that holds the GIL keeps it from that."""
        return self.beat.is_inside if self.beat.looks and self.beat.looked > self.beat.advanced else None


def judge(nodes: Sequence[NodeBeat]) -> HangVerdict:
    """Given the heartbeats of all nodes of an attempt whose steps stand still, return the odd ranks.

    The first sign that a minority of the ranks shows decides: ended, of a lost node, stopped, waiting in the kernel,
    holding the GIL, outside the collective that the others are in, behind in steps. If all are inside a collective,
    those that have left the training before may be missed there.
    """
    everyone = [_Rank(beat, node) for node in nodes for beat in node.ranks]
    ranks = [one for one in everyone if not one.beat.has_left]
    if len(everyone) < 2 or not ranks:
        return HangVerdict()
    newest = max(node.written for node in nodes)
    signs = (
        ([one for one in ranks if one.beat.is_gone], "ended without a final message"),
        ([one for one in ranks if newest - one.node.written > LOST_S], LOST),
        ([one for one in ranks if one.beat.state in ("T", "t")], "stopped by a signal or a debugger (state T)"),
        (
            [one for one in ranks if one.beat.state == "D"],
            "waiting in the kernel for a disk, a file server or a driver",
        ),
        ([one for one in ranks if one.blocked_s > THREAD_S], "a library holds the GIL"),
        (_outside(ranks), "outside the collective that the others wait in"),
    )
    for odd, why in signs:
        if odd and 2 * len(odd) <= len(ranks):
            return _verdict(odd, ranks, why)
    for odd, why in signs[2:5]:
        if odd:
            return HangVerdict(why=f"{len(odd)} of {len(ranks)} ranks: {why}{_details(odd)}")
    if all(one.is_inside for one in ranks):
        return _all_inside(ranks) if len(ranks) == len(everyone) else _missed(ranks, everyone)
    behind = _behind(ranks)
    return _verdict(behind, ranks, "behind in steps") if behind and 2 * len(behind) <= len(ranks) else HangVerdict()


def _missed(ranks: Sequence[_Rank], everyone: Sequence[_Rank]) -> HangVerdict:
    """Return the ranks that have left the training, or those that go on without them: whichever are fewer.

    That is no witness: nothing tells whether the ranks that have left save or evaluate.
    """
    left = [one for one in everyone if one.beat.has_left]
    if 2 * len(left) <= len(everyone):
        found = _verdict(left, everyone, "left the training, while the others wait in a collective")
    else:
        found = _verdict(ranks, everyone, "still in a collective, after the others have left the training")
    return replace(found, is_witnessed=False)


def _all_inside(ranks: Sequence[_Rank]) -> HangVerdict:
    """Return what ranks that are all inside a collective wait for. Ranks that have never been seen outside of one prove
    nothing."""
    counts = Counter(one.beat.entered for one in ranks)
    why = f"all {len(ranks)} ranks are inside a collective: the network, a device, or not all in the same one"
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        other = min((one for one in ranks if one.beat.entered != usual), key=lambda one: one.beat.rank).beat
        why += f" (rank {other.rank} has entered {other.entered}, most others {usual})"
    return HangVerdict(
        why=why,
        is_witnessed=_trains(ranks) and all(one.beat.inside < one.beat.looks for one in ranks),
        entered=sum(one.beat.entered for one in ranks),
    )


def _trains(ranks: Sequence[_Rank]) -> bool:
    return all(one.beat.phase in ("", "train") for one in ranks if not one.beat.is_gone)


def _outside(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Return the ranks that are in no collective while all others are."""
    outside = [one for one in ranks if one.is_inside is False]
    others = [one for one in ranks if one.is_inside]
    return outside if others and len(outside) + len(others) == len(ranks) else []


def _behind(ranks: Sequence[_Rank]) -> list[_Rank]:
    least = min(one.beat.step for one in ranks)
    behind = [one for one in ranks if one.beat.step == least]
    return behind if len(behind) < len(ranks) else []


def _verdict(odd: Sequence[_Rank], ranks: Sequence[_Rank], why: str) -> HangVerdict:
    numbers = tuple(sorted(one.beat.rank for one in odd))
    hosts = tuple(dict.fromkeys(one.node.host for one in sorted(odd, key=lambda one: one.beat.rank)))
    shown = ", ".join(map(str, numbers[:MOST_NAMED])) + (", ..." if len(numbers) > MOST_NAMED else "")
    where = ", ".join(hosts[:MOST_NAMED]) + (", ..." if len(hosts) > MOST_NAMED else "")
    names = f"{'ranks' if len(numbers) > 1 else 'rank'} {shown} on {where}"
    # The heartbeat of a node may be lost, and not its ranks: the others go on then.
    goes_on = why == LOST and any(
        one.node.time - one.beat.advanced < GOES_ON_S for one in ranks if one.node.host not in hosts
    )
    is_debugged = any(one.beat.state == "t" for one in ranks)  # somebody looks at it already
    return HangVerdict(
        ranks=numbers,
        hosts=hosts,
        why=f"{names}: {why}{_details(odd)} ({len(odd)} of {len(ranks)} ranks)",
        is_witnessed=_trains(ranks) and why != "behind in steps" and not goes_on and not is_debugged,
        cpu_s=sum(one.beat.cpu_s for one in odd),
        io_bytes=sum(one.beat.io_bytes for one in odd),
    )


def _details(odd: Sequence[_Rank]) -> str:
    """Return what the kernel, or the guard, adds about the first of them."""
    first = odd[0]
    if first.beat.state == "D":
        return f" (state D{', in ' + first.beat.wchan if first.beat.wchan else ''})"
    if first.blocked_s > THREAD_S and first.beat.state not in ("T", "t"):
        return f" (its guard's thread has not run for {format_duration(first.blocked_s)})"
    waits = first.beat.wchan if not first.beat.is_gone else ""
    return f", in {waits}" if waits and first.beat.state == "S" and not waits.startswith(ROUTINE) else ""
