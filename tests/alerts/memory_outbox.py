"""An outbox in memory, without duplicates per channel. It may be full, and the process may be killed in `put`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from resilience.alerts.alert import Alert, Notice
from resilience.errors import StateDirectoryError


class Killed(BaseException):
    """The process ends here."""


@dataclass
class MemoryOutbox:
    """Takes messages as the outbox does.

    Attributes:
        full: the channels for whose messages there is no room.
        before: called before a message is taken; it may raise `Killed`.
        after: called at the end of each put, likewise.
        order: what was taken, as (time, channel, message).
    """

    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    full: set[str] = field(default_factory=set)
    order: list[tuple[float, str, Alert]] = field(default_factory=list)

    def put(self, alert: Alert, channel: str, now: float) -> bool:
        if channel in self.full:
            raise StateDirectoryError("cannot write: No space left on device")
        is_new = all((alert.id, channel) != (taken.id, to) for _, to, taken in self.order)
        if is_new:
            self.before()
            self.order.append((now, channel, alert))
        self.after()
        return is_new

    @property
    def alerts(self) -> list[Alert]:
        return [alert for _, _, alert in self.order]

    def notices(self, channel: str = "email") -> list[Notice]:
        return [notice for _, to, alert in self.order if to == channel for notice in alert.notices]
