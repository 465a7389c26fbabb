"""A call in a daemon thread with a timeout; the caller abandons a call that hangs.

For calls without a timeout of their own that no signal interrupts: fork and exec of a program on a dead file system, a
name service that does not answer, a GPU driver. A daemon thread does not keep the process alive.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

END_S = 1.0
"""How long to wait for the thread of a finished call to end: microseconds, unless `late` is still running."""


class BackgroundCall(Generic[T]):
    """One call of a function in a thread of its own, started by `start` or by the first `result`."""

    def __init__(self, work: Callable[[], T], name: str, *, late: Callable[[T], object] | None = None) -> None:
        """`name`: of the thread. `late`: called in that thread with the value of a call that was abandoned."""
        self._work = work
        self._late = late
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._is_abandoned = False
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> BackgroundCall[T]:
        """Start the call, and return self. Raise RuntimeError if no thread can be started."""
        self._thread.start()
        return self

    @property
    def is_over(self) -> bool:
        """Return whether the call has returned or raised, so that `result` does not wait."""
        return self._over.is_set()

    def result(self, timeout_s: float = 0.0) -> T:
        """Wait for the call, `timeout_s` at most; return its value, or raise its exception.

        Raise TimeoutError if the call does not end in time, RuntimeError if no thread can be started. With `late`, the
        call is then abandoned, as after an exception (a signal's) during the wait; otherwise `result` may be called
        again.
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
