"""Guards for tests: a run directory, the environment of a job, and triggers that return a given request."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.guard import Decision, Request, TrainingGuard

QUIET: dict[str, Any] = {"host_memory": False, "gpu_memory": "off", "walltime": False, "signals": (), "poll_s": 0.02}
"""Settings of a guard that polls only its files, and often."""


def make_run(directory: Path) -> Path:
    """Create a run directory as the batch shell does."""
    for name in layout.FOLDERS:
        (directory / name).mkdir(parents=True, exist_ok=True)
    return directory


def job_environ(run: Path | None = None, **more: str) -> dict[str, str]:
    """Return the environment of a job of a template."""
    environ = {"RESIL_JOB_ID": "12", "RESIL_ATTEMPT": "3", "RESIL_RUN": "demo"}
    if run is not None:
        environ["RESIL_RUN_DIR"] = str(run)
    return environ | more


def make_guard(run: Path | None = None, **options: Any) -> TrainingGuard:
    """A quiet guard of one process; keyword arguments are those of `from_env`."""
    return TrainingGuard.from_env(job_environ(run), **{**QUIET, **options})


class Requester:
    """A user's trigger that returns `request` once, and records the outcomes."""

    name = "requester"

    def __init__(self, request: Request | str | None = None) -> None:
        self.request = request
        self.outcomes: list[str] = []
        self.polls = 0

    def poll(self) -> Request | str | None:
        self.polls += 1
        request, self.request = self.request, None
        return request

    def done(self, outcome: str) -> None:
        self.outcomes.append(outcome)


def train(guard: TrainingGuard, *, until: Callable[[Decision], bool] = bool, deadline_s: float = 20.0) -> Decision:
    """Do steps until a decision satisfies `until`; fail after the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        decision = guard.step()
        if until(decision):
            return decision
        time.sleep(0.001)
    raise AssertionError("no such decision in time")


def save(guard: TrainingGuard, *handles: object) -> None:
    """Save; durable once all handles have succeeded, or at once without any."""
    with guard.saving() as saving:
        saving.until(*handles)
