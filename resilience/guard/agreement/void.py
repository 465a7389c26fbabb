"""A round that ranks have given up, because they go on from another step: who has heard of it, and who waits. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class VoidRound:
    """The last round that was taken back.

    A rank that has heard of the verdict, and not yet that it is void, would obey it while others go on. So whoever goes
    on from another step waits until nobody is left who could, and no round begins before.

    Attributes:
        number: of the round; 0 when there was none.
        is_open: whether anybody waits.
    """

    def __init__(self) -> None:
        self.number = 0
        self._waiting: set[int] = set()
        self._unheard: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """The round is void from now on; these ranks may not know it yet."""
        self.number = number
        self._waiting = set()
        self._unheard = set(ranks)

    def wait(self, rank: int) -> None:
        """A rank has given it up by itself, and waits for the others."""
        self._waiting.add(rank)
        self._unheard.discard(rank)

    def heard(self, rank: int) -> None:
        """A rank cannot obey it any more."""
        self._unheard.discard(rank)

    def forget(self, rank: int) -> None:
        """A rank has left, or its process is another one: it obeys nothing and waits for nothing."""
        self._unheard.discard(rank)
        self._waiting.discard(rank)

    def release(self) -> list[int]:
        """Who need not wait any longer: all, once everybody has heard. They are named once."""
        if self._unheard:
            return []
        released, self._waiting = sorted(self._waiting), set()
        return released
