"""A one-line warning about a late scheduler, for commands with another subject; reads one small file.

`resil watch cron` (cron/checks/cron.py) checks thoroughly; this is for a line in `resil status` and `resil submit`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from resilience import cron_late
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from resilience.runs.project import Project


def late_notice(project: Project) -> str:
    """Return one sentence if this project's scheduler is late; empty if it is not, or the state is unknown.

    Reads one small file if all is well; never raises. It may block on the state directory, as its callers do.
    """
    try:
        directory = project.loaded.state_dir / ".cron"
        return _notice(directory, project)
    except Exception:  # a notice must not break its caller
        return ""


def _notice(directory: Path, project: Project) -> str:
    now = project.system.clock.now()
    heartbeat = _read(directory / "heartbeat")
    if heartbeat is None:
        return _never_ticked(directory, project, now)
    time, expected = cron_late.times_of(heartbeat)
    late_s = _late_s(project) or float(heartbeat.get("patience_s") or 0.0)
    if not cron_late.is_late(time, expected, now, late_s) or os.path.lexists(directory / "stop"):
        return ""
    driver = str(heartbeat.get("driver", ""))
    installation = _read(directory / "driver.json")
    if not cron_late.is_awaited(driver, is_installed=installation is not None, is_last=bool(heartbeat.get("is_last"))):
        return ""
    if installation is not None and float(installation.get("time", 0.0)) > time:
        return _never_ticked(directory, project, now)  # reinstalled since
    said = f"last tick {format_duration(now - time)} ago"
    is_dead = cron_late.is_dead(time, expected, now, late_s)
    return _describe(said, driver, is_dead=is_dead)


def _never_ticked(directory: Path, project: Project, now: float) -> str:
    installation = _read(directory / "driver.json")
    if installation is None or os.path.lexists(directory / "stop"):
        return ""
    settings = project.loaded.settings.cron_settings
    time, expected = cron_late.first_times(installation, settings.tick_s, settings.pulse_s)
    if not cron_late.is_late(time, expected, now, settings.late_s):
        return ""
    is_dead = cron_late.is_dead(time, expected, now, settings.late_s)
    said = f"installed {format_duration(now - time)} ago, without a tick since"
    return _describe(said, str(installation.get("driver", "")), is_dead=is_dead)


def _describe(said: str, driver: str, *, is_dead: bool) -> str:
    word = "is dead and runs nothing" if is_dead else "is late"
    how = f" ({driver})" if driver else ""
    return f"the cron scheduler{how} {word}, {said}; see: resil cron status"


def _late_s(project: Project) -> float:
    cron = project.loaded.settings.cron  # where nothing was set, nothing is loaded
    return cron.late_s if cron is not None else 0.0


def _read(path: Path) -> dict[str, Any] | None:
    from resilience.system.files import read_regular

    found = read_regular(path)
    if found is None:
        return None
    import json

    record = json.loads(found[0])
    return record if isinstance(record, dict) else None
