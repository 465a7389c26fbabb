"""The store that a training uses: saves into parts, and finds the newest checkpoint that verifies."""

from __future__ import annotations

from typing import Any


class Store:
    """A directory of checkpoints, as a training uses it."""

    def __init__(self, path: str, **settings: Any) -> None:
        self.path = path
