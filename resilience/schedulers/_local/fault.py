"""A fault that `resil inject scheduler` has put on the embedded scheduler's answers, until a time.

The file `fault.json` in the spool says which. Jobs go on, start and end as before: only answers are affected, those of
resil and those of the commands in jobs. After its time the fault is over by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from resilience.errors import SchedulerUnavailable
from resilience.system.files import write_atomic

FILE, HISTORY = "fault.json", "history"
COPIES = 50
"""Of a spool, which are kept for old answers."""
MODES = ("hang", "down", "garbage", "lag")
DOWN = "Unable to contact slurm controller (connect failure)"
HUNG = "Socket timed out on send/recv operation"
GARBAGE = "\x1f7|gpt|RUNN\x00\x1b[2J<html>502 Bad Gateway"
_PREFIXES = {
    "sbatch": "sbatch: error: Batch job submission failed: ",
    "squeue": "slurm_load_jobs error: ",
    "scontrol": "slurm_load_jobs error: ",
    "scancel": "scancel: error: ",
    "srun": "srun: error: Unable to create step for job: ",
}
"""What SLURM's commands print before the two errors, as recorded with 22.05."""


class SchedulerFault(NamedTuple):
    """The fault.

    Attributes:
        mode: one of MODES.
        until: when it is over, in seconds since the epoch.
        lag_s: how old the answers are.
        id: of the injection.
    """

    mode: str
    until: float
    lag_s: float = 0.0
    id: str = ""


def read_fault(root: Path) -> SchedulerFault | None:
    """Return the fault that is on in a spool; None if there is none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        record = json.loads((root / FILE).read_bytes())
        found = SchedulerFault(
            str(record["mode"]), float(record["until"]), float(record.get("lag_s", 0)), str(record.get("id", ""))
        )
        if found.mode in MODES and time.time() < found.until:
            return found
    return None


def snapshot(root: Path, fault: SchedulerFault) -> Path | None:
    """Return the newest copy of the spool that is as old as the answers shall be, else the oldest; None without one."""
    with suppress(OSError):
        times = sorted(float(path.name) for path in (root / HISTORY).iterdir())
        old = [one for one in times if one <= time.time() - fault.lag_s]
        if times:
            return root / HISTORY / f"{old[-1] if old else times[0]:.2f}"
    return None


def refuse(fault: SchedulerFault, deadline_s: float) -> None:
    """Answer a call of resil as the faulty controller would: raise SchedulerUnavailable. Return for `lag`."""
    if fault.mode == "down":
        raise SchedulerUnavailable(DOWN, hint=f"injected on purpose: {fault.id}, until it is undone")
    if fault.mode == "garbage":
        raise SchedulerUnavailable(
            f"the scheduler wrote an unexpected line: {GARBAGE!r}", hint=f"injected on purpose: {fault.id}"
        )
    if fault.mode == "hang":
        wait_s = max(0.0, min(deadline_s, fault.until - time.time()))
        time.sleep(wait_s)
        if wait_s >= deadline_s:
            raise SchedulerUnavailable(
                f"the scheduler did not answer in {deadline_s:g} s", hint=f"injected on purpose: {fault.id}"
            )


def command_exit(name: str, environ: Mapping[str, str]) -> int | None:
    """Do to a command in a job what the fault does; return its exit code. None: the command goes on."""
    spool = environ.get("RESIL_LOCAL_SPOOL", "")
    fault = read_fault(Path(spool)) if spool else None
    if fault is None or fault.mode == "lag":
        return None
    if fault.mode == "garbage":
        sys.stdout.write(GARBAGE + "\n")
        return 0
    if fault.mode == "hang":
        wait_s = fault.until - time.time()
        time.sleep(max(0.0, min(10.0, wait_s)))  # MessageTimeout of SLURM, by default
        if wait_s <= 10:
            return None
    sys.stderr.write(f"{_PREFIXES.get(name, '')}{DOWN if fault.mode == 'down' else HUNG}\n")
    return 1


def begin_fault(root: Path, fault: SchedulerFault) -> None:
    """Put a fault on a spool's answers. Raise StateDirectoryError if it cannot be written."""
    write_atomic(root / FILE, json.dumps(fault._asdict()))


def end_fault(root: Path, name: str) -> None:
    """Take the fault of an injection off, and forget old answers."""
    with suppress(OSError, ValueError, AttributeError):
        if json.loads((root / FILE).read_bytes()).get("id") == name:
            (root / FILE).unlink()
    for old in (HISTORY, f"{HISTORY}.new"):
        shutil.rmtree(root / old, ignore_errors=True)


def keep_answers(root: Path) -> None:
    """Copy what queries read of a spool, for old answers. Its records are replaced, never changed: links are enough."""
    beside, history = root / f"{HISTORY}.new", root / HISTORY
    shutil.rmtree(beside, ignore_errors=True)
    history.mkdir(mode=0o700, exist_ok=True)
    for name in ("jobs", "active", "tokens"):
        if (root / name).is_dir():
            shutil.copytree(root / name, beside / name, copy_function=_link, ignore=_no_steps, dirs_exist_ok=True)
    beside.rename(history / f"{time.time():.2f}")
    with suppress(OSError, ValueError):
        for path in sorted(history.iterdir(), key=lambda one: float(one.name))[:-COPIES]:
            shutil.rmtree(path, ignore_errors=True)


def _no_steps(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "steps" or name.startswith(".")]


def _link(source: str, to: str) -> None:
    with suppress(FileNotFoundError):
        os.link(source, to)
