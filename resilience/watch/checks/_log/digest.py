"""Updates the state of a log from a chunk of new bytes. Pure."""

from __future__ import annotations

import re
from itertools import pairwise

from resilience.watch.checks._log import lines as lines_of
from resilience.watch.checks._log.markers import ORDINARY, Marker, marker, words_of
from resilience.watch.checks._log.patterns import BAR, EPOCH, EPOCH_STEP, RANKS, Found, find, seconds_per_step
from resilience.watch.checks._log.reading import LogState, median

MOST_LINES = 5000
"""The most lines read of one chunk: the newest ones."""
MOST_SAID = 64
MOST_BARS = 8
INTERVALS = 12
"""The number of last intervals that are kept."""
PAUSES = 3
"""The number of older intervals kept that were pauses, for example for an evaluation or a save every 500 steps."""
PAUSE_TIMES, FAULT_TIMES, FAULT_S = 2.0, 20.0, 1200.0
"""A pause is at least PAUSE_TIMES the typical interval. One longer than both FAULT limits was a fault, which does not
extend the time allowed."""
RARE_S = 1200.0
"""Intervals of growth above this are recorded as step intervals, for logs without steps only."""
REPORTED_S = 360.0
"""A line may report the seconds per step, but not that only each hundredth step is logged. Until a second line reveals
that, such a figure counts only if it is longer than this; otherwise the startup time applies."""
_COMPLAINT = re.compile(
    rb"retry|attempt|wait|time[- ]?out|timed out|fail|warn|keep-alive|rendezvous|heartbeat|unreachable|refused",
    re.IGNORECASE,
)
_DIGITS = re.compile(rb"\d+")


def begun_again(state: LogState) -> LogState:
    """Return the state of a log after its file was truncated or replaced. The next step shows whether it was rotated or
    restarted."""
    return state._replace(
        inode=0, mtime_ns=0, offset=0, size=0, mark=0, best=None, fell_from=None, restarts=0, bars=(), end="", error="",
        error_kind="", errored=0.0, said=(), repeats=0, phase="start", unfinished=False,
    )  # fmt: skip


def digest(
    state: LogState,
    chunk: bytes,
    *,
    written: float,
    own: re.Pattern[bytes] | None = None,
    in_blocks: bool = False,
    ignored: re.Pattern[bytes] = lines_of.PULSE,
) -> LogState:
    """Return the state of a log after a chunk of new bytes, without the lines that start with `ignored`.

    `written` is the estimated time of the last write, by the watchdog's clock. A log written `in_blocks` is silent for
    many steps, so the seconds per step in its lines are ignored.
    """
    return _Digest(state, written, own, in_blocks, ignored).take(chunk)


class _Digest:
    """The processing of one chunk."""

    def __init__(
        self,
        state: LogState,
        written: float,
        own: re.Pattern[bytes] | None,
        in_blocks: bool,
        ignored: re.Pattern[bytes],
    ) -> None:
        self.before = state
        self.ignored = ignored
        self.written = written
        self.own = own
        self.in_blocks = in_blocks
        self.kind, self.step, self.text = state.kind, state.step, state.text
        self.best, self.fell_from, self.restarts = state.best, state.fell_from, state.restarts
        self.stride, self.phase, self.end = state.stride, state.phase, state.end
        self.bar, self.epoch, self.top = state.bar, state.epoch, state.top
        self.error, self.error_kind, self.errored = state.error, state.error_kind, state.errored
        self.bars = dict(state.bars)
        self.said = dict.fromkeys(state.said)
        self.repeats = state.repeats
        self.has_output = self.is_alive = self.has_new_lines = False
        self.is_broken = bool(state.end) or (state.phase == "start" and state.step is not None)
        self.steps = 0
        self.step_line = b""
        self.step_stamps: list[float] = []
        self.last_line = b""
        self.first_line = b""
        self.words: tuple[bytes, ...] = ()

    def take(self, chunk: bytes) -> LogState:
        """Process the chunk; return the new state."""
        finished, rest = lines_of.split(chunk)
        self.words = words_of(chunk)
        for raw in finished[-MOST_LINES:]:
            line = lines_of.plain(raw)
            if line and not line.isspace() and not self.ignored.match(line):
                self._line(line)
        rest = lines_of.plain(rest)
        if rest and not rest.isspace() and not self.ignored.match(rest):
            self.has_output = self.has_new_lines = True
            found = find(rest, self.own)
            if found is not None:
                self._found(found, rest)
        return self._state(bool(rest))

    def _line(self, line: bytes) -> None:
        self.has_output = True
        self.first_line = self.first_line or line
        self.last_line = line
        event = marker(line, self.words) if self.words else None
        progressed = False
        if event is None or event.kind != "resume":
            found = find(line + b"\n", self.own)
            progressed = found is not None and self._found(found, line)
        if event is not None:
            self._marker(event, line)
        if not progressed:
            # Ignore all numbers in complaints, which count retries; in other lines they may count steps.
            identity = lines_of.identity(_DIGITS.sub(b"", line) if _COMPLAINT.search(line) else line)
            if identity in self.said:
                self.repeats += 1
            else:
                self.has_new_lines = True
                self.said[identity] = None
                # The first line about an evaluation or a save is progress; a repetition is not.
                self.is_alive = self.is_alive or (event is not None and event.kind in ("saved", "save", "eval"))

    def _marker(self, event: Marker, line: bytes) -> None:
        if event.kind == "end":
            self.end = lines_of.shown(line)
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
        self.step_stamps.clear()

    def _found(self, found: Found, line: bytes) -> bool:
        """Process a position; return whether it is progress."""
        rank, known = RANKS[found.kind], RANKS[self.kind]
        if found.epoch is not None and found.kind != EPOCH_STEP:
            self._epoch(found.epoch)
        if found.kind == BAR and self._evaluates(found, rank > known):
            if self._bar_advances(found):
                self.is_alive, self.phase = True, "eval"
            return True
        if rank > known:
            return False
        if rank < known:
            self.kind, self.step, self.best, self.fell_from = found.kind, None, None, None
        is_progress = self._bar_advances(found) if found.kind == BAR else self._step_advances(found)
        if is_progress:
            self._advanced(found, line)
        return is_progress

    def _epoch(self, epoch: float) -> None:
        """Process an epoch: in a new one a smaller step is no step back, as some trainers restart the counter."""
        if self.epoch is not None and int(epoch) > int(self.epoch):
            self.best = None
        self.epoch = epoch

    def _evaluates(self, found: Found, is_weaker: bool) -> bool:
        """Return whether a bar is of an evaluation: by its label, or by the phase if it is not the training's bar."""
        if found.evaluates:
            return True
        return self.phase == "eval" and (is_weaker or self.bar not in (0, found.key))

    def _step_advances(self, found: Found) -> bool:
        value, step = found.value, self.step
        if step is None or value > step:
            if step is not None:
                self.stride = value - step
            if self.best is None or value > self.best:
                self.best, self.fell_from, self.restarts = value, None, 0
            self.step = value
            return True
        if value == step:
            return False
        if self.best is None:  # another file: restarted from a checkpoint
            self.best = self.step = value
            return True
        if self.phase == "start":  # loaded a checkpoint
            self.step = value
            self.restarts += 1
            return True
        if step - value <= (self.stride or 1):  # ranks that write into one log are a step apart
            return False
        if value <= (self.stride or 1) and step in (self.top, self.fell_from):
            # Went back twice from the same step to the start: the counter restarts in each epoch.
            self.top, self.fell_from, self.best, self.step = step, None, value, value
            return True
        self.fell_from = max(self.fell_from or step, step)
        self.step, self.text = value, found.text
        return False

    def _bar_advances(self, found: Found) -> bool:
        """Return whether a bar advanced. A complete one that restarts is the next round; any other one has failed."""
        old = self.bars.pop(found.key, None)
        position = int(found.value)
        self.bars[found.key] = -1 if found.is_complete else position
        if old is None or (old == -1 and not found.is_complete) or -1 < old < position:
            if found.kind == BAR and not found.evaluates:
                self.step = found.value
            return True
        if old > position + max(2, old // 20) and not found.evaluates:
            self.fell_from, self.step, self.text = float(old), found.value, found.text
        elif old > position:
            self.bars[found.key] = old  # bars of several ranks are a little apart
        return False

    def _advanced(self, found: Found, line: bytes) -> None:
        self.steps += 1
        self.text, self.step_line = found.text, line
        if found.kind == BAR:
            self.bar = found.key
        when = lines_of.stamp(line)
        if when is not None:
            self.step_stamps.append(when)
        self.phase, self.end, self.error, self.error_kind, self.errored = "train", "", "", "", 0.0
        self.said.clear()
        self.repeats = 0

    def _state(self, unfinished: bool) -> LogState:
        before = self.before
        is_first = before.looked == 0
        advanced = before.last_progress_at
        if self.steps:
            advanced = self._when_advanced()
        elif self.is_alive or (self.has_new_lines and self._is_weak()):
            advanced = self.written
            if before.error and before.error_kind in ORDINARY and self.error == before.error:
                self.error, self.error_kind, self.errored = "", "", 0.0
        elif is_first:
            advanced = self._silent_since()
        return before._replace(
            kind=self.kind, step=self.step, text=self.text, stride=self.stride, best=self.best,
            fell_from=self.fell_from, restarts=self.restarts, phase=self.phase, end=self.end, error=self.error,
            error_kind=self.error_kind, errored=self.errored, bars=tuple(self.bars.items())[-MOST_BARS:],
            said=tuple(self.said)[-MOST_SAID:], repeats=self.repeats, unfinished=unfinished,
            last_output_at=self.written if self.has_output or is_first else before.last_output_at,
            last_progress_at=advanced, intervals=self._intervals(advanced), bar=self.bar, epoch=self.epoch,
            top=self.top,
        )  # fmt: skip

    def _is_weak(self) -> bool:
        """Return whether growth is the best measure of progress: no step, only complete bars, or only epochs, which may
        be rounded (the Hugging Face Trainer logs two decimals, the same ones for hours)."""
        return self.kind in ("", EPOCH) or (self.kind == BAR and all(position == -1 for position in self.bars.values()))

    def _when_advanced(self) -> float:
        """Return the time of the last step: the last write, less the difference of the two lines' timestamps."""
        since = self.before.looked or 0.0
        own, last = lines_of.stamp(self.step_line), lines_of.stamp(self.last_line)
        lag = max(0.0, last - own) if own is not None and last is not None else 0.0
        return max(min(since, self.written), self.written - lag)

    def _silent_since(self) -> float:
        """Return since when there was no step, in the first probe: the chunk may be hours of the same line."""
        first, last = lines_of.stamp(self.first_line), lines_of.stamp(self.last_line)
        return self.written - max(0.0, last - first) if first is not None and last is not None else self.written

    def _intervals(self, advanced: float) -> tuple[float, ...]:
        before = self.before
        if not self.steps:
            gap_s = advanced - before.last_progress_at
            is_rare = before.looked > 0 and gap_s > RARE_S and self.has_new_lines and self._is_weak()
            return trimmed((*before.intervals, gap_s)) if is_rare else before.intervals
        is_continued = before.step is not None and before.looked > 0 and before.kind == self.kind and not self.is_broken
        if is_continued and advanced > before.last_progress_at:
            # Output in blocks is silent between them, for longer than one step takes.
            silent_s = before.looked - before.last_progress_at
            return trimmed((*before.intervals, max((advanced - before.last_progress_at) / self.steps, silent_s)))
        if self.in_blocks:
            return before.intervals
        stamps = self.step_stamps
        gaps = [later - sooner for sooner, later in pairwise(stamps) if later > sooner]
        if gaps:
            return tuple(gaps[-INTERVALS:])
        reported_s = seconds_per_step(self.step_line)
        if reported_s is None or not 0 < reported_s < 1e6:
            return before.intervals
        if self.kind in (BAR, EPOCH_STEP):
            return (reported_s,)
        if self.stride:
            return (reported_s * self.stride,)
        return (reported_s,) if reported_s >= REPORTED_S else before.intervals


def trimmed(intervals: tuple[float, ...]) -> tuple[float, ...]:
    """Return the last intervals, preceded by the last pauses among the older ones."""
    old, last = intervals[:-INTERVALS], intervals[-INTERVALS:]
    if not old:
        return last
    usual = median(last)
    longest = max(FAULT_TIMES * usual, FAULT_S)
    pauses = [one for one in old if PAUSE_TIMES * usual < one <= longest]
    return (*[one for one in pauses if one >= max(pauses) / 2][-PAUSES:], *last)
