"""Everything that runs while a guard does: agreement, triggers and their threads, heartbeat, journal, forced exit."""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import threading
import time

from resilience.guard.agreement.base import SingleProcess
from resilience.guard.agreement.ranks import name_ranks
from resilience.guard.decision import (
    CONTINUE,
    DONE,
    FAILED,
    IN_FLIGHT,
    OBEYED,
    SAVED,
    SKIPPED,
    STOPPED,
    Decision,
    Request,
    merge,
)
from resilience.guard.exit import SAVES, ForcedExit
from resilience.guard.heartbeat.beat import SharedProgress
from resilience.guard.heartbeat.writer import start_writer
from resilience.guard.learned import Learned, kill_after_s
from resilience.guard.loop import forget_exit, shown
from resilience.guard.recorder import Recorder, say_on_stderr
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers import built_in_triggers
from resilience.guard.triggers.loss import Loss
from resilience.guard.triggers.signals import Signals
from resilience.guard.watch import Watches, name_of
from resilience.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from resilience.guard.agreement.base import AgreementEvent
    from resilience.guard.decision import Trigger
    from resilience.guard.gate import Gate
    from resilience.guard.loop import LoopState
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.saves import SaveBlock
    from resilience.guard.settings import GuardSettings

FIRST_LOOK_S = 10.0
"""How long `should_stop_early` waits for the run directory before it goes on without an answer."""
LEAVE_S = 30.0
"""How long a rank stays at the end until all ranks have told how the last save went. After a stop: as long as an exit
may take at all, because a slow save of one rank must not be cut short by the launcher of another."""
FAULT_S = 1.0
"""A rank that leaves because of a fault waits for nobody: so long for its last words to be sent."""
DAY_S = 86_400.0
STOP_S = 2.0
BEFORE_END_S = 5.0
"""A save that is not durable so long before the job's end is given up, so that there is time to say so."""
UNKNOWN_SAVE_S = 20.0
"""After a fault, how long a save in flight is taken to last when none was measured."""
TELL_EVERY_S = 30.0
MOST_FAULTS = 8
FOR_PEOPLE = ("absent", "lost", "skew", "behind", "failed", "twins", "fault", "broken")
"""Agreement events that are warnings on stderr; the others are records in the journal."""
MOST_ABORTS = 3
"""After so many aborted rounds in a row, warn on stderr: the requests wait."""


class GuardRuntime:
    """Everything that a started guard owns. The guard calls the runtime, which knows a `Gate` and a `LoopState` only.

    Attributes:
        agreement: `SingleProcess`, `NetworkAgreement`, or the caller's own.
        signals: the handlers.
        exit: ends the process when it hangs after a stop.
        stepping_thread: the thread that trains, once it has done a step.
    """

    def __init__(
        self,
        gate: Gate,
        loop: LoopState,
        place: RankInfo,
        settings: GuardSettings,
        own_triggers: Sequence[Trigger],
        agreement: Callable[..., Any] | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self._gate, self._loop = gate, loop
        self._place, self._settings = place, settings
        self._recorder = Recorder(place, say or say_on_stderr)
        self._timer = StepTimer()
        self._leads = place.is_first  # decides, and so learns of every decision
        self._closing_since = 0.0
        self._told_s = 0.0
        self._skipped_for: SaveBlock | None = None
        self._aborts = 0
        self._slot = SharedProgress()
        gate.beat = self._slot.words
        gate.beat[0] = gate.count
        self._writer = start_writer(place, settings, self._slot, self._recorder)
        self.agreement = self._agree(agreement)
        self.signals = Signals(place, settings, self._recorder, gate, loop.is_saving)
        self._loss = Loss(place, settings, self._recorder)
        self.exit = ForcedExit(place, settings, self._recorder, self._writer.write_now, loop.is_unsaved)
        built_in = built_in_triggers(place, settings, self._recorder, self._timer)
        learners: Any = {name_of(one): one for one in built_in if hasattr(one, "restore")}
        self._learned = Learned(place, settings, self._recorder, self._timer, self._loss, learners)
        self.stepping_thread: threading.Thread | None = None
        self._stepping = 0
        self._watches = Watches(
            place,
            settings,
            self._recorder,
            [self.signals, *built_in],
            own_triggers,
            on_request=self._request,
            first=self._decide_start,
            at_files=self._writer.work,
            at_node=self._sample,
        )

    def start(self) -> None:
        """Start the signal handlers, the agreement and the triggers' threads."""
        for note in self._place.notes:
            self._recorder.warn(note)
        self._slot.set_phase(self._loop.phase)
        place = self._place
        self._recorder.event("start", step=self._gate.count, world=place.world, job_id=place.job_id, pid=os.getpid())
        self.signals.install()
        self._learned.read(self._writer.learned)
        self.agreement.start()
        self._watches.start()

    def close(self) -> None:
        """Say good-bye to the other ranks, and write down how the training ended on this one."""
        loop, steps = self._loop, self._gate.count
        decision, how = loop.decided, loop.how(steps)
        self._closing_since = time.monotonic()
        self.signals.is_closing = True
        wait_s = FAULT_S if how == FAILED else LEAVE_S
        if how == STOPPED and loop.has_stopped:
            # Not until the process is ended by force: that would be with 75, and nobody would know for whom it waited.
            left_s = self.exit.left_s()
            wait_s = min(self._settings.exit_timeout_s or DAY_S, max(left_s - BEFORE_END_S, left_s / 2))
        farewell = self.agreement.announce_exit(how, loop.why, wait_s, self._is_hurried)
        if how != FAILED and farewell.faults:
            loop.failed(farewell.faults[0])
            wait_s = FAULT_S
            for fault in farewell.faults[:MOST_FAULTS]:
                self._recorder.warn(f"{fault}: this job has not stopped in good order")
        # The batch shell looks for this line where a launcher has turned our 75 into a 1. So it is written when all
        # have saved, and before rank 0 hangs up: the first rank that exits with 75 is the end of us all.
        code = loop.code if loop.why else loop.exit_code(steps)
        why: dict[str, Any] = {"why": loop.why} if loop.why else {}
        if decision is not None and how == DONE and not why and not loop.is_finished:
            why = {"unfollowed": True}
            self._recorder.warn(
                f"the training was told to stop at step {decision.step}, and did {steps - decision.step:,} "
                "more steps: it was not stopped. Leave the loop when decision.stop is true"
            )
        if how == FAILED and not self._leads:  # in the journal of such a rank `end` is routine, and not written
            self._recorder.event("exit", exit_code=code, error=loop.why)
        stopped = how == STOPPED and not loop.why
        self._recorder.event(
            "end", step=steps, exit_code=code, stopped=stopped, ranks=farewell.world, well=farewell.well, **why
        )
        self._keep_learned(last=True)
        self._watches.stop(STOP_S)
        self.agreement.leave(wait_s, self._is_hurried)
        self._writer.stop(STOP_S)  # not before: ranks that come late ask the node's process where rank 0 listens
        self.signals.restore()
        self.exit.left(decision, code, hangs=loop.hangs)

    def contradict(self, code: int, fault: str) -> None:
        """The guard was closed in good order, and yet the process ends in another way."""
        self._recorder.event("exit", exit_code=code, error=fault)
        self._recorder.say(f"the training ends with {fault}: this job has not stopped in good order")
        self._writer.write_last()

    def _is_hurried(self) -> bool:
        """Whether there is no sense in waiting for others any longer: this process is being ended; or its launcher is
        gone, nobody will end it, and the others have had their time."""
        waited_s = time.monotonic() - self._closing_since
        return self.signals.hurries(self._closing_since) or (waited_s > LEAVE_S and self.signals.has_lost_launcher)

    def after_fork_in_child(self) -> None:
        """In a forked child: leave alone what belongs to the parent."""
        self.agreement.after_fork_in_child()
        self._writer.after_fork_in_child()

    # ---- the training thread asks -----------------------------------------------------------------------------

    def wait_for_start(self) -> Decision | None:
        """Return the decision before the first step, or None when there was no answer in time."""
        place = self._place
        # Rank 0 waits for its own first look, the others for rank 0.
        timeout_s = FIRST_LOOK_S if place.is_first else self._settings.join_timeout_s
        decision: Decision | None = self.agreement.wait_for_start(timeout_s)
        if decision is None and place.is_first:
            self._recorder.warn(
                f"{place.run_dir} did not respond within {timeout_s:g} s; starting without checking for a kill switch. "
                "Check the file system"
            )
        elif decision is None:
            self._recorder.warn(
                f"rank {place.rank} got no answer from rank 0 within {timeout_s:g} s. The training starts; "
                "no decision can be made until the two are connected"
            )
        return decision

    def on_step(self, loss: Any) -> Decision:
        """The training has done a step that reached the limit, or gave a loss: return what to do."""
        if loss is not None:
            request = self._loss.check(loss, self._gate.count)
            if request is not None:
                self._request(request)
            if self._gate.count < self._gate.limit:
                return CONTINUE
        self._check_thread()
        self.settle(OBEYED)
        self._take_signals()
        decision: Decision = self.agreement.on_step()
        if decision.save:
            self._loop.owed = decision
        if decision:
            if decision.save or not self._loop.has_stopped:  # a stop that is not followed is told once
                self.decide(decision)
            self._loop.has_stopped = decision.stop
        if not decision.save and decision is not CONTINUE:  # also of a decision that came to nothing
            self.agreement.finish(OBEYED, 0.0)
        return decision

    def on_poll(self) -> Decision:
        """The same in the middle of a step, where a stop is announced."""
        self._take_signals()
        decision: Decision = self.agreement.on_poll()
        if decision.stop and self._loop.decided is None:
            self._loop.decided = decision
        return decision

    def _take_signals(self) -> None:
        self._gate.urgent = False
        for request in self.signals.take():
            self._request(request)

    def _check_thread(self) -> None:
        """The step is for one thread: two would count wrongly."""
        this = _thread.get_ident()
        if self._stepping == 0:
            self._stepping, self.stepping_thread = this, threading.current_thread()
            self._begin_training()
        elif self._stepping != this:
            self._recorder.warn(
                "guard.step() is called from two threads: steps are counted wrongly, and decisions reach only one of "
                "them. Call it from the thread that trains",
                key="threads",
            )

    def _begin_training(self) -> None:
        if self._loop.phase == "start":
            self._loop.phase = "train"
            self.enter_phase()

    # ---- what happens -----------------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        """A decision is given to the training."""
        forget_exit()
        if decision.stop:
            self._loop.decided = decision
        self._recorder.event("decision", **decision.as_dict())
        if self._leads:
            self._recorder.say(str(decision))
        if decision.stop:
            self._watches.wake()  # the journal shall have it, even if the training ends without another word
            self.exit.arm(decision, self._timer.slowest_save_s)

    def settle(self, outcome: str) -> None:
        """If a save is owed, and the guard saw none: none was made, or one that nobody measured."""
        decision, self._loop.owed = self._loop.owed, None
        if decision is None:
            return
        if outcome == FAILED:
            self._recorder.warn(f"no save was made, which was asked for because {decision.why}")
            if decision.stop:
                self._loop.failed("the save before the stop was not made")
        else:
            self._recorder.warn(
                "a save was asked for and no `with guard.saving():` block followed: it is taken as made, how long it "
                "takes is not known, and nobody would notice if it failed",
                key="saving",
            )
        if not self._hears_of(self.agreement.finish(outcome, 0.0)):
            self._tell_triggers(decision.triggers, outcome)

    def pass_over_save(self) -> None:
        """A save is asked for, and `guard.steps()` was given nothing to save with."""
        self._recorder.warn(
            "a save was asked for, and guard.steps() was given nothing to save with: give it save=save_checkpoint",
            key="saving",
        )
        decision = self._loop.owed
        self.settle(OBEYED if decision is not None and decision.stop else FAILED)

    def save_entered(self) -> None:
        """The training waits: for a save in flight, and then for its own."""
        self._slot.set_phase("save")
        self._timer.save_began(time.monotonic())

    def save_begins(self, saving: SaveBlock) -> None:
        """The training saves."""
        self._watches.save_began()
        self._recorder.event("save_begin", step=saving.step)
        self._learned.save_begins(saving.step)

    def save_left(self, saving: SaveBlock, error: BaseException | None) -> None:
        """The training goes on. The save is over, or in flight."""
        stall_s = time.monotonic() - saving.entered
        self._slot.set_phase(self._loop.phase)
        self._timer.was_saving(stall_s)
        if error is None:
            self._timer.stalled(stall_s)
        if error is None and saving.is_in_flight:
            self._recorder.event("save_staged", step=saving.step, seconds=round(stall_s, 3))
            self._timer.in_flight_since(saving.began)
            if saving.decision is not None:
                saving.number = self.agreement.finish(IN_FLIGHT, 0.0)

    def save_settled(self, saving: SaveBlock, error: BaseException | None) -> None:
        """A save is durable on this rank, or has failed. Comes from any thread."""
        decision, outcome = saving.decision, SAVED if error is None else FAILED
        seconds = time.monotonic() - saving.began
        self._timer.in_flight_since(None)
        if error is not None:
            self._recorder.event("save_failed", step=saving.step, seconds=round(seconds, 3), error=shown(error))
            stays = "" if decision is None else ". The request for it stays open"
            self._recorder.warn(f"the save of step {saving.step} is not durable: {shown(error)}{stays}")
        number = saving.number
        if decision is not None and number:
            self.agreement.saved(number, outcome, seconds)
        elif decision is not None:
            number = self.agreement.finish(outcome, seconds)
        if decision is not None and self._hears_of(number):  # once all ranks have saved
            return
        if error is None:
            self.save_is_durable(saving.step, seconds)
        if decision is not None:
            self._tell_triggers(decision.triggers, outcome)

    def _hears_of(self, number: int) -> bool:
        """Whether the agreement will tell this rank how that decision went for all: it was made here. A rank that is on
        its own by now may still have obeyed one of rank 0."""
        return self._place.is_first or number < 0

    def save_is_durable(self, step: int, seconds: float) -> None:
        """A save counts from now on; it took so long from its beginning."""
        self._timer.saved(seconds)
        self._recorder.event("save", step=step, seconds=round(seconds, 3))
        self._learned.saved(step)
        self._watches.saved(step)

    def drain_s(self) -> float:
        """How long a save in flight may still take: three times what the slowest took, or as long as an exit may take;
        not beyond the job's end; and no longer than it usually takes after a fault, or when one before it hung."""
        slowest_s = self._timer.slowest_save_s
        if self._loop.is_for_good or self._loop.hangs:
            wait_s = SAVES * (UNKNOWN_SAVE_S if slowest_s is None else max(1.0, slowest_s))
        else:
            wait_s = max(self._settings.exit_timeout_s or DAY_S, SAVES * (slowest_s or 0.0))
        if self._place.end_time is not None:
            wait_s = min(wait_s, self._place.end_time - BEFORE_END_S - time.time())
        left_s = self.exit.left_s()
        return max(0.0, wait_s if left_s == math.inf else min(wait_s, left_s - min(BEFORE_END_S, left_s / 4)))

    def show_drain(self, saving: SaveBlock, waited_s: float) -> None:
        """The training waits for a save in flight: say so every half minute."""
        if waited_s < self._told_s:
            self._told_s = 0.0
        if waited_s >= self._told_s + TELL_EVERY_S:
            self._told_s = waited_s
            slowest_s = self._timer.slowest_save_s
            usual = "" if slowest_s is None else f"; the slowest took {format_duration(round(slowest_s))}"
            self._recorder.say(
                f"rank {self._place.rank} waits for the save of step {saving.step} to be durable, for "
                f"{waited_s:.0f} s so far{usual}"
            )

    def enter_phase(self) -> None:
        """Show the new phase in the heartbeat and the journal."""
        self._slot.set_phase(self._loop.phase)
        self._recorder.event("phase", phase=self._loop.phase, step=self._gate.count)

    def resumed(self, step: int) -> None:
        """The counters were set anew."""
        self._recorder.event("resume", step=step)
        self._timer.resumed()
        self._learned.resumed(step)
        self.agreement.resumed()  # opens the gate: the first step may not come to `on_step`
        self._begin_training()

    def left_by(self, error: str) -> None:
        """Record the exception that the training ended with."""
        self._recorder.event("error", step=self._gate.count, error=error)

    def failed(self, error: Exception) -> None:
        """Warn of an error in the guard itself."""
        with contextlib.suppress(Exception):
            self._recorder.warn(
                f"the guard failed and may decide nothing now; the training goes on: {error!r}", "failed"
            )

    def finished(self) -> None:
        """The training says that it is done: mark the run as finished, unless it was stopped or something failed."""
        loop, why = self._loop, self._loop.why
        if not why and loop.decided is not None and loop.has_followed(self._gate.count):
            why = f"it was stopped at step {loop.decided.step}, because {loop.decided.why}"
        if why:
            if self._place.is_first:
                self._recorder.warn(f"the run is not marked as finished: {why}")
            return
        loop.is_finished = True
        self._recorder.event("finished", step=self._gate.count)
        if self._place.is_first:
            self._writer.write_finished()

    # ---- threads ----------------------------------------------------------------------------------------------

    def _decide_start(self, requests: Sequence[Request]) -> None:
        """The first look at the run directory: what keeps the training from starting is told to all ranks."""
        stops = [request for request in requests if request.stop]
        decision = merge(stops, self._gate.count) if stops else CONTINUE
        if self._place.is_first:
            self.agreement.decide_start(Decision(**{**decision.as_dict(), "save": False}))

    def _request(self, request: Request) -> None:
        """Request a save or a stop. With `save_overlap = "skip"`, skip a save alone while another one is in flight."""
        saving = self._loop.in_flight
        is_skipped = request.save and not request.stop and self._settings.save_overlap == "skip"
        if saving is None or not is_skipped:
            self.agreement.request(request)
            return
        if self._skipped_for is not saving:
            self._skipped_for = saving
            self._recorder.event("save_skipped", step=self._gate.count, in_flight=saving.step, why=request.why)
        self._tell_triggers([request.trigger], SKIPPED)

    # ---- agreement events, from the thread that agrees: never waits -------------------------------------------

    def on_event(self, event: AgreementEvent) -> None:
        """Route an agreement event: warnings to stderr, records to the journal, save results to the triggers."""
        if event.kind == "outcome" and event.decision is not None:
            self._outcome(event.decision, event.outcome, event.seconds, event.ranks)
        elif event.kind == "alone":
            self._lead(event.text)
        elif event.kind in FOR_PEOPLE:
            self._recorder.warn(event.text)
        elif event.kind == "committed":
            self._aborts = 0
        else:
            self._recorder.event(event.kind, text=event.text)
            if event.kind == "back":
                self._recorder.say(event.text)
            self._aborts += event.kind == "aborted"
            if self._aborts == MOST_ABORTS:
                self._recorder.warn(event.text, key="aborted")

    def _lead(self, why: str) -> None:
        """Rank 0 is gone for good: this rank looks at the switches and decides by itself from now on."""
        stop = {"stop": "it saves and stops now", "save_alone": "it saves and stops by itself when it is told to stop"}
        does = stop.get(self._settings.on_leader_lost, "")
        self._recorder.warn(f"rank {self._place.rank}: {why}; {does} (on_leader_lost)")
        self._leads = True
        self._writer.lead()
        self.signals.is_orphan = True
        self._watches.look_at_files(
            built_in_triggers(self._place, self._settings, self._recorder, self._timer, without_rank_0=True)
        )

    def _outcome(self, decision: Decision, outcome: str, seconds: float, ranks: Sequence[int]) -> None:
        """All ranks have obeyed a decision, and what they saved is durable, or not on `ranks`."""
        step = decision.step - self._gate.rewound
        if outcome == SAVED and decision.save:
            self.save_is_durable(step, seconds)
        elif outcome == FAILED and self._place.rank not in ranks and self.stepping_thread is not None:
            on = f"on {name_ranks(list(ranks))}" if ranks else "on a rank"
            self._recorder.event("save_failed", step=step, error=f"it failed {on}")
            self._recorder.warn(f"the save of step {step} failed {on}. The request for it stays open")
            if decision.stop and self._loop.has_stopped:
                self._loop.failed(f"the save of step {step} failed {on}")
        self._tell_triggers(decision.triggers, outcome)

    def _sample(self) -> None:
        self.signals.listen()
        self._timer.look(time.monotonic(), self._gate.position(), time.process_time())
        if not self._watches.has_files:
            self._writer.work()
        self._writer.check_responsive()
        self._keep_learned()
        timer = self._timer
        bound_s = kill_after_s(self._settings.kill_timeout_s, timer.slowest_step_s, timer.slowest_save_s)
        self.exit.expect(self.agreement.pending_decision(), time.monotonic(), bound_s)

    def _keep_learned(self, *, last: bool = False) -> None:
        text = self._learned.text(last=last)
        if text:
            self._writer.learn(text)

    def _tell_triggers(self, triggers: Sequence[str], outcome: str) -> None:
        self._loss.on_outcome(triggers)
        self._watches.obeyed(triggers, outcome)

    def _agree(self, factory: Callable[..., Any] | None) -> Any:
        if factory is not None:
            return factory(self._gate, self.on_event, self._place)
        if self._place.world == 1:
            return SingleProcess(self._gate, self.on_event)
        from resilience.guard.agreement.rendezvous import rendezvous

        return rendezvous(
            self._gate, self.on_event, self._place, self._settings, self._writer.locate, self._recorder,
            lambda: self._timer.slowest_step_s or 0.0,
        )  # fmt: skip
