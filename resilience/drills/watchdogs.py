"""The watchdogs of a drill: `resil watch --all` in a process of its own, as often as a drill needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from resilience.base.processes import is_same, start_ticks
from resilience.system.files import write_atomic

FILE = "watch.pid"
END_S = 10.0


class Watchdogs:
    """A process that watches until it is ended, or has looked `count` times, also if its drill was killed."""

    def __init__(
        self, scratch: Path, cwd: Path, environ: Mapping[str, str], every_s: float, count: int, deadline_s: float = 0.0
    ) -> None:
        words = ["watch", "--all", "--alert", "--every", f"{every_s:g}s", "--count", str(count)]
        words += ["--deadline", f"{deadline_s:g}s"] if deadline_s else []
        with open(scratch / "watch.log", "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "resilience", *words], stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                cwd=cwd, env=environ, start_new_session=True,
            )  # fmt: skip
        pid = self._process.pid
        write_atomic(scratch / FILE, f"{pid} {start_ticks(pid) or 0}\n", mode=0o600)

    def end(self) -> None:
        """End it, and its probes, for whose answers it would wait."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def end_watchdogs(scratch: Path) -> None:
    """End the watchdogs of a drill that was killed."""
    with suppress(OSError, ValueError):
        pid, ticks = map(int, (scratch / FILE).read_text().split())
        if is_same(pid, ticks):
            os.killpg(pid, signal.SIGKILL)
