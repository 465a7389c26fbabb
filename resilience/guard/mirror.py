"""Copies the beats of a node's ranks to the run directory, by time, and writes the journal."""

from __future__ import annotations

import json
import os
import time

from resilience.guard.small_files import write_whole
from resilience.model import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.network import Address
    from resilience.guard.beat import BeatSlot
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


def start_mirror(place: Place, settings: GuardSettings, slot: BeatSlot, recorder: Recorder) -> Mirror:
    """The mirror that fits this place."""
    return Mirror(place, settings, slot, recorder)


class Mirror:
    """A mirror in this process: `work` is called from the thread that may touch the run directory.

    Attributes:
        locate: asks the node's helper where rank 0 listens; None when the file is to be read.
    """

    def __init__(self, place: Place, settings: GuardSettings, slot: BeatSlot, recorder: Recorder) -> None:
        self._place = place
        self._settings = settings
        self._slot = slot
        self._recorder = recorder
        self._due = 0.0
        self._seen = (-1, -1)
        self._advanced = time.time()
        self.locate: Callable[[], Address | None] | None = None

    def work(self) -> None:
        """Write what is due."""
        if not self._place.run_dir:
            return
        self._write_journal()
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._settings.beat_s
            self._write_beat()

    def write_finished(self) -> None:
        """Mark the run as finished."""
        place = self._place
        if place.run_dir:
            text = f'attempt = {place.attempt}\ntime = {int(time.time())}\njob = "{place.job_id}"\n'
            write_whole(os.path.join(place.run_dir, layout.FINISHED), text, mode=0o600)

    def stop(self, wait_s: float) -> None:
        """Write the last words."""
        self._due = 0.0
        self.work()

    def forget(self) -> None:
        """In a forked child: nothing is ours."""
        self._place.run_dir = ""

    def _write_beat(self) -> None:
        place = self._place
        steps, polls, phase = self._slot.read()
        now = time.time()
        if (steps, polls) != self._seen:
            self._seen, self._advanced = (steps, polls), now
        lines = [
            f"attempt = {place.attempt}",
            f'host = "{place.host}"',
            f"time = {now:.3f}",
            f"step = {steps}",
            f"[rank.{place.rank}]",
            f"pid = {os.getpid()}",
            f"step = {steps}",
            f"advanced = {self._advanced:.3f}",
            f"phase = {json.dumps(phase)}",
        ]
        path = os.path.join(place.run_dir, layout.BEATS, f"{place.job_id}.{place.host}")
        write_whole(path, "\n".join(lines) + "\n", mode=0o600)

    def _write_journal(self) -> None:
        events = self._recorder.events
        if not events:
            return
        path = os.path.join(self._place.run_dir, layout.JOURNAL, f"{self._place.job_id}.{self._place.rank}.jsonl")
        with open(path, "ab") as file:
            while events:
                file.write(json.dumps(events[0], separators=(",", ":")).encode() + b"\n")
                events.popleft()
