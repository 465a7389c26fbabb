"""The parts of a running guard: agreement, triggers and their threads, heartbeat, journal, forced exit."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time

from resilience.guard.agreement.base import SingleProcess
from resilience.guard.agreement.ranks import name_ranks
from resilience.guard.collectives import Collectives
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
from resilience.guard.drain import BEFORE_END_S, DAY_S, Drain
from resilience.guard.earlier_stops import EarlierStop, EarlierStops, newest_open
from resilience.guard.exit import ForcedExit
from resilience.guard.heartbeat.beat import SharedProgress
from resilience.guard.heartbeat.writer import start_writer
from resilience.guard.learned import Learned, kill_after_s
from resilience.guard.loop import describe_error, forget_exit
from resilience.guard.recorder import Recorder, say_on_stderr
from resilience.guard.step_timer import StepTimer
from resilience.guard.store_ranks import ConnectedStore
from resilience.guard.triggers import built_in_triggers
from resilience.guard.triggers.loss import GradNorm, Loss
from resilience.guard.triggers.signals import Signals
from resilience.guard.watch import Watches, name_of
from resilience.layout import ALLOW_INJECT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from resilience.guard.agreement.base import AgreementEvent
    from resilience.guard.decision import Trigger
    from resilience.guard.gate import Gate
    from resilience.guard.injected import InjectedFaults
    from resilience.guard.loop import LoopState
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.saves import SaveBlock
    from resilience.guard.sdc.watch import SdcWatch, State
    from resilience.guard.settings import GuardSettings
    from resilience.guard.store_ranks import Store

FIRST_CHECK_S = 10.0
"""How long `should_stop_early` waits for the run directory before the training starts without the check."""
LEAVE_S = 30.0
"""How long a rank waits at its end for all ranks to report the outcome of the last save. After a stop the limit is
`exit_timeout_s`, because the launcher of one rank must not cut short the slow save of another."""
FAULT_S = 1.0
"""How long a rank that leaves because of an error waits for its last message to be sent."""
STOP_S = 2.0
MAX_FAULTS = 8
WARNINGS = ("absent", "lost", "skew", "behind", "failed", "twins", "fault", "broken")
"""Agreement events that are warnings on stderr; the others are records in the journal."""
MAX_ABORTS = 3
"""Warn on stderr after this many aborted rounds in a row: requests are waiting."""


MOST_PATHS = 64
"""The most words of the command line that are searched for paths."""


class GuardRuntime:
    """Owns everything that a guard starts. The guard calls the runtime, which sees only a `Gate` and a `LoopState`.

    Attributes:
        agreement: `SingleProcess`, `NetworkAgreement`, or the caller's own.
        signals: the signal handlers.
        exit: ends the process if it hangs after a stop.
        drain: how long to wait for saves in flight.
        store: the store of checkpoints; None without one.
        stepping_thread: the thread that trains; None before the first step.
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
        on_event: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> None:
        self._gate, self._loop = gate, loop
        self._place, self._settings = place, settings
        self._recorder = Recorder(place, say or say_on_stderr, on_event)
        self._timer = StepTimer()
        self._leads = place.is_first  # makes the decisions, and therefore prints them
        self._closing_since = 0.0
        self._skipped_for: SaveBlock | None = None
        self._aborts = 0
        self._saving_step = 0
        self._collectives = Collectives()
        self._slot = SharedProgress()
        gate.beat = self._slot.words
        gate.beat[0] = gate.count
        self._writer = start_writer(place, settings, self._slot, self._recorder)
        self.agreement = self._agree(agreement)
        self.signals = Signals(place, settings, self._recorder, gate, loop.is_saving)
        self._loss = Loss(place, settings, self._recorder)
        self._grad_norm = GradNorm(place, settings, self._recorder)
        self._stops = EarlierStops(place)
        self._start: Decision | None = None
        self.exit = ForcedExit(place, settings, self._recorder, self._writer.write_now, loop.is_unsaved)
        self.drain = Drain(place, settings, self._recorder, loop, self._timer, self.exit.left_s)
        built_in = built_in_triggers(place, settings, self._recorder, self._timer, gate)
        learners: Any = {name_of(one): one for one in built_in if hasattr(one, "restore")}
        self._learned = Learned(place, settings, self._recorder, self._timer, self._loss, self._grad_norm, learners)
        self.store: ConnectedStore | None = None
        self._injected: InjectedFaults | None = None
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
            at_files=self._work_on_files,
            at_node=self._sample,
        )

    def start(self, store: Store | None = None) -> None:
        """Start the signal handlers, the agreement and the triggers' threads. Raise CheckpointError or GuardError if
        the store cannot be used."""
        for note in self._place.notes:
            self._recorder.warn(note)
        self._slot.set_phase(self._loop.phase)
        place = self._place
        self._recorder.event(
            "start", step=self._gate.count, world=place.world, job_id=place.job_id, pid=os.getpid(), uses=_paths_used()
        )
        self.signals.install()
        self._learned.read(self._writer.learned)
        self.agreement.start()
        if store is not None:
            self.store = ConnectedStore(store, place, self.agreement, self._recorder)
        self._watches.start()
        if place.run_dir and os.environ.get(ALLOW_INJECT) == "true":
            from resilience.guard.injected import InjectedFaults

            self._injected = InjectedFaults(place, self._recorder)
            self._injected.start()

    def close(self) -> None:
        """Notify the other ranks, wait for them, and record in the journal how the training ended on this rank."""
        loop, steps = self._loop, self._gate.count
        decision, how = loop.decided, loop.how(steps)
        self._closing_since = time.monotonic()
        self.signals.is_closing = True
        wait_s = FAULT_S if how == FAILED else LEAVE_S
        if how == STOPPED and loop.has_stopped:
            # Give up before the forced exit, which would exit with 75 and hide the rank that was missing.
            left_s = self.exit.left_s()
            wait_s = min(self._settings.exit_timeout_s or DAY_S, max(left_s - BEFORE_END_S, left_s / 2))
        farewell = self.agreement.announce_exit(how, loop.why, wait_s, self._is_hurried)
        if how != FAILED and farewell.faults:
            loop.failed(farewell.faults[0])
            wait_s = FAULT_S
            for fault in farewell.faults[:MAX_FAULTS]:
                self._recorder.warn(f"{fault}: this job did not stop cleanly")
        # The batch shell reads this record where a launcher turns 75 into 1. So it is written after all ranks have
        # saved and before rank 0 closes the connections: launchers kill the other ranks once one exits with 75.
        code = loop.code if loop.why else loop.exit_code(steps)
        why: dict[str, Any] = {"why": loop.why} if loop.why else {}
        if decision is not None and how == DONE and not why and not loop.is_finished:
            why = {"unfollowed": True}
            self._recorder.warn(
                f"the decision to stop at step {decision.step} was not followed: the training did "
                f"{steps - decision.step:,} more steps. Leave the loop when decision.stop is true"
            )
        if how == FAILED and not self._leads:  # other ranks do not write `end`, which is routine, to the journal
            self._recorder.event("exit", exit_code=code, error=loop.why)
        stopped = how == STOPPED and not loop.why
        self._recorder.event(
            "end", step=steps, exit_code=code, stopped=stopped, ranks=farewell.world, well=farewell.well, **why
        )
        if self.store is not None:
            self.store.ended(failed=how == FAILED)
        self._keep_learned(last=True)
        if self._injected is not None:
            self._injected.stop()
        self._watches.stop(STOP_S)
        self.agreement.leave(wait_s, self._is_hurried)
        self._writer.stop(STOP_S)  # last: late ranks ask the heartbeat writer for the address of rank 0
        self.signals.restore()
        self.exit.arm_after_close(decision, code, hangs=loop.hangs)

    def correct_exit(self, code: int, fault: str) -> None:
        """Record the exit code of a process that failed after the guard was closed."""
        self._recorder.event("exit", exit_code=code, error=fault)
        self._recorder.say(f"the training ends with {fault}: this job did not stop cleanly")
        self._writer.write_last()

    def _is_hurried(self) -> bool:
        """Return whether to stop waiting for other ranks: this process is being terminated, or its launcher is gone and
        the time limit has passed."""
        waited_s = time.monotonic() - self._closing_since
        return self.signals.hurries(self._closing_since) or (waited_s > LEAVE_S and self.signals.has_lost_launcher)

    def after_fork_in_child(self) -> None:
        """Release resources of the parent, in a forked child."""
        self.agreement.after_fork_in_child()
        self._writer.after_fork_in_child()

    # ---- called by the training thread ------------------------------------------------------------------------

    def wait_for_start(self) -> Decision | None:
        """Return the decision before the first step, or None if there was none in time."""
        place = self._place
        # Rank 0 waits for its own check of the run directory, the other ranks for rank 0.
        timeout_s = FIRST_CHECK_S if place.is_first else self._settings.join_timeout_s
        decision: Decision | None = self.agreement.wait_for_start(timeout_s)
        if decision is not None:
            self._start = decision
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

    def earlier_stops(self) -> list[EarlierStop]:
        """Return the stops of earlier attempts that rank 0 has read, oldest first. The first call waits for them; where
        rank 0 does not answer in time there are none."""
        if self._start is None and self.wait_for_start() is None:
            self._start = CONTINUE
        assert self._start is not None
        return [EarlierStop(fields) for fields in self._start.earlier]

    def observe(self, grad_norm: Any) -> None:
        """Check the norm of the gradients of the step in progress."""
        request = self._grad_norm.check(grad_norm, self._gate.count + 1)
        if request is not None:
            self._request(request)

    def sdc(self, state: State, group: str) -> SdcWatch:
        """Return the watch for silent data corruption."""
        from resilience.guard.sdc.watch import SdcWatch

        return SdcWatch(
            state, self._settings, self._gate, self._place, self._recorder, self.agreement, self._request,
            saved_step=lambda: self._saving_step, group=group,
        )  # fmt: skip

    def on_step(self, loss: Any) -> Decision:
        """Return the decision after a step that reached the limit or has a loss."""
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
            if decision.save or not self._loop.has_stopped:  # a stop that is not followed is reported once
                self.decide(decision)
            self._loop.has_stopped = decision.stop
        if not decision.save and decision is not CONTINUE:  # also after an empty decision
            self.agreement.finish(OBEYED, 0.0)
        return decision

    def on_poll(self) -> Decision:
        """Return a pending stop, in the middle of a step."""
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
        """Warn if a second thread calls `step()`, which would corrupt the count."""
        this = _thread.get_ident()
        if self._stepping == 0:
            self._stepping, self.stepping_thread = this, threading.current_thread()
            self._begin_training()
        elif self._stepping != this:
            self._recorder.warn(
                "guard.step() is called from two threads: the step count is wrong, and only one of them receives each "
                "decision. Call guard.step() only from the thread that trains",
                key="threads",
            )

    def _begin_training(self) -> None:
        if self._loop.phase == "start":
            self._loop.phase = "train"
            self.enter_phase()
        if self.store is not None:
            self.store.stepped(self._gate.count)

    # ---- decisions and saves ----------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        """Record a decision that the training receives; after a stop, arm the forced exit."""
        forget_exit()
        if decision.stop:
            self._loop.decided = decision
        self._recorder.event("decision", **decision.as_dict())
        if self._leads:
            self._recorder.say(str(decision))
        if decision.stop:
            self._watches.wake()  # writes the decision to the journal even if the training ends at once
            self.exit.arm(decision, self._timer.slowest_save_s)

    def settle(self, outcome: str) -> None:
        """Settle an open decision to save: the training saved nothing, or saved outside of `guard.saving()`."""
        decision, self._loop.owed = self._loop.owed, None
        if decision is None:
            return
        if outcome == FAILED:
            self._recorder.warn(f"the training did not save, although a save was requested because {decision.why}")
            if decision.stop:
                self._loop.failed("the training did not save before the stop")
        else:
            self._recorder.warn(
                "a save was requested, but no `with guard.saving():` block followed. The save counts as successful; "
                "its duration is unknown, and a failure would not be noticed",
                key="saving",
            )
        if not self._receives_outcome(self.agreement.finish(outcome, 0.0)):
            self._notify_triggers(decision.triggers, outcome)

    def skip_save(self) -> None:
        """Settle a decision to save that `guard.steps()` cannot follow: called without a save function."""
        self._recorder.warn(
            "a save was requested, but guard.steps() has no save function: pass save=save_checkpoint", key="saving"
        )
        decision = self._loop.owed
        self.settle(OBEYED if decision is not None and decision.stop else FAILED)

    def save_entered(self) -> None:
        """Note that the training waits: for a save in flight, then for its own save."""
        self._slot.set_phase("save")
        self._timer.save_began(time.monotonic())

    def save_begins(self, saving: SaveBlock) -> None:
        """Record the start of a save."""
        self._watches.save_began()
        self._saving_step = saving.step
        self._recorder.event("save_begin", step=saving.step)
        self._learned.save_begins(saving.step)

    def save_left(self, saving: SaveBlock, error: BaseException | None) -> None:
        """Record that the training continues; the save is finished or in flight."""
        stall_s = time.monotonic() - saving.entered
        self._slot.set_phase(self._loop.phase)
        self._timer.was_saving(stall_s)
        if error is None:
            self._timer.stalled(stall_s)
        if saving.is_in_flight:
            if error is None:
                self._recorder.event("save_staged", step=saving.step, seconds=round(stall_s, 3))
            self._timer.in_flight_since(min(one.began for one in (saving, *self._loop.in_flight)))
            if saving.decision is not None:
                saving.number = self.agreement.finish(IN_FLIGHT, 0.0)

    def save_settled(self, saving: SaveBlock, error: BaseException | None) -> None:
        """Record that a save is durable on this rank, or has failed. Called from any thread."""
        decision, outcome = saving.decision, SAVED if error is None else FAILED
        seconds = time.monotonic() - saving.began
        others = [one.began for one in self._loop.in_flight if one is not saving]
        self._timer.in_flight_since(min(others, default=None))
        if error is not None:
            self._recorder.event(
                "save_failed", step=saving.step, seconds=round(seconds, 3), error=describe_error(error)
            )
            stays = "" if decision is None else ". The request for this save stays open"
            self._recorder.warn(f"the save of step {saving.step} is not durable: {describe_error(error)}{stays}")
        number = saving.number
        if decision is not None and number:
            self.agreement.saved(number, outcome, seconds)
        elif decision is not None:
            number = self.agreement.finish(outcome, seconds)
        if decision is not None and self._receives_outcome(number):  # once all ranks have saved
            return
        if error is None:
            self.save_is_durable(saving.step, seconds)
        if decision is not None:
            self._notify_triggers(decision.triggers, outcome)

    def _receives_outcome(self, number: int) -> bool:
        """Return whether the agreement reports the outcome on all ranks to this rank, because this rank decided. A rank
        that has lost rank 0 may still have followed a decision of rank 0."""
        return self._place.is_first or number < 0

    def save_is_durable(self, step: int, seconds: float) -> None:
        """Record a durable save, `seconds` after it started."""
        self._timer.saved(seconds)
        self._recorder.event("save", step=step, seconds=round(seconds, 3))
        self._learned.saved(step)
        self._stops.saved(step)
        self._watches.saved(step)

    def enter_phase(self) -> None:
        """Show the new phase in the heartbeat and the journal."""
        self._slot.set_phase(self._loop.phase)
        self._recorder.event("phase", phase=self._loop.phase, step=self._gate.count)

    def resumed(self, step: int) -> None:
        """Record that the step count was set."""
        self._recorder.event("resume", step=step)
        self._timer.resumed()
        self._learned.resumed(step)
        self._stops.resumed(step)
        self.agreement.resumed()  # opens the gate: the first step may not come to `on_step`
        if self.store is not None:
            self.store.loaded(step)
        self._begin_training()

    def record_error(self, error: str) -> None:
        """Record the exception that ended the training."""
        self._recorder.event("error", step=self._gate.count, error=error)

    def failed(self, error: Exception) -> None:
        """Warn of an error in the guard itself."""
        with contextlib.suppress(Exception):
            self._recorder.warn(
                f"the guard failed; the training continues, possibly without decisions: {error!r}", "failed"
            )

    def finished(self) -> None:
        """Mark the run as finished, unless the training was stopped or failed."""
        loop, why = self._loop, self._loop.why
        if not why and loop.decided is not None and loop.has_followed(self._gate.count):
            why = f"the training was stopped at step {loop.decided.step}, because {loop.decided.why}"
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
        """Send all ranks the decision before the first step, made from the first check of the run directory."""
        stops = [request for request in requests if request.stop]
        decision = merge(stops, self._gate.count) if stops else CONTINUE
        if self._place.is_first:
            earlier = () if decision.stop else self._read_stops()
            fields = {**decision.as_dict(), "save": False, "earlier": earlier}
            self.agreement.decide_start(Decision(**fields))

    def _read_stops(self) -> list[dict[str, Any]]:
        """Return the stops of earlier attempts, and report the newest if no attempt has got past it."""
        try:
            stops = self._stops.read()
        except (OSError, ValueError) as error:
            self._recorder.event("learned_dropped", what="stops", why=str(error))
            return []
        stop = newest_open(stops)
        if stop is not None:
            # Not `step`: readers of the journal take that for a step of this attempt.
            self._recorder.event(
                "resumed_after", stopped_step=stop.step, times=stop.times, of_attempt=stop.attempt, why=stop.why
            )
            times = f", {stop.times} times in a row" if stop.times > 1 else ""
            advice = (
                "The same data may do it again; the training can choose by guard.resumed_after and guard.skip_steps"
            )
            if stop.world == 0:
                advice = "No batch is suspect; guard.resumed_after tells the training which checkpoints are"
            self._recorder.say(f"an earlier attempt was stopped{times}: {stop.why}. {advice}")
        return [stop.as_dict() for stop in stops]

    def _work_on_files(self) -> None:
        """On rank 0: write what is due. May wait for the run directory."""
        self._writer.work()
        with contextlib.suppress(OSError):  # the writer warns of it; retried
            self._stops.write()

    def _request(self, request: Request) -> None:
        """Request a save or a stop. With `save_overlap = "skip"`, skip a save without a stop while as many as allowed
        are in flight."""
        in_flight = self._loop.in_flight
        is_skipped = request.save and not request.stop and self._settings.save_overlap == "skip"
        if len(in_flight) < self._settings.saves_in_flight or not is_skipped:
            self.agreement.request(request)
            return
        saving = in_flight[-1]
        if self._skipped_for is not saving:
            self._skipped_for = saving
            self._recorder.event("save_skipped", step=self._gate.count, in_flight=saving.step, why=request.why)
        self._notify_triggers([request.trigger], SKIPPED)

    # ---- agreement events, from the agreement's thread: never waits -------------------------------------------

    def on_event(self, event: AgreementEvent) -> None:
        """Route an agreement event: warnings to stderr, records to the journal, save results to the triggers."""
        if event.kind == "outcome" and event.decision is not None:
            self._outcome(event.decision, event.outcome, event.seconds, event.ranks)
        elif event.kind == "alone":
            self._lead(event.text)
        elif event.kind in WARNINGS:
            self._recorder.warn(event.text)
        elif event.kind == "committed":
            self._aborts = 0
            stop = self._stops.stopped(event.requests, event.decision) if event.decision is not None else None
            if stop is not None:
                kept = ("why", "step", "since", "saved_step", "world")
                self._recorder.event("state_ruined", **{name: stop[name] for name in kept})
        else:
            self._recorder.event(event.kind, text=event.text)
            if event.kind == "back":
                self._recorder.say(event.text)
            self._aborts += event.kind == "aborted"
            if self._aborts == MAX_ABORTS:
                self._recorder.warn(event.text, key="aborted")

    def _lead(self, why: str) -> None:
        """Read the switches and decide on this rank from now on: rank 0 is gone for good."""
        actions = {
            "stop": "this rank saves and stops now",
            "save_alone": "this rank reads the switches and decides by itself from now on",
        }
        action = actions.get(self._settings.on_leader_lost, "")
        self._recorder.warn(f"rank {self._place.rank}: {why}; {action} (on_leader_lost)")
        self._leads = True
        self._writer.lead()
        self.signals.is_orphan = True
        self._watches.watch_files(
            built_in_triggers(self._place, self._settings, self._recorder, self._timer, without_rank_0=True)
        )

    def _outcome(self, decision: Decision, outcome: str, seconds: float, ranks: Sequence[int]) -> None:
        """Record the outcome of a decision on all ranks: the save is durable, or failed on `ranks`."""
        step = decision.step - self._gate.rewound
        if outcome == SAVED and decision.save:
            self.save_is_durable(step, seconds)
        elif outcome == FAILED and self._place.rank not in ranks and self.stepping_thread is not None:
            on = f"on {name_ranks(list(ranks))}" if ranks else "on a rank"
            self._recorder.event("save_failed", step=step, error=f"it failed {on}")
            self._recorder.warn(f"the save of step {step} failed {on}. The request for this save stays open")
            if decision.stop and self._loop.has_stopped:
                self._loop.failed(f"the save of step {step} failed {on}")
        self._notify_triggers(decision.triggers, outcome)

    def _sample(self) -> None:
        self.signals.listen()
        self._timer.sample(time.monotonic(), self._gate.position(), time.process_time())
        if self._place.world > 1:
            self._slot.note_look(self._collectives.read(), time.time())
        if not self._watches.has_files:
            self._writer.work()
        elif self._writer.hurry():
            self._watches.wake_files()
        self._writer.check_responsive()
        self._keep_learned()
        timer = self._timer
        bound_s = kill_after_s(self._settings.kill_timeout_s, timer.slowest_step_s, timer.slowest_save_s)
        self.exit.expect(self.agreement.pending_decision(), time.monotonic(), bound_s)

    def _keep_learned(self, *, last: bool = False) -> None:
        text = self._learned.text(last=last)
        if text:
            self._writer.learn(text)

    def _notify_triggers(self, triggers: Sequence[str], outcome: str) -> None:
        self._loss.on_outcome(triggers)
        self._grad_norm.on_outcome(triggers)
        self._watches.notify(triggers, outcome)

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


def _paths_used() -> list[str]:
    """Return where the training's command, environment and data are: `resil watch fs` watches their file systems."""
    words = (word.rpartition("=")[2] for word in sys.argv[:MOST_PATHS])
    found = [sys.prefix, sys.base_prefix, *(word for word in words if word.startswith("/") and word.isprintable())]
    with contextlib.suppress(OSError):
        found.append(os.getcwd())
    return list(dict.fromkeys(found))
