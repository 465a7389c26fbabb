"""The job's time limit: stop while enough time remains for a step and a save, as long as measured durations predict.

    time left < safety x (slowest recent step + slowest recent save + remainder of a save in flight) + margin

A save counts until it is durable: an asynchronous save blocks the training briefly but completes minutes later. A save
in flight must complete before the final save starts.

The safety factor of 1.5 covers a step or a save 50 % slower than any recent one. The margin of 10 s covers the
agreement between ranks, the polling interval (a second or two) and SLURM's own timer, which is coarser but only ever
late. Every term is measured (`step_timer.py`), except the first save (`first_save_s`).

The deadline is the limit itself. OverTimeLimit (slurm.conf) lets jobs overrun the limit by minutes; the guard does not
rely on that grace. Without a known limit the trigger requests nothing. `stop_after` caps the attempt even if `walltime`
is off.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

from resilience.guard.decision import BuiltInTrigger, Request
from resilience.guard.end_time import DEADLINE_S, GRACE_S, NO_LIMIT, EndTime, find_end_time, find_stop_time
from resilience.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer

PROCEED, QUERY, STOP = "proceed", "query", "stop"

QUERY_EARLY_S = 30.0
"""Query the scheduler again this long before the stop: its answer may take up to 22 s."""
FRESH_S = 30.0
"""Maximum age of a scheduler answer that the trigger acts on; query again if it is older."""
PATIENCE_S = 5.0
"""How long to wait for an answer when the time left no longer covers even one step and one save."""
CLOCK_STEP_S = 5.0
"""The wall clock was set if it drifts from the steady clock by more than this between two polls."""
CLOCK_HOLD_S = 30.0
"""How long to distrust a clock that was set: until the scheduler has answered, or the clock is set back."""
GUESS_WARNING_S = 600.0
"""Warn this long before the stop that the save duration is only an estimate."""
LEARNED_S = 15.0
"""Wait this long after the start before that warning: measurements of an earlier job load within seconds."""
STALE_S = 600.0
"""No training starts this long after the end of its job; OverTimeLimit, where set, is a few minutes."""
NO_SAVE_S = 1.0
"""If rank 0 saves faster than this, other ranks write the checkpoint; their duration is known once all have saved."""
LEAD_LIMIT_S = 65535
"""sbatch(1), --signal: sig_time must be between 0 and 65535."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The action for the time left.

    Attributes:
        action: PROCEED, QUERY (confirm the end with the scheduler first), or STOP.
        need_s: how much time must be left.
        why: the reason as a sentence for the user; empty if there is no reason to stop.
    """

    action: str
    need_s: float = 0.0
    why: str = ""


def decide(
    left_s: float | None,
    step_s: float | None,
    save_s: float | None,
    *,
    safety: float,
    margin_s: float,
    first_save_s: float,
    in_flight_s: float = 0.0,
    is_fresh: bool = True,
    asking_s: float = 0.0,
    what: str = "the job's time limit",
) -> Verdict:
    """Return whether the training must stop for its time limit, and why. Pure. All times in seconds.

    Args:
        left_s: the time left; None if unknown, infinite without a limit.
        step_s: the slowest recent step; None before the first one: then only a save must fit, because start-up
            happens once and hours of short steps may follow.
        save_s: the slowest recent save; None before the first one, which `first_save_s` then estimates.
        in_flight_s: how much longer a save in flight may take.
        is_fresh: whether the scheduler confirmed the end recently, or cannot be queried.
        asking_s: how long the current query has been waiting for its answer.
        what: the limit that ends the training, as named in messages.
    """
    save = first_save_s if save_s is None else save_s
    bare = save + (step_s or 0.0) + in_flight_s
    need = safety * bare + margin_s
    if left_s is None or left_s >= need + QUERY_EARLY_S:
        return Verdict(PROCEED, need)
    patience = PATIENCE_S if left_s < bare else DEADLINE_S + GRACE_S
    if not is_fresh and asking_s < patience:
        return Verdict(QUERY, need)
    if left_s >= need:
        return Verdict(PROCEED, need)
    when = f"is in {format_duration(left_s)}" if left_s >= 1 else f"was {format_duration(round(-left_s))} ago"
    step = "no step has completed yet" if step_s is None else f"a step takes up to {_about(step_s)}"
    saving = f"a save {_about(save)}"
    if save_s is None:
        saving = f"a save is assumed to take {_about(save)} because none was measured yet (first_save_s)"
    if in_flight_s:
        saving += f", the save in flight {_about(in_flight_s)} more"
    needed = f"{safety:g} times that plus {format_duration(margin_s)} is {format_duration(round(need))}"
    return Verdict(STOP, need, f"{what} {when}: {step}, {saving}; {needed}")


class Walltime(BuiltInTrigger):
    """Requests a save and a stop in time before the job's end. Polled about every second; never blocks."""

    name = "walltime"
    ranks = "first"

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        timer: StepTimer,
        *,
        environ: Mapping[str, str] | None = None,
        end_time: EndTime | None = None,
        asks: bool = True,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._timer = timer
        self._lead_s = place.lead_s
        self._reported_lead_s = 0
        cap = find_stop_time(place, environ, settings.stop_after, wall())
        no_end = None if settings.walltime else EndTime(None, None, 0.0, cap)
        every_s = settings.walltime_ask_s if asks else 0.0
        self._end = end_time or no_end or find_end_time(place, environ, every_s, cap)
        self._ignore_stale_end(wall())
        if self._end.cap != NO_LIMIT:
            place.end_time = self._end.end
        self._reported_end = self._end.end
        self._querying_since: float | None = None
        self._polling_since: float | None = None
        self._has_checked_learned = False
        self._clock = JobClock(wall, steady or steady_clock)
        self._requested_for: float | None = None
        self._completed_for: float | None = None

    def poll(self) -> Request | None:
        """Check the clock; return a request to stop if the time left is too short."""
        now, time_now = self._clock.read()
        self._end.refresh(now)
        self._report_change(time_now)
        end = self._end.end
        if self._clock.was_set:
            self._recorder.event("clock_set", seconds=round(self._clock.was_set, 3))
            self._recorder.warn(
                f"the clock of this node was set by {self._clock.was_set:+.0f} s; rechecking the end of the job",
                key="clock",
            )
            self._end.query(now)
        if end is None or end == NO_LIMIT:
            return None
        left_s = end - time_now
        self._check_learned(left_s)
        step_s, save_s = self._timer.slowest_step_s, self._timer.slowest_save_s
        verdict = self._decide(now, left_s, step_s, save_s)
        if self._polling_since is None:
            self._polling_since = now
        if save_s is not None or now - self._polling_since >= LEARNED_S:
            self._warn(left_s, step_s, save_s, verdict)
        if verdict.action == QUERY:
            self._end.query(now)
        if verdict.action != STOP or (self._completed_for is not None and end <= self._completed_for):
            return None
        self._requested_for = end
        return Request(self.name, verdict.why)

    def done(self, outcome: str) -> None:
        """Request no further stop unless the limit is extended."""
        self._completed_for = self._requested_for

    def _ignore_stale_end(self, time_now: float) -> None:
        """Ignore an end time inherited from an earlier job through a shell or a container."""
        end = self._end.end
        if end is not None and end < time_now - STALE_S:
            if self._end.cap == end:
                self._end.cap = NO_LIMIT
            self._end.update(None)
            self._place.end_time = None
            self._recorder.warn(
                f"RESIL_END_TIME or SLURM_JOB_END_TIME says that the job ended "
                f"{format_duration(round(time_now - end))} ago: ignored"
            )

    def _check_learned(self, left_s: float) -> None:
        """Once: discard the durations that earlier jobs measured if they would stop this job immediately.

        A single slow save, or a job shorter than the ones before, would otherwise stop every attempt at its start.
        """
        timer, settings = self._timer, self._settings
        if self._has_checked_learned or not timer.is_restored:
            return
        self._has_checked_learned = True
        learned_s = (timer.slowest_save_s or 0.0) + timer.slowest_known_step_s
        need_s = settings.walltime_safety * learned_s + settings.walltime_margin_s
        if left_s < need_s:
            timer.doubt()
            why = f"the slowest step and save need {format_duration(round(need_s))}, and the job ends in "
            self._recorder.event("learned_dropped", what="pace", why=why + format_duration(max(0, round(left_s))))

    def _decide(self, now: float, left_s: float, step_s: float | None, save_s: float | None) -> Verdict:
        settings, checked_at = self._settings, self._end.checked_at
        is_cap = self._end.end == self._end.cap
        is_fresh = is_cap or not self._end.can_query or (checked_at is not None and now - checked_at <= FRESH_S)
        verdict = decide(
            left_s,
            step_s,
            save_s,
            safety=settings.walltime_safety,
            margin_s=settings.walltime_margin_s,
            first_save_s=settings.first_save_s,
            in_flight_s=self._timer.in_flight_s(time.monotonic(), settings.first_save_s),
            is_fresh=is_fresh,
            asking_s=0.0 if self._querying_since is None else now - self._querying_since,
            what="the attempt's end by stop_after" if is_cap else "the job's time limit",
        )
        if verdict.action != QUERY:
            self._querying_since = None
        elif self._querying_since is None:
            self._querying_since = now
        return verdict

    def _report_change(self, time_now: float) -> None:
        before, end = self._reported_end, self._end.end
        if end is None or end == before or (before is not None and abs(end - before) < 2.0):
            return
        self._reported_end = end
        self._place.end_time = None if end == NO_LIMIT else end  # read by the memory forecast and the exit watchdog
        self._recorder.event("end_time", end=None if end == NO_LIMIT else round(end, 3))
        if end == NO_LIMIT:
            if before is not None:
                self._recorder.say("the job no longer has a time limit")
        elif before is not None:
            shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end))
            was = "it had none" if before == NO_LIMIT else f"{format_duration(round(abs(end - before)))} "
            if before != NO_LIMIT:
                was += "later" if end > before else "earlier"
            left = format_duration(max(0, round(end - time_now)))
            self._recorder.say(f"the job's time limit was changed: it ends at {shown}, in {left} ({was})")

    def _warn(self, left_s: float, step_s: float | None, save_s: float | None, verdict: Verdict) -> None:
        if save_s is None:
            if left_s < verdict.need_s + GUESS_WARNING_S and self._settings.first_save_s:
                self._recorder.warn(
                    f"no save was measured yet, and the job ends in {format_duration(max(0, round(left_s)))}: assuming "
                    f"that a save takes {_about(self._settings.first_save_s)} (first_save_s in [guard])",
                    key="first_save",
                )
        elif step_s is not None:
            self._warn_of_lead(step_s, save_s)

    def _warn_of_lead(self, step_s: float, save_s: float) -> None:
        """Warn once, and again if the suggested lead becomes too short: slower ranks report their saves later."""
        safety = self._settings.walltime_safety
        need_s = safety * (step_s + save_s)
        is_only_ours = self._place.world > 1 and save_s < NO_SAVE_S
        if not 0 < self._lead_s < (safety * step_s if is_only_ours else need_s) or need_s <= self._reported_lead_s:
            return
        self._reported_lead_s = lead_for(need_s)
        self._recorder.warn(
            f"the signal arrives {self._lead_s:g} s before the end, but a step takes up to {_about(step_s)} and a save "
            f"{_about(save_s)}; {safety:g} times that is {format_duration(round(need_s))}: set signal_lead_s = "
            f"{self._reported_lead_s} in [submit] of resil.toml. Until then only the guard's own clock stops in time",
            key=f"lead {self._reported_lead_s}",
        )


def lead_for(need_s: float) -> int:
    """Given how much time must be left, return a lead for --signal: 25 % more, rounded up to one or five minutes.

    For instance, 615 s give 900. Never more than sbatch accepts.
    """
    rough = need_s * 1.25
    grain = 60 if rough <= 300 else 300
    return min(math.ceil(rough / grain) * grain, LEAD_LIMIT_S)


class JobClock:
    """The time of day, with a delay before a clock that was set is trusted.

    A node's clock may be set by hours (manually or by NTP), while the job's end is in the controller's time. For
    `CLOCK_HOLD_S` the time continues from the previous setting, so that the scheduler can be queried again or the
    mistake corrected; then the new setting is trusted, because most clocks are set to be right.

    Attributes:
        was_set: by how many seconds the clock was set since the previous reading; usually 0.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._offset_s = wall() - steady()
        self._set_at: float | None = None
        self.was_set = 0.0

    def read(self) -> tuple[float, float]:
        """Return the steady time and the trusted time of day, both in seconds."""
        now = self._steady()
        offset = self._wall() - now
        step = offset - self._offset_s
        self.was_set = 0.0
        if abs(step) <= CLOCK_STEP_S:
            self._offset_s, self._set_at = offset, None
        elif self._set_at is None:
            self._set_at, self.was_set = now, step
        elif now - self._set_at >= CLOCK_HOLD_S:
            self._offset_s, self._set_at = offset, None
        return now, now + self._offset_s


def steady_clock() -> float:
    """Return seconds of a clock that cannot be set, suspend included (CLOCK_BOOTTIME, clock_gettime(2))."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _about(seconds: float) -> str:
    """Return a measured duration as text, rounded to a sensible precision."""
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds))
