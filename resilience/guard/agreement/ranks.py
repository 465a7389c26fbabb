"""The registry of ranks: which have joined, lost their connection, or ended their training. Pure."""

from __future__ import annotations


class RankRegistry:
    """The processes of all ranks.

    Attributes:
        world: how many ranks there are.
        incarnations: the random word of the process of each rank that has joined, in the order of joining.
        gone: ranks whose connection is lost: they may reconnect.
        left: ranks that do no further step, and how many they have done.
        failed: those of them that left because of a fault, and the fault.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.incarnations: dict[int, str] = {}
        self.gone: set[int] = set()
        self.left: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self._former: set[str] = set()

    def join(self, rank: int, incarnation: str) -> bool:
        """Register a rank. Return whether its process is another one than before."""
        before = self.incarnations.get(rank, incarnation)
        self.incarnations[rank] = incarnation
        self.gone.discard(rank)
        self.left.pop(rank, None)
        self.failed.pop(rank, None)
        if before != incarnation:
            self._former.add(before)
        return before != incarnation

    def is_duplicate(self, rank: int) -> bool:
        """Return whether a former process of this rank has joined again: two live processes have the same rank."""
        return self.incarnations[rank] in self._former

    def lost(self, rank: int) -> None:
        """Note a lost connection, unless the rank has left."""
        if rank not in self.left:
            self.gone.add(rank)

    def leave(self, rank: int, steps: int, fault: str = "") -> None:
        """Note that the training of a rank has ended after `steps`, cleanly unless a fault is given."""
        self.left[rank] = steps
        self.gone.discard(rank)
        if fault:
            self.failed[rank] = fault

    def has_everybody_joined(self) -> bool:
        """Return whether every rank has joined at some time."""
        return len(self.incarnations) == self.world

    def are_all_there(self) -> bool:
        """Return whether all ranks are connected."""
        return self.has_everybody_joined() and not self.gone

    def name_missing(self) -> str:
        """Return the missing ranks as text, with the reason: a rank that never joined may not have been started yet."""
        never = [rank for rank in range(self.world) if rank not in self.incarnations]
        reasons = [f"{name_ranks(never)} of {self.world} did not join the guard"] if never else []
        if self.gone:
            reasons.append(f"the connection to {name_ranks(sorted(self.gone))} of {self.world} is lost")
        return " and ".join(reasons)

    def training(self) -> list[int]:
        """Return the ranks that have joined and not left, connected or not."""
        return [rank for rank in self.incarnations if rank not in self.left]

    def count_training(self) -> int:
        """Return the number of these ranks."""
        return len(self.incarnations) - len(self.left)


def name_ranks(ranks: list[int]) -> str:
    """Return ranks as text, at most eight of them: `rank 3`, `ranks 3, 5, ... and 12 more`."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
