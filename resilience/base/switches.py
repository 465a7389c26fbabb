"""Reads switch files for the guard and for the commands: opened so that nothing fools or blocks the reader, and judged.

A switch is a regular file whose owner passes the policy of the run; resilience/switch.py has the rules. The batch shell
reads the same files without Python (slurm_templates/_attempt.bash).
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
"""How long the system may take to tell a name: a directory service that is down must not hold a switch up."""


class SwitchFile(NamedTuple):
    """A file that lies in a switch's place.

    Attributes:
        content: at most 64 KiB; empty where a colleague's umask closed the file to us: the file itself is the request.
        info: its status.
        refusal: why it is no switch: it is no regular file. Empty for a regular one.
    """

    content: bytes
    info: os.stat_result
    refusal: str = ""


def find_switch(kind: str, directory: int) -> SwitchFile | None:
    """The file in a switch's place in an open directory, or None when there is none. Raise OSError.

    A file that is not a regular one is not even opened: that may wake a writer, or rewind a tape.
    """
    try:
        info = os.stat(kind, dir_fd=directory, follow_symlinks=False)
        if odd := kind_of(info):
            return SwitchFile(b"", info, f"it is {odd}, not a regular file")
        read = read_regular(kind, directory=directory)
    except FileNotFoundError:
        return None
    except PermissionError:  # raised again where not even the status can be read
        return SwitchFile(b"", os.stat(kind, dir_fd=directory, follow_symlinks=False))
    except OSError as error:
        if error.errno in NOT_REGULAR:  # it was replaced a moment ago; the next check names it
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
    """Why the owner of a switch file may not steer a run; empty when the policy allows it.

    `run`: status of the run directory. `who`: the owner's name. `group`: names a group, `name_of_group` by default.
    """
    if is_accepted(policy, uid=info.st_uid, gid=info.st_gid, run_uid=run.st_uid, run_gid=run.st_gid):
        return ""
    return explain_refusal(policy, who, (group or name_of_group)(info.st_gid))


def recorded_policy(run_toml: object) -> OwnerPolicy | None:
    """The owner policy that a run was submitted with, given the content of run.toml; None where that does not tell."""
    recorded = run_toml.get("run") if isinstance(run_toml, dict) else None
    if not isinstance(recorded, dict):
        return None
    policy = recorded.get("switch_owners") or (OwnerPolicy.GROUP if recorded.get("group") else OwnerPolicy.OWNER)
    return OwnerPolicy(policy) if policy in set(OwnerPolicy) else None


def name_of_user(uid: int) -> str:
    """The login name of a user; the number where there is none, or no answer within NAME_S."""

    def ask() -> str:
        import pwd

        return pwd.getpwuid(uid).pw_name

    return _name(ask, uid)


def name_of_group(gid: int) -> str:
    """The name of a group, likewise."""

    def ask() -> str:
        import grp

        return grp.getgrgid(gid).gr_name

    return _name(ask, gid)


def _name(ask: Callable[[], str], number: int) -> str:
    try:
        return BackgroundCall(ask, "resil-name").result(NAME_S)
    except (KeyError, OSError, ImportError, RuntimeError):  # RuntimeError: no more threads
        return str(number)
