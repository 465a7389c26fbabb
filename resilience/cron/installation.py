"""Which installation of cron is the one of this project, and whose it is."""

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
    """Something makes the ticks of this project already, and it is not what was asked for.

    Attributes:
        installation: what makes them.
    """

    def __init__(self, message: str, installation: Installation, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.installation = installation


def installation_here(cron: CronProject, *, forget: bool = False, dry_run: bool = False) -> Installation | None:
    """What makes the ticks of this project; None: nothing.

    A project that was copied has a copy of the other's note, with its token: what that made is not ours to change, so
    the copy is forgotten. With `forget`, a note that nobody can read is put aside. A dry run changes neither.
    """
    note = cron.state.path / _NOTE
    try:
        found = cron.state.installation()
    except StateDirectoryError:
        if not forget or not note.exists():
            raise
        if not dry_run:
            cron.state.set_aside(_NOTE)
        return None
    if found is not None and _is_copy(found, note, cron.project):
        if not dry_run:
            cron.state.uninstall()
        return None
    return found


def spelled(installation: Installation, project: Project) -> str:
    """The path of the project: as it was written down, as long as that leads here."""
    here = project.loaded.project
    return installation.project if _is_same(Path(installation.project), here) else str(here)


def who(installation: Installation, project: Project) -> str:
    """`alice has crontab on login1 do that since 2026-11-20T19:00:00+01:00`."""
    from resilience.system.ports import iso_time

    by = "you have" if installation.by == project.system.host.user else f"{installation.by} has"
    return f"{by} {installation.driver} on {installation.host} do that since {iso_time(installation.time)}"


def already(installation: Installation, project: Project, wanted: str) -> AlreadyInstalled:
    """The error for who asks for something else than what makes the ticks already."""
    if installation.by == project.system.host.user:
        backend = f" --backend {wanted}" if wanted != AUTO else ""
        hint = f"it is enough: resil cron status; to have {wanted} instead: resil cron install{backend} --replace"
    else:
        hint = f"it is enough: resil cron status; only {installation.by} can take it out: resil cron uninstall"
    return AlreadyInstalled(
        f"the ticks of this project are made already: {who(installation, project)}", installation, hint=hint
    )


def _is_copy(installation: Installation, note: Path, project: Project) -> bool:
    """Whether the project that an installation names is another one, which still has it."""
    there, here = Path(installation.project), project.loaded.project
    if there == here or not note.is_relative_to(here):
        return False
    theirs = there / note.relative_to(here)
    try:
        return installation.token in theirs.read_text(errors="replace") and not theirs.samefile(note)
    except OSError:
        return False  # it was moved here


def _is_same(one: Path, two: Path) -> bool:
    try:
        return one == two or one.samefile(two)
    except OSError:
        return False
