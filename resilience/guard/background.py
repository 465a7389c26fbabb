"""One call in a thread that may hang without harm."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class BackgroundCall:
    """A call in a daemon thread: the driver, the server or the file system behind the call may never answer.

    The caller asks now and then whether the call is over, or waits for a bounded time. A thread that hangs is left
    behind, and keeps no process alive.
    """

    def __init__(self, call: Callable[[], Any], name: str) -> None:
        """Begin. Raise RuntimeError if no thread can be had: too many, or the interpreter is ending (3.12)."""
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"resil-{name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, for so long at most; return whether the call is over."""
        self._thread.join(timeout_s)
        return self.is_over

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised. Only once it is over."""
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # `result` raises it
            self._error = error
