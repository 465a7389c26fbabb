"""A run directory written by hand: attempts, logs, heartbeats, and the journals as the guards write them.

A story is what happens to a run and what the watchdog finds then: seconds to wait, what happens, the verdict and the
fault, and words of what is said; `says: ` stands before the summary.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.guard import TrainingGuard
from resilience.guard.heartbeat.beat import GONE, RUNNING, Progress, RankBeat, compose
from resilience.guard.heartbeat.run_directory import as_line
from tests.guard.guards import QUIET, job_environ, make_run
from tests.lab.fakes import NOW, FakeClock
from tests.watch.checks.log.watcher import LogWatcher, write
from tests.watch.checks.outcome import outcome


class Run:
    """A run directory, with ranks on `n1` by default."""

    def __init__(self, directory: Path, clock: FakeClock, name: str = "gpt") -> None:
        self.clock = clock
        self.path = make_run(directory / "runs" / name)
        self.attempts = self.path / "attempts"
        (self.path / layout.RUN_FILE).write_text('[run]\nname = "gpt"\n')

    def attempt(self, number: int, job_id: int = 0) -> None:
        """Start an attempt; by default the first one is job 101, the second job 102."""
        job_id = job_id or 100 + number
        text = (
            f'number = {number}\njob_id = {job_id}\nlabel = "{job_id}"\nhost = "n1"\nstart = {int(self.clock.time)}\n'
        )
        (self.attempts / layout.attempt_file(number)).write_text(text)

    def end(self, number: int, word: str) -> None:
        text = f'end = "{word}"\nexit_code = 1\ntime = {int(self.clock.time)}\n'
        (self.attempts / layout.attempt_end_file(number)).write_text(text)

    def finish(self) -> None:
        write(self.path / "finished", "attempt = 1\n", at=self.clock.time)

    def log(self, job_id: int | str, text: str, age_s: float = 0.0) -> Path:
        return write(self.path / "logs" / f"gpt-{job_id}.out", text, at=self.clock.time - age_s, append=True)

    def journal(self, job_id: int, raw: bytes = b"") -> Path:
        """Append lines to the journals of their ranks; return the journal of rank 0."""
        for one in raw.splitlines(keepends=True):
            with open(self.path / "journal" / f"{job_id}.{json.loads(one)['rank']}.jsonl", "ab") as file:
                file.write(one)
        return self.path / "journal" / f"{job_id}.0.jsonl"

    def beat(
        self, job_id: int, ranks: dict[int, tuple[int, float, str]], *, attempt: int = 1, host: str = "n1",
        ahead_s: float = 0.0, gone: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Write a heartbeat. `ranks`: number -> (step, seconds since progress, phase). `ahead_s`: of its clock."""
        now = self.clock.time + ahead_s
        beats = {}
        for number, (step, quiet_s, phase) in ranks.items():
            progress = Progress(now - quiet_s)
            progress.steps, progress.phase = step, phase
            beats[number] = RankBeat(4000 + number, progress, GONE if number in gone else RUNNING)
        path = self.path / "beats" / f"{job_id}.{host}"
        path.write_text(compose(attempt, host, beats, now))
        os.utime(path, (self.clock.time, self.clock.time))

    def guard(self, attempt: int, **options: Any) -> TrainingGuard:
        """Return a real guard of rank 0 of an attempt that starts now."""
        self.attempt(attempt)
        environ = job_environ(self.path, RESIL_JOB_ID=str(100 + attempt), RESIL_ATTEMPT=str(attempt))
        return TrainingGuard.from_env(environ, **{**QUIET, "say": lambda text: None, **options})


# What happens to a run

Happens = Callable[[Run], object]


def begins(attempt: int, job_id: int = 0) -> Happens:
    return lambda run: run.attempt(attempt, job_id)


def ends(attempt: int, word: str = "exited") -> Happens:
    return lambda run: run.end(attempt, word)


def logs(text: str, job_id: int | str = 101, *, age_s: float = 0.0) -> Happens:
    return lambda run: run.log(job_id, text, age_s)


def journals(raw: bytes, job_id: int = 101) -> Happens:
    return lambda run: run.journal(job_id, raw)


def beats(ranks: dict[int, tuple[int, float, str]], job_id: int = 101, **more: Any) -> Happens:
    return lambda run: run.beat(job_id, ranks, **more)


def is_removed(run: Run) -> None:
    shutil.rmtree(run.path)


ANYTHING, NOTHING = "", "no finding"
Story = Sequence[tuple[Any, ...]]
"""Rows of (seconds to wait, what happens or several of it or None, verdict and fault, *words)."""


def follow(watchdog: LogWatcher, run: Run, story: Story) -> None:
    """Run a story: apply its events, and check the findings of each tick."""
    for number, (wait_s, happens, expected, *words) in enumerate(story):
        watchdog.clock.sleep(wait_s)
        for happening in happens if isinstance(happens, tuple) else (happens,) if happens else ():
            happening(run)
        if expected == NOTHING:
            assert watchdog.findings() == [], number
            continue
        finding = watchdog.finding()
        assert expected in (ANYTHING, outcome(finding)) and finding.subject == "gpt", (number, finding)
        said = "\n".join((f"says: {finding.summary}", *finding.looked, finding.advice))
        assert all(word in said for word in words), (number, finding)


# Lines of its journals


def line(name: str, step: int, *, rank: int = 0, at: float = 0.0, attempt: int = 1, **fields: Any) -> bytes:
    """Return a line of a journal, as the guard writes it; `at` is in seconds since the start of the run."""
    head = {"event": name, "time": NOW + 1000 * attempt + at, "attempt": attempt, "rank": rank, "host": "n1"}
    return as_line({**head, "step": step, **fields})


def start(step: int = 0, *, at: float = 0.0, **more: Any) -> bytes:
    return line("start", 0, at=at, **more) + (line("resume", step, at=at + 0.1, **more) if step else b"")


def nan(step: int, **more: Any) -> bytes:
    return line("loss_nonfinite", step, **{"at": step, "loss": "NaN", "in_a_row": 1, **more})


def begun(step: int, **more: Any) -> bytes:
    return line("save_begin", step, **{"at": step, **more}) + line("save_staged", step, **{"at": step, **more})


def save(step: int, **more: Any) -> bytes:
    return begun(step, **more) + line("save", step, **{"at": step + 1, "seconds": 1.0, **more})


FULL = "OSError(28, 'No space left on device')"


def failed(step: int, **more: Any) -> bytes:
    return begun(step, **more) + line("save_failed", step, **{"at": step + 1, "error": FULL, **more})
