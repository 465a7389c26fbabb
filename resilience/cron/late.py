"""The scheduler's health for commands with another subject: one line in `resil status` and `resil submit`, and a report
where a guard left a note. Reads one small file if all is well.

`resil watch cron` (cron/checks/cron.py) checks thoroughly, and asks the driver. As `notes` of alerts/notify.py, this
module reports in the watchdog's name, so that both report one incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from resilience.errors import ResilError

if TYPE_CHECKING:
    from pathlib import Path

    from resilience.cron.checks.cron import CronReading
    from resilience.finding import Report
    from resilience.runs.project import Project

CHECK = "cron"


def late_notice(project: Project) -> str:
    """Return one sentence if this project's scheduler is late; empty if it is not, or the state is unknown.

    Reads one small file if all is well; never raises. It may block on the state directory, as its callers do.
    """
    try:
        found = _read(project) if _may_be_late(project) else None
    except Exception:  # a notice must not break its caller
        return ""
    judged = found.judgement if found is not None else None
    if judged is None or judged.health not in ("late", "dead"):
        return ""
    word = "is dead and runs nothing" if judged.health == "dead" else "is late"
    return f"the cron scheduler {word}: {judged.reason}; see: resil cron status"


def noted(project: Project, reports: Sequence[Report] = ()) -> tuple[Report, ...]:
    """Return a report on the scheduler if a guard left a note; nothing if the reports include the scheduler already.

    A note is only a hint: every member of the group can write one. The report states the current state. Never raises.
    """
    if not is_noted(project) or any(report.check == CHECK for report in reports):
        return ()
    from resilience.cron.checks.cron import CHECK as WATCHDOG
    from resilience.cron.checks.cron import SCHEDULER, CronCheckSettings
    from resilience.finding import Report
    from resilience.watch.reading import Timed

    with suppress(ResilError):
        found, now = _read(project), project.system.clock.now()
        if found is not None:
            findings = WATCHDOG.judge(SCHEDULER, (Timed(now, found),), CronCheckSettings(), now)
            return (Report(check=CHECK, findings=tuple(findings), time=now),)
    return ()


def forget(project: Project) -> None:
    """Delete the note after it was reported. Never raises."""
    with suppress(OSError):
        _note(project).unlink(missing_ok=True)


def is_noted(project: Project) -> bool:
    """Return whether a guard left a note."""
    return _note(project).exists()


def _note(project: Project) -> Path:
    return project.loaded.state_dir / ".cron" / "notes" / "late"


def _may_be_late(project: Project) -> bool:
    """Return whether no tick came in time. Raise an exception if the heartbeat is damaged."""
    import json

    from resilience import cron_late
    from resilience.system.files import read_regular

    path = project.loaded.state_dir / ".cron"
    found = read_regular(path / "heartbeat")
    if found is None:
        return (path / "driver.json").exists()
    return cron_late.overdue_s(*cron_late.times_of(json.loads(found[0])), project.system.clock.now()) > 0


def _read(project: Project) -> CronReading | None:
    from resilience.cron.checks.cron import read_scheduler
    from resilience.cron.state_directory import CronDirectory

    loaded = project.loaded
    directory = CronDirectory(loaded.state_dir, loaded.settings.run.group)
    return read_scheduler(directory, loaded.settings.cron_settings, project.system.clock.now())
