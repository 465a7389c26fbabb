"""A supervisor with a single thread, so that strace can follow it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from resilience.cron.state_directory import CronDirectory
from resilience.cron.table import watched_run
from resilience.cron.table.watched_run import Setup, WatchedRun
from resilience.settings.cron_settings import CronSettings
from resilience.system.ports import SystemClock
from tests.cron.table.runs import SLOT, entry

watched_run.LAST_S = 1.0


def _no_room(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def run_supervisor(project: str) -> None:
    """Run the supervisor of one run."""
    setattr(threading.Thread, "start", _no_room)  # noqa: B010 - a plain assignment is refused by type checkers
    directory = CronDirectory(Path(project, "state"))
    settings = CronSettings(output_bytes=65536.0, keep_runs=3)
    setup = Setup(directory, settings, Path(project), lambda *_: {}, lambda _: None, SystemClock(), "n1")
    run = directory.book.claim("crontab+it", SLOT, {"name": "crontab/it"}, time.time)
    _, report_to = os.pipe()
    program = entry("/bin/sh", "-c", "echo words; echo ran >> ran; exit 3")
    WatchedRun(setup, program, SLOT, run, {"PATH": "/usr/bin:/bin"}).supervise((), report_to)
