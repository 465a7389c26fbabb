"""The object that a training asks once per step whether to save or to stop."""

from __future__ import annotations

import operator
import os
import sys

from resilience.errors import GuardError
from resilience.guard.decision import CONTINUE, Decision
from resilience.guard.gate import NEVER
from resilience.guard.running import CLOSED, INERT, RunningGuard
from resilience.guard.saves import Saving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, TypeVar

    from resilience.guard.decision import Trigger
    from resilience.guard.place import Place
    from resilience.guard.settings import GuardSettings

    Batch = TypeVar("Batch")

_ON = ("on", "1", "true", "yes")
_OFF = ("off", "0", "false", "no")


class TrainingGuard(RunningGuard):
    """Asked once per step, gives the same decision to every rank at the same step.

    Inherits its parts instead of holding them: one attribute less on the way of every step.

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

    __slots__ = ()

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
        super().__init__(place, settings, triggers, agreement, say)
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            import threading

            self.fence = threading.Lock()
        if inert:
            self._state = INERT
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
        mode = environ.get("RESIL_GUARD", "").strip()
        if mode.startswith("test:"):
            from resilience.guard.place import Place as Nowhere
            from resilience.guard.testing import SILENT, scripted

            return cls(Nowhere(), read_settings({}, **SILENT), agreement=scripted(mode), say=say)
        place = find_place(environ, socket.gethostname())
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

    def saving(self) -> Saving:
        """A `with` block around every save: measures it, and tells the triggers whether it succeeded.

            with guard.saving() as save:
                save.until(dcp.async_save(state, checkpoint_id=path))

        A save that goes on in the background counts when what is given to `until` has ended well (`Saving.until`).
        Entering the block waits for one that is still in flight, because two at once share memory and bandwidth.
        """
        return Saving(self)

    def phase(self, name: str) -> Phase:
        """Say what the training does now: `with guard.phase("eval"):`, or just `guard.phase("warm-up")`."""
        return Phase(self, self._enter_phase(str(name)))

    def steps(self, loader: Iterable[Batch], save: Callable[..., Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of `loader`, with one step after each; save when asked, and end when asked to stop.

        `save` is called as `save(label=...)` if it takes a label, else without arguments. What it returns is taken for
        the end of a save in the background, if that is what it is: see `Saving.until`. The last one is waited for.
        """
        from resilience.guard.iterate import iterate

        if save is not None and not callable(save):
            raise GuardError(f"save={save!r} cannot be called", hint="give the function that saves a checkpoint")
        return iterate(self, loader, save)

    def should_stop_early(self) -> bool:
        """Before the training starts: whether there is no sense in starting, the same on every rank.

        A thrown kill switch, a finished run, a newer attempt. Waits for the first look, and for rank 0's word.
        """
        self.start()
        decision = self._safely(lambda parts: parts.wait_for_start())
        if decision is not None and decision.stop and self.decided is None:
            self._safely(lambda parts: self._decide(decision))
        return self.decided is not None

    def reinstall_signals(self) -> None:
        """Take the signals back from a library that has replaced the guard's handlers; only in the main thread.

        The guard tells when that has happened. Call this after the library was initialised.
        """
        self._safely(lambda parts: parts.reinstall_signals())

    def finished(self) -> None:
        """The training is done: mark the run as finished, so that queued jobs end as they start.

        Refused with a warning after a stop, because a loop that was stopped ends like one that is done. If the stop
        came with the very last step, the next job finds nothing left to do, and says so in a moment. Refused as well
        when the last save is not durable; one in flight is waited for.
        """
        self.start()
        self._drain()
        stop = self.decided
        why = self._ending.why if self._ending is not None else ""
        if why or (stop is not None and self._has_followed(stop)):
            self._safely(lambda parts: parts.refuse_finished(stop, why), CLOSED)
            return
        self._finished = True
        self._safely(lambda parts: parts.write_finished(self.count), CLOSED)

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
        self._safely(lambda parts: parts.resumed(step))


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
