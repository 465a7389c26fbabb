"""Notes of guards about a late scheduler: checks the scheduler, and reports as the watchdog `cron` would."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from resilience.errors import ResilError
from resilience.finding import Report

if TYPE_CHECKING:
    from pathlib import Path

    from resilience.runs.project import Project

CHECK = "cron"
"""The watchdog in whose name it is reported, so that both report one incident."""


def noted(project: Project, reports: Sequence[Report] = ()) -> tuple[Report, ...]:
    """Return a report on the scheduler if a guard left a note; nothing if the reports include the scheduler already.

    A note is only a hint: every member of the group can write one. The report states the current state. Never raises.
    """
    if not is_noted(project) or any(report.check == CHECK for report in reports):
        return ()
    from resilience.cron.checks.cron import CHECK as WATCHDOG
    from resilience.cron.checks.cron import SCHEDULER, CronCheckSettings, read_scheduler
    from resilience.cron.health import Health
    from resilience.cron.state_directory import CronDirectory
    from resilience.watch.reading import Timed

    loaded, now = project.loaded, project.system.clock.now()
    with suppress(ResilError):
        directory = CronDirectory(loaded.state_dir, loaded.settings.run.group)
        found = read_scheduler(directory, loaded.settings.cron_settings, now)
        if found is not None and found.judgement is not None and found.judgement.health is not Health.ABSENT:
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
