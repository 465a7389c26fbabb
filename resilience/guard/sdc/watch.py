"""Runs the steps of a training such that a wrong value is found before it is applied, and the steps are replayed.

    sdc = guard.sdc(state)              # for torch: resilience.integrations.sdc.TorchState(model, optimizer)
    for batch in loader:
        loss = sdc.run(train_step, batch)
        decision = guard.step(loss=loss)

With several ranks a step is judged by all of them: each waits, before its update, for what the others have found, over
the guard's own connections and without a collective. So all replay together, or none does.
"""

from __future__ import annotations

from typing import NamedTuple

from resilience.guard.agreement.reports import FOUND, OF_STEPS
from resilience.guard.decision import EXIT_ERROR, Request
from resilience.guard.sdc.bounds import Bounds
from resilience.guard.sdc.comparison import Comparison
from resilience.guard.sdc.replay import (
    WRONG_COMPUTATIONS,
    Finding,
    Sighting,
    Verdict,
    decide,
    describe,
    parse_finding,
    words_of,
    words_of_sighting,
    worst_of,
)
from resilience.guard.sdc.ring import Ring, Snapshot, capture_generators, restore_generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol, TypeVar

    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.sdc.bounds import Abnormal
    from resilience.guard.sdc.replicas import Difference
    from resilience.guard.settings import GuardSettings

    Batch = TypeVar("Batch")
    Result = TypeVar("Result")

    class State(Protocol):
        """The arrays of a training, of any framework."""

        def attach(self, check: Callable[[], None]) -> None:
            """Call `check` in each step after the backward pass and before the update, from now on. A state without
            such a hook does nothing: the step function then calls `sdc.check()` itself."""

        def largest(self, *, gradients: bool) -> tuple[Sequence[str], Sequence[float]]:
            """Return the names of all watched tensors and the largest absolute value of each, NaN if it has one;
            without `gradients` 0 for those."""

        def layout(self) -> object:
            """Return what is equal as long as the same tensors are trained."""

        def capture(self, old: Any) -> Any:
            """Return a copy of all that the training changes; `old` is a former copy, whose memory may be reused."""

        def restore(self, captured: Any) -> None:
            """Set all of it, bit by bit."""

        def digest(self, *, gradients: bool) -> str:
            """Return a digest of the bits of parameters and optimizer state, with or without gradients and buffers."""


TRIGGER, OF_THE_TRAINING = "sdc", "sdc_repeated"
"""Names of the requests: a fault of the hardware, and what may be the training's own."""
WAIT_S = 30.0
"""How long a rank waits for what the others have found, before it goes on without them."""
CHECKS_OF = 100
"""Of so many steps at least half must have been checked."""


class AbnormalStep(BaseException):
    """Leaves the step function before the update. No Exception: a training that catches those must not go on."""

    def __init__(self, sighting: Sighting) -> None:
        super().__init__(f"step {sighting.step}")
        self.sighting = sighting


class Found(NamedTuple):
    """What was found, for tests and for the training: `sdc.found`.

    Attributes:
        verdict: `transient`, `unstable`, `repeated` or `replica`.
        step: at which.
        why: as a sentence.
    """

    verdict: str
    step: int
    why: str


class SdcWatch:
    """The silent-data-corruption part of one guard. Made by `guard.sdc(state)`.

    Attributes:
        is_on: whether steps are watched; False with `sdc = false`, and after a fault of the watch itself.
        found: what was found up to now.
        step: the number of the step in progress, also in a replay, where `guard.count` is ahead; 0: none.
    """

    def __init__(
        self,
        state: State,
        settings: GuardSettings,
        gate: Gate,
        place: RankInfo,
        recorder: Recorder,
        agreement: Any,
        request: Callable[[Request], None],
        *,
        saved_step: Callable[[], int] = lambda: 0,
        group: str = "",
    ) -> None:
        """`saved_step` returns the step of the last save. `group`: ranks with the same word must have equal parameters
        and optimizer state."""
        self._state, self._settings, self._gate, self._place = state, settings, gate, place
        self._recorder, self._agreement, self._request = recorder, agreement, request
        self._saved_step = saved_step
        self.is_on = settings.sdc
        self.found: list[Found] = []
        self._bounds = Bounds(times=settings.sdc_times, ceiling=settings.sdc_ceiling, window=settings.sdc_window)
        self._ring = Ring()
        self.step = 0
        self._is_checked = False  # in this step
        self._raised: AbnormalStep | None = None  # in this step
        self._steps = self._unchecked = 0
        self._checks = 0
        self._largest = 0.0
        self._is_stopping = False  # on every rank: what it has found decides
        self._is_accepting = False  # in a last replay: what is abnormal is the training's own
        self._own_step = -2  # the last such step: what it has left in moments and weights is as well
        self._transients: dict[int, int] = {}  # by rank, how often the replay was clean
        self._clean_step = self._first_step = 0
        self._comparison = Comparison(settings.sdc_replicas_every, group, place, recorder, agreement)
        if place.world > 1 and self.is_on and not getattr(agreement, "carries_reports", False):
            self._recorder.warn("sdc: this agreement carries no reports between ranks: steps are not watched")
            self.is_on = False
        if self.is_on:
            state.attach(self._before_update)

    # ---- for the training -------------------------------------------------------------------------------------

    def run(self, step_function: Callable[[Batch], Result], batch: Batch) -> Result:
        """Run one step, and replay it with the step before if it is abnormal. Return what the function returns.

        The function does one whole step: gradients to zero, forward, backward, update. It may be called again with the
        same batch, so it does nothing that must happen once, such as `guard.step()`.
        """
        step = self._gate.count + 1
        if not self.is_on or self._is_stopping:
            return self._run_step(step, step_function, batch)
        self._first_step = self._first_step or step
        snapshot = self._snapshot(step, batch, self._ring.oldest_to_reuse())
        if snapshot is None:
            return self._run_step(step, step_function, batch)
        self._ring.add(snapshot)
        try:
            result = self._run_step(step, step_function, batch)
        except AbnormalStep as abnormal:
            result = self._replay(abnormal.sighting, step_function)
        self._count_checks()
        self._compare(step)
        return result

    def check(self) -> None:
        """Check all tensors, before the update.

        Called by the state's hook. A step function that clips gradients calls it before that: a clipped gradient looks
        healthy, whatever it was. Raise AbnormalStep, which `run` catches.
        """
        if not (self.is_on and self.step) or self._is_stopping:
            return
        self._is_checked = True
        self._check(gradients=True)

    # ---- steps ------------------------------------------------------------------------------------------------

    def _check(self, *, gradients: bool) -> None:
        try:
            names, values = self._state.largest(gradients=gradients)
            found = self._bounds.judge(names, values)
            if self.step == self._own_step + 1:  # second moments have the square of the gradient
                found = [one for one in found if not one.value <= self._settings.sdc_ceiling**2]
        except Exception as error:
            self._give_up(error)
            return
        findings = self._findings(found)
        if findings:
            self._raised = AbnormalStep(Sighting(self.step, tuple(findings)))
            raise self._raised
        if gradients:
            self._bounds.accept(names, values)
        self._largest = max(values, default=0.0)
        self._clean_step = self.step

    def _before_update(self) -> None:
        """Check, unless the step function has."""
        if not self._is_checked:
            self.check()

    def _count_checks(self) -> None:
        """Warn if many steps end without an update: their gradients are not checked. A loss scaler skips few."""
        self._steps += 1
        self._unchecked += not self._is_checked
        if self._steps % CHECKS_OF == 0:
            if 2 * self._unchecked >= CHECKS_OF and self.is_on and not self._is_stopping:
                self._recorder.warn(
                    f"sdc: {self._unchecked} of the last {CHECKS_OF} steps were not checked. One call of the step "
                    "function must do one whole update, with all its accumulation, or call sdc.check() before it",
                    key="sdc unchecked",
                )
            self._unchecked = 0

    def _snapshot(self, step: int, batch: Any, old: Any) -> Snapshot | None:
        """Copy the state before a step, into the memory of an old copy; None if that fails, and the watch ends."""
        try:
            return Snapshot(step, batch, self._state.capture(old), capture_generators(), self._state.layout())
        except Exception as error:
            self._give_up(error)
            return None

    def _run_step(self, step: int, step_function: Callable[[Batch], Result], batch: Batch) -> Result:
        self.step, self._is_checked, self._raised = step, False, None
        try:
            result = step_function(batch)
            if not (self._is_checked or self._is_stopping) and self.is_on:  # no update: a loss scaler skips all of
                self._check(gradients=False)  # them if a weight is NaN
        finally:
            self.step = 0
        if self._raised is not None:  # the function has caught it, and the update was left out
            raise self._raised
        return result

    def _replay(self, first: Sighting, step_function: Callable[[Any], Result]) -> Result:
        """Do the last steps again, from the copy before them."""
        again = None
        try:
            result = self._redo(step_function)
        except AbnormalStep as abnormal:
            again = abnormal.sighting
        except BaseException:
            self._warn_unknown(first, "its replay was cut off")
            raise
        if again is None and not self.is_on:
            self._warn_unknown(first, "replayed, but no longer watched")
            return result
        verdict = decide(first, again)
        ceiling = self._settings.sdc_ceiling
        goes_on = again is not None and verdict is Verdict.REPEATED and max(first.worst, again.worst) <= ceiling
        self._report(verdict, first, goes_on)
        if again is None:
            return result
        self._is_accepting, self._is_stopping, self._own_step = goes_on, not goes_on, first.step
        try:
            return self._redo(step_function)  # unwatched, on every rank: the training goes on, or until it is stopped
        finally:
            self._is_accepting = False

    def _warn_unknown(self, first: Sighting, how: str) -> None:
        self._recorder.warn(
            f"silent data corruption, perhaps: {words_of_sighting(first, self._place.world)}: {how}: nobody can say "
            "whether it was the hardware, nor whether the state is right now"
        )

    def _redo(self, step_function: Callable[[Any], Result]) -> Result:
        snapshots = tuple(self._ring.snapshots)
        self._state.restore(snapshots[0].state)
        restore_generators(snapshots[0].generators)
        for number, one in enumerate(snapshots):
            if number and self.is_on and not self._is_stopping:  # the former copy may hold what was wrong
                again = self._snapshot(one.step, one.batch, one.state)
                if again is not None:
                    self._ring.snapshots[number] = again
            result = self._run_step(one.step, step_function, one.batch)
        return result

    def _report(self, verdict: Verdict, first: Sighting, goes_on: bool) -> None:
        """Record the verdict. Stop the training without a save if the replay was abnormal too, unless it `goes_on`, and
        with one if it was clean, and this rank has been wrong before."""
        place, findings = self._place, first.findings
        accused = findings[0].rank
        before = self._transients.get(accused, 0) if len(findings) == 1 else 0
        if verdict is Verdict.TRANSIENT and len(findings) == 1:
            self._transients[accused] = before + 1
        replayed = len(self._ring.snapshots)
        why = describe(verdict, first, world=place.world, replayed=replayed, before=before, goes_on=goes_on)
        if verdict is Verdict.TRANSIENT and self._saved_step() == first.step - 1 > 0:
            why += f". The checkpoint of step {first.step - 1} may hold the wrong value: do not resume from it"
        self.found.append(Found(str(verdict), first.step, why))
        if not place.is_first:
            return
        for one in findings:
            self._record(verdict, first.step, one.rank, one.node, one.what, WRONG_COMPUTATIONS[verdict], len(findings))
        self._recorder.warn(f"silent data corruption{'' if WRONG_COMPUTATIONS[verdict] else ', perhaps'}: {why}")
        if verdict is not Verdict.TRANSIENT and not goes_on:
            trigger = TRIGGER if WRONG_COMPUTATIONS[verdict] else OF_THE_TRAINING
            # A check comes before the update. Without a clean one the checkpoint this attempt began with is suspect.
            since = (self._clean_step or self._first_step - 1) - 1
            self._stop(trigger, why, first.step, max(0, since))
        elif before:
            self._request(Request(TRIGGER, why))

    def _record(self, verdict: str, step: int, rank: int, node: str, what: str, times: int, among: int) -> None:
        """Write the event from which the evidence about a node is made. Not `rank`, which is that of the writer."""
        self._recorder.event(
            "sdc", verdict=verdict, step=step, of_rank=rank, node=node, why=what, times=times, among=among
        )

    def _stop(self, trigger: str, why: str, step: int, since: int) -> None:
        since = min(since, step)
        self._request(Request(trigger, why, save=False, discard=True, exit_code=EXIT_ERROR, step=step, since=since))

    # ---- between ranks ----------------------------------------------------------------------------------------

    def _findings(self, found: Sequence[Abnormal]) -> list[Finding]:
        """Return what the ranks have found in this step; every rank gets the same. Waits for all of them."""
        place = self._place
        mine = None
        if self._is_accepting:
            return []
        if found:
            try:
                digest = self._state.digest(gradients=True)
            except Exception as error:
                self._give_up(error)
                return []
            mine = Finding(place.rank, place.host, digest, words_of(found), worst_of(found))
        if place.world == 1:
            return [] if mine is None else [mine]
        self._checks += 1
        key = f"{FOUND}{self.step}.{self._checks}{OF_STEPS}"
        self._agreement.report(key, text="" if mine is None else mine.text())
        wait_s = WAIT_S if self._clean_step else WAIT_S + self._settings.join_timeout_s  # ranks start at their own pace
        answer = self._agreement.wait_for_report(key, wait_s)
        if answer is None:
            self._give_up(TimeoutError(f"the other ranks have not said within {wait_s:g} s what they found"))
            return []
        findings = [parse_finding(fault) for fault in answer.faults]
        if None in findings:
            self._give_up(ConnectionError("; ".join(answer.faults)))
            return []
        return [one for one in findings if one is not None]

    def _compare(self, step: int) -> None:
        """Read what came of earlier comparisons of replicas, and take part in that of this step if it is due."""
        if self._is_stopping or not self.is_on:
            return
        found = self._comparison.read()
        if found is not None:
            self._report_replica(*found)
        elif self._comparison.is_due(step):
            try:
                digest = self._state.digest(gradients=False)
            except Exception as error:
                self._give_up(error)
                return
            self._comparison.tell(step, self._gate.rewound, digest, self._largest)

    def _report_replica(self, difference: Difference, step: int, since: int) -> None:
        why = f"after step {step} {difference}; after step {since} they were equal"
        self.found.append(Found("replica", step, why))
        if not self._place.is_first:
            return
        accused = difference.odd or difference.suspects
        for rank, node in accused:
            self._record("replica", step, rank, node, str(difference), 1, 1 if difference.odd else len(accused))
        self._recorder.warn(f"silent data corruption: {why}")
        self._stop(TRIGGER, why, step, since)

    def _give_up(self, error: Exception) -> None:
        """No error of the watch ends the training."""
        self.is_on = False
        self._ring.snapshots.clear()
        self._recorder.warn(f"sdc is off from here on, and the training goes on unwatched: {error!r}", key="sdc")


class Unwatched:
    """What `guard.sdc` returns where nothing is watched: `run` only calls the function."""

    is_on = False
    found: tuple[Found, ...] = ()

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def step(self) -> int:
        """Return the number of the step in progress."""
        return self._gate.count + 1

    def run(self, step_function: Callable[[Batch], Result], batch: Batch) -> Result:
        """Run one step."""
        return step_function(batch)

    def check(self) -> None:
        """Check nothing."""
