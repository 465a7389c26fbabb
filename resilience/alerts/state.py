"""The alert state of a project: incidents, silences and outbox in one directory below the state directory."""

from __future__ import annotations

import grp
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience.alerts.ledger import Ledger, LedgerCopy, Silences
from resilience.alerts.outbox import Outbox
from resilience.base.switches import name_of_user
from resilience.errors import StateDirectoryError
from resilience.runs.project import Project
from resilience.system.fallback_directory import FallbackDirectory, fallback_path
from resilience.system.files import read_regular, write_atomic
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child, state_probe

DIRECTORY = ".alerts"
"""Directory beside the runs, since one message may be about several runs."""

HOME = "home"
"""File with the absolute path of the directory that it is in: it differs in a copy, and after a move."""

_PARTS = ("incidents", "silences", "outbox", "sent", "dead", "threads", "channels", "claims")


@dataclass(frozen=True, slots=True)
class AlertState:
    """The stores of incidents, silences and messages.

    Attributes:
        path: the directory; may not exist yet.
        error: why the directory is not used, because its disk does not respond or other users may write it; or empty.
        refusal: the error for commands, if other users may write the directory; else None.
        note: a sentence about a state that was copied with its project and is set aside, or empty.
    """

    path: Path
    ledger: Ledger
    silences: Silences
    outbox: Outbox
    error: str = ""
    refusal: StateDirectoryError | None = None
    note: str = ""

    def make(self) -> None:
        """Create the directory, best effort: two watchdogs that find the first fault at once take turns there."""
        with suppress(StateDirectoryError):
            self.ledger.directory.make()

    def record_home(self) -> None:
        """Record the path of the state, so that a copy of it is noticed. Best effort."""
        incidents = self.ledger.directory
        with suppress(OSError, StateDirectoryError):
            if not incidents.is_unavailable and _home_of(self.path) != str(self.path):
                mode = stat.S_IMODE(incidents.primary.stat().st_mode) & 0o666
                write_atomic(self.path / HOME, f"{self.path}\n", mode=mode, durable=False)

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
    error, refusal, note, is_fallback_away = _examine(project, path, fallback) if touch else ("", None, "", False)
    if is_fallback_away:
        fallback = fallback_path(project.system, path, in_tmp=True)
    incidents = FallbackDirectory(
        path / "incidents",
        fallback / "incidents",
        directory_mode=0o2770 if group else 0o700,
        file_mode=0o660 if group else 0o600,
        gid=_gid(group),
        unavailable=error,
    )
    return AlertState(
        path,
        Ledger(incidents, LedgerCopy(fallback / "ledger-copy.json")),
        Silences(incidents.sibling("silences")),
        Outbox(incidents.sibling("outbox")),
        error,
        refusal,
        note,
    )


def distrust(path: Path, group: str = "") -> StateDirectoryError | None:
    """Return the error, with the command that mends it, if other users may write the alert state at `path`; else None.

    They could silence incidents, acknowledge them and queue messages. Write permission for `group`, the [run] group, is
    intended. The state directory above may be a shared one: its sticky bit or its group keeps others from replacing
    what is in it.
    """
    trusted, gid = {0, os.getuid()}, _gid(group)
    with suppress(OSError):
        above = path.parent.stat()
        trusted.add(above.st_uid)
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            return _refusal(path.parent, f"chmod o-w {shlex.quote(str(path.parent))}")
    for place in (path, *(path / name for name in _PARTS)):
        with suppress(OSError):
            link = place.lstat()
            # The mode of a link is always 777; that of its target counts, if the link is of a trusted owner.
            info = place.stat() if stat.S_ISLNK(link.st_mode) and link.st_uid in trusted else link
            is_of_group = bool(group) and info.st_gid == gid
            if info.st_uid not in trusted and not is_of_group:
                owner, aside = name_of_user(info.st_uid), shlex.quote(f"{place}.foreign")
                return StateDirectoryError(
                    f"{place} belongs to {owner}, who could silence and acknowledge incidents, and queue messages",
                    hint=f"mv {shlex.quote(str(place))} {aside}",
                )
            root = place.resolve() if stat.S_ISLNK(link.st_mode) else path
            for open_place in _writable(place, info, group, gid):
                return _refusal(open_place, f"chmod -R {'o-w' if is_of_group else 'go-w'} {shlex.quote(str(root))}")
    return None


def _writable(place: Path, info: os.stat_result, group: str, gid: int | None) -> Iterator[Path]:
    """Yield a directory, and each file in it, that other users may write."""

    def is_writable(info: os.stat_result) -> bool:
        is_intended = info.st_gid == gid if gid is not None else bool(group)
        is_open = info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and not is_intended)
        return bool(is_open) and not stat.S_ISLNK(info.st_mode)

    if is_writable(info):
        yield place
    with os.scandir(place) as entries:
        for entry in entries:
            with suppress(OSError):  # files are often renamed here
                if is_writable(entry.stat(follow_symlinks=False)):
                    yield place / entry.name


def _refusal(place: Path, command: str) -> StateDirectoryError:
    return StateDirectoryError(
        f"other users may write {place}: they could silence and acknowledge incidents, and queue messages", hint=command
    )


def _examine(project: Project, path: Path, fallback: Path) -> tuple[str, StateDirectoryError | None, str, bool]:
    """Examine the alert state and its fallback within a deadline; return error, refusal and note of the AlertState, and
    whether the fallback does not respond."""
    system, shared = project.system, project.loaded.settings.watch
    deadline_s = min(shared.state_deadline_s, shared.deadline_s)

    def list_files(directory: Path) -> None:
        # Listing the directory contacts the file server; the directory may not exist yet.
        if os.path.isdir(directory):  # noqa: PTH112
            os.listdir(directory)  # noqa: PTH208

    def examine() -> tuple[str, str, str]:
        note = set_copy_aside(path)
        list_files(path / "incidents")
        found = distrust(path, project.loaded.settings.run.group)
        return (found.message, found.hint, note) if found is not None else ("", "", note)

    probes = {
        path: state_probe(project.loaded.state_dir, examine, deadline_s),
        fallback: ChildProbe(f"fallback {fallback}", lambda: list_files(fallback), deadline_s, str(fallback)),
    }
    error, refusal, note, is_fallback_away = "", None, "", False
    for place, answer in probe_in_child(probes, StuckMemory.of(system), system.clock):
        if place == fallback:
            is_fallback_away = answer.is_overdue
        elif answer.is_overdue and answer.error is not None:
            error = f"{path} does not respond: {answer.error.message}"
        elif answer.error is None:
            message, hint, note = answer.value
            if message:
                error, refusal = f"{message}; mend it: {hint}", StateDirectoryError(message, hint=hint)
    return error, refusal, note, is_fallback_away


def set_copy_aside(path: Path) -> str:
    """Rename an alert state that was copied together with its project, whose incidents and queued messages belong to
    the original; return a sentence about that, or an empty text."""
    home = _home_of(path)
    with suppress(OSError):
        if not home or home == str(path) or Path(home).samefile(path) or not (Path(home) / "incidents").is_dir():
            return ""
        aside = path.with_name(f"{path.name}.copied-{os.urandom(3).hex()}")
        try:
            path.rename(aside)
        except OSError as error:
            return f"these alerts were copied from {home}, and cannot be set aside: {error.strerror}"
        return f"these alerts were copied from {home}, where they continue; the copy is set aside as {aside}"
    return ""


def _home_of(path: Path) -> str:
    """Return the recorded path of an alert state, or an empty text."""
    with suppress(StateDirectoryError):
        found = read_regular(path / HOME)
        return found[0].decode("utf-8", "surrogateescape").strip() if found is not None else ""
    return ""


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:  # reported when the group is used for runs; alerts are still sent
        return None
