"""State of the training loop: decisions, saves, errors, and the real exit code of the process.

A `with` block sees the exception that leaves it. Without one, the guard is closed at interpreter exit and reads the
exception that ended the program from `sys.last_exc` (before 3.12 `sys.last_value`). Python does not keep the code of
`sys.exit()`, so calls are recorded. Only the parent process sees a bare `raise SystemExit(3)` outside of a `with`
block.
"""

from __future__ import annotations

import builtins
import sys

from resilience.guard.decision import DONE, EXIT_DONE, EXIT_ERROR, EXIT_STOPPED, FAILED, STOPPED
from resilience.guard.saves import THREAD_ERROR, record_thread_errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from resilience.guard.decision import Decision
    from resilience.guard.saves import SaveBlock, Saves

LATE_STEPS = 1
"""A training that does more steps than this after a decision to stop has not followed the decision. One step is for
loops that read each decision a step later, because their device runs ahead."""


class Phase:
    """Context manager returned by `guard.phase()`: restores the previous phase on exit."""

    def __init__(self, enter: Callable[[str], object], before: str) -> None:
        self._enter, self._before = enter, before

    def __enter__(self) -> Phase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._enter(self._before)


class LoopState:
    """Decisions, saves and errors of one training loop, shared by the guard and its runtime. Thread-safe.

    A later durable save clears the error of a failed one.

    Attributes:
        phase: `start`, `train`, or a name passed to `guard.phase()`.
        decided: the decision to stop, or None.
        owed: the decision to save that no save has followed yet, or None.
        has_stopped: whether the newest decision was to stop.
        is_finished: whether `guard.finished()` has marked the run as finished.
        block: the outermost open save block, or None.
        saves: the saves in flight; None before the first save.
        is_watched: whether errors and exit codes are recorded: since the guard's start.
        code: exit code of the process because of an error, as far as the code is known.
    """

    def __init__(self) -> None:
        self.phase = "start"
        self.decided: Decision | None = None
        self.owed: Decision | None = None
        self.has_stopped = False
        self.is_finished = False
        self.block: SaveBlock | None = None
        self.saves: Saves | None = None
        self.is_watched = False
        self.code = EXIT_ERROR
        self._faults: list[str] = []
        self._failed_save = ""
        self._settled_began = 0.0
        self._seen: BaseException | None = None

    def watch(self) -> None:
        """Start to record exceptions that end threads, and arguments of `sys.exit`."""
        self.is_watched = True
        self._seen = _last_exception()  # from before this loop
        _record_exits()
        record_thread_errors()

    # ---- how the loop ended -------------------------------------------------------------------------------------

    def has_followed(self, steps: int) -> bool:
        """Return whether the training followed a decision to stop: did at most LATE_STEPS more steps."""
        return self.decided is not None and not self.is_finished and steps <= self.decided.step + LATE_STEPS

    def how(self, steps: int) -> str:
        """Return how this rank leaves: FAILED, STOPPED or DONE."""
        return FAILED if self.why else STOPPED if self.has_followed(steps) else DONE

    def exit_code(self, steps: int) -> int:
        """Return the exit code of a training that ends after `steps` steps."""
        if self.why:
            return EXIT_ERROR
        return self.decided.exit_code if self.decided is not None and self.has_followed(steps) else EXIT_DONE

    @property
    def in_flight(self) -> tuple[SaveBlock, ...]:
        """Return the saves in flight, oldest first."""
        return () if self.saves is None else self.saves.in_flight

    @property
    def hangs(self) -> bool:
        """Return whether a save was cut off and none was durable since: the save may still hang in this process."""
        return self.saves is not None and self.saves.has_cut_off

    def is_saving(self) -> bool:
        """Return whether a save is running, in its block or in flight."""
        return self.block is not None or bool(self.in_flight)

    def is_unsaved(self) -> bool:
        """Return whether a save is running, is owed, or has failed."""
        return self.is_saving() or self.owed is not None or bool(self.why)

    @property
    def why(self) -> str:
        """Return the first error as a sentence; empty if there was none."""
        return self._failed_save or (self._faults[0] if self._faults else "")

    @property
    def is_unrecoverable(self) -> bool:
        """Return whether there was an error that no later save clears."""
        return bool(self._faults)

    def failed(self, fault: str, code: int = EXIT_ERROR) -> None:
        """Record an error that no later save clears, with its exit code; 1 replaces 0 and 75, which mean success."""
        if not self._faults:
            self.code = EXIT_ERROR if code in (EXIT_DONE, EXIT_STOPPED) else code
        self._faults.append(fault)

    def save_settled(self, saving: SaveBlock, error: BaseException | None) -> None:
        """Record that a save is durable, or failed with `error`. The one that began last counts."""
        if saving.began < self._settled_began:
            return
        self._settled_began = saving.began
        if self.saves is not None and error is None:
            self.saves.has_cut_off = False
        if self.is_watched:
            why = "" if error is None else f"the save of step {saving.step} is not durable: {describe_error(error)}"
            self._failed_save = why

    # ---- the exit of the interpreter --------------------------------------------------------------------------

    def process_end(self, expected: int, thread: object) -> tuple[int, str]:
        """At interpreter exit, return the exit code, as far as Python knows, and the error, or an empty text.

        `expected` is the guard's `exit_code`, `thread` the thread that trained. 0 is no error: the program did not use
        `exit_code`.
        """
        status, seen = _exits[-1] if _exits else (expected, self._seen)
        error = getattr(thread, THREAD_ERROR, None)
        if error is None and _last_exception() is not seen and not hasattr(sys, "ps1"):
            error = _last_exception()
        if error is not None:
            return code_of(error), describe_error(error)
        code = code_of(SystemExit(status))
        return code, "" if code in (0, expected) else describe_error(SystemExit(status))


_exits: list[tuple[object, BaseException | None]] = []
"""The newest `sys.exit` call not known to be caught: its argument, and the exception before the call."""


def forget_exit() -> None:
    """Forget the recorded `sys.exit`: the program caught the exception, because the training continues."""
    _exits.clear()


def _record_exits() -> None:
    """Record the arguments of `sys.exit`, and of the built-in `exit` and `quit`. Patches the process once."""
    before = sys.exit
    if getattr(before, "records_exits", False):
        return

    def exit_and_record(status: Any = None, /) -> Any:
        _exits[:] = [(status, _last_exception())]
        before(status)

    exit_and_record.__doc__, exit_and_record.__name__ = before.__doc__, "exit"
    exit_and_record.records_exits = True  # type: ignore[attr-defined]
    sys.exit = exit_and_record
    quitter: Any = type(getattr(builtins, "exit", None))  # there is none with python -S
    if quitter.__module__ == "_sitebuiltins":
        call = quitter.__call__

        def call_and_record(self: object, code: Any = None) -> Any:
            _exits[:] = [(code, _last_exception())]
            call(self, code)

        quitter.__call__ = call_and_record


def describe_error(error: BaseException) -> str:
    """Return an exception as one short line."""
    try:
        if isinstance(error, SystemExit):
            text = f"sys.exit({error.code!r})"
        elif ranks := getattr(error, "failures", None):  # torch's CheckpointException: error and stack by rank
            text = ", ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in ranks.items())
        else:
            text = repr(error)
        return " ".join(text.split())[:300]
    except Exception:  # repr() of a user's class may raise
        return type(error).__name__


def _last_exception() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def code_of(error: BaseException) -> int:
    """Return Python's exit code when this exception ends the process.

    `sys.exit(status)`: the last 8 bits of a number, 0 for None, 1 for anything else. KeyboardInterrupt ends the process
    by SIGINT, which a shell reports as 130.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit) or error.code is None:
        return EXIT_DONE if isinstance(error, SystemExit) else EXIT_ERROR
    return error.code & 0xFF if isinstance(error.code, int) else EXIT_ERROR


def before_threads_are_joined(call: Callable[[], None]) -> None:
    """Call this early at interpreter exit. Without a `with` block, Python joins a hung thread before it calls the
    handlers of `atexit`."""
    import contextlib
    import threading

    with contextlib.suppress(AttributeError, RuntimeError):  # not in this Python; or already shutting down
        threading._register_atexit(call)  # type: ignore[attr-defined]
