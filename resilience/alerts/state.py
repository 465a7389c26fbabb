"""The alert state of a project: incidents, silences and outbox in one directory below the state directory."""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass
from pathlib import Path

from resilience.alerts.ledger import Ledger, LedgerCopy, Silences
from resilience.alerts.outbox import Outbox
from resilience.runs.project import Project
from resilience.system.fallback_directory import FallbackDirectory, fallback_path
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child

DIRECTORY = ".alerts"
"""Directory beside the runs, since one message may be about several runs."""


@dataclass(frozen=True, slots=True)
class AlertState:
    """The stores of incidents, silences and messages.

    Attributes:
        path: the directory; may not exist yet.
        error: why its disk is considered unavailable, or empty.
    """

    path: Path
    ledger: Ledger
    silences: Silences
    outbox: Outbox
    error: str = ""

    def flush_fallback(self) -> int:
        """Move the files of the fallback directory back; return how many were moved."""
        return self.ledger.directory.flush_fallback() + self.silences.directory.flush_fallback()


def open_alert_state(project: Project, *, touch: bool = True) -> AlertState:
    """Open the alert state of a project, in this node's fallback directory if its disk does not respond.

    A child process with a deadline (`[watch] state_deadline_s`) probes the disk first: a watchdog must not hang on the
    file system that it reports on. `touch=False` skips the probe, for commands that a user can interrupt.
    """
    path = project.loaded.state_dir / DIRECTORY
    group = project.loaded.settings.run.group
    fallback = fallback_path(project.system, path)
    away = _error_of(project, path) if touch else ""
    incidents = FallbackDirectory(
        path / "incidents",
        fallback / "incidents",
        directory_mode=0o2770 if group else 0o700,
        file_mode=0o660 if group else 0o600,
        gid=_gid(group),
        unavailable=away,
    )
    return AlertState(
        path,
        Ledger(incidents, LedgerCopy(fallback / "ledger-copy.json")),
        Silences(incidents.sibling("silences")),
        Outbox(incidents.sibling("outbox")),
        away,
    )


def _error_of(project: Project, path: Path) -> str:
    """Return why the disk of the alert state does not respond, or an empty text."""
    system = project.system

    def touch() -> bool:
        # Listing the directory contacts the file server; the directory may not exist yet.
        return os.path.isdir(path / "incidents") and bool(os.listdir(path / "incidents") or True)  # noqa: PTH112, PTH208

    look = ChildProbe(f"alerts {path}", touch, project.loaded.settings.watch.state_deadline_s)
    for _, answer in probe_in_child({"state": look}, StuckMemory.of(system), system.clock):
        if answer.is_overdue and answer.error is not None:
            return f"{path} does not respond: {answer.error.message}"
    return ""


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:  # reported when the group is used for runs; alerts are still sent
        return None
