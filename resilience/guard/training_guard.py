"""The guard object: a training calls `step()` once per step and gets the decision to continue, save or stop."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import time

from resilience.errors import AgreementLost, CheckpointError, GuardError
from resilience.guard.decision import CONTINUE, EXIT_DONE, EXIT_ERROR, FAILED, OBEYED, Decision
from resilience.guard.gate import NEVER, Gate
from resilience.guard.loop import LoopState, Phase, before_threads_are_joined, code_of, describe_error
from resilience.guard.recorder import say_on_stderr
from resilience.guard.saves import SaveBlock, Saves, arguments_for, as_metrics, run_save

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self, TypeVar

    from resilience.guard.decision import Trigger
    from resilience.guard.earlier_stops import EarlierStop
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.runtime import GuardRuntime
    from resilience.guard.sdc.watch import SdcWatch, State, Unwatched
    from resilience.guard.settings import GuardSettings
    from resilience.guard.store_ranks import ConnectedStore, Part, Store

    Batch = TypeVar("Batch")
    Result = TypeVar("Result")

_ON = ("on", "1", "true", "yes")
_OFF = ("off", "0", "false", "no")

NEW, RUNNING, CLOSED, INERT = "new", "running", "closed", "inert"

_active: TrainingGuard | None = None
"""The running guard of this process. At most one, because signal handlers and the agreement are per process."""
_newest: TrainingGuard | None = None
"""The guard that was started last, running or closed."""


class TrainingGuard(Gate):
    """Returns the same decision to every rank at the same step.

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

    Inherits the counters, which saves `step()` an attribute access.

    Attributes:
        place: rank, node, run and job of this process.
        settings: the settings of the guard.
        count: number of completed steps.
    """

    __slots__ = (
        "__weakref__",
        "_agreement_factory",
        "_connected",
        "_has_warned",
        "_is_at_shutdown",
        "_loop",
        "_on_event",
        "_own_triggers",
        "_pid",
        "_runtime",
        "_say",
        "_state",
        "_store",
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
        store: Store | None = None,
        say: Callable[[str], None] | None = None,
        on_event: Callable[[Mapping[str, Any]], object] | None = None,
        inert: bool = False,
    ) -> None:
        """Create a guard. No I/O and no thread before `start()`, the `with` block or the first step.

        Args:
            triggers: your own triggers, in addition to the built-in ones: objects with `poll()` and `done()`.
            agreement: how ranks agree: `SingleProcess`, `Collective(every=10)`, or your own. Default: automatic.
            store: where the training saves, such as `resilience.checkpoints.Store.from_env()`: see `saving`.
            say: called with each message for the user. Default: prints `resil: ...` to stderr.
            on_event: called with each event of this rank's journal, in the thread that records it; must not wait.
            inert: create a guard that does nothing.
        """
        super().__init__()
        self.place = place
        self.settings = settings
        self._own_triggers = tuple(triggers)
        self._agreement_factory = agreement
        self._store = store
        self._connected: ConnectedStore | None = None
        self._say = say
        self._on_event = on_event
        self._runtime: GuardRuntime | None = None
        self._loop = LoopState()
        self._state = NEW
        self._pid = os.getpid()
        self._has_warned = False
        self._is_at_shutdown = False
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            import threading

            self.lock = threading.Lock()
        if inert:
            self._state = INERT
            self.open()

    def __new__(cls, *args: Any, **kwargs: Any) -> TrainingGuard:
        """Return a guard with a lock on a free-threaded interpreter: see `gate.py`."""
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
        store: Store | None = None,
        say: Callable[[str], None] | None = None,
        on_event: Callable[[Mapping[str, Any]], object] | None = None,
        **settings: Any,
    ) -> TrainingGuard:
        """Return a guard for this process, from the template's `RESIL_*` variables, else those of SLURM and torch.

        Keyword arguments are settings (`GuardSettings`) and override `RESIL_GUARD__KEY`. With `RESIL_GUARD=off` the
        guard is inert. Raise GuardError if a setting is unknown or its value is invalid.
        """
        import socket

        from resilience.guard.rank_info import RankInfo, find_rank_info
        from resilience.guard.settings import read_settings

        environ = os.environ if environ is None else environ
        mode = environ.get("RESIL_GUARD", "").strip()
        if mode.startswith("test:"):
            from resilience.guard.testing import SILENT, scripted

            kind, agreement = scripted(mode, cls)
            guard: TrainingGuard = kind(RankInfo(), read_settings({}, **SILENT), agreement=agreement, store=store,
                                        say=say, on_event=on_event)  # fmt: skip
            return guard
        place = find_rank_info(environ, socket.gethostname())
        if mode.lower() in _OFF:  # before the settings are read: RESIL_GUARD=off must work even if they are invalid
            return cls(place, read_settings({}), store=store, inert=True)
        if mode.lower() not in ("", *_ON):
            raise GuardError(f"RESIL_GUARD={mode!r} is invalid", hint="set on, off, or test:save@3,stop@5")
        chosen = read_settings(environ, **settings)
        return cls(place, chosen, triggers=triggers, agreement=agreement, store=store, say=say, on_event=on_event)

    # ---- in the training loop ---------------------------------------------------------------------------------

    def step(self, loss: float | None = None) -> Decision:
        """Count a completed step and return the decision, the same on every rank.

        Costs an increment, a store into memory and a comparison. Pass `loss`, a number, to monitor the loss; a tensor
        on a device is ignored, because reading it would wait for the device. Raise AgreementLost if this rank has
        promised to wait for rank 0 and rank 0 is gone.
        """
        count = self.count = self.count + 1
        self.beat[0] = count
        if count < self.limit and loss is None:
            return CONTINUE
        return self._ask(loss)

    def observe(self, *, grad_norm: float | None = None) -> None:
        """Monitor the norm of the gradients of the step in progress: call it before `step()`, with a number.

        A few norms in a row that are not finite are normal with a loss scaler, which skips those steps.
        """
        if grad_norm is not None and self._is_running():
            self._safely(lambda runtime: runtime.observe(grad_norm))

    def sdc(self, state: State, *, group: str = "") -> SdcWatch | Unwatched:
        """Return the watch for silent data corruption of this training, whose `run` runs one step.

            sdc = guard.sdc(TorchState(model, optimizer))  # from resilience.integrations.sdc
            ...
                loss = sdc.run(train_step, batch)

        Does nothing unless `sdc = true` in [guard]. Ranks of the same `group` are compared: they must have equal
        parameters and optimizer state.
        """
        from resilience.guard.sdc.watch import Unwatched

        self.start()
        watch = self._safely(lambda runtime: runtime.sdc(state, group)) if self.settings.sdc else None
        return Unwatched(self) if watch is None else watch

    def poll(self) -> Decision:
        """Return a pending stop, during an evaluation, a warm-up or data skipping.

        If `stop` is set, leave the evaluation and do the next step, whose decision will be to save and stop. Every
        rank that polls as often as the others gets the stop at the same poll; a rank that polls less often gets it at
        its next step. `save` is never set here.
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

    def saving(self, *, metrics: Mapping[str, float] | None = None) -> SaveBlock:
        """Return a context manager for a save: measures its duration and reports the outcome to the triggers.

            with guard.saving() as save:
                save.until(dcp.async_save(state, checkpoint_id=save.path))

        An asynchronous save is durable once every handle passed to `SaveBlock.until` has succeeded. With a store every
        save is durable once its checkpoint is committed; `path` is the directory to save into, and `metrics` are
        numbers by which checkpoints are kept. Entering the block waits while `saves_in_flight` saves are in flight.
        """
        return SaveBlock(self._enter_save, self._leave_save, as_metrics(metrics))

    def phase(self, name: str) -> Phase:
        """Set the phase shown in the heartbeat: `with guard.phase("eval"):`, or just `guard.phase("warm-up")`."""
        before, self._loop.phase = self._loop.phase, str(name)
        self._safely(lambda runtime: runtime.enter_phase())
        return Phase(self.phase, before)

    def steps(self, loader: Iterable[Batch], save: Callable[..., Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of `loader`, calling `step()` after each; save and stop as decided.

        `save` is called with those of the arguments `label` and, with a store, `path` that it takes. If it returns
        handles of an asynchronous save (`SaveBlock.until`), the save is durable when they have succeeded. Before the
        iteration ends with a stop, saves in flight are awaited.
        """
        if save is not None and not callable(save):
            raise GuardError(f"save={save!r} is not callable", hint="pass the function that saves a checkpoint")
        return self._iterate(loader, save)

    def should_stop_early(self) -> bool:
        """Return True if the training should not start, the same on every rank.

        Reasons: the kill switch is set, the run is finished, or a newer attempt exists. Waits for the first check of
        the run directory and for rank 0.
        """
        self.start()
        decision = self._safely(lambda runtime: runtime.wait_for_start())
        if decision is not None and decision.stop and self.decided is None:
            self._safely(lambda runtime: runtime.decide(decision))
        return self.decided is not None

    def reinstall_signals(self) -> None:
        """Install the guard's signal handlers again after a library has replaced them; only in the main thread.

        The guard warns when its handlers were replaced. Call this after the library was initialised.
        """
        self._safely(lambda runtime: runtime.signals.reinstall())

    def finished(self) -> None:
        """Mark the run as finished, so that queued jobs exit at their start.

        Refused with a warning after a stop, because a stopped loop ends like a finished one; if the stop came with the
        last step, the next job marks the run. Also refused if the last save is not durable. Waits for a save in
        flight.
        """
        self.start()
        self._drain()
        self._safely(lambda runtime: runtime.finished(), CLOSED)

    def resumed(self, step: int) -> None:
        """Continue the step count at `step`, so that heartbeats show the step of the training.

        Call it on every rank, after a checkpoint was loaded.
        """
        try:
            step = operator.index(step)  # a checkpoint often holds its step as a tensor
        except TypeError:
            raise GuardError(
                f"resumed({step!r}): not an integer", hint="pass the number of completed steps, an integer"
            ) from None
        if not 0 <= step < NEVER:
            raise GuardError(f"a training cannot resume at step {step}", hint="pass the number of completed steps")
        self.count_from(step)
        self.beat[0] = step
        self._safely(lambda runtime: runtime.resumed(step))

    @property
    def resumed_after(self) -> EarlierStop | None:
        """Return why an earlier attempt was stopped without a save, if no attempt has got past that step; else None.

        The same on every rank. Waits like `should_stop_early`; ask before the checkpoint is loaded, and choose an older
        checkpoint, or skip `skip_steps`.
        """
        from resilience.guard.earlier_stops import newest_open

        return newest_open(self._earlier_stops())

    @property
    def skip_steps(self) -> frozenset[int]:
        """Return the steps whose batches may have ruined earlier attempts: skip them or not. The guard skips nothing.

        Numbers as `step()` counts: the batch of the next step is suspect if `guard.count + 1` is among them. The same
        on every rank; empty if the number of ranks has changed, because steps then have other batches.
        """
        from resilience.guard.earlier_stops import suspects

        return suspects(self._earlier_stops(), self.place.world)

    def _earlier_stops(self) -> list[EarlierStop]:
        self.start()
        return self._safely(lambda runtime: runtime.earlier_stops()) or []

    @property
    def decided(self) -> Decision | None:
        """Return the decision to stop, or None if there is none yet."""
        return self._loop.decided

    @property
    def exit_code(self) -> int:
        """Return the exit code for the process: 0 done, 75 stopped on purpose, 1 stopped by an error.

        Also 1 if an exception ended the loop, or if the last save is not durable on this rank or, as far as rank 0
        knows, on another. Also 0 if the training did more than one step after the decision to stop: the training did
        not follow the stop. Waits for a save in flight.
        """
        self._drain()
        return self._loop.exit_code(self.count)

    # ---- start and end ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the guard's threads. Called by the `with` block, and by the first step at the latest."""
        global _active, _newest
        if self._state != NEW:
            return
        if self._pid != os.getpid():
            (self._say or say_on_stderr)(
                "warning: this guard was created in another process and is inert here; create the guard in the "
                "process that trains, after the fork"
            )
            self._become_inert()
            return
        if _active is not None and _active is not self:
            raise GuardError(
                "another guard is already running in this process",
                hint="use one guard; in a notebook, close the old one first: resilience.guard.active().close()",
            )
        from resilience.guard.runtime import GuardRuntime

        self.open()
        self._loop.watch()
        try:
            self._runtime = GuardRuntime(
                self, self._loop, self.place, self.settings, self._own_triggers, self._agreement_factory, self._say,
                self._on_event,
            )  # fmt: skip
            self._runtime.start(self._store)
        except (GuardError, CheckpointError) as error:
            if self._runtime is not None:  # the store refuses: the other ranks are told
                self._state = RUNNING
                self._close(describe_error(error))
            raise
        except Exception as error:
            say_on_stderr(f"warning: the guard failed to start; the training continues without a guard: {error!r}")
            self._become_inert()
            return
        _active = self
        self._state = RUNNING
        self.limit = self.count + 1  # the first step takes the slow path, which records the training thread
        _newest = self

    def close(self) -> None:
        """End the guard: wait for saves in flight, notify the other ranks, restore signal handlers, end the threads."""
        self._close()

    def _close(self, error: str = "", code: int = EXIT_ERROR) -> None:
        """Close the guard; `error` ended the training, with exit code `code`, unless empty."""
        global _active
        if _active is self:
            _active = None
        if self._pid == os.getpid():
            if self._state == RUNNING:
                loop = self._loop
                if error:
                    self._safely(lambda runtime: runtime.record_error(error))
                    loop.failed(error, code)
                if loop.block is not None:
                    loop.failed(f"the save of step {loop.block.step} was started but never ended")
                self._safely(lambda runtime: runtime.settle(FAILED if loop.why else OBEYED))
            self._drain()
            self._safely(lambda runtime: runtime.close())
        if self._state != INERT:
            self._state = CLOSED
        self.open()
        if self._state == CLOSED and not self._has_warned:
            self.limit = self.poll_limit = 0  # warns a training that continues, once, that the guard is closed

    def __enter__(self) -> Self:
        if self._state == CLOSED:
            raise GuardError("this guard is closed", hint="create a new guard for each training")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # sys.exit(guard.exit_code) within the block, or sys.exit() without the code, which is no failure.
        is_exit = isinstance(error, SystemExit) and (error.code or 0) in (0, self.exit_code)
        if error is None or is_exit:
            self._close()
        else:
            self._close(describe_error(error), code_of(error))

    def _at_exit(self) -> None:
        """Close the guard at interpreter exit. The real exit code overrides `exit_code` in the journal."""
        loop = self._loop
        if not loop.is_watched or self._pid != os.getpid():
            return
        was_well = not loop.why
        expected = loop.exit_code(self.count) if was_well else loop.code
        code, error = loop.process_end(expected, self._runtime and self._runtime.stepping_thread)
        if self._state == RUNNING:
            self._close(error, code)
        elif self._state == CLOSED:
            self._drain()
            if was_well:
                error, code = (error, code) if error else (loop.why, EXIT_ERROR)
            # The journal has 75 or another code, which is wrong.
            if error and (was_well or code != expected) and loop.exit_code(self.count) != EXIT_DONE:
                self._safely(lambda runtime: runtime.correct_exit(code, error), CLOSED)

    def _become_inert(self) -> None:
        """Disable the guard, in a forked child: nothing may touch resources of the parent."""
        self._state = INERT
        self._loop.saves = self._loop.block = None
        self.beat = [0] * 16
        self.lock = type(self.lock)()  # a thread of the parent may have held the lock
        self.open()
        if self._runtime is not None:
            self._runtime.after_fork_in_child()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a TrainingGuard cannot be pickled: it belongs to one process. Create a guard in each process that trains, "
            "and keep it out of datasets, models and the arguments of spawned workers"
        )

    # ---- the slow path of a step ----------------------------------------------------------------------------------

    def _ask(self, loss: Any) -> Decision:
        """Return the runtime's decision: the limit was reached, or the step has a loss."""
        return (self._safely(lambda runtime: runtime.on_step(loss)) if self._is_running() else None) or CONTINUE

    def _ask_at_poll(self) -> Decision:
        return (self._safely(lambda runtime: runtime.on_poll()) if self._is_running() else None) or CONTINUE

    def _safely(self, call: Callable[[GuardRuntime], Result], also: str = RUNNING) -> Result | None:
        """Call the runtime if the guard is running, or in the state `also`. No error of the guard ends the training.

        AgreementLost is raised: a rank that has promised to wait must not continue without the others.
        """
        runtime = self._runtime
        if runtime is None or self._state not in (RUNNING, also):
            return None
        try:
            return call(runtime)
        except AgreementLost as lost:
            runtime.record_error(describe_error(lost))
            self._loop.failed(describe_error(lost))
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
        if self._state == CLOSED and not self._has_warned:
            self._has_warned = True
            say = self._say or say_on_stderr
            say("warning: step() was called on a closed guard; create a new guard for each training")
        return self._state == RUNNING

    def _iterate(self, loader: Iterable[Batch], save: Callable[..., Any] | None) -> Iterator[Batch]:
        """Yield nothing after a decision to stop, so that an outer loop over epochs ends as well."""
        takes = set() if save is None else arguments_for(save)
        if self.should_stop_early():
            return
        for batch in loader:
            yield batch
            decision = self.step()
            if decision.save and save is None:
                self._safely(lambda runtime: runtime.skip_save())
            elif decision.save and save is not None:
                with self.saving() as saving:
                    saving.until(*run_save(save, takes, saving, decision.label))
            if decision.stop:
                self._drain()
                return

    # ---- saves --------------------------------------------------------------------------------------------------

    def _enter_save(self, saving: SaveBlock) -> SaveBlock | None:
        """Wait while too many saves are in flight. Return the enclosing block, or None."""
        loop = self._loop
        if loop.block is not None:
            return loop.block
        saving.step, saving.entered = self.count, time.monotonic()
        if loop.saves is None:
            loop.saves = Saves(self._save_settled)
        loop.block = saving
        self._safely(lambda runtime: runtime.save_entered())
        self._drain(self.settings.saves_in_flight - 1)
        saving.began = time.monotonic()
        try:
            saving.part = None if self._store is None else self._begin_part(saving)
        except BaseException as error:
            self._leave_save(saving, error)
            raise
        self._safely(lambda runtime: runtime.save_begins(saving))
        return None

    def _begin_part(self, saving: SaveBlock) -> Part:
        """Begin a save in the store. Raise CheckpointError or OSError; GuardError if the guard is closed."""
        self.start()
        assert self._store is not None
        if self._state == CLOSED or self._pid != os.getpid():
            raise GuardError("this guard is closed, and its store with it", hint="save inside of `with guard:`")
        self._connected = self._connected or (self._runtime.store if self._runtime is not None else None)
        if self._connected is None:  # inert: the training runs without a guard, but not without checkpoints
            from resilience.guard.store_ranks import connect_alone

            self._connected = connect_alone(self._store, self.place, self._say)
        label = "" if self._loop.owed is None else self._loop.owed.label
        return self._connected.begin_save(saving.step, label, saving.metrics)

    def _leave_save(self, saving: SaveBlock, error: BaseException | None) -> None:
        loop = self._loop
        if saving.outer is not None:
            saving.outer.fault_inside = error
            return
        loop.block = None
        error = error or saving.fault_inside  # the training caught the inner error and did not retry
        if error is not None:
            saving.fail(error)
        saving.decision, loop.owed = loop.owed, None
        self._safely(lambda runtime: runtime.save_left(saving, error))
        if not saving.is_in_flight:
            self._save_settled(saving, error)
        elif loop.saves is not None:
            loop.saves.add(saving)

    def _save_settled(self, saving: SaveBlock, error: BaseException | None) -> None:
        """Record that a save is durable or has failed. Called from any thread."""
        self._loop.save_settled(saving, error)
        if self._state == RUNNING:
            self._safely(lambda runtime: runtime.save_settled(saving, error))
        elif error is not None and saving.is_in_flight:  # a closed or inert guard has no recorder
            text = f"warning: the save of step {saving.step} is not durable: {describe_error(error)}"
            (self._say or say_on_stderr)(text)

    def _drain(self, leave: int = 0) -> None:
        """Wait until at most `leave` saves are in flight: the others are durable, or have exceeded the time limit."""
        saves = self._loop.saves
        if saves is None or len(saves.in_flight) <= leave:
            return
        if self._runtime is None or self._state == INERT:
            saves.wait(float("inf"), leave=leave)
        else:
            saves.wait(self._runtime.drain.limit_s(), self._runtime.drain.report, leave=leave)
        if saves.has_cut_off and not self._is_at_shutdown:
            self._is_at_shutdown = True
            before_threads_are_joined(self._at_exit)


class LockedTrainingGuard(TrainingGuard):
    """The guard for free-threaded interpreters: takes a lock around each write and read of the counters.

    Costs about 30 ns per step. `TrainingGuard()` returns one on such an interpreter.
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


# ---- the process ----------------------------------------------------------------------------------------------


def active() -> TrainingGuard | None:
    """Return the running guard of this process, or None."""
    return _active


def _at_exit() -> None:
    """Close the guard of a training without a `with` block; check the exit code in any case."""
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
