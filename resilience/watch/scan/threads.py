"""Many looks at the same time in one worker: on a network file system each waits for a server, and Python does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilience.watch.scan.folder import look

if TYPE_CHECKING:
    from resilience.watch.scan.worker import Worker

PIECE = 32
"""Entries of a large folder that one thread looks at before it takes the next."""

POLL_S = 0.005


class Large:
    """The entries of a folder, cut into pieces that several threads look at."""

    def __init__(self, entries: Sequence[os.DirEntry[str]]) -> None:
        self.entries = entries
        self.looked: list[list[os.stat_result | None]] = [[] for _ in range(0, len(entries), PIECE)]
        self.left = list(range(len(self.looked)))
        self.undone = len(self.looked)
        self.trouble: OSError | None = None
        self.lock = threading.Lock()
        self.done = threading.Event()

    def help(self) -> None:
        """Look at pieces until none is left."""
        while True:
            with self.lock:
                if not self.left:
                    return
                number = self.left.pop()
            try:
                self.looked[number] = [look(entry) for entry in self.entries[number * PIECE : (number + 1) * PIECE]]
            except OSError as error:
                self.trouble = error
            with self.lock:
                self.undone -= 1
                if not self.undone:
                    self.done.set()


class Threads:
    """The threads of one worker; the main thread talks, the others look."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.lock = threading.Lock()
        self.wake = threading.Condition(self.lock)
        self.busy = 0
        self.large: list[Large] = []
        for number in range(worker.threads):
            threading.Thread(target=self._live, args=(worker.slot + number,), daemon=True).start()

    def work_off(self) -> None:
        """Wait until the threads have done all the jobs; meanwhile tell what they found, and give work away."""
        worker = self.worker
        while True:
            with self.wake:
                self.wake.notify_all()
                self.wake.wait(POLL_S)
                if not self.busy and (not worker.jobs or worker.board.stopped):
                    return
            worker.flush()

    def _live(self, slot: int) -> None:
        worker = self.worker
        while True:
            with self.wake:
                while not self.large and (not worker.jobs or worker.board.stopped):
                    self.wake.wait()
                if self.large:
                    large, job = self.large.pop(), None
                else:
                    large, job = None, worker.jobs.pop()
                    self.busy += 1
            if large is not None:
                large.help()
                continue
            try:
                worker.do(job, slot, self._stats)
            finally:
                with self.wake:
                    self.busy -= 1
                    if worker.jobs:
                        self.wake.notify(len(worker.jobs))
                worker.board.rest(slot, worker.next_count())

    def _stats(self, entries: Sequence[os.DirEntry[str]]) -> list[os.stat_result | None]:
        if len(entries) <= PIECE:
            return [look(entry) for entry in entries]
        large = Large(entries)
        with self.wake:
            helpers = min(self.worker.threads - 1, len(large.looked) - 1)
            self.large += [large] * helpers
            self.wake.notify(helpers)
        large.help()
        while not large.done.wait(0.5):
            pass
        if large.trouble is not None:
            raise large.trouble
        return [status for piece in large.looked for status in piece]
