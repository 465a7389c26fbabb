"""What injected faults change for resil's own processes of a project: the commands of SLURM, and the clock.

`<state_dir>/.injected.json` has it. It is only read where the settings say `allow_inject = true`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.system.files import open_without_waiting, write_atomic
from resilience.system.ports import SystemClock

if TYPE_CHECKING:
    from resilience.system.ports import Clock

FILE = ".injected.json"


@dataclass(frozen=True, slots=True)
class ShiftedClock:
    """A clock whose wall time is wrong by so many seconds, until a time; monotonic time is right."""

    clock: Clock
    shift_s: float
    until: float

    def now(self) -> float:
        """Return the wrong time, in seconds since the epoch."""
        now = self.clock.now()
        return now + (self.shift_s if now < self.until else 0.0)

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        self.clock.sleep(seconds)


def read_injected(state_dir: Path) -> dict[str, dict[str, Any]]:
    """Return what is changed now, by kind; empty if nothing is, or if that cannot be read."""
    with (
        suppress(OSError, ValueError, TypeError, AttributeError, RecursionError),
        open(state_dir / FILE, "rb", opener=open_without_waiting) as file,
    ):
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            now = SystemClock().now()
            return {kind: one for kind, one in json.loads(file.read()).items() if now < float(one["until"])}
    return {}


def set_injected(state_dir: Path, kind: str, change: Mapping[str, Any]) -> None:
    """Change something from now on, until `change["until"]`. Raise StateDirectoryError if that cannot be written."""
    write_atomic(state_dir / FILE, json.dumps({**read_injected(state_dir), kind: dict(change)}) + "\n")


def unset_injected(state_dir: Path, kind: str, name: str) -> None:
    """Take back what the injection `name` has changed, if it is still that. Raise StateDirectoryError as above."""
    found = read_injected(state_dir)
    if found.get(kind, {}).get("id") == name:
        del found[kind]
        write_atomic(state_dir / FILE, json.dumps(found) + "\n")


def shifted(clock: Clock, state_dir: Path) -> Clock:
    """Return the clock of a project, wrong if that was injected."""
    change = read_injected(state_dir).get("clock")
    return clock if change is None else ShiftedClock(clock, float(change["shift_s"]), float(change["until"]))


def with_commands(environ: Mapping[str, str], state_dir: Path) -> Mapping[str, str]:
    """Return the environment of SLURM's commands, with replacements of them first if that was injected."""
    change = read_injected(state_dir).get("commands")
    return environ if change is None else {**environ, "PATH": f"{change['bin']}:{environ.get('PATH', os.defpath)}"}
