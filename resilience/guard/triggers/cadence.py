"""Requests saves at the interval of the setting `every`, on rank 0: all ranks save after the same step.

`500 steps`: exactly at multiples of the step count. `30 min` and `auto`: so long after the last save began, whoever
requested that one, or after the training has begun or resumed: no save follows right after a resume. `auto` decides
the interval by resilience/cadence.py, from measured saves (of earlier jobs, too) and the failures of the run.
"""

from __future__ import annotations

import collections
import itertools
import math
import os
import time

from resilience import layout
from resilience.base.background import BackgroundCall
from resilience.base.files import read_regular
from resilience.base.processes import start_ticks
from resilience.cadence import Cadence, Costs, Every, Past, decide, mtbf_of_run, parse_every
from resilience.guard.decision import EXIT_DONE, EXIT_STOPPED, FAILED, OBEYED, SKIPPED, BuiltInTrigger, Request
from resilience.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer

AHEAD_S = 2.0
"""A multiple is requested this long before it, and at least a step: two polls, so that every rank learns of it in time.
Not longer, because a stop that is requested meanwhile waits for that step."""
RETRY_S = 60.0
"""How long after a failed save the next is requested."""
SKIPPED_S = 10.0
"""How long after a request that was skipped because another save was in flight."""
DECIDE_S = 60.0
"""The interval of `auto` is decided anew so often, and after each save."""
SAMPLES = 32
"""So many recent movements of the training give the duration of a step: half a minute of short steps."""
MOST_ATTEMPTS = 200
"""The newest attempts of a run whose ends are read: two small files each."""
PLANNED = ("finished", "stopped", "superseded")
"""Ends of an attempt that are no failure (docs/reference/run-directory.md)."""


class CadenceTrigger(BuiltInTrigger):
    """Requests a save without a stop when one is due. Polled about every second; never blocks."""

    name = "cadence"
    ranks = "first"

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        timer: StepTimer,
        gate: Gate,
        *,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._settings, self._recorder = place, settings, recorder
        self._timer, self._gate, self._steady = timer, gate, steady
        self._every: Every = parse_every(settings.every)
        self._begun = self._since = steady()
        self._samples: collections.deque[tuple[float, int]] = collections.deque(maxlen=SAMPLES)
        self._restart_s: float | None = None
        self._learned_restart_s = 0.0
        self._history: BackgroundCall[list[Past]] | None = None
        self._attempts: list[Past] | None = None
        self._cadence: Cadence | None = None
        self._current_s: float | None = None
        self._decide_at = -math.inf
        self._not_before = -math.inf
        self._retry_at = math.inf

    def poll(self) -> Request | None:
        """Return a request for a save that is due, or nearly so in steps."""
        now, step = self._steady(), self._gate.count
        if self._every.is_auto and self._history is None:
            self._history = BackgroundCall(
                lambda: read_past(self._place.run_dir, self._place.attempt), "resil-cadence"
            ).start()
        if self._timer.is_starting:
            self._since = now
            self._samples.clear()
        elif self._restart_s is None:
            self._restart_s = process_age_s()
        if not self._samples or self._samples[-1][1] != step:
            self._samples.append((now, step))
        return self._at_multiple(step, now) if self._every.steps else self._at_time(now)

    def done(self, outcome: str) -> None:
        """Retry a failed save before its time; a skipped one when the save in flight may be over."""
        now = self._steady()
        self._decide_at = -math.inf
        self._retry_at = now + RETRY_S if outcome == FAILED else math.inf
        if outcome == SKIPPED:
            self._not_before = now + SKIPPED_S
        elif outcome == OBEYED:  # saved outside of `guard.saving()`, which would have said when
            self._since = now

    def learned(self, now: float) -> dict[str, Any]:
        """Return what `resil ckpt plan` and the next job use, in JSON types."""
        times = self._step_times()
        found = {
            "restart_s": self._restart_s or self._learned_restart_s,
            "step_s": times[len(times) // 2] if times else 0,
        }
        if self._cadence is not None and self._cadence.bound != "unmeasured":
            found["interval_s"] = self._cadence.interval_s
        return {name: round(seconds, 4) for name, seconds in found.items() if seconds}

    def restore(self, learned: Mapping[str, Any], now: float) -> None:
        """Use the interval of an earlier job until a better one differs clearly. Raise ValueError or TypeError."""
        seconds = {name: float(learned.get(name, 0.0)) for name in ("restart_s", "interval_s")}
        if not all(0 <= one < math.inf for one in seconds.values()):
            raise ValueError("not a time")
        self._learned_restart_s, self._current_s = seconds["restart_s"], seconds["interval_s"] or None

    # ---- steps --------------------------------------------------------------------------------------------------

    def _at_multiple(self, step: int, now: float) -> Request | None:
        if now >= self._retry_at:
            return Request(self.name, "the last save failed", stop=False)
        every, times = self._every.steps, self._step_times()
        multiple = (step // every + 1) * every
        ahead = math.ceil(AHEAD_S / times[0]) if times else 2
        if multiple - step > ahead:
            return None
        return Request(self.name, f"a save is due each {every:,} steps", stop=False, at=multiple)

    def _step_times(self) -> list[float]:
        """Return recent durations of a step, the shortest first; one may contain a save."""
        pairs = itertools.pairwise(tuple(self._samples))
        return sorted((later - earlier) / (m - n) for (earlier, n), (later, m) in pairs if m > n)

    # ---- time ---------------------------------------------------------------------------------------------------

    def _at_time(self, now: float) -> Request | None:
        if now >= self._decide_at:
            self._decide_at = now + DECIDE_S
            self._decide(now)
        assert self._cadence is not None
        began = max(self._since, self._timer.last_save_began)
        passed_s, interval_s = now - began, self._cadence.interval_s
        is_retry = now >= self._retry_at
        is_due = (passed_s >= interval_s or is_retry) and now >= self._not_before
        if not is_due or self._timer.is_starting or self._timer.is_saving:
            return None
        what = (
            "the training" if began == self._since else "the last save, which failed," if is_retry else "the last save"
        )
        text = f"{what} began {format_duration(round(passed_s))} ago"
        return Request(self.name, f"{text}, and one is due every {format_duration(round(interval_s))}", stop=False)

    def _decide(self, now: float) -> None:
        """Decide the interval; record a change, with the reason."""
        cadence = self._auto(now) if self._every.is_auto else _fixed(self._every.seconds)
        before = self._cadence
        self._cadence = cadence
        if before is None or before.interval_s != cadence.interval_s:
            known = {} if before is None else {"before_s": round(before.interval_s, 3)}
            self._recorder.event(
                "cadence", interval_s=round(cadence.interval_s, 3), bound=cadence.bound, why=cadence.reason, **known
            )

    def _auto(self, now: float) -> Cadence:
        stall_s, durable_s = self._timer.usual_stall_s, self._timer.slowest_save_s
        costs = None
        restart_s = self._restart_s or self._learned_restart_s
        if stall_s is not None and durable_s is not None:
            in_flight = self._settings.saves_in_flight
            costs = Costs(stall_s=stall_s, durable_s=max(stall_s, durable_s), restart_s=restart_s, in_flight=in_flight)
        this = Past(seconds=now - self._begun, is_failure=False)
        mtbf = mtbf_of_run([*self._past(), this], restart_s)
        cadence = decide(costs, mtbf, redo_max_s=self._settings.redo_max, current_s=self._current_s)
        if costs is not None:
            self._current_s = cadence.interval_s
        return cadence

    def _past(self) -> list[Past]:
        if self._attempts is None and self._history is not None and self._history.is_over:
            try:
                self._attempts = self._history.result()
            except (OSError, ValueError) as error:
                self._attempts = []
                self._recorder.event("learned_dropped", what="failures", why=str(error)[:300])
        return self._attempts or []


def _fixed(seconds: float) -> Cadence:
    return Cadence(interval_s=seconds, steps=0, bound="every", reason=f"every = {format_duration(seconds)}")


def process_age_s() -> float:
    """Return for how long this process has run: from its first step on, what a restart costs."""
    ticks = start_ticks(os.getpid())
    began_s = 0.0 if ticks is None else ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s) if ticks else 0.0


# ---- earlier attempts -----------------------------------------------------------------------------------------------


def read_past(run_dir: str, attempt: int) -> list[Past]:
    """Return how the attempts before `attempt` ended: the newest, oldest first. Raise OSError.

    An attempt without a recorded end was lost; its last heartbeat tells when. One that was not launched is left out.
    """
    if not run_dir or not attempt:
        return []
    folder = os.path.join(run_dir, layout.ATTEMPTS)
    names = (name for name in os.listdir(folder) if len(name) >= 4 and name.isascii() and name.isdecimal())
    numbers = sorted(number for number in map(int, names) if number < attempt)
    found = (_read_attempt(folder, number) for number in numbers[-MOST_ATTEMPTS:])
    return [past for past in found if past is not None]


def _read_attempt(folder: str, number: int) -> Past | None:
    start = _fields(os.path.join(folder, layout.attempt_file(number)))
    end = _fields(os.path.join(folder, layout.attempt_end_file(number)))
    if end.get("launched") == "False":
        return None
    try:
        began = float(start["start"])
        if end.get("end", "lost") == "lost":  # `time` of a later one is when that was noticed
            ended = os.stat(os.path.join(folder, layout.attempt_beat_file(number))).st_mtime
        else:
            ended = float(end["time"])
    except (KeyError, ValueError, FileNotFoundError):
        ended = began = 0.0
    codes = (str(EXIT_DONE), str(EXIT_STOPPED))
    is_failure = end.get("end", "") not in PLANNED and end.get("exit_code", "") not in codes
    return Past(seconds=max(0.0, ended - began), is_failure=is_failure)


def _fields(path: str) -> dict[str, str]:
    """Return the fields of a file of the batch shell; none without a file."""
    from resilience.switch import parse_fields

    found = read_regular(path)
    return {} if found is None else parse_fields(found[0])
