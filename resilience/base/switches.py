"""Reads switch files safely, and checks their owners, for the guard and the commands.

A switch is a regular file whose owner is accepted by the run's policy; resilience/switch.py has the rules. The batch
shell reads the same files without Python (slurm_templates/_attempt.bash).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from resilience.base.background import BackgroundCall
from resilience.base.files import NOT_REGULAR, kind_of, read_regular
from resilience.switch import OwnerPolicy, explain_refusal, is_accepted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NAME_S = 2.0
"""Time limit for the lookup of a name: a directory service that is down must not delay a switch."""


class SwitchFile(NamedTuple):
    """A file at the path of a switch.

    Attributes:
        content: at most 64 KiB; empty if not readable, as with another user's umask: the file itself is the request.
        info: its status.
        refusal: the reason if the file is not regular; else empty.
    """

    content: bytes
    info: os.stat_result
    refusal: str = ""


def find_switch(kind: str, directory: int) -> SwitchFile | None:
    """Return the switch file of this kind in an open directory, or None without one. Raise OSError.

    Does not open a file that is not regular: that may wake a writer, or rewind a tape.
    """
    try:
        info = os.stat(kind, dir_fd=directory, follow_symlinks=False)
        if odd := kind_of(info):
            return SwitchFile(b"", info, f"it is {odd}, not a regular file")
        read = read_regular(kind, directory=directory)
    except FileNotFoundError:
        return None
    except PermissionError:  # raised again if the status cannot be read either
        return SwitchFile(b"", os.stat(kind, dir_fd=directory, follow_symlinks=False))
    except OSError as error:
        if error.errno in NOT_REGULAR:  # replaced since the stat; the next check reports the kind
            return None
        raise
    return None if read is None else SwitchFile(*read)


def refusal_of(
    info: os.stat_result,
    policy: OwnerPolicy,
    run: os.stat_result,
    *,
    who: str,
    group: Callable[[int], str] | None = None,
) -> str:
    """Return why the owner of a switch file may not control the run; empty if the policy allows it.

    `run`: status of the run directory. `who`: the owner's name. `group`: returns the name of a group, by default
    `name_of_group`.
    """
    if is_accepted(policy, uid=info.st_uid, gid=info.st_gid, run_uid=run.st_uid, run_gid=run.st_gid):
        return ""
    return explain_refusal(policy, who, (group or name_of_group)(info.st_gid))


def recorded_policy(run_toml: object) -> OwnerPolicy | None:
    """Given the content of run.toml, return the owner policy that the run was submitted with; None if not recorded."""
    recorded = run_toml.get("run") if isinstance(run_toml, dict) else None
    if not isinstance(recorded, dict):
        return None
    policy = recorded.get("switch_owners") or (OwnerPolicy.GROUP if recorded.get("group") else OwnerPolicy.OWNER)
    return OwnerPolicy(policy) if policy in set(OwnerPolicy) else None


def name_of_user(uid: int) -> str:
    """Return the login name of a user; the uid if there is none, or no answer within NAME_S."""

    def ask() -> str:
        import pwd

        return pwd.getpwuid(uid).pw_name

    return _name(ask, uid)


def name_of_group(gid: int) -> str:
    """Return the name of a group; the gid if there is none, or no answer within NAME_S."""

    def ask() -> str:
        import grp

        return grp.getgrgid(gid).gr_name

    return _name(ask, gid)


def _name(ask: Callable[[], str], number: int) -> str:
    try:
        return BackgroundCall(ask, "resil-name").result(NAME_S)
    except (KeyError, OSError, ImportError, RuntimeError):  # RuntimeError: no more threads
        return str(number)
