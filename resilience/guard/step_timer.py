"""Durations of steps and saves, sampled by a thread: `step()` reads no clock. Pure.

A thread samples the training's position about once a second. A *gap* is a time in which the training could not have
stopped: a step, or an evaluation without polls. It starts at the last sample *before* the position moved and ends at
the sample at which the position has moved again, minus the saves in between. So a gap is never shorter than the real
one, and at most two sample periods longer, even if many steps pass between two samples.

A gap is remembered for 200 times its own length, so that a recurring one, such as an evaluation, is not forgotten in
between: a minute for 3 h 20 min, which covers evaluations that take 0.5 % of the time or more. At least one hour, for
rare slow steps of a fast training, and at most one day.

Not counted:
  * start-up: everything before the first step after the start or after `resumed()`. Compilation may take half an hour
    and does not recur; a job that reserved that time before its end would never train.
  * time in which the whole process was stopped (SIGSTOP, a frozen cgroup, a suspended machine). Two signs together
    show this: the sampling thread did not run either, and the process used no CPU time.
"""

from __future__ import annotations

import _thread
import collections
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REMEMBERED_TIMES = 200
"""A gap is remembered for this many times its own length."""
REMEMBERED_LEAST_S = 3600.0
REMEMBERED_MOST_S = 86400.0
SAVES = 20
"""The slowest of this many recent saves counts: enough to include a large save that is every tenth."""
ALIKE = 0.95
"""Of gaps that differ by less than this factor only one is kept, which bounds the memory to a few hundred numbers."""
UNSEEN_S = 5.0
"""A sample this late may mean that the process was stopped."""
IDLE_CPU_S = 0.02
IDLE_CPU_SHARE = 0.001
"""A process that used less CPU time than this (seconds, plus share of the elapsed time) was stopped."""


class StepTimer:
    """The slowest recent step, and the slowest recent save, in seconds. Thread-safe.

    Attributes:
        is_restored: whether durations of an earlier job were restored.
        last_save_began: when the training began to wait for the newest save (monotonic seconds); minus infinity before.
    """

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._gaps: collections.deque[tuple[float, float]] = collections.deque()
        """(seconds, forgotten at), the longest first; shorter ones count once the longer are forgotten."""
        self._saves: collections.deque[float] = collections.deque(maxlen=SAVES)
        self._stalls: collections.deque[float] = collections.deque(maxlen=SAVES)
        self._in_flight_since: float | None = None
        self._position: tuple[int, int] | None = None
        self._start_steps = 0
        self._is_starting = True
        self._began = 0.0  # the last sample before the position moved
        self._sampled = 0.0
        self._cpu_s: float | None = None
        self._left_out_s = 0.0  # finished saves, and stops
        self._left_out_then = 0.0  # the value of _left_out_s when the current gap began
        self._left_out_at_sample = 0.0
        self._save_began: float | None = None
        self.is_restored = False
        self.last_save_began = -math.inf

    def sample(self, now: float, position: tuple[int, int], cpu_s: float | None = None) -> None:
        """Take a sample: at `now` (monotonic seconds) the training is at `position` (steps, polls).

        `cpu_s` is the total CPU time of the process; without it a stopped process counts as a slow step.
        """
        with self._lock:
            before, self._position = self._position, position
            if before is None:
                self._start_steps = position[0]
                self._began = self._sampled = now
                self._left_out_then = self._left_out_at_sample = self._left_out(now)
                self._cpu_s = cpu_s
                return
            self._leave_out_stop(now, cpu_s)
            if position != before:
                self._moved(now, position)
            self._sampled = now
            self._left_out_at_sample = self._left_out(now)
            while self._gaps and self._gaps[0][1] <= now:
                self._gaps.popleft()

    def resumed(self) -> None:
        """Reset the position after a checkpoint was loaded: the time until the next step is start-up."""
        with self._lock:
            self._is_starting = True
            self._position = None

    def save_began(self, now: float) -> None:
        """Record the start of a save in the training thread, at `now` (monotonic seconds): not part of the step."""
        with self._lock:
            self._save_began = self.last_save_began = now

    @property
    def is_starting(self) -> bool:
        """Return whether no step has completed since the start, or since `resumed`."""
        return self._is_starting or self._position is None

    @property
    def is_saving(self) -> bool:
        """Return whether the training waits for a save."""
        return self._save_began is not None

    def was_saving(self, seconds: float) -> None:
        """Record the end of a save on this rank, successful or not: exclude its `seconds` from the current gap."""
        with self._lock:
            self._save_began = None
            self._left_out_s += seconds

    def stalled(self, seconds: float) -> None:
        """Record how long the training waited for a save on this rank."""
        with self._lock:
            self._stalls.append(seconds)

    def saved(self, seconds: float) -> None:
        """Record how long a save took until durable, on this rank or on the slowest one."""
        with self._lock:
            self._saves.append(seconds)

    def in_flight_since(self, began: float | None) -> None:
        """Set the start (monotonic seconds) of the asynchronous save in flight; None once it has ended."""
        with self._lock:
            self._in_flight_since = began

    @property
    def is_in_flight(self) -> bool:
        """Return whether an asynchronous save is in flight."""
        return self._in_flight_since is not None

    def in_flight_s(self, now: float, otherwise_s: float) -> float:
        """Return how much longer the save in flight may take, assuming the duration of the slowest one; `otherwise_s`
        if no save was measured yet. One that is late takes as long again as it is late, up to that duration. 0 if none
        is in flight."""
        with self._lock:
            if self._in_flight_since is None:
                return 0.0
            usual_s = max(self._saves, default=otherwise_s)
            late_s = now - self._in_flight_since - usual_s
            return -late_s if late_s < 0 else min(late_s, usual_s)

    @property
    def slowest_step_s(self) -> float | None:
        """Return the slowest recent gap, including the current unfinished one; None before the first step."""
        with self._lock:
            if self.is_starting:
                return None
            unfinished = self._gap(self._sampled)
            return max(unfinished, self._gaps[0][0]) if self._gaps else unfinished

    @property
    def slowest_known_step_s(self) -> float:
        """Return the slowest remembered gap, also before the first step of this job; 0 if there is none."""
        with self._lock:
            return self._gaps[0][0] if self._gaps else 0.0

    @property
    def slowest_save_s(self) -> float | None:
        """Return the time until durable of the slowest recent save; None if no save was measured yet."""
        with self._lock:
            return max(self._saves, default=None)

    @property
    def slowest_stall_s(self) -> float | None:
        """Return the longest recent wait of the training for a save; None if no save was measured yet."""
        with self._lock:
            return max(self._stalls, default=None)

    @property
    def usual_stall_s(self) -> float | None:
        """Return the median of the recent waits of the training for a save; None if no save was measured yet."""
        with self._lock:
            return sorted(self._stalls)[len(self._stalls) // 2] if self._stalls else None

    def learned(self, now: float) -> dict[str, list[Any]]:
        """Return the durations remembered at `now`, in JSON types, for `restore` in another process."""
        with self._lock:
            return {
                "gaps": [[round(gap, 3), round(until - now, 1)] for gap, until in self._gaps if until > now],
                "saves": [round(seconds, 3) for seconds in self._saves],
                "stalls": [round(seconds, 3) for seconds in self._stalls],
            }

    def restore(self, learned: Mapping[str, Any], now: float) -> None:
        """Restore the durations of an earlier job. Raise ValueError, TypeError or KeyError if they are invalid."""
        gaps = [(float(gap), min(float(left_s), REMEMBERED_MOST_S)) for gap, left_s in learned["gaps"]]
        times = [[float(seconds) for seconds in learned[name]] for name in ("saves", "stalls")]
        if not all(0 <= number < math.inf for row in (*gaps, *times) for number in row):
            raise ValueError("not a time")
        with self._lock:
            self.is_restored = True
            known = sorted([*self._gaps, *((gap, now + left_s) for gap, left_s in gaps)], reverse=True)
            self._gaps.clear()
            for gap, until in known:  # a shorter one matters only if it is remembered for longer
                if not self._gaps or until > self._gaps[-1][1]:
                    self._gaps.append((gap, until))
            for kept, before in ((self._saves, times[0]), (self._stalls, times[1])):
                kept.extendleft(reversed(before[max(0, len(before) + len(kept) - SAVES) :]))

    def doubt(self) -> None:
        """Discard the restored steps and all saves but the newest: with them, this job has no time to train."""
        with self._lock:
            self._gaps.clear()
            for kept in (self._saves, self._stalls):
                while len(kept) > 1:
                    kept.popleft()

    def _moved(self, now: float, position: tuple[int, int]) -> None:
        if self._is_starting:
            self._is_starting = position[0] <= self._start_steps
        else:
            self._remember(self._gap(now), now)
        # The next gap began after the last sample before this movement.
        self._began = self._sampled
        self._left_out_then = self._left_out_at_sample

    def _gap(self, now: float) -> float:
        return max(0.0, now - self._began - (self._left_out(now) - self._left_out_then))

    def _left_out(self, now: float) -> float:
        """Return the excluded time up to now, including the unfinished save."""
        return self._left_out_s + (max(0.0, now - self._save_began) if self._save_began is not None else 0.0)

    def _remember(self, gap: float, now: float) -> None:
        until = now + min(max(gap * REMEMBERED_TIMES, REMEMBERED_LEAST_S), REMEMBERED_MOST_S)
        while self._gaps and self._gaps[-1][0] * ALIKE <= gap:
            # Nearly equal: merge. Shorter: forgotten earlier than this one, so never needed.
            longer, later = self._gaps.pop()
            gap, until = max(gap, longer), max(until, later)
        if not self._gaps or self._gaps[-1][1] < until:
            self._gaps.append((gap, until))

    def _leave_out_stop(self, now: float, cpu_s: float | None) -> None:
        used = None if cpu_s is None or self._cpu_s is None else cpu_s - self._cpu_s
        self._cpu_s = cpu_s
        unseen = now - self._sampled
        saving = self._save_began is not None
        if used is None or unseen < UNSEEN_S or used > IDLE_CPU_S + IDLE_CPU_SHARE * unseen or saving:
            return
        self._left_out_s += unseen
