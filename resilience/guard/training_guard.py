"""The object that a training asks once per step whether to save or to stop."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import time

from resilience.errors import AgreementLost, GuardError
from resilience.guard.decision import CONTINUE, EXIT_DONE, EXIT_ERROR, FAILED, OBEYED, Decision
from resilience.guard.gate import NEVER, Gate
from resilience.guard.loop import LoopState, code_of, shown
from resilience.guard.recorder import say_on_stderr
from resilience.guard.saves import SaveBlock, Saves, handles_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self, TypeVar

    from resilience.guard.decision import Trigger
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.runtime import GuardRuntime
    from resilience.guard.settings import GuardSettings

    Batch = TypeVar("Batch")
    Result = TypeVar("Result")

_ON = ("on", "1", "true", "yes")
_OFF = ("off", "0", "false", "no")

NEW, RUNNING, CLOSED, INERT = "new", "running", "closed", "inert"

_active: TrainingGuard | None = None
"""The running guard of this process: one at most, because signals and the agreement are the process's."""
_newest: TrainingGuard | None = None
"""The guard that was started last, whether it is closed or not."""


class TrainingGuard(Gate):
    """Asked once per step, gives the same decision to every rank at the same step.

    Inherits the counters instead of holding them: one attribute less on the way of every step.

        with TrainingGuard.from_env() as guard:
            if guard.should_stop_early():
                sys.exit(guard.exit_code)
            for batch in loader:
                train_step(batch)
                decision = guard.step()
                if decision.save:
                    with guard.saving():
                        save_checkpoint(label=decision.label)
                if decision.stop:
                    break
        sys.exit(guard.exit_code)

    Attributes:
        place: where this process stands.
        settings: what the guard looks at.
        count: how many steps were done.
    """

    __slots__ = (
        "__weakref__",
        "_agreement_factory",
        "_has_told",
        "_is_at_shutdown",
        "_loop",
        "_own_triggers",
        "_pid",
        "_runtime",
        "_say",
        "_state",
        "place",
        "settings",
    )

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        *,
        triggers: Sequence[Trigger] = (),
        agreement: Callable[..., Any] | None = None,
        say: Callable[[str], None] | None = None,
        inert: bool = False,
    ) -> None:
        """Make a guard; nothing is looked at and no thread runs before `start()`, the `with` block or the first step.

        Args:
            triggers: your own, besides the built-in ones: anything with `poll()` and `done()`.
            agreement: how ranks agree: None chooses; `SingleProcess`, `Collective(every=10)`, or your own.
            say: gets each sentence for people. Default: `resil: ...` on stderr.
            inert: do nothing at all.
        """
        super().__init__()
        self.place = place
        self.settings = settings
        self._own_triggers = tuple(triggers)
        self._agreement_factory = agreement
        self._say = say
        self._runtime: GuardRuntime | None = None
        self._loop = LoopState()
        self._state = NEW
        self._pid = os.getpid()
        self._has_told = False
        self._is_at_shutdown = False
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            import threading

            self.lock = threading.Lock()
        if inert:
            self._state = INERT
            self.open()

    def __new__(cls, *args: Any, **kwargs: Any) -> TrainingGuard:
        """On a free-threaded interpreter the step needs a lock: see `gate.py`."""
        if cls is TrainingGuard and not getattr(sys, "_is_gil_enabled", lambda: True)():
            return super().__new__(LockedTrainingGuard)
        return super().__new__(cls)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        triggers: Sequence[Trigger] = (),
        agreement: Callable[..., Any] | None = None,
        say: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> TrainingGuard:
        """Make the guard that fits this process: `RESIL_*` from the template, else what SLURM and torch have set.

        Keyword arguments are settings (`GuardSettings`), and win over `RESIL_GUARD__KEY`. With `RESIL_GUARD=off` the
        guard is inert. Raise GuardError if a setting is unknown or means nothing.
        """
        import socket

        from resilience.guard.rank_info import find_rank_info
        from resilience.guard.settings import read_settings

        environ = os.environ if environ is None else environ
        mode = environ.get("RESIL_GUARD", "").strip()
        if mode.startswith("test:"):
            from resilience.guard.rank_info import RankInfo as Nowhere
            from resilience.guard.testing import SILENT, scripted

            return cls(Nowhere(), read_settings({}, **SILENT), agreement=scripted(mode), say=say)
        place = find_rank_info(environ, socket.gethostname())
        if mode.lower() in _OFF:  # before anything is read that may be wrong: it is the way out
            return cls(place, read_settings({}), inert=True)
        if mode.lower() not in ("", *_ON):
            raise GuardError(f"RESIL_GUARD={mode!r} is not possible", hint="it may be on, off, or test:save@3,stop@5")
        chosen = read_settings(environ, **settings)
        return cls(place, chosen, triggers=triggers, agreement=agreement, say=say)

    # ---- in the training loop ---------------------------------------------------------------------------------

    def step(self, loss: float | None = None) -> Decision:
        """A step is done: return what to do now, the same on every rank.

        Costs an increment, a store into memory and a comparison. Give `loss`, a number, to have it watched; a tensor
        on a device is not read, because that would wait for the device. Raise AgreementLost if this rank has promised
        to wait for rank 0 and rank 0 is gone.
        """
        count = self.count = self.count + 1
        self.beat[0] = count
        if count < self.limit and loss is None:
            return CONTINUE
        return self._ask(loss)

    def poll(self) -> Decision:
        """In the middle of an evaluation, a warm-up, data skipping: return whether a stop is coming.

        `stop` says: leave this, go on to the next step, whose decision will be to save and stop. It is given at the
        same poll on every rank that polls as often as the others; ranks that poll less often lose nothing. `save` is
        never set here.
        """
        count = self.count
        if self.polled_step != count:
            self.polls = 0
            self.polled_step = count
        self.polls += 1
        self.beat[1] += 1
        if self.polls < self.poll_limit:
            return CONTINUE
        return self._ask_at_poll()

    def saving(self) -> SaveBlock:
        """A `with` block around every save: measures it, and tells the triggers whether it succeeded.

            with guard.saving() as save:
                save.until(dcp.async_save(state, checkpoint_id=path))

        A save that goes on in the background counts when what is given to `until` has ended well (`SaveBlock.until`).
        Entering the block waits for one that is still in flight, because two at once share memory and bandwidth.
        """
        return SaveBlock(self._enter_save, self._leave_save)

    def phase(self, name: str) -> Phase:
        """Say what the training does now: `with guard.phase("eval"):`, or just `guard.phase("warm-up")`."""
        before, self._loop.phase = self._loop.phase, str(name)
        self._safely(lambda runtime: runtime.enter_phase())
        return Phase(self, before)

    def steps(self, loader: Iterable[Batch], save: Callable[..., Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of `loader`, with one step after each; save when asked, and end when asked to stop.

        `save` is called as `save(label=...)` if it takes a label, else without arguments. What it returns is taken for
        the end of a save in the background, if that is what it is: see `SaveBlock.until`. The last one is waited for.
        """
        if save is not None and not callable(save):
            raise GuardError(f"save={save!r} cannot be called", hint="give the function that saves a checkpoint")
        return self._iterate(loader, save)

    def should_stop_early(self) -> bool:
        """Before the training starts: whether there is no sense in starting, the same on every rank.

        A kill switch that is set, a finished run, a newer attempt. Waits for the first look, and for rank 0's word.
        """
        self.start()
        decision = self._safely(lambda runtime: runtime.wait_for_start())
        if decision is not None and decision.stop and self.decided is None:
            self._safely(lambda runtime: runtime.decide(decision))
        return self.decided is not None

    def reinstall_signals(self) -> None:
        """Take the signals back from a library that has replaced the guard's handlers; only in the main thread.

        The guard warns when that has happened. Call this after the library was initialised.
        """
        self._safely(lambda runtime: runtime.signals.reinstall())

    def finished(self) -> None:
        """The training is done: mark the run as finished, so that queued jobs end as they start.

        Refused with a warning after a stop, because a loop that was stopped ends like one that is done. If the stop
        came with the very last step, the next job finds nothing left to do, and says so in a moment. Refused as well
        when the last save is not durable; one in flight is waited for.
        """
        self.start()
        self._drain()
        self._safely(lambda runtime: runtime.finished(), CLOSED)

    def resumed(self, step: int) -> None:
        """The training goes on after `step` steps: the guard counts from there, and heartbeats show the true step.

        To be called by every rank, after a checkpoint was loaded.
        """
        try:
            step = operator.index(step)  # a checkpoint often holds its step as a tensor
        except TypeError:
            raise GuardError(f"resumed({step!r})", hint="give the number of steps that are done, a whole one") from None
        if not 0 <= step < NEVER:
            raise GuardError(f"a training cannot resume at step {step}", hint="give the number of steps that are done")
        self.count_from(step)
        self.beat[0] = step
        self._safely(lambda runtime: runtime.resumed(step))

    @property
    def decided(self) -> Decision | None:
        """The decision to stop, once there is one; else None."""
        return self._loop.decided

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 0 done, 75 stopped on purpose, 1 stopped by an error.

        1 also when the loop was left by an exception, or the last save is not durable, on this rank or on another as
        far as rank 0 knows: such a job did not stop in good order. Waits for a save that is in flight.

        0 also when the training ran on for more than a step after it was told to stop: it was not stopped.
        """
        self._drain()
        return self._loop.exit_code(self.count)

    # ---- start and end ------------------------------------------------------------------------------------------

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
        from resilience.guard.runtime import GuardRuntime

        self.open()
        self._loop.watch()
        try:
            self._runtime = GuardRuntime(
                self, self._loop, self.place, self.settings, self._own_triggers, self._agreement_factory, self._say
            )
            self._runtime.start()
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

    def _close(self, error: str = "", code: int = EXIT_ERROR) -> None:
        """The end, in good order or because of `error`, with this code."""
        global _active
        if _active is self:
            _active = None
        if self._pid == os.getpid():
            if self._state == RUNNING:
                loop = self._loop
                if error:
                    self._safely(lambda runtime: runtime.left_by(error))
                    loop.failed(error, code)
                if loop.block is not None:
                    loop.failed(f"the save of step {loop.block.step} was begun and never ended")
                self._safely(lambda runtime: runtime.settle(FAILED if loop.why else OBEYED))
            self._drain()
            self._safely(lambda runtime: runtime.close())
        if self._state != INERT:
            self._state = CLOSED
        self.open()
        if self._state == CLOSED and not self._has_told:
            self.limit = self.poll_limit = 0  # a training that goes on is warned, once, that the guard is closed

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
            self._close(shown(error), code_of(error))

    def _at_exit(self) -> None:
        """The interpreter exits. The real exit code of the process counts for more than the one the guard gave."""
        loop = self._loop
        if not loop.is_watched or self._pid != os.getpid():
            return
        was_well = not loop.why
        told = loop.exit_code(self.count) if was_well else loop.code
        code, error = loop.process_end(told, self._runtime and self._runtime.stepping_thread)
        if self._state == RUNNING:
            self._close(error, code)
        elif self._state == CLOSED:
            self._drain()
            if was_well:
                error, code = (error, code) if error else (loop.why, EXIT_ERROR)
            # The journal has a 75, or another code.
            if error and (was_well or code != told) and loop.exit_code(self.count) != EXIT_DONE:
                self._safely(lambda runtime: runtime.contradict(code, error), CLOSED)

    def _become_inert(self) -> None:
        """In a forked child: nothing here may touch what belongs to the parent."""
        self._state = INERT
        self._loop.saves = self._loop.block = None
        self.beat = [0] * 16
        if self.lock is not None:  # the parent's may be held, by a thread that is not here
            self.lock = type(self.lock)()
        self.open()
        if self._runtime is not None:
            self._runtime.after_fork_in_child()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a TrainingGuard cannot be pickled: it belongs to this process. Make one in each process that trains, and "
            "keep it out of datasets, models and what spawned workers are given"
        )

    # ---- the slow way of a step, taken only when there is something to ask ---------------------------------------

    def _ask(self, loss: Any) -> Decision:
        """There may be something to do: a limit was reached, or a loss came."""
        return (self._safely(lambda runtime: runtime.on_step(loss)) if self._is_running() else None) or CONTINUE

    def _ask_at_poll(self) -> Decision:
        return (self._safely(lambda runtime: runtime.on_poll()) if self._is_running() else None) or CONTINUE

    def _safely(self, call: Callable[[GuardRuntime], Result], also: str = RUNNING) -> Result | None:
        """Call the runtime, if it runs, or is in the state `also`. An error of the guard itself, whatever it is, must
        not cost the training.

        AgreementLost passes: a rank that has promised to wait would break the others by going on.
        """
        runtime = self._runtime
        if runtime is None or self._state not in (RUNNING, also):
            return None
        try:
            return call(runtime)
        except AgreementLost as lost:
            runtime.left_by(shown(lost))
            self._loop.failed(shown(lost))
            raise
        except Exception as error:
            runtime.failed(error)
            self.open()
            return None

    def _is_running(self) -> bool:
        if self._state == NEW:
            self.start()
        if self._state != RUNNING:
            self.open()
        if self._state == CLOSED and not self._has_told:
            self._has_told = True
            say = self._say or say_on_stderr
            say("warning: this guard was closed, and guards nothing any more: make a new one for each training")
        return self._state == RUNNING

    def _iterate(self, loader: Iterable[Batch], save: Callable[..., Any] | None) -> Iterator[Batch]:
        """Yield nothing once a stop was decided, so that an outer loop over epochs ends by itself."""
        takes_label = save is not None and _takes_label(save)
        if self.should_stop_early():
            return
        for batch in loader:
            yield batch
            decision = self.step()
            if decision.save and save is None:
                self._safely(lambda runtime: runtime.pass_over_save())
            elif decision.save and save is not None:
                with self.saving() as saving:
                    returned = save(label=decision.label) if takes_label else save()
                    saving.until(*handles_in(returned))
            if decision.stop:
                self._drain()
                return

    # ---- saves --------------------------------------------------------------------------------------------------

    def _enter_save(self, saving: SaveBlock) -> SaveBlock | None:
        """The training saves: wait for a save in flight. Return the block that this one is part of, or None."""
        loop = self._loop
        if loop.block is not None:
            return loop.block
        saving.step, saving.entered = self.count, time.monotonic()
        if loop.saves is None:
            loop.saves = Saves(self._save_settled)
        loop.block = saving
        self._safely(lambda runtime: runtime.save_entered())
        self._drain()
        saving.began = time.monotonic()
        self._safely(lambda runtime: runtime.save_begins(saving))
        return None

    def _leave_save(self, saving: SaveBlock, error: BaseException | None) -> None:
        loop = self._loop
        if saving.outer is not None:
            saving.outer.fault_inside = error
            return
        loop.block = None
        error = error or saving.fault_inside  # the training has caught it, and has not tried again
        saving.decision, loop.owed = loop.owed, None
        self._safely(lambda runtime: runtime.save_left(saving, error))
        if error is not None or not saving.is_in_flight:
            self._save_settled(saving, error)
        elif loop.saves is not None:
            loop.saves.add(saving)

    def _save_settled(self, saving: SaveBlock, error: BaseException | None) -> None:
        """A save is durable, or has failed. Comes from any thread."""
        self._loop.save_settled(saving.step, error)
        if self._state == RUNNING:
            self._safely(lambda runtime: runtime.save_settled(saving, error))
        elif error is not None and saving.is_in_flight:  # the guard is closed, or off, and tells nobody
            (self._say or say_on_stderr)(f"warning: the save of step {saving.step} is not durable: {shown(error)}")

    def _drain(self) -> None:
        """Wait until the save in flight is durable; one that is not in time has failed."""
        saves = self._loop.saves
        if saves is None or saves.newest is None:
            return
        if self._runtime is None or self._state == INERT:
            saves.wait(float("inf"))
        else:
            saves.wait(self._runtime.drain_s(), self._runtime.show_drain)
        if saves.has_cut_off and not self._is_at_shutdown:
            # Without a `with` block: Python joins the thread that hangs before it calls any exit handler of ours.
            import contextlib
            import threading

            self._is_at_shutdown = True
            with contextlib.suppress(AttributeError, RuntimeError):  # a Python without it; one that is ending already
                threading._register_atexit(self._at_exit)  # type: ignore[attr-defined]


class LockedTrainingGuard(TrainingGuard):
    """The guard of interpreters without a global lock: the same, with a real lock around each counted write and read.

    It costs some 30 ns a step. Chosen by itself where it is needed.
    """

    __slots__ = ()

    def step(self, loss: float | None = None) -> Decision:
        """See `TrainingGuard.step`."""
        with self.lock:
            count = self.count = self.count + 1
            limit = self.limit
        self.beat[0] = count
        if count < limit and loss is None:
            return CONTINUE
        return self._ask(loss)

    def poll(self) -> Decision:
        """See `TrainingGuard.poll`."""
        with self.lock:
            if self.polled_step != self.count:
                self.polls = 0
                self.polled_step = self.count
            polls = self.polls = self.polls + 1
            limit = self.poll_limit
        self.beat[1] += 1
        return CONTINUE if polls < limit else self._ask_at_poll()


class Phase:
    """What `phase()` returns: leaving its `with` block restores the phase before."""

    def __init__(self, guard: TrainingGuard, before: str) -> None:
        self._guard = guard
        self._before = before

    def __enter__(self) -> Phase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._guard.phase(self._before)


def _takes_label(save: Callable[..., Any]) -> bool:
    import inspect

    try:
        parameters = inspect.signature(save).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return any(parameter.name == "label" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


# ---- the process ------------------------------------------------------------------------------------------


def active() -> TrainingGuard | None:
    """The guard of this process, or None."""
    return _active


def _at_exit() -> None:
    """For a training without a `with` block, and for whatever follows one."""
    if _newest is not None:
        _newest._at_exit()


def _before_fork() -> None:
    if _active is not None:
        _active._safely(lambda runtime: runtime.exit.before_fork())


def _after_fork() -> None:
    if _active is not None:
        _active._safely(lambda runtime: runtime.exit.after_fork())


def _after_fork_in_child() -> None:
    global _active
    if _active is not None:
        _active._become_inert()
        _active = None


atexit.register(_at_exit)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
