"""The training loop as its guard knows it: decisions, saves, errors, and how the process really ends.

A `with` block sees the exception that leaves it. A training without one ends where the guard does not look: then the
guard is closed when the interpreter exits, and asks the interpreter. `sys.last_exc` (before 3.12 `sys.last_value`) is
the exception that ended the program; Python does not keep the code of a `sys.exit()`, so the call is noted. A bare
`raise SystemExit(3)` outside of a `with` block is seen by the parent process alone.
"""

from __future__ import annotations

import builtins
import sys

from resilience.guard.decision import DONE, EXIT_DONE, EXIT_ERROR, EXIT_STOPPED, FAILED, STOPPED
from resilience.guard.saves import FALLEN, note_fallen_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from resilience.guard.decision import Decision
    from resilience.guard.saves import SaveBlock, Saves

LATE_STEPS = 1
"""A training that does more steps than this after it was told to stop has not followed. One step is for loops that look
at each decision a step later, because their device runs ahead."""


class LoopState:
    """Decisions, saves and errors of one training loop. The guard and its runtime share it. Safe from every thread.

    The last save counts: a later durable save makes up for a failed one.

    Attributes:
        phase: what the training does: `start`, `train`, or a name given to `guard.phase()`.
        decided: the decision to stop, once there is one; else None.
        owed: the decision to save that no save has followed yet.
        has_stopped: whether the newest decision was to stop.
        is_finished: whether the training has said that the run is finished.
        block: the outermost save block that the training is in.
        saves: the saves in flight; None before the first save.
        is_watched: whether errors and exit codes are noted: from the guard's start on.
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
        self._seen: BaseException | None = None

    def watch(self) -> None:
        """Note from now on which exceptions end threads, and which exit codes the program asks for."""
        self.is_watched = True
        self._seen = _last_exception()  # no end of this loop
        _watch_exit()
        note_fallen_threads()

    # ---- how the loop was left ----------------------------------------------------------------------------------

    def has_followed(self, steps: int) -> bool:
        """Whether a stop was decided, and the training has done no more steps than it needed to end."""
        return self.decided is not None and not self.is_finished and steps <= self.decided.step + LATE_STEPS

    def how(self, steps: int) -> str:
        """How this rank leaves: FAILED, STOPPED or DONE."""
        return FAILED if self.why else STOPPED if self.has_followed(steps) else DONE

    def exit_code(self, steps: int) -> int:
        """The exit code of a training that ends after so many steps."""
        if self.why:
            return EXIT_ERROR
        return self.decided.exit_code if self.decided is not None and self.has_followed(steps) else EXIT_DONE

    @property
    def in_flight(self) -> SaveBlock | None:
        """The save in flight, or None."""
        return None if self.saves is None else self.saves.newest

    @property
    def hangs(self) -> bool:
        """Whether a save was cut off, and none was durable since: the save may still hang in this process."""
        return self.saves is not None and self.saves.has_cut_off

    def is_saving(self) -> bool:
        """Whether a save is under way, in its block or in flight."""
        return self.block is not None or self.in_flight is not None

    def is_unsaved(self) -> bool:
        """Whether a save is under way, is owed, or has failed."""
        return self.is_saving() or self.owed is not None or bool(self.why)

    @property
    def why(self) -> str:
        """The first error, as a sentence; empty without one."""
        return self._failed_save or (self._faults[0] if self._faults else "")

    @property
    def is_for_good(self) -> bool:
        """Whether there was an error that no later save makes up for."""
        return bool(self._faults)

    def failed(self, fault: str, code: int = EXIT_ERROR) -> None:
        """Note an error that no later save makes up for, and the exit code with it: 0 and 75 would claim success."""
        if not self._faults:
            self.code = EXIT_ERROR if code in (EXIT_DONE, EXIT_STOPPED) else code
        self._faults.append(fault)

    def save_settled(self, step: int, error: BaseException | None) -> None:
        """The save of that step is durable, or has failed because of `error`."""
        if self.saves is not None and error is None:
            self.saves.has_cut_off = False
        if self.is_watched:
            self._failed_save = "" if error is None else f"the save of step {step} is not durable: {shown(error)}"

    # ---- the interpreter's own end ----------------------------------------------------------------------------

    def process_end(self, expected: int, thread: object) -> tuple[int, str]:
        """When the interpreter exits, return its exit code, as far as Python knows, and the error, or an empty text.

        `expected` is the exit code that the guard gave the training, `thread` the one that trained. 0 is no error: the
        program forgot the code.
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
"""The newest `sys.exit` call not known to be caught: its argument, and the exception before the call."""


def forget_exit() -> None:
    """The training goes on: the program has caught the noted exit."""
    _exits.clear()


def _watch_exit() -> None:
    """Note the arguments of `sys.exit`, and of the built-in `exit` and `quit`, from now on: once for the process."""
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
    """Return an exception as one short line for people."""
    try:
        if isinstance(error, SystemExit):
            text = f"sys.exit({error.code!r})"
        elif ranks := getattr(error, "failures", None):  # CheckpointException of torch: by rank, each with its stack
            text = ", ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in ranks.items())
        else:
            text = repr(error)
        return " ".join(text.split())[:300]
    except Exception:  # a class outside of resil may raise in repr()
        return type(error).__name__


def _last_exception() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def code_of(error: BaseException) -> int:
    """Return the exit code of Python when this exception ends the process.

    `sys.exit(status)`: the last 8 bits of a number, 0 for None, 1 for what is printed instead. An interrupt ends it by
    SIGINT, which a shell calls 130.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit) or error.code is None:
        return EXIT_DONE if isinstance(error, SystemExit) else EXIT_ERROR
    return error.code & 0xFF if isinstance(error.code, int) else EXIT_ERROR
