"""How a training really ends: what has failed, and what the interpreter knows of its own end.

A `with` block sees the exception that leaves it. A training without one ends where the guard does not look: then the
guard is closed when the interpreter exits, and asks it. `sys.last_exc` (before 3.12 `sys.last_value`) is the exception
that ended the program; Python tells nobody the code of a `sys.exit()`, so it is noted when it is called. A bare
`raise SystemExit(3)` outside of a `with` block is seen by nobody but the parent process.
"""

from __future__ import annotations

import builtins
import sys

from resilience.guard.decision import EXIT_DONE, EXIT_ERROR, EXIT_STOPPED
from resilience.guard.saves import FALLEN, note_fallen_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from resilience.guard.saves import Saving


class Ending:
    """Collects what went wrong. Safe from every thread.

    The last save counts: one that failed is made good by a later one that is durable.

    Attributes:
        code: what the process ends with because of it, as far as that is known.
    """

    def __init__(self) -> None:
        self.code = EXIT_ERROR
        self._faults: list[str] = []
        self._failed_save = ""
        self._seen = _last_exception()  # it has ended nothing of ours
        _watch_exit()
        note_fallen_threads()

    @property
    def why(self) -> str:
        """What went wrong first, as a sentence; empty when all is well."""
        return self._failed_save or (self._faults[0] if self._faults else "")

    @property
    def is_for_good(self) -> bool:
        """Whether something went wrong that no later save makes good."""
        return bool(self._faults)

    def failed(self, fault: str, code: int = EXIT_ERROR) -> None:
        """Something went wrong for good, and the process ends with this code: 0 and 75 would say otherwise."""
        if not self._faults:
            self.code = EXIT_ERROR if code in (EXIT_DONE, EXIT_STOPPED) else code
        self._faults.append(fault)

    def saved(self) -> None:
        """A save is durable."""
        self._failed_save = ""

    def save_failed(self, saving: Saving, error: BaseException) -> str:
        """A save is not durable. Return that as a sentence."""
        self._failed_save = f"the save of step {saving.step} is not durable: {shown(error)}"
        return self._failed_save

    # ---- the interpreter's own end ----------------------------------------------------------------------------

    def process_end(self, expected: int, thread: object) -> tuple[int, str]:
        """To be asked when the interpreter exits: with which code, as far as it knows, and why, if that is a fault.

        `expected` is what the guard has told the training to exit with, `thread` the one that trained. 0 is no fault:
        then the code was forgotten.
        """
        status, seen = _exits[-1] if _exits else (expected, self._seen)
        error = getattr(thread, FALLEN, None)
        if error is None and _last_exception() is not seen and not hasattr(sys, "ps1"):
            error = _last_exception()
        if error is not None:
            return code_of(error), shown(error)
        code = code_of(SystemExit(status))
        return code, "" if code in (0, expected) else shown(SystemExit(status))


_exits: list[tuple[object, BaseException | None]] = []
"""The newest call of `sys.exit` that nobody is known to have caught: its argument, and the exception before it."""


def forget_exit() -> None:
    """The training goes on: somebody has caught what was noted."""
    _exits.clear()


def _watch_exit() -> None:
    """Note from now on with what `sys.exit` is called, and the built-in `exit` and `quit`.

    Once for the process, and for good: it does nothing else.
    """
    before = sys.exit
    if getattr(before, "notes_exits", False):
        return

    def note(status: Any = None, /) -> Any:
        _exits[:] = [(status, _last_exception())]
        before(status)

    note.__doc__, note.__name__ = before.__doc__, "exit"
    note.notes_exits = True  # type: ignore[attr-defined]
    sys.exit = note
    quitter: Any = type(getattr(builtins, "exit", None))  # there is none with python -S
    if quitter.__module__ == "_sitebuiltins":
        call = quitter.__call__

        def note_call(self: object, code: Any = None) -> Any:
            _exits[:] = [(code, _last_exception())]
            call(self, code)

        quitter.__call__ = note_call


def shown(error: BaseException) -> str:
    """An exception for people, in one line, not longer than that."""
    try:
        if isinstance(error, SystemExit):
            text = f"sys.exit({error.code!r})"
        elif ranks := getattr(error, "failures", None):  # CheckpointException of torch: by rank, each with its stack
            text = ", ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in ranks.items())
        else:
            text = repr(error)
        return " ".join(text.split())[:300]
    except Exception:  # a stranger's class
        return type(error).__name__


def _last_exception() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def code_of(error: BaseException) -> int:
    """What Python exits with when this exception ends it.

    `sys.exit(status)`: the last 8 bits of a number, 0 for None, 1 for what is printed instead. An interrupt ends it by
    SIGINT, which a shell calls 130.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit) or error.code is None:
        return EXIT_DONE if isinstance(error, SystemExit) else EXIT_ERROR
    return error.code & 0xFF if isinstance(error.code, int) else EXIT_ERROR
