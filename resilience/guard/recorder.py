"""Output of the guard: messages on stderr, and events for the journal. Never waits for a file system.

Events stay in memory until the heartbeat writer takes them; beyond MAX_EVENTS the oldest are dropped and counted.
Without a lock, because a signal handler may record an event while its own thread is in here.
"""

from __future__ import annotations

import collections
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from resilience.guard.rank_info import RankInfo

MAX_EVENTS = 10_000


def say_on_stderr(text: str) -> None:
    """Print a message to stderr. Never fails: stderr may be closed, full, or in use by the interrupted thread."""
    try:
        sys.stderr.write(f"resil: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):
        return


class Recorder:
    """Collects events. Safe from every thread and from signal handlers.

    Attributes:
        events: records not yet taken, oldest first.
        dropped: number of events lost because they were not taken in time.
    """

    def __init__(
        self,
        place: RankInfo,
        say: Callable[[str], None] = say_on_stderr,
        on_event: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> None:
        self.events: collections.deque[dict[str, Any]] = collections.deque()
        self.dropped = 0
        self._place = place
        self._say = say
        self._on_event = on_event
        self._warned: dict[str, object] = {}

    def event(self, name: str, /, **fields: Any) -> None:
        """Record an event with the time, the attempt and the rank; values are JSON types."""
        place = self._place
        head = {"event": name, "time": round(time.time(), 3), "attempt": place.attempt, "rank": place.rank}
        record = {**head, "host": place.host, **{key: fields[key] for key in fields if key not in head}}
        self.events.append(record)
        if len(self.events) > MAX_EVENTS:
            try:
                self.events.popleft()
                self.dropped += 1
            except IndexError:  # the writer has just taken all events
                pass
        if self._on_event is not None:
            try:
                self._on_event(record)
            except Exception as error:
                self._on_event = None
                self.warn(f"on_event failed and is not called any more: {error!r}")

    def take(self) -> list[dict[str, Any]]:
        """Remove and return all events, oldest first."""
        taken = []
        while True:
            try:
                taken.append(self.events.popleft())
            except IndexError:
                return taken

    def say(self, text: str) -> None:
        """Print a message. A user's `say` that raises is recorded as a warning."""
        try:
            self._say(text)
        except Exception as error:
            self.event("warning", text=f"say() failed: {error!r}")

    def warn(self, text: str, key: str = "") -> None:
        """Print a warning and record it in the journal; with a `key`, once."""
        this = object()
        if key and self._warned.setdefault(key, this) is not this:
            return
        self.event("warning", text=text)
        self.say(f"warning: {text}")
