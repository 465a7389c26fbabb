"""Updates the state of a log from a chunk of new bytes. Pure.

The heartbeat of a log is the template (positions.py) of the best kind whose number grows. Others are judged by it:

- a template that grows between ordinary steps as well only talks: its growth is no progress when the heartbeat stops;
- one that grows only while the heartbeat pauses is a phase, such as an evaluation, and counts as progress;
- a complaint, which counts retries or seconds, never does.

Among lines without a training word, the template that paused while the heartbeat went on is the training's, and the
heartbeat was a monitor. Until a heartbeat is known, lines of a new template are progress.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from resilience.watch.checks._log import lines as lines_of
from resilience.watch.checks._log.markers import ORDINARY, Marker, marker, words_of
from resilience.watch.checks._log.positions import (
    BAR,
    COMPLAINS,
    COMPLAINT,
    EVALUATION,
    FIGURES,
    NUMBERS,
    RANKS,
    STEP,
    TALK,
    WITH_FIGURES,
    Position,
    find,
    numbers,
    rank_of,
)
from resilience.watch.checks._log.reading import (
    LogState,
    Pause,
    is_pause,
    median,
    pause_of,
    with_pause,
)

MOST_LINES = 5000
"""The most lines read of one chunk: the newest ones."""
MOST_SAID = 64
MOST_TEMPLATES = 16
INTERVALS = 12
"""The number of last intervals that are kept."""
SURE = RANKS[BAR] - WITH_FIGURES
"""A counter with figures in its line of this rank or better grows only with the training."""
FINER = 4
NEXT_JOB_S = 90.0
"""Lines this long after SLURM killed a job (KillWait is 30 s) are of the next job, which appends to the same log."""
PAUSED = 4
"""A template paused if the heartbeat advanced this many times as often as usual between two of its lines."""
EXPECTED = -1.0
"""The value of the templates that an earlier job wrote, until this job does."""
OLD = -99
"""The `paused` of these templates, except of the heartbeat."""
OVER_S = 1800.0
"""A bar that was complete for this long gives way to another template: it was of a warm-up or of loading."""
STANDS_STILL = -1
"""The `turns` of a template that was seen again before its number has ever grown."""
TALKS_IN = 3
"""A template that grew in this many intervals of the heartbeat may only talk."""
NUMBERS_TIMES, NUMBERS_S = 4, 1200.0
"""A line without a training word is the heartbeat after its numbers changed this often, over this many seconds."""
_DIGITS = re.compile(rb"\d+")
_SHAPE = 120


@dataclass(slots=True)
class Template:
    """A template of lines with a number.

    Attributes:
        key, rank: see positions.py.
        value: the number in its last line.
        epoch: the epoch in its last line, -1 without one.
        top: the last number of a counter that restarts; 0 if it never did.
        total: of a progress bar, 0 without one.
        grows: how often the number grew.
        turns: in how many intervals of the heartbeat it grew; -1 if it was seen again and has never grown.
        turn: the last of these intervals.
        since: the first of these intervals; for NUMBERS, when it first grew.
        run: how often it grew in the last of these intervals.
        paused: how often it paused while the heartbeat went on, less how often the heartbeat did.
    """

    key: int
    rank: int
    value: float
    epoch: float = -1.0
    top: float = 0.0
    total: int = 0
    grows: int = 0
    turns: int = 0
    turn: int = 0
    since: float = 0.0
    run: int = 0
    paused: int = 0

    def order(self) -> int:
        """Return the order in which templates become the heartbeat: one that grows before one that does not."""
        return self.rank if self.grows else self.rank + TALK // 2 if self.rank < TALK else self.rank

    def is_complete(self) -> bool:
        """Return whether it is a bar that has reached its end."""
        return 0 < self.total <= self.value + 1

    def grew(self, turn: int) -> None:
        """Count a growth in an interval of the heartbeat, and which of the two paused while the other went on."""
        if self.turn == turn:
            self.run += 1
            pause = PAUSED * max(1.0, self.grows / (self.turns + 1))
            self.paused -= self.turns >= PAUSED and self.run - 1 < pause <= self.run
            return
        usual = (self.turn - self.since) / max(1, self.turns)
        self.paused += self.turns >= PAUSED and turn - self.turn >= PAUSED * max(1.0, usual)
        self.turns, self.turn, self.run = self.turns + 1, turn, 1

    def only_talks(self, turn: int) -> bool:
        """Return whether it grows between ordinary steps: in many intervals of the heartbeat, or once in each."""
        if self.turns < TALKS_IN:
            return False
        is_frequent = 4 * self.turns >= turn - self.since
        return is_frequent or (self.rank != EVALUATION and 3 * self.turns >= self.grows)


_values = attrgetter(*(field.name for field in fields(Template)))


def begun_again(state: LogState) -> LogState:
    """Return the state of a log after its file was truncated or replaced. The next step shows whether it was rotated or
    restarted."""
    return state._replace(
        inode=0, mtime_ns=0, offset=0, size=0, mark=0, best=None, fell_from=None, restarts=0, end="", error="",
        error_kind="", errored=0.0, said=(), repeats=0, phase="start", unfinished=False, stamp=0.0,
    )  # fmt: skip


def heartbeat_of(state: LogState) -> LogState:
    """Return what the log of the next job is expected to contain: the heartbeat, and the templates beside it."""
    templates = [Template(*one) for one in state.templates]
    for one in templates:
        one.value, one.epoch, one.top, one.paused = EXPECTED, -1.0, 0.0, 0 if one.key == state.main else OLD
    return LogState(
        kind=state.kind, main=state.main, shape=state.shape, turn=state.turn, intervals=state.intervals,
        templates=tuple(map(_values, templates)),
    )  # fmt: skip


def digest(
    state: LogState,
    chunk: bytes,
    *,
    written: float,
    own: re.Pattern[bytes] | None = None,
    in_blocks: bool = False,
    ignored: re.Pattern[bytes] = lines_of.PULSE,
    skipped: int = 0,
    most_lines: int = MOST_LINES,
) -> LogState:
    """Return the state of a log after a chunk of new bytes, without the lines that start with `ignored`.

    `written` is the estimated time of the last write, by the watchdog's clock. `skipped` bytes before the chunk were
    not read.
    """
    return _Digest(state, written, own, ignored).take(chunk, most_lines, is_whole=not (skipped or in_blocks))


class _Digest:
    """The processing of one chunk."""

    def __init__(self, state: LogState, written: float, own: re.Pattern[bytes] | None, ignored: re.Pattern[bytes]):
        self.before = state
        self.ignored = ignored
        self.written = written
        self.own = own
        self.is_whole = True
        self.kind, self.step, self.text = state.kind, state.step, state.text
        self.best, self.fell_from, self.restarts = state.best, state.fell_from, state.restarts
        self.stride, self.phase, self.end = state.stride, state.phase, state.end
        self.epoch, self.turn, self.shape, self.turned_at = state.epoch, state.turn, state.shape, state.turned_at
        self.error, self.error_kind, self.errored = state.error, state.error_kind, state.errored
        self.templates = {one[0]: Template(*one) for one in state.templates}
        self.main = self.templates.get(state.main) if state.kind else None
        self.pauses: tuple[Sequence[Any], ...] = state.pauses
        self.usual = median(state.intervals) if state.intervals else None
        self.said = dict.fromkeys(state.said)
        self.unsaid: list[bytes] = []
        self.repeats = state.repeats
        self.has_output = self.is_alive = self.has_new_lines = False
        self.is_broken = bool(state.end) or state.phase == "start"
        self.steps = self.progresses = self.rank = 0
        self.first_gap: Pause | None = None
        self.stamp = state.stamp
        self.gaps: list[float] = []
        self.step_line = self.last_line = self.first_line = b""
        self.words: tuple[bytes, ...] = ()

    def take(self, chunk: bytes, most_lines: int, *, is_whole: bool) -> LogState:
        """Process the chunk; return the new state."""
        self.is_whole = is_whole
        finished, rest = lines_of.split(chunk)
        self.words = words_of(chunk)
        for raw in finished[-most_lines:]:
            line = lines_of.plain(raw)
            if line and not line.isspace() and not self.ignored.match(line):
                self._line(line)
        rest = lines_of.plain(rest)
        if rest and not rest.isspace() and not self.ignored.match(rest):
            self.has_output = self.has_new_lines = True
            found = find(rest, self.own, any_number=self._is_unknown())
            if found is not None:
                self._found(found, rest)
        return self._state(bool(rest))

    def _is_known(self) -> bool:
        """Return whether the heartbeat is known; until it is, new lines are progress."""
        return self.main is not None and self.main.turns != STANDS_STILL and self.main.value != EXPECTED

    def _is_unknown(self) -> bool:
        return not self._is_known() or self.main is None or self.main.rank >= RANKS[NUMBERS] or self.main.is_complete()

    def _line(self, line: bytes) -> None:
        self.has_output = True
        self.first_line = self.first_line or line
        self.last_line = line
        event = marker(line, self.words) if self.words else None
        if "CANCELLED AT" in self.end and self.written - self.errored > NEXT_JOB_S and event is None:
            self.end, self.phase, self.is_alive = "", "start", True
        found, progressed = None, False
        if event is None or event.kind != "resume":
            found = find(line + b"\n", self.own, any_number=self._is_unknown())
            progressed = found is not None and self._found(found, line)
        if event is not None:
            self._marker(event, line)
        if found is not None and not progressed and not self._is_known() and self.rank >= TALK:
            return
        if progressed:
            return
        if event is None and self._is_known():
            self.unsaid.append(line)  # only those after the last line with progress are needed
        else:
            self._say(line, event, is_position=found is not None)

    def _say(self, line: bytes, event: Marker | None, *, is_position: bool) -> None:
        """Process a line without progress: a repetition, or a new one."""
        # Ignore all numbers in complaints, which count retries, in the lines about an evaluation or a save, and in a
        # log that has shown no heartbeat for as long as one takes to be found, or not the one of the job before.
        masked = identity = lines_of.identity(_DIGITS.sub(b"", line))
        is_expected = self.main is not None and self.main.value == EXPECTED
        is_early = not is_expected and self.written - self.before.first_seen <= NUMBERS_S
        is_early = is_early or self._is_known()
        if is_early and event is None and not COMPLAINS.search(line):
            identity = lines_of.identity(line)
        is_repeated = identity in self.said
        for one in (masked, identity):  # those said last are kept
            self.said.pop(one, None)
            self.said[one] = None
        if is_repeated:
            self.repeats += 1
            return
        self.has_new_lines = True
        # The first line about an evaluation or a save is progress; a repetition is not.
        if event is not None and event.kind in ("saved", "save", "eval"):
            self.is_alive = self.is_alive or (not is_position and not COMPLAINS.search(line))

    def _marker(self, event: Marker, line: bytes) -> None:
        if event.kind == "end":
            self.end, self.errored = lines_of.shown(line), self.errored or self.written
            self._break()
        elif event.kind == "resume":
            self.phase = "start"
            self._break()
        elif event.kind == "saved":
            self.phase = "train"
        elif event.kind in ("save", "eval"):
            self.phase = event.kind
        elif not self.error or (event.kind == "fatal" and self.error_kind in ORDINARY):
            self.error, self.error_kind, self.errored = lines_of.shown(line), event.word, self.written

    def _break(self) -> None:
        """Start a new series of intervals: the time between two trainings is no step interval."""
        self.is_broken = True
        self.stamp = 0.0
        self.gaps.clear()

    def _found(self, found: Position, line: bytes) -> bool:
        """Process a position; return whether it is progress."""
        one = self.templates.get(found.key)
        if one is not None and not one.grows and one.value == found.value and found.kind in (STEP, BAR):
            # A number that stands still, `[stage 1/2] 120 updates`: another one may be the counter.
            one.turns = STANDS_STILL
            found = numbers(line) or found
            one = self.templates.get(found.key)
        if found.kind in (FIGURES, NUMBERS):
            found = found._replace(value=float(lines_of.identity(line)))
        is_new = one is None
        if one is None:
            one = self._new(found, line)
            is_growth = one is self.main or one.rank == EVALUATION
        else:
            is_growth = self._grows(one, found)
        self.rank = one.rank
        if found.epoch is not None and one.rank < TALK:
            self.epoch = max(self.epoch, found.epoch)
        if not is_growth:
            return False
        one.value, one.epoch = found.value, self.epoch
        one.grows += not is_new
        one.turns = max(0, one.turns)
        if one is not self.main:
            self._compare(one)
        if one is self.main:
            self._advanced(found, line)
            return True
        if self.main is not None:
            one.grew(self.turn)
        is_other = RANKS[NUMBERS] <= one.rank < TALK and (self.main is None or not self.main.is_complete())
        if one.rank >= COMPLAINT or TALK <= one.rank < EVALUATION or is_other:
            # A line with decimals may be the training's: it is progress until the heartbeat is known.
            if self.main is None and one.rank == RANKS[NUMBERS] and not is_new:
                self._progressed(line)
                return True
            return False
        if self._is_doubtful(one) and one.only_talks(self.turn):
            return False
        self._progressed(line)
        if one.rank == EVALUATION or one.total:
            self.phase = "eval"
        return True

    def _is_doubtful(self, one: Template) -> bool:
        """Return whether a template that grows may only talk: not if it is as good as the heartbeat or that ended."""
        if self.main is None or self.main.is_complete() or one.rank <= SURE:
            return False
        return not one.rank == self.main.rank == RANKS[FIGURES]

    def _new(self, found: Position, line: bytes) -> Template:
        rank = rank_of(found, line)
        is_weak = found.kind == NUMBERS
        since = self.written if is_weak and self.main is None else float(self.turn)
        one = Template(found.key, rank, found.value, self.epoch, total=found.total, turn=-1, since=since)
        self.templates[found.key] = one
        if len(self.templates) > MOST_TEMPLATES:
            others = [other for other in self.templates.values() if other is not one and other is not self.main]
            del self.templates[min(others, key=lambda other: (other.turn, other.grows)).key]
        if not is_weak:
            self._compare(one)
        return one

    def _compare(self, one: Template) -> None:
        """Make a template the heartbeat if it is better than the current one."""
        if one.rank >= TALK:
            return
        if self.main is not None and one.order() >= self.main.order():
            # Of two counters with figures, the finer one; such lines are printed by the training only.
            is_finer = one.rank == self.main.rank <= SURE and one.grows > FINER * self.main.grows
            is_over = self.main.is_complete() and self.written - self.turned_at > OVER_S
            # The form of the log has changed: the job before did not write this, or it began when the heartbeat ended.
            is_new = self.main.value == EXPECTED or (one.since >= self.turn and one.rank <= self.main.rank)
            is_over = is_over or (is_new and one.paused >= 0 and self.written - self.turned_at > NUMBERS_S)
            was_monitor = one.paused > 0 and one.rank <= self.main.rank >= RANKS[NUMBERS]
            if not (is_finer or is_over or was_monitor):
                return
        if RANKS[NUMBERS] <= one.rank and (one.grows < NUMBERS_TIMES or self.written - one.since < NUMBERS_S):
            return
        if self.main is None or one.rank < RANKS[NUMBERS] <= self.main.rank:
            # The whole start of a job, however much it writes meanwhile.
            began = one.since if one.rank >= RANKS[NUMBERS] else self.written
            self.pauses = with_pause(self.pauses, Pause("start", began - (self.before.first_seen or began)))
        if self.main is not None:
            self.step = self.best = self.fell_from = None
        self.main, self.shape = one, ""
        for other in self.templates.values():
            other.turns, other.since, other.turn, other.paused = 0, float(self.turn), self.turn, 0

    def _grows(self, one: Template, found: Position) -> bool:
        """Return whether the number of a template grew, or began again in a new epoch or after a restart."""
        value, last = found.value, one.value
        is_main = one is self.main
        if found.kind in (FIGURES, NUMBERS):
            one.value = value
            return value != last
        if value > last:
            return True
        epoch = self.epoch if found.epoch is None else max(self.epoch, found.epoch)
        is_new_epoch = epoch > one.epoch
        if value == last:
            return is_new_epoch and found.epoch is not None
        if not is_main:
            one.value = value
            return one.total > 0 or one.rank == EVALUATION
        if self.best is None or is_new_epoch:
            self.best = None
            return True
        if self.phase == "start":  # loaded a checkpoint
            self.restarts += 1
            return True
        if last - value <= (self.stride or 1):  # ranks that write into one log are a step apart
            return False
        is_complete = one.total > 0 and last >= 0.9 * one.total
        is_start = value <= 2 * (self.stride or 1)
        if is_complete or (is_start and (not one.top or abs(last - one.top) <= (self.stride or 1))):
            # The counter restarts in each epoch.
            one.top, self.best = last, None
            return True
        if is_start:
            one.top = last
        self.fell_from = max(self.fell_from or last, last)
        one.value = self.step = value
        self.text = found.text
        return False

    def _advanced(self, found: Position, line: bytes) -> None:
        """Process an advance of the heartbeat."""
        if self.kind != found.kind:
            self.kind = found.kind
        if found.kind not in (FIGURES, NUMBERS):
            if self.step is not None and found.value > self.step:
                self.stride = found.value - self.step
            if self.best is None or found.value > self.best:
                self.best, self.fell_from, self.restarts = found.value, None, 0
            self.step = found.value
        self.turn, self.turned_at = self.turn + 1, self.written
        self.steps += 1
        self._progressed(line)
        self.text = found.text
        self.phase, self.end, self.error, self.error_kind, self.errored = "train", "", "", "", 0.0

    def _progressed(self, line: bytes) -> None:
        """Process a line that shows progress: learn the pause before it."""
        is_first, phase = self.first_gap is None, "start" if self.is_broken else self.phase
        if is_first:
            self.first_gap = Pause(phase, 0.0, self.text)
        self.progresses += 1
        self.step_line = line
        when = lines_of.stamp(line) if b":" in line[:200] else None
        if when is not None and self.stamp:
            gap_s = lines_of.seconds_between(self.stamp, when)
            if gap_s > 0:
                self.gaps.append(gap_s)
                if is_first:
                    self.first_gap = Pause(phase, gap_s, self.text)
                elif is_pause(gap_s, phase, self.usual or median(self.gaps)):
                    self.pauses = with_pause(self.pauses, Pause(phase, gap_s, self.text))
        if when is not None:
            self.stamp = when
        self.is_broken = False
        self.said.clear()
        self.unsaid.clear()
        self.repeats = 0

    def _state(self, unfinished: bool) -> LogState:
        for line in self.unsaid:
            self._say(line, None, is_position=False)
        before = self.before
        is_first = before.looked == 0
        advanced = before.last_progress_at
        if self.progresses:
            advanced = self._when_advanced()
        elif self.is_alive or (self.has_new_lines and not self._is_known()):
            advanced = self.written
            if before.error and before.error_kind in ORDINARY and self.error == before.error:
                self.error, self.error_kind, self.errored = "", "", 0.0
        elif is_first:
            advanced = self._silent_since()
        intervals = self._intervals(advanced)
        self._learn(advanced)
        if self.main is not None and (not self.shape) and self.step_line:
            self.shape = _DIGITS.sub(b"#", self.step_line.strip()[:_SHAPE]).decode("utf-8", "replace")
        return before._replace(
            kind=self.kind, step=self.step, text=self.text, stride=self.stride, best=self.best,
            fell_from=self.fell_from, restarts=self.restarts, phase=self.phase, end=self.end, error=self.error,
            error_kind=self.error_kind, errored=self.errored, said=tuple(self.said)[-MOST_SAID:],
            repeats=self.repeats, unfinished=unfinished, epoch=self.epoch, turn=self.turn, shape=self.shape,
            turned_at=self.turned_at,
            templates=tuple(map(_values, self.templates.values())),
            main=self.main.key if self.main is not None else 0, stamp=self.stamp,
            pauses=tuple(map(tuple, self.pauses)), intervals=intervals,
            last_output_at=self.written if self.has_output or is_first else before.last_output_at,
            last_progress_at=advanced,
        )  # fmt: skip

    def _when_advanced(self) -> float:
        """Return the time of the last step: the last write, less the difference of the two lines' timestamps."""
        since = self.before.looked or 0.0
        own, last = lines_of.stamp(self.step_line), lines_of.stamp(self.last_line)
        lag = lines_of.seconds_between(own, last) if own is not None and last is not None else 0.0
        return max(min(since, self.written), self.written - max(0.0, lag))

    def _silent_since(self) -> float:
        """Return since when there was no step, in the first probe: the chunk may be hours of the same line."""
        first, last = lines_of.stamp(self.first_line), lines_of.stamp(self.last_line)
        if first is None or last is None:
            return self.written
        return self.written - max(0.0, lines_of.seconds_between(first, last))

    def _intervals(self, advanced: float) -> tuple[float, ...]:
        before = self.before
        if not self.steps:
            return before.intervals
        is_continued = before.looked > 0 and before.kind == self.kind and before.phase != "start" and not before.end
        if is_continued and advanced > before.last_progress_at:
            return (*before.intervals, (advanced - before.last_progress_at) / self.steps)[-INTERVALS:]
        return tuple(self.gaps[-INTERVALS:]) if self.gaps and self.is_whole else before.intervals

    def _learn(self, advanced: float) -> None:
        """Learn the pause before the first sign of progress in this chunk: by timestamps, or as the probes saw it."""
        before, gap = self.before, self.first_gap
        silent_s = max(0.0, before.looked - before.last_progress_at) if before.looked else 0.0
        whole_s = advanced - before.last_progress_at
        if gap is None:
            if not before.looked or whole_s <= 0:
                return
            gap = Pause(before.phase, whole_s, before.text)
        elif before.looked and gap.seconds < silent_s:  # without timestamps, or older lines in a buffer
            is_known = bool(gap.seconds) or not self.is_whole
            seconds = silent_s if is_known else pause_of(silent_s, whole_s, self.progresses, self.usual)
            gap = gap._replace(seconds=seconds)
        elif before.looked and not gap.seconds:
            gap = gap._replace(seconds=pause_of(silent_s, whole_s, self.progresses, self.usual))
        if gap.seconds > 0 and is_pause(gap.seconds, gap.phase, self.usual):
            self.pauses = with_pause(self.pauses, gap)
