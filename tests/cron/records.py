"""Records of runs as processes leave them in the book."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from resilience.base.processes import pid_space, start_ticks
from resilience.cron.book import Run, State, machine
from resilience.cron.state_directory import CronDirectory

KEY, SLOT = "crontab+it", 1_800_000_000
DEAD = 2**22 + 1
"""A process number that no process can have."""
FAR = "0badf00d"
"""Another machine."""


def take(
    directory: CronDirectory, key: str, slot: int, about: Mapping[str, Any] | None = None, now: float | None = None
) -> bool:
    """Take a slot and let go of its record; return whether that worked."""
    run = directory.book.claim(key, slot, about or {}, lambda: slot if now is None else now)
    if run is not None:
        directory.book.drop(run)
    return run is not None


def put_run(
    directory: CronDirectory,
    key: str = KEY,
    slot: int = SLOT,
    *,
    pid: int = 0,
    ticks: int | None = None,
    machine_id: str = "",
    at: float | None = None,
    state: State = State.RUNNING,
    id: str = "18f0000000000000abcd",
    **about: Any,
) -> Run:
    """Put the record of an active run there, by default of a run that this very process supervises."""
    pid = pid or os.getpid()
    ticks = start_ticks(pid) or 1 if ticks is None else ticks
    holder = f"{machine_id or machine()}-{pid}-{ticks}-{time.time() if at is None else at}"
    run = Run(key, slot, id, state, holder)
    boot, namespace = pid_space()
    facts = {"id": id, "name": key.replace("+", "/", 1), "host": os.uname().nodename, "boot": boot,
             "namespace": namespace, "limit_s": 3600.0}  # fmt: skip
    path = directory.path / "runs" / run.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts | about).ljust(4095) + "\n")
    return run


def running(directory: CronDirectory) -> list[Run]:
    """The runs under way."""
    return [run for run in directory.book.active() if run.state is State.RUNNING]


def settle(directory: CronDirectory, now: float | None = None) -> list[Any]:
    """What a tick does about runs whose supervisor is dead."""
    return list(directory.book.settle_dead(time.time() if now is None else now, os.uname().nodename))
