"""The log watchdog over a simulated day by a fake clock: its false alarms, and the delay until it finds each hang.

The healthy day is watched once. Where a hang begins, the files and the watchdog's memory are kept, the hung variant is
watched until it is found, and the healthy day goes on from what was kept.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from resilience.finding import Finding, Verdict
from tests.lab.fakes import NOW, FakeClock
from tests.watch.checks.log.training_run import Run
from tests.watch.checks.log.watcher import LogWatcher
from tests.watch.trainers.day import EVAL, HOUR, MINUTE, SAVE, START, STEP, Day, Event, Now, Trainer, job_id

LEAST_BOUND_S, PAUSES = 30 * MINUTE, 3
"""A hang must be found within PAUSES times the longest pause so far, or LEAST_BOUND_S."""
FAR_S = HOUR
"""How long after its bound a hang is watched, to tell late from never."""
SILENT, TALKING, IN_EVAL, IN_SAVE, AT_START, ERRORS = "silent", "talking", "evaluation", "save", "start", "errors"
KINDS = (SILENT, TALKING, IN_EVAL, IN_SAVE, AT_START, ERRORS)
HANG_FAULTS = frozenset({"no-progress", "failing", "empty", "not-ended"})
"""The faults that tell of a hang."""
NOTICES = frozenset({"no-step"})
"""The faults that are no alarm: the form of the log is unknown."""
BEGINS, ENDS = "begins", "ends"


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang of one kind.

    Attributes:
        since: when the training wrote its last line, in seconds since the day began.
        bound_s: the time within which it must be found.
        events: what is written after `since`: lines of the background, errors of a rank.
    """

    kind: str
    since: float
    bound_s: float
    attempt: int
    events: Callable[[float], Sequence[Event]]


class Alarm(NamedTuple):
    """A time without an OK on a healthy day.

    Attributes:
        begin: seconds since the day began; `end` is the first OK after it.
        verdict: the worst one; `fault` and `summary` are of the first such finding.
        is_due: whether a hang would have to be found in this pause: it is longer than the bound of hangs.
    """

    begin: float
    end: float
    verdict: Verdict
    fault: str
    summary: str
    is_due: bool


@dataclass(frozen=True, slots=True)
class Delay:
    """The time from a hang's last line of progress until the watchdog said so; None if it did not.

    `noticed_s` is the time until the notice that no step was found, which counts where a healthy day has none.
    """

    kind: str
    since: float
    bound_s: float
    first_s: float | None
    critical_s: float | None
    summary: str
    tick_s: float
    noticed_s: float | None = None

    @property
    def is_in_time(self) -> bool:
        """Whether a finding of a hang came within the bound, at the next tick."""
        return self.first_s is not None and self.first_s <= self.bound_s + self.tick_s


@dataclass
class Result:
    """One trainer's day, and its hangs."""

    name: str
    hours: float
    interval_s: float
    pause_s: float
    talks: bool
    alarms: list[Alarm] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)

    def count(self, verdict: Verdict) -> int:
        """Return the number of alarms of a verdict."""
        return sum(one.verdict is verdict for one in self.alarms if one.fault not in NOTICES)

    @property
    def notices(self) -> int:
        """The number of notices, which are no alarms."""
        return sum(one.fault in NOTICES for one in self.alarms)

    @property
    def false_alarms(self) -> int:
        """All alarms of a healthy day, but those that were due and the notices."""
        return sum(not one.is_due for one in self.alarms if one.fault not in NOTICES)

    @property
    def is_right(self) -> bool:
        """Whether no alarm was false and every hang was found in time."""
        return not self.false_alarms and all(delay.is_in_time for delay in self.delays)


def false_rate(results: Sequence[Result]) -> float:
    """Return the false alarms in 1,000 hours."""
    return 1000 * sum(result.false_alarms for result in results) / sum(result.hours for result in results)


def watch_day(
    trainer: Trainer,
    name: str,
    directory: Path,
    *,
    seed: int = 0,
    hours: float = 24.0,
    tick_s: float = 60.0,
    kinds: Sequence[str] = KINDS,
) -> Result:
    """Watch a healthy day of a trainer, and a hang of each kind that it can have."""
    day = Day(trainer, name, seed, hours, NOW)
    hangs = [hang for kind in kinds if (hang := hang_of(day, kind)) is not None]
    steps = [event.at for event in day.main if event.phase == STEP]
    gaps = sorted(b - a for a, b in pairwise(steps)) or [0.0]
    result = Result(
        name, hours, gaps[len(gaps) // 2], day.longest_pause(hours * HOUR), bool(trainer.background), [], []
    )
    _Watch(day, directory, tick_s).watch(hangs, result)
    return result


def hang_of(day: Day, kind: str) -> Hang | None:
    """Return the hang of a kind at a time of the day's seed; None if the trainer cannot have it."""
    trainer, main = day.trainer, day.main
    chance = Random(f"{day.seed} {day.name} {kind}")
    phase = {IN_EVAL: EVAL, IN_SAVE: SAVE, AT_START: START}.get(kind, STEP)
    cuts = [
        cut for cut, event in enumerate(main)
        if cut and event.attempt == main[cut - 1].attempt and event.at > main[cut - 1].at + 1
        and (main[cut - 1].phase if kind == AT_START else event.phase) == phase
    ]  # fmt: skip
    if kind == TALKING:
        cuts = [cut for cut in cuts if _talks_on(day, main[cut])]
    if not cuts or (trainer.is_buffered and phase != STEP):
        return None
    end_s = day.hours * HOUR
    late = [cut for cut in cuts if 0.25 * end_s <= main[cut].at <= 0.7 * end_s]
    if kind == AT_START:
        late = [cut for cut in cuts if main[cut].attempt == 1]
    cut = chance.choice(late or cuts[len(cuts) // 2 :])
    last = main[cut - 1]
    longest_s = day.longest_pause(last.at, START if kind == AT_START else STEP)
    bound_s = max(PAUSES * longest_s, LEAST_BOUND_S)

    def events(until: float) -> Sequence[Event]:
        written = list(_stuck(day, chance, last, until)) if kind == TALKING else []
        if kind == ERRORS:
            written += _errors(day, chance, last, until)
        if kind != SILENT:
            begin = day.attempts[last.attempt][0]
            written += [event for event in day.background(begin, until, last.attempt) if event.at > last.at]
        return sorted(written, key=lambda event: event.at)

    return Hang(kind, last.at, bound_s, last.attempt, events)


def _talks_on(day: Day, event: Event) -> bool:
    """Return whether lines are still written an hour after an event at which the training hangs."""
    ends_s = max((stream.until_h for stream in day.trainer.background), default=0.0) * HOUR
    is_redrawn = bool(day.trainer.redraws(Now(Random(0), of=1)))
    return is_redrawn or event.at + HOUR < day.attempts[event.attempt][0] + ends_s


def _stuck(day: Day, chance: Random, last: Event, until: float) -> Iterator[Event]:
    """Yield what a thread of the trainer's own redraws."""
    begin = day.attempts[last.attempt][0]
    now = Now(
        chance, step=400, total=day.trainer.total, k=min(400, day.trainer.epoch_steps), of=day.trainer.epoch_steps
    )
    now.step_s = day.trainer.step_s
    at = last.at + 2
    while at < until:
        now.time, now.elapsed_s = day.began + at, at - begin
        if text := day.trainer.redraws(now):
            yield Event(at, text, "redraws", last.attempt)
        at += 2 if text else until


_FAILURES = (
    "[rank3]:[E1122 03:12:10.123456 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=88123, OpType=ALLREDUCE, NumelIn=5120, NumelOut=5120, Timeout(ms)=600000) ran for 600005 "
    "milliseconds before timing out.\n",
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/exp/train.py", line 412, in <module>\n'
    "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
    'Traceback (most recent call last):\n  File "/exp/data.py", line 88, in __iter__\n    batch = next(self.loader)\n'
    "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed. \n",
    'Traceback (most recent call last):\n  File "/exp/train.py", line 77, in save\n    torch.save(state, path)\n'
    "OSError: [Errno 116] Stale file handle\n",
    'Traceback (most recent call last):\n  File "/exp/train.py", line 230, in run\n    assert batch.shape[0]\n'
    "ValueError: expected 64 samples, got 63\n",
)


def _errors(day: Day, chance: Random, last: Event, until: float) -> Iterator[Event]:
    """Yield the error of one rank, and then the others, which wait for that rank and count the seconds."""
    at = last.at + chance.uniform(5, 120)
    yield Event(at, chance.choice(_FAILURES), ERRORS, last.attempt)
    while at < until:
        at += 60
        yield Event(
            at,
            f"[rank{chance.randrange(3)}] waiting for rank 3 in barrier, {at - last.at:.0f} s\n",
            ERRORS,
            last.attempt,
        )


def _weight(found: Finding | Alarm) -> tuple[bool, bool]:
    return found.fault not in NOTICES, found.verdict is Verdict.CRITICAL


class _Watch:
    """The files of a day, and a watchdog of them."""

    def __init__(self, day: Day, directory: Path, tick_s: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.day, self.directory, self.tick_s = day, directory, tick_s
        self.clock = FakeClock(day.began)
        self.place = day.trainer.place
        self.run = Run(directory, self.clock) if self.place == "run" else None
        if self.place == "run":
            self.watcher = LogWatcher(directory, clock=self.clock)
        elif self.place == "pattern":
            (directory / "logs").mkdir()
            self.watcher = LogWatcher(directory, "logs/*.out", clock=self.clock)
        else:
            self.watcher = LogWatcher(directory, "train.log", clock=self.clock)

    def watch(self, hangs: Sequence[Hang], result: Result) -> None:
        """Watch the healthy day, and from it each hang."""
        day = self.day
        written = sorted([*day.whole(), *self._lives()], key=lambda event: event.at)
        progress = [event.at for event in day.main]
        position, begun = 0, None
        for number in range(int(day.hours * HOUR / self.tick_s) + 1):
            at = number * self.tick_s
            end = bisect_right(written, at, key=lambda event: event.at)
            self._write(written[position:end])
            position = end
            begun = self._note(self._tick(at), at, begun, progress, result)
            for hang in hangs:
                if at <= hang.since < at + self.tick_s:
                    with self._kept():
                        result.delays.append(self._delay(hang, at, written[position:]))
        if begun is not None:
            result.alarms.append(begun._replace(end=day.hours * HOUR))
        if not result.notices:  # on a healthy day of this trainer the notice tells nothing
            result.delays = [replace(one, first_s=one.first_s or one.noticed_s) for one in result.delays]

    def _note(
        self, findings: Sequence[Finding], at: float, begun: Alarm | None, progress: Sequence[float], result: Result
    ) -> Alarm | None:
        """Add an alarm that ended to the result; return the one that goes on."""
        wrong = [finding for finding in findings if finding.verdict is not Verdict.OK]
        if not wrong:
            if begun is not None:
                result.alarms.append(begun._replace(end=at))
            return None
        worst = max(wrong, key=_weight)
        if begun is not None and _weight(begun) >= _weight(worst):
            return begun
        if begun is not None and begun.fault not in NOTICES:
            return begun._replace(verdict=worst.verdict, fault=worst.fault, summary=worst.summary)
        if begun is not None:
            result.alarms.append(begun._replace(end=at))
        return Alarm(at, at, worst.verdict, worst.fault, worst.summary, self._is_due(at, progress))

    def _is_due(self, at: float, progress: Sequence[float]) -> bool:
        """Return whether a hang would have to be found within the pause at a time: it is longer than the bound."""
        last = bisect_right(progress, at)
        since = progress[last - 1] if last else 0.0
        until = progress[last] if last < len(progress) else self.day.hours * HOUR
        longest_s = max(self.day.longest_pause(since), self.day.longest_pause(since, START))
        return until - since > max(PAUSES * longest_s, LEAST_BOUND_S)

    def _delay(self, hang: Hang, at: float, rest: Sequence[Event]) -> Delay:
        """Watch a hang from this tick until it is critical, or long after its bound."""
        until = hang.since + hang.bound_s + FAR_S
        before = [event for event in rest if event.at <= hang.since]
        written = [*before, *hang.events(until)]
        first_s = noticed_s = None
        position, summary = 0, ""
        while at < until:
            at += self.tick_s
            end = bisect_right(written, at, key=lambda event: event.at)
            self._write(written[position:end])
            position = end
            findings = self._tick(at)
            if noticed_s is None and any(finding.fault in NOTICES for finding in findings):
                noticed_s = at - hang.since
            wrong = [
                finding for finding in findings
                if finding.verdict in (Verdict.WARNING, Verdict.CRITICAL) and finding.fault in HANG_FAULTS
            ]  # fmt: skip
            if wrong and first_s is None:
                first_s, summary = at - hang.since, wrong[0].summary
            if any(finding.verdict is Verdict.CRITICAL for finding in wrong):
                return Delay(hang.kind, hang.since, hang.bound_s, first_s, at - hang.since, summary, self.tick_s)
        return Delay(hang.kind, hang.since, hang.bound_s, first_s, None, summary, self.tick_s, noticed_s)

    def _tick(self, at: float) -> Sequence[Finding]:
        self.clock.sleep(self.day.began + at - self.clock.time)
        return self.watcher.findings()

    def _lives(self) -> Iterator[Event]:
        """Yield the begin and the end of each attempt, for a run directory."""
        for number, (begin, end) in enumerate(self.day.attempts):
            yield Event(begin, "", BEGINS, number)
            if end < self.day.hours * HOUR:
                yield Event(end + 1, "", ENDS, number)

    def _write(self, events: Sequence[Event]) -> None:
        """Write events, each into the log of its attempt, whose last write is then that of the last event."""
        for number in sorted({event.attempt for event in events}):
            own = [event for event in events if event.attempt == number]
            text = "".join(event.text for event in own)
            lives = [event for event in own if event.phase in (BEGINS, ENDS)]
            for event in lives:
                self._live(event)
            last = max((event.at for event in own if event.text), default=0.0)
            if text or any(event.phase == BEGINS for event in lives):
                self._append(number, text, last or lives[0].at)

    def _live(self, event: Event) -> None:
        if self.run is None:
            return
        now, self.clock.time = self.clock.time, self.day.began + event.at
        if event.phase == BEGINS:
            self.run.attempt(event.attempt + 1, job_id(event.attempt))
        else:
            self.run.end(event.attempt + 1, "exited")
        self.clock.time = now

    def _append(self, attempt: int, text: str, at: float) -> None:
        path = self._log(attempt)
        with open(path, "ab") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        os.utime(path, (self.day.began + at, self.day.began + at))

    def _log(self, attempt: int) -> Path:
        if self.place == "run":
            return self.directory / "runs" / "gpt" / "logs" / f"gpt-{job_id(attempt)}.out"
        if self.place == "pattern":
            return self.directory / "logs" / f"train-{job_id(attempt)}.out"
        return self.directory / "train.log"

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Put the files, the clock and the watchdog's memory back afterwards: logs are cut to their size before."""
        at, monotonic, memory = self.clock.time, self.clock.monotonic(), dict(self.watcher.memory)
        logs = {self._log(number) for number in range(len(self.day.attempts) or 1)}
        files = {path: path.stat() for path in self.directory.rglob("*") if path.is_file()}
        contents = {path: path.read_bytes() for path in files if path not in logs}
        try:
            yield
        finally:
            self.clock.time, self.clock._monotonic = at, monotonic
            self.watcher.memory = memory
            for path in [path for path in self.directory.rglob("*") if path.is_file()]:
                if path not in files:
                    path.unlink()
                elif path in logs:
                    os.truncate(path, files[path].st_size)
                elif path.read_bytes() != contents[path]:
                    path.write_bytes(contents[path])
            for path, info in files.items():
                os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
