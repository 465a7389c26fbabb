"""A one-line warning about a late scheduler, for commands with another subject; reads one small file.

`resil watch cron` (cron/checks/cron.py) checks thoroughly; this is for a line in `resil status` and `resil submit`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from resilience import cron_late

if TYPE_CHECKING:
    from resilience.runs.project import Project


def late_notice(project: Project) -> str:
    """Return one sentence if this project's scheduler is late; empty if it is not, or the state is unknown.

    Reads one small file if all is well; never raises. It may block on the state directory, as its callers do.
    """
    try:
        return _notice(project)
    except Exception:  # a notice must not break its caller
        return ""


def _notice(project: Project) -> str:
    from resilience.system.files import read_regular

    path, now = project.loaded.state_dir / ".cron", project.system.clock.now()
    found = read_regular(path / "heartbeat")
    if found is None and not (path / "driver.json").exists():
        return ""
    if found is not None and cron_late.overdue_s(*cron_late.times_of(json.loads(found[0])), now) <= 0:
        return ""
    from resilience.cron.health import Health, judge_scheduler
    from resilience.cron.state_directory import CronDirectory

    directory = CronDirectory(project.loaded.state_dir)
    installation, heartbeat = directory.installation(), directory.heartbeat()
    judged = judge_scheduler(
        installation, heartbeat, None, directory.stopped(), now=now, settings=project.loaded.settings.cron_settings
    )
    if judged.health not in (Health.LATE, Health.DEAD):
        return ""
    word = "is dead and runs nothing" if judged.health is Health.DEAD else "is late"
    driver = installation.driver if installation is not None else heartbeat.driver if heartbeat is not None else ""
    return f"the cron scheduler{driver and f' ({driver})'} {word}: {judged.reason}; see: resil cron status"
