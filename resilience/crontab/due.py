"""Which slots are to run now. Pure.

`last` has the newest slot taken of each entry by its key, or the moment at which the entry was first seen: an entry
without one has no past, and nothing of it is due (the caller remembers `int(now)` for it).
"""

from __future__ import annotations

from collections.abc import Mapping

from resilience.model.cron import Due, Table


def due(
    table: Table,
    last: Mapping[str, int],
    now: float,
    *,
    tick_s: float,
    salt: str = "",
    started: float | None = None,
) -> tuple[Due, ...]:
    """Say which slots are to start now, in the order of their start.

    `salt` names the user and the state directory (`1000:/work/me/.resil`): jitter is made of it. `started` is when this
    scheduler's life on this boot of its host began: `@reboot` entries are due once after that.
    """
    return ()


def next_due(table: Table, last: Mapping[str, int], now: float, *, salt: str = "") -> float | None:
    """When something is due next, at or after `now`; None: nothing ever."""
    return None
