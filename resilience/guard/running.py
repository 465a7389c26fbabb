"""A running guard: its life, and the slow way of a step, taken only when there is something to ask."""

from __future__ import annotations

import atexit
import os

from resilience.errors import AgreementLost, GuardError
from resilience.guard.decision import CONTINUE, EXIT_DONE, EXIT_ERROR, FAILED, OBEYED, SAVED, Decision
from resilience.guard.gate import Gate
from resilience.guard.recorder import say_on_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any, Self, TypeVar

    from resilience.guard.decision import Trigger
    from resilience.guard.parts import Parts
    from resilience.guard.place import Place
    from resilience.guard.settings import GuardSettings

    Result = TypeVar("Result")

NEW, RUNNING, CLOSED, INERT = "new", "running", "closed", "inert"

_active: RunningGuard | None = None
"""The guard of this process: there can be one, because signals and the agreement are the process's."""


class RunningGuard(Gate):
    """What `TrainingGuard` is made of, below what a training calls."""

    __slots__ = (
        "__weakref__",
        "_agreement_factory",
        "_finished",
        "_has_stopped",
        "_has_told",
        "_owed",
        "_own_triggers",
        "_parts",
        "_phase",
        "_pid",
        "_saving_depth",
        "_say",
        "_state",
        "decided",
        "place",
        "settings",
    )

    def __init__(
        self,
        place: Place,
        settings: GuardSettings,
        triggers: Sequence[Trigger],
        agreement: Callable[..., Any] | None,
        say: Callable[[str], None] | None,
    ) -> None:
        super().__init__()
        self.place = place
        self.settings = settings
        self.decided: Decision | None = None
        self._own_triggers = tuple(triggers)
        self._agreement_factory = agreement
        self._say = say
        self._parts: Parts | None = None
        self._state = NEW
        self._pid = os.getpid()
        self._phase = "start"
        self._saving_depth = 0
        self._owed: Decision | None = None
        self._finished = False
        self._has_stopped = False
        self._has_told = False

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 0 done, 75 stopped on purpose, 1 stopped by an error.

        1 also when the loop was left by an exception, or the last save failed, on this rank or on another as far as
        rank 0 knows: a job whose last save failed did not stop in good order.
        """
        if self._parts is not None and self._parts.news.went_wrong:
            return EXIT_ERROR
        return EXIT_DONE if self._finished or self.decided is None else self.decided.exit_code

    def start(self) -> None:
        """Begin to look. Called by the `with` block, and by the first step at the latest."""
        global _active
        if self._state != NEW:
            return
        if self._pid != os.getpid():
            (self._say or say_on_stderr)(
                "warning: this guard was made in another process and does nothing here: make it in the process that "
                "trains, after the fork"
            )
            self._become_inert()
            return
        if _active is not None and _active is not self:
            raise GuardError(
                "there is another guard in this process already",
                hint="use one guard; in a notebook close the old one first: resilience.guard.active().close()",
            )
        from resilience.guard.parts import Parts

        self.open()
        try:
            self._parts = Parts(self, self._own_triggers, self._agreement_factory, self._say)
            self._parts.start()
        except GuardError:
            raise
        except Exception as error:
            say_on_stderr(f"warning: the guard could not start, and the training goes on without it: {error!r}")
            self._become_inert()
            return
        _active = self
        self._state = RUNNING
        self.limit = self.count + 1  # the first step asks: it tells which thread trains
        atexit.register(self.close)  # for a training that has no `with` block

    def close(self) -> None:
        """The training loop is over: tell the other ranks, restore signal handlers, end the threads."""
        global _active
        if _active is self:
            _active = None
        atexit.unregister(self.close)
        if self._pid == os.getpid():
            self._settle(OBEYED)
            self._safely(lambda parts: parts.close(self.decided, self.exit_code))
        if self._state != INERT:
            self._state = CLOSED
        self.open()
        if self._state == CLOSED and not self._has_told:
            self.limit = self.poll_limit = 0  # whoever goes on with it asks, and is told once that nobody answers

    def __enter__(self) -> Self:
        if self._state == CLOSED:
            raise GuardError(
                "this guard was closed, and guards nothing any more", hint="make a new one for each training"
            )
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # sys.exit(guard.exit_code) within the block; or the code was forgotten, which is no failure.
        is_exit = isinstance(error, SystemExit) and (error.code or 0) in (0, self.exit_code)
        if error is not None and not is_exit:
            self._safely(lambda parts: parts.left_by(error))
            self._settle(FAILED)  # a save that was asked for and not made
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a TrainingGuard cannot be pickled: it belongs to this process. Make one in each process that trains, and "
            "keep it out of datasets, models and what spawned workers are given"
        )

    # ---- the slow way, taken only when there is something to ask ------------------------------------------------

    def _ask(self, loss: Any) -> Decision:
        """There may be something to do: a limit was reached, or a loss came."""
        return (self._safely(lambda parts: self._arrive(parts, loss)) if self._is_running() else None) or CONTINUE

    def _arrive(self, parts: Parts, loss: Any) -> Decision:
        if loss is not None:
            parts.watch_loss(loss, self.count)
            if self.count < self.limit:
                return CONTINUE
        parts.check_thread()
        self._settle(OBEYED)
        self.urgent = False
        parts.take_signals()
        decision: Decision = parts.agreement.arrive()
        if decision:
            self._give(decision)
        elif decision is not CONTINUE:  # decided, and it came to nothing: a request without a wish
            parts.agreement.finish(OBEYED, 0.0)
        return decision

    def _ask_at_poll(self) -> Decision:
        return (self._safely(self._arrive_at_poll) if self._is_running() else None) or CONTINUE

    def _arrive_at_poll(self, parts: Parts) -> Decision:
        self.urgent = False
        parts.take_signals()
        decision: Decision = parts.agreement.arrive_at_poll()
        if decision.stop and self.decided is None:
            self.decided = decision
        return decision

    def _safely(self, call: Callable[[Parts], Result], also: str = RUNNING) -> Result | None:
        """Do something with the parts, if they run, or are in the state `also`. A fault of ours, whatever it is, must
        not cost the training.

        AgreementLost passes: a rank that has promised to wait would break the others by going on.
        """
        parts = self._parts
        if parts is None or self._state not in (RUNNING, also):
            return None
        try:
            return call(parts)
        except AgreementLost as lost:
            parts.left_by(lost)
            raise
        except Exception as error:
            parts.failed(error)
            self.open()
            return None

    def _is_running(self) -> bool:
        if self._state == NEW:
            self.start()
        if self._state != RUNNING:
            self.open()
        if self._state == CLOSED and not self._has_told:
            self._has_told = True
            tell = self._say or say_on_stderr
            tell("warning: this guard was closed, and guards nothing any more: make a new one for each training")
        return self._state == RUNNING

    def _give(self, decision: Decision) -> None:
        """The training gets a decision. A stop that it did not follow is given again at every step, and told once."""
        if decision.save:
            self._owed = decision
        if decision.save or not self._has_stopped:
            self._decide(decision)
        self._has_stopped = decision.stop
        if not decision.save:
            assert self._parts is not None
            self._parts.agreement.finish(OBEYED, 0.0)

    def _decide(self, decision: Decision) -> None:
        assert self._parts is not None
        if decision.stop:
            self.decided = decision
        self._parts.decided(decision)

    def _enter_phase(self, name: str) -> str:
        before, self._phase = self._phase, name
        self._safely(lambda parts: parts.enter_phase(name, self.count))
        return before

    def _enter_save(self) -> None:
        self._saving_depth += 1
        if self._saving_depth == 1:
            self._safely(lambda parts: parts.save_begins(self.count))

    def _leave_save(self, seconds: float, error: BaseException | None) -> None:
        self._saving_depth -= 1
        if self._saving_depth == 0:
            self._safely(lambda parts: parts.save_ended(self.count, seconds, error, self._phase))
            self._settle(SAVED if error is None else FAILED, seconds)

    def pass_over_save(self, decision: Decision) -> None:
        """A save was asked for, and `guard.steps()` was given nothing to save with: who asked for it hears so."""
        outcome = OBEYED if decision.stop else FAILED
        self._safely(lambda parts: parts.has_no_save())
        self._settle(outcome)

    def _settle(self, outcome: str, seconds: float = 0.0) -> None:
        """A decision to save was obeyed, or passed over."""
        owed, self._owed = self._owed, None
        if owed is not None:
            self._safely(lambda parts: parts.obeyed(owed, outcome, seconds))

    def _become_inert(self) -> None:
        """In a forked child: nothing here may touch what belongs to the parent."""
        self._state = INERT
        self.beat = [0] * 16
        if self.fence is not None:  # the parent's may be held, by a thread that is not here
            self.fence = type(self.fence)()
        self.open()
        if self._parts is not None:
            self._parts.forget()


def active() -> RunningGuard | None:
    """The guard of this process, or None."""
    return _active


def _before_fork() -> None:
    if _active is not None:
        _active._safely(lambda parts: parts.before_fork())


def _after_fork() -> None:
    if _active is not None:
        _active._safely(lambda parts: parts.after_fork())


def _after_fork_in_child() -> None:
    global _active
    if _active is not None:
        _active._become_inert()
        _active = None


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
