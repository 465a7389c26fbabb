"""The job's time limit: stop while there is still time for a step and a save, both as long as they were measured.

    time left < safety x (slowest recent step + slowest recent save + what is left of one in flight) + margin

A save counts until it is durable: one that goes on in the background stalls the training for a moment and is safe
minutes later. One that is in flight must be over before the last one begins.

The safety of 1.5 covers a step or a save that is half as slow again as any recent one; the margin of 10 s covers the
agreement of the ranks, the sampling (a second or two), and SLURM's own tick, which is coarser but only ever late. Every
term is measured (`step_timer.py`), except for a save before the first one (`first_save_s`).

The end is the limit itself. OverTimeLimit (slurm.conf) lets jobs overrun it by minutes; that is not counted on. Without
a limit, or where nobody knows one, nothing is asked for. With `stop_after` the attempt ends then at the latest, also
where `walltime` is off.
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

GO_ON, ASK, STOP = "go on", "ask", "stop"

ASK_EARLY_S = 30.0
"""So long before the last moment the scheduler is asked once more: its answer may take up to 22 s."""
FRESH_S = 30.0
"""An answer of the scheduler is acted upon for so long; an older one is asked again first."""
PATIENCE_S = 5.0
"""How long an answer is waited for when there is not even time for one step and one save any more."""
CLOCK_STEP_S = 5.0
"""The wall clock was set when it leaves the steady one by more than this between two looks."""
CLOCK_HOLD_S = 30.0
"""How long a clock that was set is not believed: until the scheduler was asked, or the clock is set back."""
GUESS_WARNING_S = 600.0
"""So long before the last moment people hear that the length of a save is a guess."""
LEARNED_S = 15.0
"""But not sooner after the start: what an earlier job has measured arrives in seconds."""
STALE_S = 600.0
"""No training starts so long after its job's end; OverTimeLimit, where there is one, is a few minutes."""
NO_SAVE_S = 1.0
"""A rank 0 that is done sooner has left the writing to others: their time is known once all have saved."""
LEAD_LIMIT_S = 65535
"""sbatch(1), --signal: sig_time must be between 0 and 65535."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about the time left.

    Attributes:
        action: GO_ON, ASK (the scheduler, before anything is done), or STOP.
        need_s: how much time must be left.
        why: a sentence for people; empty when there is no reason to stop.
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
    """Say whether the training must stop for its time limit, and why. Pure. All times in seconds.

    Args:
        left_s: the time left; None when nobody knows, infinite without a limit.
        step_s: the slowest recent step; None before the first one: then only a save has to fit, because the start-up
            does not come again and may well be followed by hours of short steps.
        save_s: the slowest recent save; None before the first one: then `first_save_s` stands for it.
        in_flight_s: how much longer a save in flight may take.
        is_fresh: whether the end was confirmed just now, or there is nobody to confirm it.
        asking_s: for how long the present question has waited for its answer.
        what: what ends the training, for people.
    """
    save = first_save_s if save_s is None else save_s
    bare = save + (step_s or 0.0) + in_flight_s
    need = safety * bare + margin_s
    if left_s is None or left_s >= need + ASK_EARLY_S:
        return Verdict(GO_ON, need)
    patience = PATIENCE_S if left_s < bare else DEADLINE_S + GRACE_S
    if not is_fresh and asking_s < patience:
        return Verdict(ASK, need)
    if left_s >= need:
        return Verdict(GO_ON, need)
    when = f"is in {format_duration(left_s)}" if left_s >= 1 else f"was {format_duration(round(-left_s))} ago"
    step = "no step is done yet" if step_s is None else f"a step takes up to {_about(step_s)}"
    saving = f"a save {_about(save)}"
    if save_s is None:
        saving = f"a save is taken to last {_about(save)} because none was measured yet (first_save_s)"
    if in_flight_s:
        saving += f", one in flight {_about(in_flight_s)} more"
    needed = f"{safety:g} times that and {format_duration(margin_s)} more are {format_duration(round(need))}"
    return Verdict(STOP, need, f"{what} {when}: {step}, {saving}; {needed}")


class Walltime(BuiltInTrigger):
    """Asks for a save and a stop in time before the job's end. Asked about every second; never blocks."""

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
        self._told_lead_s = 0
        cap = find_stop_time(place, environ, settings.stop_after, wall())
        no_end = None if settings.walltime else EndTime(None, None, 0.0, cap)
        every_s = settings.walltime_ask_s if asks else 0.0
        self._end = end_time or no_end or find_end_time(place, environ, every_s, cap)
        self._forget_stale_end(wall())
        if self._end.cap != NO_LIMIT:
            place.end_time = self._end.end
        self._told_end = self._end.end
        self._asking_since: float | None = None
        self._looking_since: float | None = None
        self._has_fitted = False
        self._clock = JobClock(wall, steady or steady_clock)
        self._asked_for: float | None = None
        self._obeyed_for: float | None = None

    def poll(self) -> Request | None:
        """Look at the clock, and ask for a stop if it is time."""
        now, time_now = self._clock.look()
        self._end.refresh(now)
        self._tell_change(time_now)
        end = self._end.end
        if self._clock.was_set:
            self._recorder.event("clock_set", seconds=round(self._clock.was_set, 3))
            self._recorder.warn(
                f"the clock of this node was set by {self._clock.was_set:+.0f} s; the end of the job is judged anew",
                key="clock",
            )
            self._end.query(now)
        if end is None or end == NO_LIMIT:
            return None
        left_s = end - time_now
        self._fit(left_s)
        step_s, save_s = self._timer.slowest_step_s, self._timer.slowest_save_s
        verdict = self._decide(now, left_s, step_s, save_s)
        if self._looking_since is None:
            self._looking_since = now
        if save_s is not None or now - self._looking_since >= LEARNED_S:
            self._warn(left_s, step_s, save_s, verdict)
        if verdict.action == ASK:
            self._end.query(now)
        if verdict.action != STOP or (self._obeyed_for is not None and end <= self._obeyed_for):
            return None
        self._asked_for = end
        return Request(self.name, verdict.why)

    def done(self, outcome: str) -> None:
        """The stop was obeyed: there is nothing more to ask for, unless the limit is extended."""
        self._obeyed_for = self._asked_for

    def _forget_stale_end(self, time_now: float) -> None:
        """A variable that outlived its job, in a shell or a container, says nothing about this training."""
        end = self._end.end
        if end is not None and end < time_now - STALE_S:
            if self._end.cap == end:
                self._end.cap = NO_LIMIT
            self._end.update(None)
            self._place.end_time = None
            self._recorder.warn(
                f"the environment says that the job ended {format_duration(round(time_now - end))} ago (RESIL_END_TIME "
                "or SLURM_JOB_END_TIME): that is passed over"
            )

    def _fit(self, left_s: float) -> None:
        """Once: doubt what earlier jobs have measured if this one would have to stop at once because of it.

        One save that took long, or a job that is shorter than those before, would stop every attempt as it begins.
        """
        timer, settings = self._timer, self._settings
        if self._has_fitted or not timer.is_restored:
            return
        self._has_fitted = True
        learned_s = (timer.slowest_save_s or 0.0) + timer.slowest_known_step_s
        need_s = settings.walltime_safety * learned_s + settings.walltime_margin_s
        if left_s < need_s:
            timer.doubt()
            why = f"{format_duration(round(need_s))} for the slowest step and save, and the job ends in "
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
            asking_s=0.0 if self._asking_since is None else now - self._asking_since,
            what="the attempt's end by stop_after" if is_cap else "the job's time limit",
        )
        if verdict.action != ASK:
            self._asking_since = None
        elif self._asking_since is None:
            self._asking_since = now
        return verdict

    def _tell_change(self, time_now: float) -> None:
        before, end = self._told_end, self._end.end
        if end is None or end == before or (before is not None and abs(end - before) < 2.0):
            return
        self._told_end = end
        self._place.end_time = None if end == NO_LIMIT else end  # who forecasts by it, and who forces the exit
        self._recorder.event("end_time", end=None if end == NO_LIMIT else round(end, 3))
        if end == NO_LIMIT:
            if before is not None:
                self._recorder.say("the job has no time limit any more")
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
                    f"no save was measured yet, and the job ends in {format_duration(max(0, round(left_s)))}: one is "
                    f"taken to last {_about(self._settings.first_save_s)} (first_save_s in [guard])",
                    key="first_save",
                )
        elif step_s is not None:
            self._warn_of_lead(step_s, save_s)

    def _warn_of_lead(self, step_s: float, save_s: float) -> None:
        """Once, and again if the lead that was named then is too short as well: slower ranks tell their saves later."""
        safety = self._settings.walltime_safety
        wanted = safety * (step_s + save_s)
        is_only_ours = self._place.world > 1 and save_s < NO_SAVE_S
        if not 0 < self._lead_s < (safety * step_s if is_only_ours else wanted) or wanted <= self._told_lead_s:
            return
        self._told_lead_s = lead_for(wanted)
        self._recorder.warn(
            f"the signal comes {self._lead_s:g} s before the end, but a step takes up to {_about(step_s)} and a save "
            f"{_about(save_s)}, {self._settings.walltime_safety:g} times that are {format_duration(round(wanted))}: "
            f"set signal_lead_s = {self._told_lead_s} in [submit] of resil.toml. Until then the guard's clock alone "
            "is in time",
            key=f"lead {self._told_lead_s}",
        )


def lead_for(wanted_s: float) -> int:
    """Given how much time must be left, return a lead for --signal: a quarter more, in whole minutes, or five of them.

    For instance, 615 s give 900. Never more than sbatch takes.
    """
    rough = wanted_s * 1.25
    grain = 60 if rough <= 300 else 300
    return min(math.ceil(rough / grain) * grain, LEAD_LIMIT_S)


class JobClock:
    """The time of day, except that a clock that was set is not believed at once.

    A node's clock may be set (by hand, by NTP) by hours; the end of the job is told in the controller's time. For a
    while the time is counted on from before, so that the scheduler can be asked again and a mistake be mended; then
    the clock is believed, because most clocks are set to be right.

    Attributes:
        was_set: by how many seconds the clock was set since the last look; 0 nearly always.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._offset_s = wall() - steady()
        self._set_at: float | None = None
        self.was_set = 0.0

    def look(self) -> tuple[float, float]:
        """Return the steady time, and the time of day to go by, both in seconds."""
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
    """Seconds that nobody can set, the time in which the machine slept included (CLOCK_BOOTTIME, clock_gettime(2))."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _about(seconds: float) -> str:
    """A measured time for people: no false precision."""
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds))
