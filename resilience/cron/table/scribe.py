"""Writes to the state directory beside what must not wait: a disk that hangs must not keep a run from being ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from resilience.errors import ResilError, StateDirectoryError


class Task:
    """One thing that is written.

    Attributes:
        error: why it could not be; None: it was, or is not yet.
    """

    def __init__(self, what: str, work: Callable[[], object]) -> None:
        self.what, self._work = what, work
        self._over = threading.Event()
        self.error: ResilError | None = None

    @property
    def is_over(self) -> bool:
        """Whether it was written, or could not be."""
        return self._over.is_set()

    def wait(self, until: float) -> bool:
        """Wait until then by the monotonic clock; return whether it is over."""
        return self._over.wait(max(0.0, until - time.monotonic()))

    def run(self) -> None:
        """Do it, and keep what went wrong."""
        try:
            self._work()
        except ResilError as error:
            self.error = error
        except Exception as error:  # the run is more than its papers
            self.error = StateDirectoryError(f"cannot {self.what}: {type(error).__name__}: {error}")
        finally:
            self._over.set()

    def why_not(self) -> str:
        """Given that it should be over, return one sentence why it was not done; empty: it was."""
        if not self.is_over:
            return f"cannot {self.what}: the file system does not answer"
        return str(self.error) if self.error is not None else ""


class Scribe:
    """A thread that does one thing after the other. It does not keep the process from ending."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._work, name="scribe", daemon=True).start()
            self._is_alone = False
        except RuntimeError:  # no room for a thread: then it is done at once, and a disk that hangs is waited for
            self._is_alone = True

    def do(self, what: str, work: Callable[[], object]) -> Task:
        """Have it done; `what` completes the sentence `cannot ...`."""
        task = Task(what, work)
        if self._is_alone:
            task.run()
        else:
            self._tasks.put(task)
        return task

    def _work(self) -> None:
        while True:
            self._tasks.get().run()
