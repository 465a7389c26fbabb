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
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child, state_probe

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
    file system that it reports on. If the fallback directory hangs too ($XDG_STATE_HOME on a network file system), it
    is one in /tmp. `touch=False` skips the probes, for commands that a user can interrupt.
    """
    path = project.loaded.state_dir / DIRECTORY
    group = project.loaded.settings.run.group
    fallback = fallback_path(project.system, path)
    away, is_fallback_away = _errors_of(project, path, fallback) if touch else ("", "")
    if is_fallback_away:
        fallback = fallback_path(project.system, path, in_tmp=True)
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


def _errors_of(project: Project, path: Path, fallback: Path) -> tuple[str, str]:
    """Return why the disk of the alert state and that of its fallback do not respond; empty where they do."""
    system, shared = project.system, project.loaded.settings.watch
    deadline_s = min(shared.state_deadline_s, shared.deadline_s)

    def touch(directory: Path) -> bool:
        # Listing the directory contacts the file server; the directory may not exist yet.
        return os.path.isdir(directory) and bool(os.listdir(directory) or True)  # noqa: PTH112, PTH208

    probes = {
        path: state_probe(project.loaded.state_dir, lambda: touch(path / "incidents"), deadline_s),
        fallback: ChildProbe(f"fallback {fallback}", lambda: touch(fallback), deadline_s, str(fallback)),
    }
    errors = {path: "", fallback: ""}
    for directory, answer in probe_in_child(probes, StuckMemory.of(system), system.clock):
        if answer.is_overdue and answer.error is not None:
            errors[directory] = f"{directory} does not respond: {answer.error.message}"
    return errors[path], errors[fallback]


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:  # reported when the group is used for runs; alerts are still sent
        return None
