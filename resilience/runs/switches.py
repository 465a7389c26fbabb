"""The switch files, by which users control a run whose jobs they may not signal.

SLURM lets only the owner of a job signal or cancel it; file permissions let colleagues stop it. A switch is a
regular file, opened O_NOFOLLOW and O_NONBLOCK, whose owner passes the policy; anything else is reported, never
accepted, and never blocks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience import layout
from resilience.base.files import open_directory
from resilience.base.switches import find_switch, name_of_user, recorded_policy, refusal_of
from resilience.errors import StateDirectoryError, UsageError
from resilience.messages import quoted
from resilience.quantities import quote_toml
from resilience.runs import queue_cache
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Deed, Intervention, record_intervention
from resilience.switch import LABEL, OwnerPolicy, Scope, Switch, parse_switch, policy_of_mode
from resilience.system.files import FULL, explain_os_error, write_atomic
from resilience.system.ports import iso_time

if TYPE_CHECKING:
    from resilience.runs.project import Project


def policy_of(directory: RunDirectory, requested: str = "") -> OwnerPolicy:
    """Return the owner policy of a run's switches: the requested one, else by the directory's permissions."""
    if requested:
        try:
            return OwnerPolicy(requested)
        except ValueError:
            raise UsageError(f"{requested!r} is not an owner policy", hint="there are: owner, group, any") from None
    return policy_of_mode(directory.stat(layout.SWITCHES).st_mode)


def policy_of_run(directory: RunDirectory) -> OwnerPolicy:
    """Return the owner policy that a run was submitted with, else the policy by its permissions.

    Raise StateDirectoryError if those cannot be read either.
    """
    try:
        recorded = recorded_policy(directory.settings())
    except StateDirectoryError:
        recorded = None
    return recorded or policy_of(directory)


@dataclass(frozen=True, slots=True)
class SetSwitch:
    """A switch that was set.

    Attributes:
        warning: why the run may reject it, or empty.
        is_empty: whether the disk was too full for the content.
    """

    path: Path
    warning: str
    is_empty: bool = False


def set_switch(
    project: Project, directory: RunDirectory, kind: str, *, why: str, scope: Scope, label: str = ""
) -> SetSwitch:
    """Write a switch in the user's own name, and read it back as the run will.

    Raise UsageError if the label cannot name a checkpoint, StateDirectoryError if the switch cannot be written.
    """
    if label and LABEL.fullmatch(label) is None:
        raise UsageError(
            f"{label!r} cannot be a checkpoint's label",
            hint="use letters, digits, dot, dash and underscore, at most 100, starting with a letter or digit",
        )
    switch = Switch(kind, project.system.host.user, project.system.clock.now(), why, scope, label)
    path = write_switch(directory, switch)
    queue_cache.invalidate(project.system, project.scheduler_name())
    seen = read_switch(directory, kind, policy_of_run(directory))
    warning = "" if seen is None or seen.honoured else f"the run will not accept it: {seen.refusal}"
    return SetSwitch(path, warning, _is_empty(path))


def _is_empty(path: Path) -> bool:
    try:
        return path.lstat().st_size == 0
    except OSError:
        return False


def write_switch(directory: RunDirectory, switch: Switch) -> Path:
    """Write a switch file with who, when and why, and return its path.

    On a full disk or quota the file is empty. An empty file is a valid switch: only its owner is known. Raise
    StateDirectoryError if not even an empty file fits.
    """
    path = directory.path / layout.SWITCHES / switch.kind
    lines = [
        f"who = {quote_toml(switch.who)}",
        f"when = {quote_toml(iso_time(switch.when))}",
        f"why = {quote_toml(switch.why)}",
    ]
    if switch.kind == layout.KILL_SWITCH:
        lines.append(f"scope = {quote_toml(switch.scope.value)}")
    if switch.label:
        lines.append(f"label = {quote_toml(switch.label)}")
    # Readable by all who can enter the directory: jobs of the owner must read what a colleague wrote.
    mode = directory.file_mode | 0o044
    try:
        write_atomic(path, "\n".join(lines) + "\n", mode=mode)
    except StateDirectoryError as error:
        if getattr(error.__cause__, "errno", 0) in FULL and _make_empty(path, mode):
            return path
        if switch.kind == layout.KILL_SWITCH:
            error.hint = (
                f"the owner of the run can end it at once, without a save: resil cancel {quoted(directory.path)}"
            )
        raise
    return path


def _make_empty(path: Path, mode: int) -> bool:
    """Create an empty file, which needs only a name. Return whether the file exists now, created by any user."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return True
    except OSError:
        return False
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return True


def read_switch(directory: RunDirectory, kind: str, policy: OwnerPolicy) -> Switch | None:
    """Read a switch, or return None when it is not set.

    A file that is not regular, or whose owner violates the policy, is returned with `honoured` False and the reason.
    """
    path = directory.path / layout.SWITCHES / kind
    try:
        switches = open_directory(path.parent)
        try:
            found = find_switch(kind, switches)
        finally:
            os.close(switches)
    except FileNotFoundError:
        return None
    except OSError as error:
        explained = explain_os_error(error, "read", path)
        if explained.transient:
            raise explained from error
        return Switch(kind, "?", 0.0, honoured=False, refusal=explained.message)
    if found is None:
        return None
    who = name_of_user(found.info.st_uid)
    refusal = found.refusal or refusal_of(found.info, policy, directory.stat(), who=who)
    return parse_switch(kind, found.content, who=who, written=found.info.st_mtime, run=directory.run, refusal=refusal)


def clear(project: Project, directory: RunDirectory, *, finished: bool = False) -> tuple[str, ...]:
    """Remove the switches of users, and with `finished` the mark of a finished run; return the names removed.

    `stop.<jobid>` stays: the batch shell wrote it, and the time of that job is still nearly over. Raise
    StateDirectoryError if one cannot be removed.
    """
    switches = directory.path / layout.SWITCHES
    paths = [switches / layout.KILL_SWITCH, switches / layout.SAVE_SWITCH]
    if finished:
        paths.append(directory.path / layout.FINISHED)
    removed = tuple(path.name for path in paths if _remove(path))
    if set(removed) - {layout.SAVE_SWITCH}:
        with suppress(StateDirectoryError):
            done = Intervention(Deed.CLEARED, project.system.host.user, project.system.clock.now())
            record_intervention(directory, done)
    return removed


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, "remove", path) from error
    return True
