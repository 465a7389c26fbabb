"""Everything behind the guard that is started with it: agreement, triggers and their threads, beat, journal, exit."""

from __future__ import annotations

import _thread
import contextlib
import time

from resilience.guard.agreement.alone import Alone
from resilience.guard.decision import CONTINUE, EXIT_ERROR, FAILED, OBEYED, Decision, Request, merge
from resilience.guard.exit import ForcedExit
from resilience.guard.mirror.beat import BeatSlot
from resilience.guard.mirror.mirror import start_mirror
from resilience.guard.news import News
from resilience.guard.pace import Pace
from resilience.guard.recorder import Recorder, say_on_stderr
from resilience.guard.triggers import built_in_triggers
from resilience.guard.triggers.loss import Loss
from resilience.guard.triggers.signals import Signals
from resilience.guard.watch import Watches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from resilience.guard.decision import Trigger
    from resilience.guard.running import RunningGuard

FIRST_LOOK_S = 10.0
"""How long `should_stop_early` waits for the run directory before it goes on without an answer."""
LEAVE_S = 30.0
"""How long a rank stays at the end until all ranks have told how the last save went. After a stop: as long as an exit
may take at all, because a slow save of one rank must not be cut short by the launcher of another."""
DAY_S = 86_400.0
STOP_S = 2.0


class Parts:
    """What a running guard is made of. Made and used by the guard alone.

    Attributes:
        agreement: `Alone`, `NetworkAgreement`, or what the caller gave.
        news: what the agreement told, and whether it went wrong.
    """

    def __init__(
        self,
        guard: RunningGuard,
        own_triggers: Sequence[Trigger],
        agreement: Callable[..., Any] | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self._guard = guard
        place, settings = guard.place, guard.settings
        self._place = place
        self._recorder = Recorder(place, say or say_on_stderr)
        self._pace = Pace()
        self.news = News(self._recorder, self._pace, self._tell_triggers, lambda: guard._has_stopped)
        self._slot = BeatSlot()
        guard.beat = self._slot.words
        guard.beat[0] = guard.count
        self._mirror = start_mirror(place, settings, self._slot, self._recorder)
        self.agreement = self._agree(agreement)
        self._signals = Signals(place, settings, self._recorder, guard)
        self._loss = Loss(place, settings, self._recorder)
        self._exit = ForcedExit(place, settings, self._recorder, self._mirror.write_now)
        built_in = built_in_triggers(place, settings, self._recorder, self._pace)
        self._stepping_thread = 0
        self._watches = Watches(
            place,
            settings,
            self._recorder,
            [self._signals, *built_in],
            own_triggers,
            wish=self._wish,
            first=self._decide_start,
            at_files=self._mirror.work,
            at_node=self._sample,
        )

    def start(self) -> None:
        """Begin to look and to agree."""
        for note in self._place.notes:
            self._recorder.warn(note)
        self._slot.set_phase(self._guard._phase)
        place = self._place
        self._recorder.event("start", step=self._guard.count, world=place.world, job_id=place.job_id)
        self._signals.install()
        self.agreement.start()
        self._watches.start()

    def close(self, decision: Decision | None, exit_code: int) -> None:
        """Say good-bye to the other ranks, and write down how it ended."""
        in_peace = decision is not None and not self.news.went_wrong
        wait_s = (self._guard.settings.exit_timeout_s or DAY_S) if in_peace else LEAVE_S
        outlast = getattr(self.agreement, "outlast", None)
        if outlast is not None:
            outlast(wait_s)
        # The batch shell looks for this line where a launcher has turned our 75 into a 1. So it is written when all
        # have saved, and before rank 0 hangs up: the first rank that exits with 75 is the end of us all.
        stopped = decision is not None and not self.news.went_wrong
        code = EXIT_ERROR if self.news.went_wrong else exit_code
        self._recorder.event("end", step=self._guard.count, exit_code=code, stopped=stopped)
        self._watches.stop(STOP_S)
        self.agreement.leave(LEAVE_S if self._place.is_first else wait_s)
        self._mirror.stop(STOP_S)  # not before: ranks that come late ask the node's process where rank 0 listens
        self._signals.restore()
        self._exit.left(decision, code)

    def before_fork(self) -> None:
        """A child would hang at its exit in what faulthandler has armed here."""
        self._exit.before_fork()

    def after_fork(self) -> None:
        """In the parent: armed as before."""
        self._exit.after_fork()

    def forget(self) -> None:
        """In a forked child: leave alone what belongs to the parent."""
        self.agreement.forget()
        self._mirror.forget()

    # ---- the training thread asks -----------------------------------------------------------------------------

    def wait_for_start(self) -> Decision | None:
        """What is decided before the first step, or None when nobody could tell in time."""
        place = self._place
        # Rank 0 waits for its own first look, the others for rank 0.
        timeout_s = FIRST_LOOK_S if place.is_first else self._guard.settings.join_timeout_s
        decision: Decision | None = self.agreement.wait_for_start(timeout_s)
        if decision is None and place.is_first:
            self._recorder.warn(
                f"could not look at {place.run_dir} in {timeout_s:g} s: is the file system well? "
                "The training starts nevertheless"
            )
        elif decision is None:
            self._recorder.warn(
                f"rank {place.rank} heard nothing from rank 0 in {timeout_s:g} s. The training starts; "
                "nothing can be decided until they meet"
            )
        return decision

    def take_signals(self) -> None:
        """Turn signals that have come into requests."""
        for request in self._signals.take():
            self._wish(request)

    def reinstall_signals(self) -> None:
        """Set the signal handlers again."""
        self._signals.reinstall()

    def watch_loss(self, loss: Any, step: int) -> None:
        """Look at a loss that the training gave."""
        request = self._loss.look(loss, step)
        if request is not None:
            self._wish(request)

    def check_thread(self) -> None:
        """The step is for one thread: two would count wrongly."""
        this = _thread.get_ident()
        if self._stepping_thread == 0:
            self._stepping_thread = this
            if self._guard._phase == "start":
                self._guard._enter_phase("train")
        elif self._stepping_thread != this:
            self._recorder.warn(
                "guard.step() is called from two threads: steps are counted wrongly, and decisions reach only one of "
                "them. Call it from the thread that trains",
                key="threads",
            )

    # ---- what happens -----------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """A decision was given to the training."""
        self._recorder.event("decision", **decision.as_dict())
        if self._place.is_first:
            self._recorder.say(str(decision))
        if decision.stop:
            self._watches.wake()  # the journal shall have it, even if the training ends without another word
            self._exit.arm(decision, self._pace.slowest_save_s)

    def obeyed(self, decision: Decision, outcome: str, seconds: float) -> None:
        """A decision to save was obeyed on this rank."""
        if outcome == FAILED:
            self._recorder.warn(f"the save failed that was asked for because {decision.why}: what asked for it stays")
            if decision.stop:
                self.news.went_wrong = True
        elif outcome == OBEYED and decision.save:
            self._recorder.warn(
                "a save was asked for and no `with guard.saving():` block followed: it is taken as made, how long it "
                "takes is not known, and nobody would notice if it failed",
                key="saving",
            )
        self.agreement.finish(outcome, seconds)
        if not self._place.is_first:
            self._tell_triggers(decision, outcome)

    def has_no_save(self) -> None:
        """There is nothing to save with."""
        self._recorder.warn(
            "a save was asked for, and guard.steps() was given nothing to save with: give it save=save_checkpoint",
            key="saving",
        )

    def save_begins(self, step: int) -> None:
        """The training saves."""
        self._slot.set_phase("save")
        self._pace.save_began(time.monotonic())
        self._recorder.event("save_begin", step=step)

    def save_ended(self, step: int, seconds: float, error: BaseException | None, phase: str) -> None:
        """The save is over, well or not."""
        self._slot.set_phase(phase)
        self._pace.was_saving(seconds)
        if error is None:
            self._pace.saved(seconds)
            self._recorder.event("save", step=step, seconds=round(seconds, 3))
            self._watches.saved(step)
        else:
            self._recorder.event("save_failed", step=step, seconds=round(seconds, 3), error=repr(error)[:500])

    def enter_phase(self, phase: str, step: int) -> None:
        """The training does something else now."""
        self._slot.set_phase(phase)
        self._recorder.event("phase", phase=phase, step=step)

    def resumed(self, step: int) -> None:
        """The counters were set anew."""
        self._recorder.event("resume", step=step)
        self._pace.resumed()
        self.agreement.resumed()  # opens the gate: the first step will not come to check_thread
        if self._guard._phase == "start":
            self._guard._enter_phase("train")

    def left_by(self, error: BaseException) -> None:
        """The training loop ended with an exception."""
        self.news.went_wrong = True
        self._recorder.event("error", step=self._guard.count, error=repr(error)[:500])

    def failed(self, error: Exception) -> None:
        """The guard itself is broken somewhere."""
        with contextlib.suppress(Exception):
            self._recorder.warn(
                f"the guard failed and may decide nothing now; the training goes on: {error!r}", "failed"
            )

    def refuse_finished(self, stop: Decision) -> None:
        """The training was stopped, and yet it says that it is done."""
        why = f"it was stopped at step {stop.step}, because {stop.why}"
        if self._place.is_first:
            self._recorder.warn(f"the run is not marked as finished: {why}")

    def write_finished(self, step: int) -> None:
        """Mark the run as finished."""
        self._recorder.event("finished", step=step)
        if self._place.is_first:
            self._mirror.write_finished()

    # ---- threads ----------------------------------------------------------------------------------------------

    def _decide_start(self, requests: Sequence[Request]) -> None:
        """The first look at the run directory: what keeps the training from starting is told to all ranks."""
        stops = [request for request in requests if request.stop]
        decision = merge(stops, self._guard.count) if stops else CONTINUE
        if self._place.is_first:
            self.agreement.decide_start(Decision(**{**decision.as_dict(), "save": False}))

    def _wish(self, request: Request) -> None:
        self.agreement.wish(request)

    def _sample(self) -> None:
        self._pace.look(time.monotonic(), self._guard.position(), time.process_time())
        if not self._watches.has_files:
            self._mirror.work()
        self._mirror.look_after()
        awaited = getattr(self.agreement, "awaited", None)
        if awaited is not None:
            self._exit.expect(awaited(), time.monotonic())

    def _tell_triggers(self, decision: Decision, outcome: str) -> None:
        self._loss.hear(decision.triggers, outcome)
        self._watches.obeyed(decision.triggers, outcome)

    def _agree(self, factory: Callable[..., Any] | None) -> Any:
        if factory is not None:
            return factory(self._guard, self.news.hear, self._place)
        if self._place.world == 1:
            return Alone(self._guard, self.news.hear)
        from resilience.guard.agreement.meeting import meet

        return meet(self._guard, self.news.hear, self._place, self._guard.settings, self._mirror.locate, self._recorder)
