"""Warns if the cron scheduler is late. Requests nothing: the training continues.

The watchdogs themselves may be down, while a training runs for weeks. It reports in its journal, and with a note in
`<state_dir>/.cron/notes` that the next watchdog or `resil alert flush` turns into an alert.
"""

from __future__ import annotations

import contextlib
import os
import time

from resilience.base.files import read_regular, replace_file
from resilience.guard.decision import BuiltInTrigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder

EVERY_S = 60.0
"""How often to check."""
LATE_IN_A_ROW = 3
"""Late in this many checks in a row before a warning: a cluster that has just come back gets two minutes to tick."""
GAP = 3.0
"""After a pause of this many intervals this process was suspended itself: the count restarts."""


class LateCron(BuiltInTrigger):
    """Checks once a minute, on rank 0 only, in the thread that may wait for the shared file system."""

    name = "cron"
    ranks = "first"
    shared = True

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._place = place
        self._recorder = recorder
        self._directory = os.path.join(os.path.dirname(place.run_dir.rstrip("/")), ".cron")
        self._checked_at = time.monotonic()
        self._late = 0
        self._has_warned = False

    def poll(self) -> None:
        """Check if a minute has passed. Never requests anything and never raises."""
        now = time.monotonic()
        if now - self._checked_at < EVERY_S:
            return
        if now - self._checked_at > GAP * EVERY_S:
            self._late = 0
        self._checked_at = now
        with contextlib.suppress(Exception):  # a failed check is no reason to warn
            self._check(time.time())

    def _check(self, now: float) -> None:
        record = _read(os.path.join(self._directory, "heartbeat"))
        if record is None:
            return
        from resilience import cron_late

        last, expected = cron_late.times_of(record)
        late_s = float(record.get("patience_s") or 0.0)
        if not cron_late.is_late(last, expected, now, late_s):
            self._on_time(last)
            return
        if not self._is_expected(record, last):
            self._late = 0
            return
        self._late += 1
        if self._late >= LATE_IN_A_ROW and not self._has_warned:
            self._warn(record, last, cron_late.overdue_s(last, expected, now), now)

    def _is_expected(self, record: dict[str, Any], last: float) -> bool:
        from resilience.cron_late import is_awaited

        if os.path.lexists(os.path.join(self._directory, "stop")):
            return False
        installation = _read(os.path.join(self._directory, "driver.json"))
        if installation is not None and float(installation.get("time", 0.0)) > last:
            return False  # installed again since: this tick was of the earlier installation
        driver, is_last = str(record.get("driver", "")), bool(record.get("is_last"))
        return is_awaited(driver, is_installed=installation is not None, is_last=is_last)

    def _warn(self, record: dict[str, Any], last: float, overdue_s: float, now: float) -> None:
        self._has_warned = True
        driver = str(record.get("driver", ""))
        self._recorder.event("cron_late", last_tick=last, overdue_s=round(overdue_s), driver=driver)
        self._recorder.say(
            f"the cron scheduler{f' ({driver})' if driver else ''} is late: its last tick was "
            f"{(now - last) / 60:.0f} min ago; see resil cron status. The training continues"
        )
        self._leave_note(last, now)

    def _leave_note(self, last: float, now: float) -> None:
        import json

        from resilience.guard.heartbeat.run_directory import file_mode, subfolder

        place = self._place
        note = {"time": now, "last_tick": last, "run": place.run, "host": place.host, "job_id": place.job_id}
        directory = subfolder(self._directory, "notes")
        replace_file(os.path.join(directory, "late"), json.dumps(note) + "\n", mode=file_mode(directory))

    def _on_time(self, last: float) -> None:
        self._late = 0
        if self._has_warned:
            self._has_warned = False
            self._recorder.event("cron_again", last_tick=last)
            self._recorder.say("the cron scheduler ticks again")
            with contextlib.suppress(OSError):  # already read, or gone
                os.unlink(os.path.join(self._directory, "notes", "late"))


def _read(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a small file; None if there is no file. Raise OSError or ValueError if unreadable."""
    found = read_regular(path)
    if found is None:
        return None
    import json

    record = json.loads(found[0])
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record
