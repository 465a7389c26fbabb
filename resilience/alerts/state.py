"""Where a project's alert state lies, opened: incidents, silences, outbox, below one folder of the state directory."""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass
from pathlib import Path

from resilience.alerts.ledger import Ledger, LedgerCopy, Silences
from resilience.alerts.outbox import Outbox
from resilience.runs.project import Project
from resilience.system.spare_folder import SpareFolder, spare_place
from resilience.system.stuck import Look, StuckMemory, look_apart

FOLDER = ".alerts"
"""In the state directory, beside the runs: one message may tell of many."""


@dataclass(frozen=True, slots=True)
class AlertState:
    """What is remembered of incidents, and what is not delivered yet.

    Attributes:
        path: the folder; it need not exist.
        trouble: why its disk is not even touched; empty when it is.
    """

    path: Path
    ledger: Ledger
    silences: Silences
    outbox: Outbox
    trouble: str = ""

    def bring_home(self) -> int:
        """Move what the spare folder took while the disk was in trouble; return how many files moved."""
        return self.ledger.folder.bring_home() + self.silences.folder.bring_home()


def open_alert_state(project: Project, *, touch: bool = True) -> AlertState:
    """Open it, on the spare folder of this node when its own disk does not answer.

    The disk is first touched by a child with a deadline (`[watch] state_deadline_s`): a watchdog must not hang with the
    file system that it is to tell of. `touch=False` trusts it: for people, who see that it hangs and can interrupt.
    """
    path = project.loaded.state_dir / FOLDER
    group = project.loaded.settings.run.group
    spare = spare_place(project.world, path)
    away = _silence_of(project, path) if touch else ""
    incidents = SpareFolder(
        path / "incidents",
        spare / "incidents",
        folder_mode=0o2770 if group else 0o700,
        file_mode=0o660 if group else 0o600,
        gid=_gid(group),
        away=away,
    )
    return AlertState(
        path,
        Ledger(incidents, LedgerCopy(spare / "ledger-copy.json")),
        Silences(incidents.beside("silences")),
        Outbox(incidents.beside("outbox")),
        away,
    )


def _silence_of(project: Project, path: Path) -> str:
    """Why the disk of the alert state does not answer; empty when it does."""
    world = project.world

    def touch() -> bool:
        # A look into the folder asks the file server; the folder itself may not be there yet.
        return os.path.isdir(path / "incidents") and bool(os.listdir(path / "incidents") or True)  # noqa: PTH112, PTH208

    look = Look(f"alerts {path}", touch, project.loaded.settings.watch.state_deadline_s)
    for _, answer in look_apart({"state": look}, StuckMemory.of(world), world.clock):
        if answer.is_overdue and answer.error is not None:
            return f"{path} does not answer: {answer.error.message}"
    return ""


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:  # told where the group is used to keep runs; alerts go out nevertheless
        return None
