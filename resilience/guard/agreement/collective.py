"""Agreement by an all-reduce every few steps, for those who want it: torch's own collectives, no extra connection."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Collective:
    """Every `every` steps all ranks meet in one small all-reduce; see docs/explanation/agreement.md."""

    def __init__(self, *, every: int = 10, group: Any = None) -> None:
        self.every = every
        self.group = group
