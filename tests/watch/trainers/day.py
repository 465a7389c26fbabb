"""A day of one trainer: the output of each attempt with its times, by a seed. Pure.

A trainer's class attributes say how it behaves (seconds per step, evaluations, saves, restarts), its methods what it
writes. `Day` turns both into events: bytes, the time at which they are written, and the phase of the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import NamedTuple

MINUTE, HOUR = 60.0, 3600.0
EPOCH = -1
"""In `eval_every` and `save_every`: at the end of each epoch."""
BLOCK_BYTES = 8192
"""The block of Python's buffered standard output."""

START, STEP, EVAL, SAVE, RELOAD, END = "start", "step", "eval", "save", "reload", "end"


class Event(NamedTuple):
    """Text written at a time (seconds since the day began) by an attempt, counted from 0, in a phase."""

    at: float
    text: str
    phase: str
    attempt: int


@dataclass(slots=True)
class Now:
    """The position of a training when it writes a line.

    Attributes:
        time: seconds since the epoch; `elapsed_s` since the attempt began.
        step: steps done, since the very first attempt; `total` is the last step.
        epoch: the current epoch from 0; `k` of `of` steps of it are done.
        step_s: the current seconds per step.
    """

    chance: Random
    time: float = 0.0
    elapsed_s: float = 0.0
    step: int = 0
    total: int = 0
    epoch: int = 0
    k: int = 0
    of: int = 0
    step_s: float = 1.0

    @property
    def loss(self) -> float:
        """A loss that falls, with noise."""
        return 1.8 + 6 / math.sqrt(1 + self.step / 400) + self.chance.gauss(0, 0.05)

    @property
    def lr(self) -> float:
        """A learning rate that rises for 2,000 steps and then falls."""
        return 3e-4 * min(self.step / 2000, 1 / (1 + max(0, self.step - 2000) / 20000))

    @property
    def norm(self) -> float:
        """A gradient norm."""
        return abs(self.chance.gauss(0.4, 0.1))

    @property
    def percent(self) -> int:
        """Of all steps."""
        return 100 * self.step // max(1, self.total)

    def clock(self, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        """The time of day in UTC, in a form of strftime; `%f` as milliseconds."""
        milliseconds = f"{int(self.time % 1 * 1000):03d}"
        return time.strftime(form.replace("%f", milliseconds), time.gmtime(self.time))

    def bar(self, done: int, total: int, *, began_s: float = 0.0, more: str = "", per_s: float = 0.0) -> str:
        """tqdm's bar, without its label: ` 12%|█▏        | 120/1000 [01:02<07:22,  1.95it/s, loss=2.31]`."""
        step_s = per_s or self.step_s
        gone_s = began_s or done * step_s
        rate = f"{step_s:5.2f}s/it" if step_s > 1 else f"{1 / step_s:5.2f}it/s"
        left = _clock(max(0, total - done) * step_s)
        filled = min(10, 10 * done // max(1, total))
        drawn = f"{'█' * filled}{'▏' if filled < 10 else ''}".ljust(10)
        return f"{100 * done // max(1, total):3d}%|{drawn}| {done}/{total} [{_clock(gone_s)}<{left}, {rate}{more}]"

    def long(self, seconds: float) -> str:
        """`1 day, 3:12:10`, as Python prints a timedelta of whole seconds."""
        days, rest = divmod(int(seconds), 86400)
        text = f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
        return f"{days} day{'s' if days > 1 else ''}, {text}" if days else text


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


@dataclass(frozen=True, slots=True)
class Background:
    """Lines that are written whatever the training does.

    Attributes:
        every_s: seconds between them.
        text: returns one from the time and the number of lines before it.
        until_h: hours of an attempt after which they end: a monitor that was killed, a warm-up that is over.
    """

    every_s: float
    text: Callable[[Now, int], str]
    until_h: float = math.inf


class Trainer:
    """How one trainer behaves and what it writes; each method returns text with its line ends, or nothing.

    Attributes:
        step_s: seconds per step; `noise` is their relative standard deviation.
        log_every: steps between two step lines.
        total: the last step of the whole training.
        start_s: seconds of silence before each of the lines of `starts`, and before the first step.
        epoch_steps: steps in an epoch, 0 for a training without epochs; `reload_s` is the silence between two epochs.
        eval_every: steps between two evaluations, or EPOCH, or 0; one takes `eval_s` and writes `eval_lines` lines
            besides its first and last.
        save_every, save_s: the same for checkpoints, which are silent.
        walltime_h: hours until the job is killed and the next one resumes from the last checkpoint; 0 for no limit.
        queue_s: seconds until the next job begins.
        place: `path`: one log; `pattern`: a log of each job; `run`: a run directory of resil.
        background: lines of other threads and programs.
        pause_s: the length of one pause in the day that nothing announces: a slow shared disk.
        slows: whether steps take three times as long for an hour.
        is_buffered: whether the output comes in blocks.
    """

    step_s = 1.0
    noise = 0.05
    log_every = 10
    total = 500_000
    start_s: Sequence[float] = (20.0, 40.0, 60.0)
    epoch_steps = 0
    reload_s = 0.0
    eval_every = 0
    eval_s = 60.0
    eval_lines = 0
    save_every = 0
    save_s = 20.0
    walltime_h = 0.0
    queue_s = 90.0
    place = "path"
    background: Sequence[Background] = ()
    pause_s = 0.0
    slows = False
    is_buffered = False

    def starts(self, now: Now) -> Sequence[str]:
        """Return the lines of the start-up, as many as `start_s` has numbers, less one."""
        return [f"starting ({n})\n" for n in range(len(self.start_s) - 1)]

    def begins_epoch(self, now: Now) -> str:
        """Return a headline."""
        return ""

    def ends_epoch(self, now: Now) -> str:
        """Return a summary."""
        return ""

    def step(self, now: Now) -> str:
        """Return the line or lines of a step."""
        raise NotImplementedError

    def begins_eval(self, now: Now) -> str:
        """Return the announcement of an evaluation."""
        return ""

    def evaluates(self, now: Now, n: int, of: int) -> str:
        """Return line `n`, from 1, of an evaluation."""
        return ""

    def ends_eval(self, now: Now) -> str:
        """Return the result of an evaluation."""
        return ""

    def begins_save(self, now: Now) -> str:
        """Return the announcement of a checkpoint."""
        return ""

    def ends_save(self, now: Now) -> str:
        """Return the confirmation of a checkpoint."""
        return ""

    def redraws(self, now: Now) -> str:
        """Return the last position once more with new digits, as a bar does that a thread of its own redraws."""
        return ""


@dataclass
class Day:
    """One day of a trainer, by a seed.

    Attributes:
        began: when the day began, in seconds since the epoch.
        attempts: (begin, end) of each attempt, in seconds since the day began.
    """

    trainer: Trainer
    name: str
    seed: int = 0
    hours: float = 24.0
    began: float = 1_800_000_000.0
    attempts: list[tuple[float, float]] = field(default_factory=list)

    @cached_property
    def main(self) -> list[Event]:
        """What the training itself writes, oldest first."""
        chance = Random(f"{self.seed} {self.name}")
        events = list(_Simulation(self, chance).events())
        return _in_blocks(events) if self.trainer.is_buffered else events

    def background(self, begin: float, until: float, attempt: int) -> list[Event]:
        """Return the background lines of an attempt that began at a time; a later `until` only adds lines."""
        found = []
        for number, stream in enumerate(self.trainer.background):
            chance = Random(f"{self.seed} {self.name} {attempt} {number}")
            now = Now(chance)
            at = begin + chance.uniform(0.2, 1.0) * min(stream.every_s, 120.0)
            for count in range(10**6):
                if at >= min(until, begin + stream.until_h * HOUR):
                    break
                now.time, now.elapsed_s = self.began + at, at - begin
                found.append(Event(at, stream.text(now, count), "background", attempt))
                at += stream.every_s * max(0.2, chance.gauss(1.0, 0.05))
        return sorted(found)

    def whole(self) -> list[Event]:
        """Return all that is written on the healthy day, oldest first."""
        events = list(self.main)
        for number, (begin, end) in enumerate(self.attempts):
            events += self.background(begin, end, number)
        return sorted(events, key=lambda event: event.at)

    def longest_pause(self, until: float, phase: str = STEP) -> float:
        """Return the longest time between two step lines of one attempt up to a time.

        With the phase START, the longest silence within a start-up.
        """
        if phase == START:
            found = 0.0
            last = {number: begin for number, (begin, _) in enumerate(self.attempts)}
            for event in self.main:
                if event.at > until:
                    break
                if event.attempt in last:
                    found = max(found, event.at - last.pop(event.attempt))
                    if event.phase == START:
                        last[event.attempt] = event.at
            return found
        steps = [event for event in self.main if event.phase == STEP and event.at <= until]
        return max((b.at - a.at for a, b in pairwise(steps) if a.attempt == b.attempt), default=0.0)


class _Simulation:
    """The training as it goes on."""

    def __init__(self, day: Day, chance: Random) -> None:
        self.day, self.trainer, self.chance = day, day.trainer, chance
        self.at = 0.0
        self.end = day.hours * HOUR
        self.now = Now(chance, total=day.trainer.total, of=day.trainer.epoch_steps)
        self.saved = 0
        self.attempt = 0
        self.pause_at = chance.uniform(0.3, 0.9) * self.end if day.trainer.pause_s else self.end + 1
        self.slow_from = chance.uniform(0.3, 0.8) * self.end if day.trainer.slows else self.end + 1
        self.began = 0.0

    def events(self) -> Iterator[Event]:
        trainer = self.trainer
        while self.at < self.end:
            self.began = self.at
            limit = min(self.end, self.at + (trainer.walltime_h or 1e6) * HOUR)
            for event in self._attempt():
                if event.at >= limit:
                    break
                if event.text:
                    yield event
            self.day.attempts.append((self.began, limit))
            if limit < self.end:
                self._tick(limit)
                yield self._event(_killed(self.now, self.attempt), END)
            self.at = limit + trainer.queue_s * self.chance.uniform(0.7, 1.5)
            self.attempt += 1
            self.now.step = self.saved

    def _tick(self, at: float) -> None:
        self.at = at
        self.now.time, self.now.elapsed_s = self.day.began + at, at - self.began

    def _wait(self, seconds: float, noise: float = 0.1) -> None:
        """Let time pass, with the day's one pause where it falls."""
        at = self.at + max(0.3 * seconds, self.chance.gauss(seconds, noise * seconds))
        if self.at <= self.pause_at < at:
            at += self.trainer.pause_s
            self.pause_at = 1e9
        self._tick(at)

    def _event(self, text: str, phase: str) -> Event:
        return Event(self.at, text, phase, self.attempt)

    def _attempt(self) -> Iterator[Event]:
        trainer, now = self.trainer, self.now
        self._tick(self.at)
        for wait_s, line in zip(trainer.start_s, (*trainer.starts(now), ""), strict=True):
            self._wait(wait_s, 0.15)
            yield self._event(line, START)
        of = trainer.epoch_steps
        while True:
            now.epoch, now.k = divmod(now.step, of) if of else (0, now.step)
            if now.k == 0 or not of:
                yield self._event(trainer.begins_epoch(now), RELOAD)
            while True:
                yield from self._steps()
                if of and now.k == of:
                    break
            yield self._event(trainer.ends_epoch(now), RELOAD)
            if trainer.eval_every == EPOCH:
                yield from self._evaluation()
            if trainer.save_every == EPOCH:
                yield from self._save()
            if trainer.reload_s:
                self._wait(trainer.reload_s)

    def _steps(self) -> Iterator[Event]:
        """Go on to the next step at which something is written."""
        trainer, now = self.trainer, self.now
        left = [trainer.log_every - now.k % trainer.log_every]
        left += [every - now.step % every for every in (trainer.eval_every, trainer.save_every) if every > 0]
        count = min(*left, now.of - now.k) if now.of else min(left)
        is_slow = self.slow_from <= self.at < self.slow_from + HOUR
        step_s = trainer.step_s * (3 if is_slow else 1)
        self._wait(count * step_s, trainer.noise / count**0.5)
        now.step, now.k, now.step_s = now.step + count, now.k + count, step_s * self.chance.gauss(1, 0.02)
        if now.k % trainer.log_every == 0 or now.k == now.of:
            yield self._event(trainer.step(now), STEP)
        if trainer.eval_every > 0 and now.step % trainer.eval_every == 0:
            yield from self._evaluation()
        if trainer.save_every > 0 and now.step % trainer.save_every == 0:
            yield from self._save()

    def _evaluation(self) -> Iterator[Event]:
        trainer, now = self.trainer, self.now
        yield self._event(trainer.begins_eval(now), EVAL)
        parts = trainer.eval_lines + 1
        for n in range(1, parts):
            self._wait(trainer.eval_s / parts)
            yield self._event(trainer.evaluates(now, n, trainer.eval_lines), EVAL)
        self._wait(trainer.eval_s / parts)
        yield self._event(trainer.ends_eval(now), EVAL)

    def _save(self) -> Iterator[Event]:
        trainer, now = self.trainer, self.now
        yield self._event(trainer.begins_save(now), SAVE)
        self._wait(trainer.save_s, 0.2)
        self.saved = now.step
        yield self._event(trainer.ends_save(now), SAVE)


def job_id(attempt: int) -> int:
    """Return the job of an attempt."""
    return 4_810_000 + 173 * attempt


def _killed(now: Now, attempt: int) -> str:
    when = now.clock("%Y-%m-%dT%H:%M:%S")
    return f"slurmstepd: error: *** JOB {job_id(attempt)} ON node01 CANCELLED AT {when} DUE TO TIME LIMIT ***\n"


def _in_blocks(events: Sequence[Event]) -> list[Event]:
    """Return the same output as a buffer writes it to a file: in whole blocks, the rest at the end of an attempt."""
    found: list[Event] = []
    held = b""
    for event, following in zip(events, [*events[1:], None], strict=True):
        held += event.text.encode()
        is_last = following is None or following.attempt != event.attempt
        full = len(held) if is_last and event.phase == END else len(held) // BLOCK_BYTES * BLOCK_BYTES
        if full:
            found.append(event._replace(text=held[:full].decode("utf-8", "surrogateescape")))
            held = held[full:]
        if is_last:
            held = b""
    return found
