"""The object that a training asks once per step whether to save or to stop."""

from __future__ import annotations

import atexit
import os
import sys

from resilience.errors import AgreementLost, GuardError
from resilience.guard.blocks import Phase, Saving
from resilience.guard.decision import CONTINUE, EXIT_DONE, FAILED, OBEYED, SAVED, Decision
from resilience.guard.gate import NEVER, Gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, TypeVar

    from resilience.guard.decision import Trigger
    from resilience.guard.parts import Parts
    from resilience.guard.place import Place
    from resilience.guard.settings import GuardSettings

    Batch = TypeVar("Batch")

_ON = ("on", "1", "true", "yes")
_OFF = ("off", "0", "false", "no")
NEW, RUNNING, CLOSED, INERT = "new", "running", "closed", "inert"

_active: TrainingGuard | None = None
"""The guard of this process: there can be one, because signals and the agreement are the process's."""


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
        decided: the decision to stop, once there is one; else None.
    """

    __slots__ = (
        "__weakref__",
        "_agreement_factory",
        "_finished",
        "_has_stopped",
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
        *,
        triggers: Sequence[Trigger] = (),
        agreement: Callable[..., Any] | None = None,
        say: Callable[[str], None] | None = None,
        inert: bool = False,
    ) -> None:
        """Make a guard; nothing is looked at and no thread runs before `start()`, the `with` block or the first step.

        Args:
            triggers: your own, besides the built-in ones: anything with `poll()` and `done()`.
            agreement: how ranks agree: None chooses; `Alone`, `Collective(every=10)`, or your own.
            say: gets each sentence for people. Default: `resil: ...` on stderr.
            inert: do nothing at all.
        """
        super().__init__()
        self.place = place
        self.settings = settings
        self.decided: Decision | None = None
        self._own_triggers = tuple(triggers)
        self._agreement_factory = agreement
        self._say = say
        self._parts: Parts | None = None
        self._state = INERT if inert else NEW
        self._pid = os.getpid()
        self._phase = "start"
        self._saving_depth = 0
        self._owed: Decision | None = None
        self._finished = False
        self._has_stopped = False
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            import threading

            self.fence = threading.Lock()
        if inert:
            self.open()

    def __new__(cls, *args: Any, **kwargs: Any) -> TrainingGuard:
        """On a free-threaded interpreter the step needs a lock: see `gate.py`."""
        if cls is TrainingGuard and not getattr(sys, "_is_gil_enabled", lambda: True)():
            from resilience.guard.fenced import FencedTrainingGuard

            return super().__new__(FencedTrainingGuard)
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

        from resilience.guard.place import find_place
        from resilience.guard.settings import read_settings

        environ = os.environ if environ is None else environ
        place = find_place(environ, socket.gethostname())
        mode = environ.get("RESIL_GUARD", "").strip()
        if mode.startswith("test:"):
            from resilience.guard.place import Place as Nowhere
            from resilience.guard.testing import SILENT, scripted

            return cls(Nowhere(), read_settings({}, **SILENT), agreement=scripted(mode), say=say)
        chosen = read_settings(environ, **settings)
        if mode.lower() not in ("", *_ON, *_OFF):
            raise GuardError(f"RESIL_GUARD={mode!r} is not possible", hint="it may be on, off, or test:save@3,stop@5")
        return cls(place, chosen, triggers=triggers, agreement=agreement, say=say, inert=mode.lower() in _OFF)

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

    def saving(self) -> Saving:
        """A `with` block around every save: measures it, and tells the triggers whether it succeeded."""
        return Saving(self)

    def phase(self, name: str) -> Phase:
        """Say what the training does now: `with guard.phase("eval"):`, or just `guard.phase("warm-up")`."""
        before, self._phase = self._phase, name
        if self._parts is not None and self._state == RUNNING:
            self._parts.enter_phase(name, self.count)
        return Phase(self, before)

    def steps(self, loader: Iterable[Batch], save: Callable[..., Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of `loader`, with one step after each; save when asked, and end when asked to stop.

        `save` is called as `save(label=...)` if it takes a label, else without arguments.
        """
        from resilience.guard.iterate import iterate

        return iterate(self, loader, save)

    def should_stop_early(self) -> bool:
        """Before the training starts: whether there is no sense in starting, the same on every rank.

        A thrown kill switch, a finished run, a newer attempt. Waits for the first look, and for rank 0's word.
        """
        self.start()
        if self._state != RUNNING or self._parts is None:
            return self.decided is not None
        decision = self._parts.wait_for_start()
        if decision is not None and decision.stop:
            self._decide(decision)
        return self.decided is not None

    def finished(self) -> None:
        """The training is done: mark the run as finished, so that queued jobs end as they start."""
        self._finished = True
        if self._parts is not None and self._state == RUNNING:
            self._parts.write_finished(self.count)

    def resumed(self, step: int) -> None:
        """The training goes on after `step` steps: the guard counts from there, and heartbeats show the true step.

        To be called by every rank, after a checkpoint was loaded.
        """
        if step < 0 or step >= NEVER:
            raise GuardError(f"a training cannot resume at step {step}")
        self.count_from(step)
        self.beat[0] = step
        if self._parts is not None and self._state == RUNNING:
            self._parts.resumed(step)

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 0 done, 75 stopped on purpose, 1 stopped by an error."""
        return EXIT_DONE if self._finished or self.decided is None else self.decided.exit_code

    # ---- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look. Called by the `with` block, and by the first step at the latest."""
        global _active
        if self._state != NEW:
            return
        from resilience.guard.recorder import say_on_stderr

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
        if self._state == RUNNING and self._parts is not None and self._pid == os.getpid():
            self._settle(OBEYED)
            self._parts.close(self.decided, self.exit_code)
        if self._state != INERT:
            self._state = CLOSED
        self.open()

    def __enter__(self) -> TrainingGuard:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._parts is not None and self._state == RUNNING:
            self._parts.left_by(error)
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
        if not self._is_running():
            return CONTINUE
        parts = self._parts
        assert parts is not None
        try:
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
        except AgreementLost as lost:
            parts.left_by(lost)
            raise
        except Exception as error:  # our own fault, whatever it is, must not cost the training
            parts.failed(error)
            self.open()
            return CONTINUE
        return decision

    def _ask_at_poll(self) -> Decision:
        if not self._is_running():
            return CONTINUE
        parts = self._parts
        assert parts is not None
        try:
            self.urgent = False
            parts.take_signals()
            decision: Decision = parts.agreement.arrive_at_poll()
        except AgreementLost as lost:
            parts.left_by(lost)
            raise
        except Exception as error:
            parts.failed(error)
            self.open()
            return CONTINUE
        if decision.stop and self.decided is None:
            self.decided = decision
        return decision

    def _is_running(self) -> bool:
        if self._state == NEW:
            self.start()
        if self._state != RUNNING:
            self.open()
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

    def _enter_save(self) -> None:
        self._saving_depth += 1
        if self._saving_depth == 1 and self._parts is not None and self._state == RUNNING:
            self._parts.save_begins(self.count)

    def _leave_save(self, seconds: float, error: BaseException | None) -> None:
        self._saving_depth -= 1
        if self._saving_depth == 0 and self._parts is not None and self._state == RUNNING:
            self._parts.save_ended(self.count, seconds, error, self._phase)
            self._settle(SAVED if error is None else FAILED, seconds)

    def _settle(self, outcome: str, seconds: float = 0.0) -> None:
        """A decision to save was obeyed, or passed over."""
        owed, self._owed = self._owed, None
        if owed is not None and self._parts is not None:
            self._parts.obeyed(owed, outcome, seconds)

    def _become_inert(self) -> None:
        """In a forked child: nothing here may touch what belongs to the parent."""
        self._state = INERT
        self.beat = [0] * 16
        self.open()
        if self._parts is not None:
            self._parts.forget()


def active() -> TrainingGuard | None:
    """The guard of this process, or None."""
    return _active


def _after_fork() -> None:
    global _active
    if _active is not None:
        _active._become_inert()
        _active = None


os.register_at_fork(after_in_child=_after_fork)
