"""The switch files: how people steer a run that is not theirs to signal.

SLURM lets only the owner of a job signal or cancel it; file permissions let colleagues stop it. A switch is a
regular file, opened O_NOFOLLOW and O_NONBLOCK, whose owner passes the policy; anything else is named, never obeyed,
and never blocks.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tomllib
from pathlib import Path

from resilience.errors import StateDirectoryError, UsageError
from resilience.model import layout
from resilience.model.switch import LABEL, OwnerPolicy, Scope, Switch
from resilience.quantities import quote_toml
from resilience.system.clock import iso_time, parse_iso_time
from resilience.system.files import explain_os_error, read_regular, write_atomic
from resilience.system.run_directory import RunDirectory

TEXT_LIMIT = 500
"""What is shown of a text in a switch file."""


def policy_of(directory: RunDirectory, wanted: str = "") -> OwnerPolicy:
    """Whose switches a run obeys: what the settings say, else what the folder's own permissions allow."""
    if wanted:
        try:
            return OwnerPolicy(wanted)
        except ValueError:
            raise UsageError(f"{wanted!r} is no owner policy", hint="there are: owner, group, any") from None
    mode = _stat(directory.path / layout.SWITCHES).st_mode
    if mode & 0o002:
        return OwnerPolicy.ANY
    return OwnerPolicy.GROUP if mode & 0o020 else OwnerPolicy.OWNER


def throw_switch(directory: RunDirectory, switch: Switch) -> Path:
    """Write a switch file with who, when and why, and return its path. Raise StateDirectoryError if it cannot be."""
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
    write_atomic(path, "\n".join(lines) + "\n", mode=directory.file_mode | 0o044)
    return path


def read_switch(directory: RunDirectory, kind: str, policy: OwnerPolicy) -> Switch | None:
    """Read a switch, or return None when it is not thrown.

    Something that is no regular file, or whose owner breaks the policy, comes back with `honoured` False and the
    reason.
    """
    path = directory.path / layout.SWITCHES / kind
    try:
        found = read_regular(path)
    except StateDirectoryError as error:
        if error.transient:
            raise
        unreadable = _look_at(path) if isinstance(error.__cause__, PermissionError) else None
        if unreadable is None:
            return Switch(kind, "?", 0.0, honoured=False, refusal=error.message)
        # A colleague's umask closed the file to us. That it lies there is the wish; the text is only a comment.
        found = b"", unreadable
    if found is None:
        return None
    content, info = found
    fields = _fields(content)
    refusal = _refusal(info, directory, policy)
    try:
        when = parse_iso_time(fields.get("when", ""))
    except (ValueError, OverflowError):
        when = info.st_mtime
    scope = fields.get("scope", Scope.JOB.value)
    return Switch(
        kind=kind,
        # The owner of the file is a fact; the name inside is a claim, shown only when it agrees.
        who=_user_name(info.st_uid),
        when=when,
        why=fields.get("why", ""),
        scope=Scope(scope) if scope in set(Scope) else Scope.JOB,
        label=_label(fields.get("label", "")),
        honoured=not refusal,
        refusal=refusal,
    )


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


def _refusal(info: os.stat_result, directory: RunDirectory, policy: OwnerPolicy) -> str:
    owner = directory.owner_uid()
    if policy is OwnerPolicy.ANY or info.st_uid in (owner, 0):
        return ""
    if policy is OwnerPolicy.GROUP and info.st_gid == _stat(directory.path).st_gid:
        return ""
    group = f" and its group {_group_name(info.st_gid)} is not the run's" if policy is OwnerPolicy.GROUP else ""
    return f"it belongs to {_user_name(info.st_uid)}{group}; this run obeys policy `{policy.value}`"


def _fields(content: bytes) -> dict[str, str]:
    """The texts in a switch file. A bare `touch`, or a note in free text, is a switch too."""
    text = content.decode("utf-8", "replace")
    try:
        return {key: _printable(str(value)) for key, value in tomllib.loads(text).items()}
    except (ValueError, RecursionError):  # ValueError: not TOML, or a number of a thousand digits
        return {"why": _printable(text)}


def _printable(text: str) -> str:
    """One short line that can be shown on a terminal: others write these files."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:TEXT_LIMIT]


def _label(text: str) -> str:
    """A label becomes part of a folder's name, so it is a plain word or nothing."""
    return text if LABEL.fullmatch(text) else ""


def _look_at(path: Path) -> os.stat_result | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise explain_os_error(error, "look at", path) from error


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
