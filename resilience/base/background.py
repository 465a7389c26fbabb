"""A call in a thread that may hang without harm: its caller waits for so long at most, and leaves it behind then.

For calls that no signal and no time-out of their own ends: fork and exec of a program on a dead file system, a name
service that does not answer, a GPU driver. The thread is a daemon: it does not keep the process from ending.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

END_S = 1.0
"""A thread whose call is over gets so long to end, which takes microseconds, unless `late` still works in it."""


class BackgroundCall(Generic[T]):
    """One call of a function in a thread of its own, begun by `start`, or else by the first `result`."""

    def __init__(self, work: Callable[[], T], name: str, *, late: Callable[[T], object] | None = None) -> None:
        """`name`: the thread's, in stacks. `late`: is given, in that thread, the value of a call that was given up."""
        self._work = work
        self._late = late
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._is_abandoned = False
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> BackgroundCall[T]:
        """Begin the call, and return it. Raise RuntimeError if there are no threads left."""
        self._thread.start()
        return self

    @property
    def is_over(self) -> bool:
        """Return whether the call has returned or raised: `result` does not wait then."""
        return self._over.is_set()

    def result(self, timeout_s: float = 0.0) -> T:
        """Wait for the end of the call, `timeout_s` at most; return its value, or raise what it raised.

        Raise TimeoutError if it does not end in time, RuntimeError if there are no threads left. With `late`, the call
        is given up then, or when an exception (a signal's) ends the waiting; otherwise it may be waited for again.
        """
        try:
            if self._thread.ident is None:
                self._thread.start()
            self._over.wait(max(0.0, timeout_s))
        finally:
            with self._lock:
                self._is_abandoned = not self._over.is_set()
        if self._over.is_set():
            self._thread.join(END_S)  # os.fork warns in a process with threads since Python 3.12
        if self._error is not None:
            raise self._error
        if not self._values:
            raise TimeoutError(f"no answer within {timeout_s:.3g} s")
        return self._values[0]

    def _run(self) -> None:
        values: list[T] = []
        error: BaseException | None = None
        try:
            values.append(self._work())
        except BaseException as problem:
            error = problem
        with self._lock:
            self._values, self._error = values, error
            self._over.set()
            is_late = self._is_abandoned and self._late is not None and bool(values)
        if is_late and self._late is not None:
            self._late(values[0])
