"""Notices that the scheduler of cron is late, and says so. It asks for nothing: the training goes on.

Whoever watches the watchdogs may be the one who died; a training that lasts for weeks is there anyway. It tells by its
journal, and by a note in `<state_dir>/.cron/notes` that the next watchdog or `resil alert flush` turns into an alert.
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
"""How often it looks."""
LOOKS = 3
"""In so many looks in a row it must be late: a cluster that has just come back is given two minutes to tick."""
GAP = 3.0
"""Whoever could not look for so many pauses was suspended itself: it begins to count anew."""


class LateCron(BuiltInTrigger):
    """Looks once a minute, on rank 0 alone, in the thread that may wait for the shared file system."""

    name = "cron"
    ranks = "first"
    shared = True

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._place = place
        self._recorder = recorder
        self._directory = os.path.join(os.path.dirname(place.run_dir.rstrip("/")), ".cron")
        self._looked = time.monotonic()
        self._late = 0
        self._has_told = False

    def poll(self) -> None:
        """Look, when a minute is over. Never asks for anything and never raises."""
        now = time.monotonic()
        if now - self._looked < EVERY_S:
            return
        if now - self._looked > GAP * EVERY_S:
            self._late = 0
        self._looked = now
        with contextlib.suppress(Exception):  # what cannot be seen is no reason to say anything
            self._look(time.time())

    def _look(self, now: float) -> None:
        record = _read(os.path.join(self._directory, "heartbeat"))
        if record is None:
            return
        from resilience import cron_late

        last, expected = cron_late.times_of(record)
        late_s = float(record.get("patience_s") or 0.0)
        if not cron_late.is_late(last, expected, now, late_s):
            self._is_well(last)
            return
        if not self._is_awaited(record, last):
            self._late = 0
            return
        self._late += 1
        if self._late >= LOOKS and not self._has_told:
            self._tell(record, last, cron_late.overdue_s(last, expected, now), now)

    def _is_awaited(self, record: dict[str, Any], last: float) -> bool:
        from resilience.cron_late import is_awaited

        if os.path.lexists(os.path.join(self._directory, "stop")):
            return False
        installation = _read(os.path.join(self._directory, "driver.json"))
        if installation is not None and float(installation.get("time", 0.0)) > last:
            return False  # installed anew: its first tick is not this one
        driver, is_last = str(record.get("driver", "")), bool(record.get("is_last"))
        return is_awaited(driver, is_installed=installation is not None, is_last=is_last)

    def _tell(self, record: dict[str, Any], last: float, overdue_s: float, now: float) -> None:
        self._has_told = True
        driver = str(record.get("driver", ""))
        self._recorder.event("cron_late", last_tick=last, overdue_s=round(overdue_s), driver=driver)
        self._recorder.say(
            f"the scheduler of cron{f' ({driver})' if driver else ''} is late: its last tick was "
            f"{(now - last) / 60:.0f} min ago; see resil cron status. The training goes on"
        )
        self._leave_note(last, now)

    def _leave_note(self, last: float, now: float) -> None:
        import json

        from resilience.guard.heartbeat.run_directory import file_mode, subfolder

        place = self._place
        note = {"time": now, "last_tick": last, "run": place.run, "host": place.host, "job_id": place.job_id}
        directory = subfolder(self._directory, "notes")
        replace_file(os.path.join(directory, "late"), json.dumps(note) + "\n", mode=file_mode(directory))

    def _is_well(self, last: float) -> None:
        self._late = 0
        if self._has_told:
            self._has_told = False
            self._recorder.event("cron_again", last_tick=last)
            self._recorder.say("the scheduler of cron ticks again")
            with contextlib.suppress(OSError):  # nobody has read it: there is nothing to tell any more
                os.unlink(os.path.join(self._directory, "notes", "late"))


def _read(path: str) -> dict[str, Any] | None:
    """The table in a small file; None where there is none. Raise OSError or ValueError if it cannot be read."""
    found = read_regular(path)
    if found is None:
        return None
    import json

    record = json.loads(found[0])
    if not isinstance(record, dict):
        raise ValueError("no table")
    return record
