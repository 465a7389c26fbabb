"""What ranks wish, and what of it was answered: a wish is said again on every new connection, and obeyed once. Pure."""

from __future__ import annotations

from resilience.guard.agreement.messages import read_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from resilience.guard.decision import Request

KNOWN_WISHES = 10_000
"""How many answered wishes are remembered: more than ranks can have said again since."""


class Wishes:
    """The wishes of all ranks.

    Attributes:
        open: those that no verdict has answered, by their names, oldest first: the rank, and what it wishes.
    """

    def __init__(self) -> None:
        self.open: dict[str, tuple[int, Request]] = {}
        self._answered: dict[str, None] = {}  # oldest first

    def hear(self, rank: int, name: str, fields: dict[str, Any]) -> None:
        """A rank wishes something, perhaps not for the first time. Raise ValueError if it is no request."""
        if name not in self._answered:
            self.open[name] = rank, read_request(fields)

    def answer(self, names: Iterable[str]) -> None:
        """A verdict answers these."""
        for name in list(names):
            self.open.pop(name, None)
            self._answered[name] = None
        while len(self._answered) > KNOWN_WISHES:
            del self._answered[next(iter(self._answered))]

    def ask_anew(self, wishes: Mapping[str, tuple[int, Request]]) -> None:
        """The verdict that answered these is void."""
        self.open |= wishes
        for name in wishes:
            self._answered.pop(name, None)

    def drop(self) -> None:
        """Nothing will be decided any more."""
        self.open.clear()
