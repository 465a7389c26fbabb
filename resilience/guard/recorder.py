"""What the guard tells: sentences for people on stderr, and events for the journal. Never waits for a file system.

Events are kept in memory until the thread that may touch the run directory writes them; when nobody can write them
the oldest are dropped and counted. No lock: a signal handler may note something while its own thread is in here.
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

MOST_EVENTS = 10_000


def say_on_stderr(text: str) -> None:
    """Tell a person; a closed or full stderr, or one that is just being written to, is no reason to fail."""
    try:
        sys.stderr.write(f"resil: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):
        return


class Recorder:
    """Collects events. Safe from every thread and from signal handlers.

    Attributes:
        events: records not yet taken, oldest first.
        dropped: how many were lost because nobody could write them.
    """

    def __init__(self, place: RankInfo, say: Callable[[str], None] = say_on_stderr) -> None:
        self.events: collections.deque[dict[str, Any]] = collections.deque()
        self.dropped = 0
        self._place = place
        self._tell = say
        self._said: dict[str, object] = {}

    def event(self, name: str, **fields: Any) -> None:
        """Note one event with the time, the attempt and the rank; values are JSON types."""
        place = self._place
        head = {"event": name, "time": round(time.time(), 3), "attempt": place.attempt, "rank": place.rank}
        self.events.append({**head, "host": place.host, **{key: fields[key] for key in fields if key not in head}})
        if len(self.events) > MOST_EVENTS:
            try:
                self.events.popleft()
                self.dropped += 1
            except IndexError:  # the writer has just taken all
                pass

    def take(self) -> list[dict[str, Any]]:
        """All events not yet taken, oldest first: they are the caller's now."""
        taken = []
        while True:
            try:
                taken.append(self.events.popleft())
            except IndexError:
                return taken

    def say(self, text: str) -> None:
        """Tell people something that they will want to know. Somebody's own `say` that fails costs nothing."""
        try:
            self._tell(text)
        except Exception as error:
            self.event("warning", text=f"say() failed: {error!r}")

    def warn(self, text: str, key: str = "") -> None:
        """Tell people, and the journal, that something is not as it should be; with a `key`, once."""
        this = object()
        if key and self._said.setdefault(key, this) is not this:
            return
        self.event("warning", text=text)
        self.say(f"warning: {text}")
