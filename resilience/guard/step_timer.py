"""How long the training's steps and saves take, seen from outside: no clock is read in a step. Pure.

A thread samples the training's position about once a second. A *gap* is the time in which the training could not have
stopped: a step, or an evaluation that does not poll. It is counted from the last sample *before* the position moved,
to the sample that saw it move again, with the saves in it taken out. So it is never shorter than the true one, and at
most two sample periods longer, also where many steps pass between two samples.

How long a gap is remembered. A gap that comes back now and then, say an evaluation, must not be forgotten in between:
who spends a minute in each evaluation spends 0.5 % of the time or more there, else nobody would mind its length. So a
gap is remembered for 200 times its own length: a minute for 3 h 20 min. It is one hour at least, which covers rare
slow steps of a fast training, and one day at most.

What is not counted:
  * start-up: everything before the first step after the start or after `resumed()`. Compilation may take half an hour
    and does not come again; a job that gave it room before the end would never train.
  * time in which this whole process was stopped (SIGSTOP, a frozen cgroup, a paused machine). It is known by two
    signs together: the sampling thread did not run either, and the process used no processor time.
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
"""A gap is remembered for so many times its own length."""
REMEMBERED_LEAST_S = 3600.0
REMEMBERED_MOST_S = 86400.0
SAVES = 20
"""The slowest of so many recent saves counts: where every tenth is a large one, that one is among them."""
ALIKE = 0.95
"""Of gaps that differ by less than this factor one is kept, which bounds the memory to a few hundred numbers."""
UNSEEN_S = 5.0
"""A sample that comes so late may mean that the process was stopped."""
IDLE_CPU_S = 0.02
IDLE_CPU_SHARE = 0.001
"""A process that used less than this (seconds, and share of the time) did nothing: it was stopped."""


class StepTimer:
    """The slowest recent step, and the slowest recent save, in seconds. Safe from every thread.

    Attributes:
        is_restored: whether something of it was learned by another process.
    """

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._gaps: collections.deque[tuple[float, float]] = collections.deque()
        """(seconds, forgotten at), the longest first; those after it are shorter and matter once it is forgotten."""
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
        self._left_out_then = 0.0  # what was left out when the present gap began
        self._left_out_at_sample = 0.0
        self._save_began: float | None = None
        self.is_restored = False

    def look(self, now: float, position: tuple[int, int], cpu_s: float | None = None) -> None:
        """Take a sample: at `now` (monotonic seconds) the training is at `position` (steps, polls).

        `cpu_s` is the processor time that the process has used since ever; without it stops count as slow steps.
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
        """A checkpoint was loaded and the steps are counted anew: what comes before the next step is start-up."""
        with self._lock:
            self._is_starting = True
            self._position = None

    def save_began(self, now: float) -> None:
        """The training thread saves from now (monotonic seconds) on: that is no part of the step."""
        with self._lock:
            self._save_began = now

    @property
    def is_saving(self) -> bool:
        """Whether the training waits for a save."""
        return self._save_began is not None

    def was_saving(self, seconds: float) -> None:
        """The save on this rank is over, well or not: so much of the present gap was one."""
        with self._lock:
            self._save_began = None
            self._left_out_s += seconds

    def stalled(self, seconds: float) -> None:
        """The training waited so long for a save, here."""
        with self._lock:
            self._stalls.append(seconds)

    def saved(self, seconds: float) -> None:
        """A save was durable so long after it had begun, here or on the slowest rank."""
        with self._lock:
            self._saves.append(seconds)

    def in_flight_since(self, began: float | None) -> None:
        """A save that began then (monotonic seconds) goes on in the background; None: it has ended."""
        with self._lock:
            self._in_flight_since = began

    @property
    def is_in_flight(self) -> bool:
        """Whether a save goes on in the background."""
        return self._in_flight_since is not None

    def in_flight_s(self, now: float, otherwise_s: float) -> float:
        """How much longer the save in flight may take, as long as the slowest one took; `otherwise_s` while no save was
        measured. 0 when none is in flight."""
        with self._lock:
            if self._in_flight_since is None:
                return 0.0
            return max(0.0, max(self._saves, default=otherwise_s) - (now - self._in_flight_since))

    @property
    def slowest_step_s(self) -> float | None:
        """The slowest recent gap, the present unfinished one included; None as long as no step was done."""
        with self._lock:
            if self._is_starting or self._position is None:
                return None
            unfinished = self._gap(self._sampled)
            return max(unfinished, self._gaps[0][0]) if self._gaps else unfinished

    @property
    def slowest_known_step_s(self) -> float:
        """The slowest one remembered, also before the first step here; 0 when there is none."""
        with self._lock:
            return self._gaps[0][0] if self._gaps else 0.0

    @property
    def slowest_save_s(self) -> float | None:
        """The slowest recent save, until it was durable; None as long as none was measured."""
        with self._lock:
            return max(self._saves, default=None)

    @property
    def slowest_stall_s(self) -> float | None:
        """The longest that the training has recently waited for a save; None as long as none was measured."""
        with self._lock:
            return max(self._stalls, default=None)

    def learned(self, now: float) -> dict[str, list[Any]]:
        """What is remembered at `now`, in JSON types, for `restore` in another process."""
        with self._lock:
            return {
                "gaps": [[round(gap, 3), round(until - now, 1)] for gap, until in self._gaps if until > now],
                "saves": [round(seconds, 3) for seconds in self._saves],
                "stalls": [round(seconds, 3) for seconds in self._stalls],
            }

    def restore(self, learned: Mapping[str, Any], now: float) -> None:
        """Remember what another process has learned. Raise ValueError, TypeError or KeyError if it is none of ours."""
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
        """What was restored leaves no room in this job: of the saves only the newest counts, and no step of before."""
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
        # The next one began after the last sample that did not show this movement.
        self._began = self._sampled
        self._left_out_then = self._left_out_at_sample

    def _gap(self, now: float) -> float:
        return max(0.0, now - self._began - (self._left_out(now) - self._left_out_then))

    def _left_out(self, now: float) -> float:
        """How much was left out up to now, the unfinished save included."""
        return self._left_out_s + (max(0.0, now - self._save_began) if self._save_began is not None else 0.0)

    def _remember(self, gap: float, now: float) -> None:
        until = now + min(max(gap * REMEMBERED_TIMES, REMEMBERED_LEAST_S), REMEMBERED_MOST_S)
        while self._gaps and self._gaps[-1][0] * ALIKE <= gap:
            # A little longer than this one: it stands for both. Shorter: it is forgotten earlier, and never needed.
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
