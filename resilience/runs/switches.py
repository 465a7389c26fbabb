"""The switch files: how people steer a run that is not theirs to signal.

SLURM lets only the owner of a job signal or cancel it; file permissions let colleagues stop it. A switch is a
regular file, opened O_NOFOLLOW and O_NONBLOCK, whose owner passes the policy; anything else is named, never obeyed,
and never blocks.
"""

from __future__ import annotations

import os
from pathlib import Path

from resilience import layout
from resilience.base.files import open_directory
from resilience.base.switches import find_switch, name_of_user, recorded_policy, refusal_of
from resilience.errors import StateDirectoryError, UsageError
from resilience.quantities import quote_toml
from resilience.runs.run_directory import RunDirectory
from resilience.switch import OwnerPolicy, Switch, parse_switch, policy_of_mode
from resilience.system.files import FULL, explain_os_error, write_atomic
from resilience.system.world import iso_time


def policy_of(directory: RunDirectory, wanted: str = "") -> OwnerPolicy:
    """Whose switches a run obeys: what the settings say, else what the folder's own permissions allow."""
    if wanted:
        try:
            return OwnerPolicy(wanted)
        except ValueError:
            raise UsageError(f"{wanted!r} is no owner policy", hint="there are: owner, group, any") from None
    return policy_of_mode(_stat(directory.path / layout.SWITCHES).st_mode)


def policy_of_run(directory: RunDirectory) -> OwnerPolicy:
    """Whose switches a run obeys: as it was submitted, else what the folder's permissions allow.

    Raise StateDirectoryError if even those cannot be looked at.
    """
    try:
        recorded = recorded_policy(directory.settings())
    except StateDirectoryError:
        recorded = None
    return recorded or policy_of(directory)


def throw_switch(directory: RunDirectory, switch: Switch) -> Path:
    """Write a switch file with who, when and why, and return its path.

    On a full disk, or a full quota, it is an empty file, which is a switch too: it is obeyed, and says no more than
    whose it is. Raise StateDirectoryError if not even that fits.
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
    # Readable by all who can enter the folder: jobs of the owner must read what a colleague wrote.
    mode = directory.file_mode | 0o044
    try:
        write_atomic(path, "\n".join(lines) + "\n", mode=mode)
    except StateDirectoryError as error:
        if getattr(error.__cause__, "errno", 0) in FULL and _make_empty(path, mode):
            return path
        if switch.kind == layout.KILL_SWITCH:
            error.hint = f"the owner of the run can end it at once, without a save: resil cancel {directory.path}"
        raise
    return path


def _make_empty(path: Path, mode: int) -> bool:
    """Make an empty file that needs no room but its name; say whether there is one now, ours or somebody's."""
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
    """Read a switch, or return None when it is not thrown.

    Something that is no regular file, or whose owner breaks the policy, comes back with `honoured` False and the
    reason.
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
    refusal = found.refusal or refusal_of(found.info, policy, _stat(directory.path), who=who)
    return parse_switch(kind, found.content, who=who, written=found.info.st_mtime, run=directory.run, refusal=refusal)


def clear_switch(directory: RunDirectory, kind: str) -> bool:
    """Remove a switch; return whether there was one. Raise StateDirectoryError if it cannot be removed."""
    path = directory.path / layout.SWITCHES / kind
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, "remove", path) from error
    return True


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise explain_os_error(error, "look at", path) from error
