"""Which ranks are there: who has joined, whose connection is lost, whose training has ended. Pure."""

from __future__ import annotations


class RankRegistry:
    """The processes of all ranks.

    Attributes:
        world: how many ranks there are.
        incarnations: the random word of the process of each rank that has joined, in the order of joining.
        gone: ranks whose connection is lost: they may come again.
        left: ranks that do no step any more, and how many they have done.
        failed: of these the ones that left because of a fault, and which.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.incarnations: dict[int, str] = {}
        self.gone: set[int] = set()
        self.left: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self._former: set[str] = set()

    def join(self, rank: int, incarnation: str) -> bool:
        """A rank is there. Return whether its process is another one than before."""
        before = self.incarnations.get(rank, incarnation)
        self.incarnations[rank] = incarnation
        self.gone.discard(rank)
        self.left.pop(rank, None)
        self.failed.pop(rank, None)
        if before != incarnation:
            self._former.add(before)
        return before != incarnation

    def is_duplicate(self, rank: int) -> bool:
        """Return whether the process of this rank joined before another took its place: both live, and take turns."""
        return self.incarnations[rank] in self._former

    def lost(self, rank: int) -> None:
        """The connection is gone. Of a rank that has left nothing else was expected."""
        if rank not in self.left:
            self.gone.add(rank)

    def leave(self, rank: int, steps: int, fault: str = "") -> None:
        """The training of a rank has ended after so many steps, in good order unless a fault is named."""
        self.left[rank] = steps
        self.gone.discard(rank)
        if fault:
            self.failed[rank] = fault

    def has_everybody_joined(self) -> bool:
        """Return whether every rank was there, at some time."""
        return len(self.incarnations) == self.world

    def are_all_there(self) -> bool:
        """Return whether none is missing."""
        return self.has_everybody_joined() and not self.gone

    def name_missing(self) -> str:
        """Name the missing ranks for people, and why: a rank that never joined may not have been started yet."""
        never = [rank for rank in range(self.world) if rank not in self.incarnations]
        reasons = [f"{name_ranks(never)} of {self.world} did not join the guard"] if never else []
        if self.gone:
            reasons.append(f"the connection to {name_ranks(sorted(self.gone))} of {self.world} is lost")
        return " and ".join(reasons)

    def training(self) -> list[int]:
        """Ranks that have joined and not left, lost or not."""
        return [rank for rank in self.incarnations if rank not in self.left]

    def count_training(self) -> int:
        """How many these are."""
        return len(self.incarnations) - len(self.left)


def name_ranks(ranks: list[int]) -> str:
    """Ranks as people read them, not more than eight: `rank 3`, `ranks 3, 5, ... and 12 more`."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
