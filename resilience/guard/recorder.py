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
    from collections.abc import Callable
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

    def __init__(self, place: RankInfo, say: Callable[[str], None] = say_on_stderr) -> None:
        self.events: collections.deque[dict[str, Any]] = collections.deque()
        self.dropped = 0
        self._place = place
        self._say = say
        self._warned: dict[str, object] = {}

    def event(self, name: str, /, **fields: Any) -> None:
        """Record an event with the time, the attempt and the rank; values are JSON types."""
        place = self._place
        head = {"event": name, "time": round(time.time(), 3), "attempt": place.attempt, "rank": place.rank}
        self.events.append({**head, "host": place.host, **{key: fields[key] for key in fields if key not in head}})
        if len(self.events) > MAX_EVENTS:
            try:
                self.events.popleft()
                self.dropped += 1
            except IndexError:  # the writer has just taken all events
                pass

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
