"""The installation of this project, and its owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.driver_choice import AUTO
from resilience.cron.records import Installation
from resilience.errors import ResilError, StateDirectoryError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.runs.project import Project

_NOTE = "driver.json"


class AlreadyInstalled(ResilError):
    """Another backend or another user makes the ticks of this project already.

    Attributes:
        installation: the existing installation.
    """

    def __init__(self, message: str, installation: Installation, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.installation = installation


def installation_here(cron: CronProject, *, forget: bool = False, dry_run: bool = False) -> Installation | None:
    """Return the installation of this project; None: there is none.

    A copied project contains the other project's driver.json with its token; that installation is not ours to change,
    so the copy is deleted. With `forget`, an unreadable driver.json is quarantined. A dry run changes nothing.
    """
    note = cron.state.path / _NOTE
    try:
        found = cron.state.installation()
    except StateDirectoryError:
        if not forget or not note.exists():
            raise
        if not dry_run:
            cron.state.quarantine(_NOTE)
        return None
    if found is not None and _is_copy(found, note, cron.project):
        if not dry_run:
            cron.state.uninstall()
        return None
    return found


def spelled(installation: Installation, project: Project) -> str:
    """Return the project path as recorded, if that still leads here."""
    here = project.loaded.project
    return installation.project if _is_same(Path(installation.project), here) else str(here)


def who(installation: Installation, project: Project) -> str:
    """Return `alice installed crontab on login1 at 2026-11-20T19:00:00+01:00`."""
    from resilience.system.ports import iso_time

    by = "you" if installation.by == project.system.host.user else installation.by
    return f"{by} installed {installation.driver} on {installation.host} at {iso_time(installation.time)}"


def already(installation: Installation, project: Project, wanted: str) -> AlreadyInstalled:
    """Return the error for a request that conflicts with the existing installation."""
    if installation.by == project.system.host.user:
        backend = f" --backend {wanted}" if wanted != AUTO else ""
        hint = f"one is enough, see resil cron status; to switch to {wanted}: resil cron install{backend} --replace"
    else:
        hint = f"one is enough, see resil cron status; only {installation.by} can remove it: resil cron uninstall"
    return AlreadyInstalled(
        f"this project has a scheduler already: {who(installation, project)}", installation, hint=hint
    )


def _is_copy(installation: Installation, note: Path, project: Project) -> bool:
    """Whether an installation belongs to another project that still has it."""
    there, here = Path(installation.project), project.loaded.project
    if there == here or not note.is_relative_to(here):
        return False
    theirs = there / note.relative_to(here)
    try:
        return installation.token in theirs.read_text(errors="replace") and not theirs.samefile(note)
    except OSError:
        return False  # the project was moved here


def _is_same(one: Path, two: Path) -> bool:
    try:
        return one == two or one.samefile(two)
    except OSError:
        return False
