"""The memory of the node and of the job's cgroups: stop before the OOM killer acts, and warn early of a leak.

`judge` and `plan` are pure; `MemoryLimits` reads, `History` stores.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from resilience.guard.decision import BuiltInTrigger, Request
from resilience.guard.memory.forecast import KEPT, SAVE_SAMPLES, History, RecentUse, Sample, SaveMemory, Trend, rush
from resilience.guard.memory.limits import FAMILY, NODE, MemoryLimits, Reading
from resilience.quantities import format_bytes, format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer

FORECAST_S = 10.0
"""How often the slope is fitted: about 1 ms for each limit with rising use, of which there are one to four."""
READ_EVERY_S = 5.0
"""How often the use is recorded: the first forecast is possible after one minute of training."""
MARGIN_S = 10.0
"""Additional allowance for the error of a forecast."""
SAVES = 2.0
"""This many of the slowest saves must fit into the time until the limit."""
GAPS_KEPT = 3
GAPS = 1.25
"""The next save is expected within this multiple of the longest recent interval between saves."""
NEAR_PERCENT = 80.0
"""Below this no forecast requests a save: loading a data set rises as steadily as a leak, but ends. A rise over seconds
may request one as soon as a save was measured, because the training is then well past its start-up."""
SAFETY = 1.25
"""The slowest recent step and save, times this, must fit into the time that a rise over seconds leaves. Both are
maxima, and step times are overestimated rather than underestimated."""
POLLS = 10.0
"""This many polls fit into the time until the limit, so that several see the rise while a save is still possible."""
SHARED_PART = 0.2
"""Shared memory is reported from this fraction of the use on."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A limit that will be reached.

    Attributes:
        per_s: bytes more each second.
        limit_in_s: when no memory is left.
        stop_in_s: when the guard would stop, by percent or bytes left.
        is_learned: whether the previous job measured this rise.
    """

    reading: Reading
    per_s: float
    limit_in_s: float
    stop_in_s: float
    is_learned: bool = False


def stop_level(limit_bytes: int, percent: float, free_bytes: int) -> float:
    """Return the used bytes at which the guard stops: the percentage, or all but the reserve, whichever is less."""
    return min(limit_bytes * percent / 100.0, float(limit_bytes - free_bytes) if free_bytes else float(limit_bytes))


def judge(
    readings: Iterable[Reading], *, percent: float, free_bytes: int, host: str, save_bytes: int = 0
) -> str | None:
    """Given all limits with their use, return the reason to stop as a sentence, or None.

    Each limit is compared with its own use, and the fullest is named: the kernel kills at the first limit reached.
    The memory that a save needs (`save_bytes`) must stay free as well.
    """
    least = max(free_bytes, save_bytes)
    full = [one for one in readings if one.used_bytes >= stop_level(one.limit_bytes, percent, least)]
    if not full:
        return None
    worst = max(full, key=lambda one: one.percent)
    shared = ""
    if worst.shared_bytes >= SHARED_PART * worst.used_bytes > 0:
        shared = f", {format_bytes(worst.shared_bytes)} of it in /dev/shm and other shared memory"
    if worst.percent >= percent:
        return f"the memory of {host} is at {worst.percent:.1f} % of {allowance(worst)}{shared}"
    left = f"has {format_bytes(worst.free_bytes)} left of {allowance(worst)}{shared}"
    purpose = "that must stay free" if free_bytes >= save_bytes else "that a save needs"
    return f"the memory of {host} {left}: less than the {format_bytes(least)} {purpose}"


def allowance(reading: Reading) -> str:
    """Return the limit and its owner as text: `its 24.0 GiB`, `the 200 MiB that the job's cgroup /job_12 allows`."""
    amount = format_bytes(reading.limit_bytes)
    if reading.owner == NODE:
        return f"its {amount}"
    if reading.owner == FAMILY:
        return f"its {amount}, used by this training alone"
    return f"the {amount} that {reading.owner} allows"


def plan(
    forecast: Forecast,
    *,
    end_in_s: float | None,
    saved_now: bool,
    next_save_s: float | None,
    save_s: float,
) -> str:
    """Given a forecast, return the action: `wait`, `stop` (a save was just made), or `save` (and stop).

    Wait if the job ends before the limit is reached, or if its end is unknown: then only the level stops. Otherwise
    continue as long as another regular save fits, and stop right after the last one that does: no extra save is made,
    and only the steps done until the thread woken by that save has polled are lost. If the limit is near and a save
    barely fits, save now.

    Args:
        end_in_s: time left to the job; None for unknown or never.
        saved_now: whether a save has just completed.
        next_save_s: when the next save is expected to complete, judging by recent ones; None if unknown.
        save_s: how long the slowest save takes.
    """
    if end_in_s is None or forecast.limit_in_s >= end_in_s:
        return "wait"
    if saved_now and next_save_s is not None and forecast.stop_in_s <= next_save_s:
        return "stop"
    is_near = forecast.reading.percent >= NEAR_PERCENT
    return "save" if is_near and forecast.limit_in_s <= SAVES * save_s + MARGIN_S else "wait"


def describe(forecast: Forecast, host: str) -> str:
    """Return the forecast as a sentence without a full stop."""
    rate = format_bytes(forecast.per_s * 3600)
    grows = (
        f"grew by {rate} per hour in the previous job: at that rate,"
        if forecast.is_learned
        else f"grows by {rate} per hour:"
    )
    return (
        f"the memory of {host} {grows} {allowance(forecast.reading)} will be used up, "
        f"limit reached in about {about(forecast.limit_in_s)}"
    )


def about(seconds: float) -> str:
    """Return a duration as text, as precise as a forecast is: 12,044 s are `3 h 20 min`."""
    step = 600 if seconds >= 3 * 3600 else 60 if seconds >= 600 else 10
    return format_duration(max(1, round(seconds / step)) * step)


class HostMemory(BuiltInTrigger):
    """Requests a save and a stop before a memory limit is reached. Runs on one rank of each node.

    Attributes:
        look_again_s: in how many seconds the guard must poll again; None for the usual interval.
    """

    name = "host_memory"
    ranks = "node"

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        timer: StepTimer,
        *,
        root: str = "/",
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._timer = timer
        self._clock = clock
        self._wall_clock = wall_clock
        self._limits = MemoryLimits(root)
        self._histories: dict[tuple[str, int], History] = {}
        self._recent: dict[tuple[str, int], RecentUse] = {}
        self._save = SaveMemory()
        self._forecast_at = float("-inf")
        self._reported_s: float | None = None
        self._restored: tuple[Trend | None, list[float], list[int]] | None = None
        self._learned_trend: Trend | None = None  # of the previous job
        self._nearest_trend: Trend | None = None
        self._gaps_s: list[float] = []
        self._last_save = clock()
        self._has_saved = False

    def poll(self) -> Request | None:
        """Read all limits; return a request if memory is running out."""
        now, saved_now = self._clock(), self._has_saved
        self._has_saved = False
        self._take_restored()
        # Memory grows during start-up: readings before the first step say nothing about a leak.
        wants_forecast = self._settings.host_memory_forecast and self._timer.slowest_step_s is not None
        due = wants_forecast and (not self._histories or any(one.is_due(now) for one in self._histories.values()))
        forecast_due = wants_forecast and (saved_now or now >= self._forecast_at)
        is_up_to_date = saved_now and not self._save.is_in_flight  # else steps were done since the save began
        self.look_again_s = None
        readings = self._limits.read(now)
        if not readings:
            self._recorder.warn(f"cannot read the memory of {self._place.host}: it is not watched", key=self.name)
            return None
        if self._watch_save(readings[0], now):
            return None  # no step ends before the save does, and a stop after it may need no further save
        percent, free_bytes = self._settings.host_memory_percent, self._settings.host_memory_free_bytes
        host, save_bytes = self._place.host, self._save.bytes
        rush_why = self._watch_rise(readings, now)
        why = judge(readings, percent=percent, free_bytes=free_bytes, host=host, save_bytes=save_bytes) or rush_why
        if why is not None and is_up_to_date:
            return Request(self.name, f"{why}; the last save has just completed", save=False)
        if rush_why is not None and self._save.is_in_flight:  # no time to wait for it and make another one
            return Request(self.name, f"{rush_why}; the save in flight is the last one", save=False)
        if why is not None:
            return Request(self.name, why)
        if due:
            self._record(readings, now)
        if forecast_due:
            self._forecast_at = now + FORECAST_S
            return self._check_forecast(readings, now, saved_now)
        return None

    def saved(self, step: int) -> None:
        """Note that a checkpoint was just written. Called by the training thread."""
        now = self._clock()
        self._gaps_s = [*self._gaps_s, now - self._last_save][-GAPS_KEPT:]
        self._last_save = now
        self._has_saved = True

    def learned(self, now: float) -> dict[str, Any]:
        """Return the measurements to keep for the next job, in JSON types.

        `trend` of the nearest limit (bytes per second, for how many seconds), `gaps_s` between saves, `save_bytes` that
        recent saves needed.
        """
        self._take_restored()
        trend = self._nearest_trend or self._learned_trend
        return {
            "trend": None if trend is None else [round(trend.per_s, 3), round(trend.span_s, 1)],
            "gaps_s": [round(gap, 3) for gap in self._gaps_s],
            "save_bytes": self._save.learned(),
        }

    def restore(self, learned: Mapping[str, Any], now: float) -> None:
        """Use the measurements of an earlier job until this one has its own. From any thread.

        Raise ValueError, TypeError or KeyError if they are malformed.
        """
        trend = None
        if learned["trend"] is not None:
            (per_s, span_s) = map(float, learned["trend"])
            trend = Trend(per_s, 0.0, now, span_s)
        gaps, needs = [float(gap) for gap in learned["gaps_s"]], [int(need) for need in learned["save_bytes"]]
        rises = () if trend is None else (trend.per_s, trend.span_s)
        if not all(0 <= number < math.inf for number in (*rises, *gaps, *needs)) or 0 in rises:
            raise ValueError("not a rise, a time or a size")
        self._restored = trend, gaps, needs

    def _stop_level(self, limit_bytes: int) -> float:
        least = max(self._settings.host_memory_free_bytes, self._save.bytes)
        return stop_level(limit_bytes, self._settings.host_memory_percent, least)

    def _watch_save(self, nearest: Reading, now: float) -> bool:
        """Measure how much memory a save needs, and return whether the training waits for one.

        Measured at the nearest limit: other processes are charged to the cgroups above and to the node as well.
        """
        is_saving, was_measuring = self._timer.is_saving, self._save.is_measuring
        self._save.sample(now, nearest.used_bytes, is_saving=is_saving, is_in_flight=self._timer.is_in_flight)
        if was_measuring and not self._save.is_measuring:
            for recent in self._recent.values():
                recent.drop_inexact()  # the memory held by the save is free again
        if self._save.since is not None and nearest.owner != FAMILY:
            self.look_again_s = (now - self._save.since) / SAVE_SAMPLES
        return is_saving

    def _watch_rise(self, readings: list[Reading], now: float) -> str | None:
        """Return why to stop if the rise of the last seconds barely leaves time for a save; else schedule a poll."""
        step_s, save_s = self._timer.slowest_step_s, self._timer.slowest_save_s
        if not self._settings.host_memory_forecast or step_s is None:
            self._recent = {}
            return None
        need_s = SAFETY * (step_s + (save_s or 0.0) + self._timer.in_flight_s(now, 0.0))
        fills_in_s = float("inf")
        for reading in readings:
            if reading.owner == FAMILY:
                continue  # expensive to read
            recent = self._recent.setdefault(reading.key, RecentUse())
            recent.add(Sample(now, reading.used_bytes, is_exact=not self._save.is_measuring), KEPT * need_s)
            room_bytes = reading.free_bytes - self._save.bytes
            fills_in_s = min(fills_in_s, recent.fills_in_s(room_bytes))
            if save_s is not None or reading.percent >= NEAR_PERCENT:
                left_s = rush(recent.samples, room_bytes=room_bytes, need_s=need_s, known_bytes=recent.known_bytes)
                if left_s is not None:
                    return (
                        f"the memory of {self._place.host} grows so fast that {allowance(reading)} will be used up in "
                        f"{left_s:.1f} s, barely enough for a save"
                    )
        if fills_in_s < 2 * need_s:
            self.look_again_s = fills_in_s / POLLS
        return None

    def _take_restored(self) -> None:
        restored, self._restored = self._restored, None
        if restored is not None:
            self._learned_trend, gaps, needs = restored
            self._gaps_s = [*gaps, *self._gaps_s][-GAPS_KEPT:]
            self._save.restore(needs)

    def _record(self, readings: list[Reading], now: float) -> None:
        for reading in readings:
            self._histories.setdefault(reading.key, History(READ_EVERY_S)).add(now, float(reading.used_bytes))
        known = {reading.key for reading in readings}
        self._histories = {key: history for key, history in self._histories.items() if key in known}

    def _check_forecast(self, readings: list[Reading], now: float, saved_now: bool) -> Request | None:
        forecast = self._forecast(readings, now)
        if forecast is None:
            return None
        end = self._place.end_time
        end_in_s = None if end is None else end - self._wall_clock()
        if end_in_s is not None and forecast.limit_in_s >= end_in_s:
            return None
        measured_s = self._timer.slowest_save_s
        save_s = self._settings.first_save_s if measured_s is None else measured_s
        next_save_s = GAPS * max(self._gaps_s) + save_s if self._gaps_s else None
        then = plan(forecast, end_in_s=end_in_s, saved_now=saved_now, next_save_s=next_save_s, save_s=save_s)
        text = describe(forecast, self._place.host)
        if then == "stop":
            text += ", before another save; the last one has just completed"
            return Request(self.name, text, save=False)
        if then == "save":
            return Request(self.name, f"{text}, barely enough for a save")
        # Warn at first, and again each time that half of the remaining time has passed.
        if self._reported_s is None or forecast.limit_in_s < self._reported_s / 2:
            self._reported_s = forecast.limit_in_s
            self._recorder.warn(text + (", before the end of the job" if end_in_s is not None else ""))
        return None

    def _forecast(self, readings: list[Reading], now: float) -> Forecast | None:
        """Return the forecast for the limit that will be reached first, or None."""
        found = []
        for reading in readings:
            trend = self._trend(reading, now, is_nearest=reading is readings[0])
            if trend is None:
                continue
            limit_in_s = trend.reaches_in_s(float(reading.limit_bytes - self._save.bytes), now)
            stop_in_s = trend.reaches_in_s(self._stop_level(reading.limit_bytes), now)
            if limit_in_s is not None and stop_in_s is not None:
                found.append(Forecast(reading, trend.per_s, limit_in_s, stop_in_s, trend is self._learned_trend))
        return min(found, key=lambda forecast: forecast.limit_in_s, default=None)

    def _trend(self, reading: Reading, now: float, *, is_nearest: bool) -> Trend | None:
        """Return the trend of a limit. For the nearest one, the previous job's trend counts while it fits."""
        history = self._histories.get(reading.key)
        trend = history.trend() if history is not None else None
        if not is_nearest:
            return trend
        self._nearest_trend = trend
        before, slope = self._learned_trend, None if history is None else history.slope
        if before is None:
            return trend
        if slope is None:
            self._learned_trend = replace(before, level=float(reading.used_bytes), at=now)
            return self._learned_trend
        if not before.is_like(slope):
            rates = [format_bytes(max(0.0, per_s) * 3600) for per_s in (before.per_s, slope)]
            why = f"the memory grew by {rates[0]} per hour before, and now grows by {rates[1]}"
            self._recorder.event("learned_dropped", what=self.name, why=why)
            self._learned_trend = None
            return trend
        return None if trend is None else replace(trend, span_s=max(trend.span_s, before.span_s))
