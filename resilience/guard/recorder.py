"""What the guard tells: sentences for people on stderr, and events for the journal. Never waits for a file system.

Events are kept in memory until the thread that may touch the run directory writes them; when nobody can write them
the oldest are dropped and counted.
"""

from __future__ import annotations

import collections
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resilience.guard.place import Place

MOST_EVENTS = 10_000


def say_on_stderr(text: str) -> None:
    """Tell a person; a closed or full stderr is no reason to fail."""
    try:
        sys.stderr.write(f"resil: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


class Recorder:
    """Collects events. Safe from every thread.

    Attributes:
        events: records not yet written, oldest first.
        dropped: how many were lost because nobody could write them.
    """

    def __init__(self, place: Place, say: Callable[[str], None] = say_on_stderr) -> None:
        self.events: collections.deque[dict[str, Any]] = collections.deque(maxlen=MOST_EVENTS)
        self.dropped = 0
        self._place = place
        self._say = say
        self._said: set[str] = set()

    def event(self, name: str, **fields: Any) -> None:
        """Note one event with the time, the attempt and the rank; values are JSON types."""
        place = self._place
        record = {"event": name, "time": round(time.time(), 3), "attempt": place.attempt, "rank": place.rank}
        if len(self.events) == MOST_EVENTS:
            self.dropped += 1
        self.events.append({**record, "host": place.host, **fields})

    def say(self, text: str) -> None:
        """Tell people something that they will want to know."""
        self._say(text)

    def warn(self, text: str, key: str = "") -> None:
        """Tell people, and the journal, that something is not as it should be; with a `key`, once."""
        if key:
            if key in self._said:
                return
            self._said.add(key)
        self.event("warning", text=text)
        self._say(f"warning: {text}")
