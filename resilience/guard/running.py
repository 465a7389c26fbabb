"""A running guard: its life, and the slow way of a step, taken only when there is something to ask."""

from __future__ import annotations

import atexit
import os
import time

from resilience.errors import AgreementLost, GuardError
from resilience.guard.decision import CONTINUE, DONE, EXIT_DONE, EXIT_ERROR, FAILED, OBEYED, STOPPED, Decision
from resilience.guard.gate import Gate
from resilience.guard.recorder import say_on_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any, Self, TypeVar

    from resilience.guard.decision import Trigger
    from resilience.guard.ending import Ending
    from resilience.guard.parts import Parts
    from resilience.guard.place import Place
    from resilience.guard.saves import Saves, Saving
    from resilience.guard.settings import GuardSettings

    Result = TypeVar("Result")

NEW, RUNNING, CLOSED, INERT = "new", "running", "closed", "inert"

LATE_STEPS = 1
"""A training that does more steps than this after it was told to stop has not followed. One step is for loops that look
at each decision a step later, because their device runs ahead."""

_active: RunningGuard | None = None
"""The guard of this process: there can be one, because signals and the agreement are the process's."""


class RunningGuard(Gate):
    """What `TrainingGuard` is made of, below what a training calls."""

    __slots__ = (
        "__weakref__",
        "_agreement_factory",
        "_ending",
        "_finished",
        "_has_stopped",
        "_has_told",
        "_is_at_shutdown",
        "_owed",
        "_own_triggers",
        "_parts",
        "_phase",
        "_pid",
        "_saves",
        "_saving",
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
        self._ending: Ending | None = None
        self._saves: Saves | None = None
        self._saving: Saving | None = None  # the outermost block that the training is in
        self._saving_depth = 0
        self._owed: Decision | None = None
        self._finished = False
        self._has_stopped = False
        self._has_told = False
        self._is_at_shutdown = False

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 0 done, 75 stopped on purpose, 1 stopped by an error.

        1 also when the loop was left by an exception, or the last save is not durable, on this rank or on another as
        far as rank 0 knows: such a job did not stop in good order. Waits for a save that is in flight.

        0 also when the training ran on for more than a step after it was told to stop: it was not stopped.
        """
        self._drain()
        return self._code()

    def _code(self) -> int:
        if self._ending is not None and self._ending.why:
            return EXIT_ERROR
        stop = self.decided
        return EXIT_DONE if stop is None or not self._has_followed(stop) else stop.exit_code

    def _has_followed(self, stop: Decision) -> bool:
        """Whether the training has done no more steps than it needed to end, once it was told to stop."""
        return not self._finished and self.count <= stop.step + LATE_STEPS

    def start(self) -> None:
        """Begin to look. Called by the `with` block, and by the first step at the latest."""
        global _active, _newest
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
        from resilience.guard.ending import Ending
        from resilience.guard.parts import Parts

        self.open()
        self._ending = Ending()
        try:
            self._parts = Parts(self, self._ending, self._own_triggers, self._agreement_factory, self._say)
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
        _newest = self

    def close(self) -> None:
        """The training loop is over: wait for saves in flight, tell the other ranks, restore signal handlers, end the
        threads."""
        self._close()

    def _close(self, fault: str = "", code: int = EXIT_ERROR) -> None:
        """The end, in good order or because of `fault`, with this code."""
        global _active
        if _active is self:
            _active = None
        if self._pid == os.getpid():
            if self._state == RUNNING and self._ending is not None:
                if fault:
                    self._ending.failed(fault, code)
                if self._saving is not None:
                    self._ending.failed(f"the save of step {self._saving.step} was begun and never ended")
                self._settle(FAILED if self._ending.why else OBEYED)
            self._drain()
            self._safely(lambda parts: parts.close(self.decided, self._how()))
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
        if error is None or is_exit:
            self._close()
        else:
            from resilience.guard.ending import code_of, shown

            self._safely(lambda parts: parts.left_by(shown(error)))
            self._close(shown(error), code_of(error))

    def _at_exit(self) -> None:
        """The interpreter exits. What the process really ends with counts for more than what the guard had told it."""
        ending = self._ending
        if ending is None or self._pid != os.getpid():
            return
        was_well = not ending.why
        told = self._code() if was_well else ending.code
        code, fault = ending.process_end(told, self._parts and self._parts.stepping_thread)
        if self._state == RUNNING:
            if fault:
                self._safely(lambda parts: parts.left_by(fault))
            self._close(fault, code)
        elif self._state == CLOSED:
            self._drain()
            if was_well:
                fault, code = (fault, code) if fault else (ending.why, EXIT_ERROR)
            if fault and (was_well or code != told) and self._code() != EXIT_DONE:  # the journal has a 75, or another
                self._safely(lambda parts: parts.contradict(code, fault), CLOSED)

    def _how(self) -> str:
        """How this rank leaves."""
        if self._ending is not None and self._ending.why:
            return FAILED
        return STOPPED if self.decided is not None and self._has_followed(self.decided) else DONE

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
        decision: Decision = parts.agreement.on_step()
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
        decision: Decision = parts.agreement.on_poll()
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
            from resilience.guard.ending import shown

            parts.left_by(shown(lost))
            if self._ending is not None:
                self._ending.failed(shown(lost))
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
        from resilience.guard.ending import forget_exit

        assert self._parts is not None
        forget_exit()
        if decision.stop:
            self.decided = decision
        self._parts.decided(decision)

    def _enter_phase(self, name: str) -> str:
        before, self._phase = self._phase, name
        self._safely(lambda parts: parts.enter_phase(name, self.count))
        return before

    def _enter_save(self, saving: Saving) -> Saving | None:
        """The training saves: wait for a save in flight. Return the block that this one is part of, or None."""
        self._saving_depth += 1
        if self._saving_depth > 1:
            return self._saving
        saving.step, saving.entered = self.count, time.monotonic()
        if self._saves is None:
            from resilience.guard.saves import Saves

            self._saves = Saves(self._save_settled)
        self._saving = saving
        self._safely(lambda parts: parts.save_entered())
        self._drain()
        saving.began = time.monotonic()
        self._safely(lambda parts: parts.save_begins(saving))
        return None

    def _leave_save(self, saving: Saving, error: BaseException | None) -> None:
        self._saving_depth -= 1
        outer, self._saving = self._saving, None if self._saving_depth == 0 else self._saving
        if self._saving_depth > 0:
            if outer is not None:
                outer.fault_inside = error
            return
        error = error or saving.fault_inside  # somebody has caught it, and has not tried again
        saving.decision, self._owed = self._owed, None
        self._safely(lambda parts: parts.save_left(saving, error, self._phase))
        if error is not None or not saving.is_in_flight:
            self._save_settled(saving, error)
        elif self._saves is not None:
            self._saves.add(saving)

    def _save_settled(self, saving: Saving, error: BaseException | None) -> None:
        """A save is durable, or has failed. Comes from any thread."""
        if self._saves is not None and error is None:
            self._saves.has_cut_off = False
        if self._ending is not None and error is None:
            self._ending.saved()
        elif self._ending is not None and error is not None:
            self._ending.save_failed(saving, error)
        if self._state == RUNNING:
            self._safely(lambda parts: parts.save_settled(saving, error))
        elif error is not None and saving.is_in_flight:  # nobody else tells: the guard is closed, or off
            from resilience.guard.ending import shown

            (self._say or say_on_stderr)(f"warning: the save of step {saving.step} is not durable: {shown(error)}")

    def _drain(self) -> None:
        """Wait until what is in flight is durable; what is not in time has failed."""
        saves = self._saves
        if saves is None or saves.newest is None:
            return
        if self._parts is None or self._state == INERT:
            saves.wait(float("inf"))
        else:
            saves.wait(self._parts.drain_s(), self._parts.show_drain)
        if saves.has_cut_off and not self._is_at_shutdown:
            # Without a `with` block: Python joins the thread that hangs before it calls any exit handler of ours.
            import contextlib
            import threading

            self._is_at_shutdown = True
            with contextlib.suppress(AttributeError, RuntimeError):  # a Python without it; one that is ending already
                threading._register_atexit(self._at_exit)  # type: ignore[attr-defined]

    def pass_over_save(self, decision: Decision) -> None:
        """A save was asked for, and `guard.steps()` was given nothing to save with: who asked for it hears so."""
        self._safely(lambda parts: parts.has_no_save())
        self._settle(OBEYED if decision.stop else FAILED)

    def _settle(self, outcome: str) -> None:
        """A decision to save was passed over."""
        owed, self._owed = self._owed, None
        if owed is not None:
            self._safely(lambda parts: parts.passed_over(owed, outcome))

    def _become_inert(self) -> None:
        """In a forked child: nothing here may touch what belongs to the parent."""
        self._state = INERT
        self._saves = self._saving = None
        self.beat = [0] * 16
        if self.fence is not None:  # the parent's may be held, by a thread that is not here
            self.fence = type(self.fence)()
        self.open()
        if self._parts is not None:
            self._parts.forget()


_newest: RunningGuard | None = None
"""The guard that was started last, whether it is closed or not."""


def _at_exit() -> None:
    """For a training that has no `with` block, and for what comes behind one."""
    if _newest is not None:
        _newest._at_exit()


atexit.register(_at_exit)


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
