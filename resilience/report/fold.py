"""Folds the events of an attempt into a partition of its wall clock, as they are read. Pure.

The spans are whole milliseconds and leave no gap. Time counts as training only between two events that show that steps
were made, in the time that nothing else took; what is left when the events end is never productive.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from resilience.report.goodput import Category, Span

SLACK_MS = 2000
"""Batch shells write whole seconds, and mirrors look once a second: so much earlier is no clock that was set back."""
STALL_TIMES, STALL_MS = 3, 120_000
"""Steps that took longer than this many times the usual, and two minutes, were interrupted by something."""
RECENT, LEAST = 31, 3
"""The usual duration of a step is the median of so many intervals; with fewer than LEAST it is unknown."""
ALIKE = 1.25
"""Adjacent productive spans become one if their steps took equally long, up to this factor."""
DIGITS = 200
"""Durations of steps are counted in classes of half a percent."""
RUNNING, LOST, STOPPED = "running", "lost", "stopped"
HANG_CLASS = "collective_timeout"
"""The class of an end that means that the next step never came, whether a watchdog or the library found it."""
_PHASES = {
    "eval": Category.EVALUATION,
    "valid": Category.EVALUATION,
    "test": Category.EVALUATION,
    "data": Category.DATA_WAIT,
    "load": Category.RESTORE,
    "restore": Category.RESTORE,
    "save": Category.SAVE_STALL,
}
"""Beginnings of the names of phases. A phase of another name trains, if it makes steps."""
_OVER = ("error", "exit", "end")

Durations = Counter[int]
"""Steps by the class of their duration."""


class AttemptFold:
    """The time of one attempt, from its events in the order of time.

    Attributes:
        launch_ms: when the training was launched; None: it was not, or nothing tells.
        durable_step: of the newest save that was durable, or the step that was resumed from.
        has_saved: whether a save was told at all, durable or not.
        world: the number of ranks; None: no guard told it.
        nodes: hostlist expression of the nodes that were launched on.
        is_held: whether its end held the jobs that were queued.
    """

    def __init__(
        self,
        attempt: int,
        start_ms: int,
        end_ms: int,
        *,
        recent: deque[float],
        durations: Durations,
        ended: str,
        hang_steps: Sequence[int] = (),
    ) -> None:
        """`end_ms`: of what is folded. `recent` and `durations` are shared by the attempts of a run. `ended`: the class
        of its end, RUNNING, or LOST: then nothing is known after the last event. `hang_steps`: at which a hang was
        found."""
        self.launch_ms: int | None = None
        self.durable_step: int | None = None
        self.world: int | None = None
        self.nodes = ""
        self.is_held = self.has_saved = False
        self._attempt, self._start, self._end = attempt, start_ms, max(start_ms, end_ms)
        self._recent, self._durations = recent, durations
        self._ended, self._hang_steps = ended, hang_steps
        self._spans: list[tuple[Category, int, int, int | None, int | None]] = []
        self._trained: list[int] | None = None
        """Begin, end, first and last step of the productive time that the newest steps were added to."""
        self._pending: list[tuple[Category | None, int, int]] = []
        """What follows the spans, from the first time on that was training (None) if a later event shows steps."""
        self._at = self._start
        self._step: int | None = None
        self._phase: Category | None = None
        self._saving: int | None = None
        self._stop_step: int | None = None
        self._has_batch = self._is_guarded = self._is_training = self._is_restoring = self._is_over = False
        self._is_doubtful = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Fold an event. One outside of the attempt is left out. Where the clock went back, time is unknown."""
        time, name, step = event.get("time"), event.get("event"), event.get("step")
        if not isinstance(time, int | float) or not abs(time) < 1e11:
            return
        moment = round(time * 1000)
        if not self._at - SLACK_MS <= moment <= self._end + SLACK_MS:
            self._is_doubtful |= moment >= self._start - SLACK_MS and moment <= self._end
            return
        if type(step) is not int or not 0 <= step < 2**62:
            step = None
        self._advance(min(max(moment, self._at), self._end))
        if name == "progress":
            self._reach(step)
        elif name in ("save_staged", "save", "save_failed"):
            if step == self._saving:
                self._saving = None
            self.has_saved = True
            if name == "save" and step is not None:
                self.durable_step = step
        elif name == "start":
            self._begin(0 if step is None else step)
            world = event.get("world")
            self.world = world if type(world) is int and 0 < world < 2**24 else None
        elif name == "resume":
            self._settle(Category.UNKNOWN)
            self._step, self._is_training, self._is_restoring = step, False, False
            self.durable_step = step
        elif name == "checkpoint_chosen":
            self._is_restoring = not self._is_training
        elif name in ("launch", "attempt_start"):
            self._has_batch = True
            if name == "launch" and self.launch_ms is None:
                self.launch_ms = self._at
            self.nodes = str(event.get("nodes") or self.nodes)
        elif name == "siblings_held" or event.get("verb") == "requeuehold":
            self.is_held = True
        else:
            self._act(name, step, event)

    def _act(self, name: object, step: int | None, event: Mapping[str, Any]) -> None:
        """Fold one of the rarer events, all of which tell the step exactly."""
        if name == "phase":
            self._reach(step)
            phase = str(event.get("phase"))
            self._phase = next((kind for word, kind in _PHASES.items() if phase.startswith(word)), None)
        elif name == "save_begin":
            self._reach(step)
            self._saving, self._is_restoring, self.has_saved = step, False, True
        elif name == "decision" and event.get("stop") is True:
            self._reach(step)
            self._stop_step = self._step if step is None else step
        elif name in _OVER:
            self._reach(step, is_over=True)
            self._is_over = True

    @property
    def is_seen(self) -> bool:
        """Return whether a guard, or steps, were seen."""
        return self._is_guarded or self._step is not None

    def finish(self) -> list[Span]:
        """Return the spans from the start to the end, in order."""
        is_hang = self._ended == HANG_CLASS or any(step >= (self._step or 0) for step in self._hang_steps)
        is_running = self._ended == RUNNING
        if self._ended == LOST:
            self._settle(Category.UNKNOWN)
            self._emit(Category.UNKNOWN, self._at, self._end)
        else:
            if is_hang and self._category() is Category.START_UP:
                self._pending.append((None, self._at, self._end))
            else:
                self._advance(self._end)
            self._settle(Category.HANG if is_hang else Category.UNKNOWN if is_running else Category.TAIL)
        if not self.is_seen:
            self._explain()
        self._close()
        return [Span(self._attempt, *one) for one in self._spans]

    def _explain(self) -> None:
        """Without a guard and without steps: all that is known is when the training was launched."""
        if not self._has_batch:
            self._rest(Category.UNKNOWN, self._start)
        elif self.launch_ms is not None:
            self._rest(Category.UNKNOWN, self.launch_ms)
        elif self._ended == STOPPED:
            self.is_held = True
            self._rest(Category.HELD, self._start)

    def _rest(self, category: Category, since: int) -> None:
        """Give everything since a moment to one category."""
        self._spans = [
            (kind, begin, min(end, since), None, None) for kind, begin, end, *_ in self._spans if begin < since
        ]
        self._emit(category, since, self._end)

    def _category(self) -> Category | None:
        """Return the category of this moment; None: training, if steps are made."""
        if self._is_over:
            return Category.TAIL
        if self._saving is not None:
            return Category.SAVE_STALL
        if self._is_restoring:
            return Category.RESTORE
        if self._phase is not None:
            return self._phase
        if self._stop_step is not None:
            return Category.DRAIN
        return None if self._is_training else Category.START_UP

    def _advance(self, moment: int) -> None:
        category = Category.UNKNOWN if self._is_doubtful else self._category()
        self._is_doubtful = False
        if category is not None and not self._pending:
            self._emit(category, self._at, moment)
        elif moment > self._at:
            self._pending.append((category, self._at, moment))
        self._at = moment

    def _begin(self, step: int) -> None:
        """A process starts: of one before it in this attempt, nothing goes on."""
        self._settle(Category.TAIL)
        self._step, self._phase, self._saving, self._stop_step = step, None, None, None
        self._is_guarded, self._is_training, self._is_restoring, self._is_over = True, False, False, False

    def _reach(self, step: int | None, *, is_over: bool = False) -> None:
        """Note that so many steps are done."""
        if step is None:
            return
        if self._step is None:  # nobody told where it began
            self._step, self._is_training = step, True
        if step <= self._step:
            return
        if self._saving is not None and step > self._saving:  # the line about its end is lost
            self._saving = None
        if self._stop_step is not None and step > self._stop_step + 1:  # the decision was not followed
            self._stop_step = None
        self._is_restoring = False
        if self._is_training:
            self._train(step, is_over=is_over)
        self._is_training = True  # the steps before the first event count with those after it

    def _train(self, step: int, *, is_over: bool) -> None:
        """Turn the pending time into productive time, as far as it is not much longer than such steps usually take."""
        first = self._step or 0
        steps = step - first
        length = sum(end - begin for category, begin, end in self._pending if category is None)
        if not length:
            return  # they count with the next ones
        if length > STALL_MS and len(self._recent) >= LEAST:
            usual = max(1, min(length, round(steps * median(self._recent))))
            if length > STALL_TIMES * usual + STALL_MS:
                is_hang = (is_over and self._ended == HANG_CLASS) or any(first <= at <= step for at in self._hang_steps)
                self._settle(Category.HANG if is_hang else Category.UNKNOWN, length - usual)
                length = usual
        if len(self._pending) == 1:  # as for nearly every line of progress
            self._grow(*self._pending.pop()[1:], first, step)
        else:
            self._settle(Category.PRODUCTIVE, steps=(first, step), length=length)
        each = length / steps
        self._recent.append(each)
        self._durations[round(DIGITS * math.log(each))] += steps
        self._step = step

    def _settle(self, category: Category, length: int | None = None, steps: tuple[int, int] | None = None) -> None:
        """Give the time that was training if steps were made, or `length` of its beginning, to a category."""
        pending, self._pending = self._pending, []
        done = 0
        for number, (known, begin, end) in enumerate(pending):
            if known is not None:
                self._emit(known, begin, end)
                continue
            middle = end if length is None else min(end, begin + length - done)
            if steps is None:
                self._emit(category, begin, middle)
            else:
                first, count = steps[0], steps[1] - steps[0]
                reached = [first + count * part // (length or 1) for part in (done, done + middle - begin)]
                self._grow(begin, middle, *reached)
            done += middle - begin
            if middle < end:
                self._pending = [(None, middle, end), *pending[number + 1 :]]
                return

    def _grow(self, begin: int, end: int, first: int, last: int) -> None:
        """Add productive time to that before it, if its steps took equally long."""
        before = self._trained
        if before is not None and before[1] == begin and before[3] == first:
            one, other = (before[3] - before[2]) * (end - begin), (last - first) * (before[1] - before[0])
            if one <= ALIKE * other and other <= ALIKE * one:
                before[1], before[3] = end, last
                return
        self._close()
        self._trained = [begin, end, first, last]

    def _close(self) -> None:
        if self._trained is not None:
            self._spans.append((Category.PRODUCTIVE, *self._trained))  # type: ignore[arg-type]
            self._trained = None

    def _emit(self, category: Category, begin: int, end: int) -> None:
        if begin >= end:
            return
        self._close()
        if self._spans and self._spans[-1][0] is category and self._spans[-1][2] == begin:
            begin = self._spans.pop()[1]
        self._spans.append((category, begin, end, None, None))
