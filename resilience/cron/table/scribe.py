"""Writes to the state directory beside what must not wait: a disk that hangs must not keep a run from being ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from resilience.errors import ResilError, StateDirectoryError


class Task:
    """One write operation.

    Attributes:
        error: why it failed; None: it succeeded, or is not finished.
    """

    def __init__(self, what: str, work: Callable[[], object]) -> None:
        self.what, self._work = what, work
        self._over = threading.Event()
        self.error: ResilError | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has finished or failed."""
        return self._over.is_set()

    def wait(self, until: float) -> bool:
        """Wait until `until` by the monotonic clock; return whether it is over."""
        return self._over.wait(max(0.0, until - time.monotonic()))

    def run(self) -> None:
        """Run it, and keep the error."""
        try:
            self._work()
        except ResilError as error:
            self.error = error
        except Exception as error:  # the run matters more than its records
            self.error = StateDirectoryError(f"cannot {self.what}: {type(error).__name__}: {error}")
        finally:
            self._over.set()

    def why_not(self) -> str:
        """Return why it was not done, one sentence; empty if it was. Call it when it should be over."""
        if not self.is_over:
            return f"cannot {self.what}: the file system does not respond"
        return str(self.error) if self.error is not None else ""


class Scribe:
    """A daemon thread that runs tasks one after the other."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._work, name="scribe", daemon=True).start()
            self._is_alone = False
        except RuntimeError:  # no thread available: tasks run at once, and may block on a hung disk
            self._is_alone = True

    def do(self, what: str, work: Callable[[], object]) -> Task:
        """Queue a task; `what` completes the sentence `cannot ...`."""
        task = Task(what, work)
        if self._is_alone:
            task.run()
        else:
            self._tasks.put(task)
        return task

    def _work(self) -> None:
        while True:
            self._tasks.get().run()
