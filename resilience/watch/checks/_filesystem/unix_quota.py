"""The quotas of Linux and of NFS servers: `quota`, asked and read.

Format: quota(1) of linuxquota 4.06. `-w` keeps a long device name on its row, `-p` writes the end of a grace period in
seconds since the epoch, and `-f` asks for one mount point: without it every NFS server is asked, dead ones too.
Blocks are of 1 KiB. The exit code is 1 when a quota is exceeded: that is an answer.
"""

from __future__ import annotations

import re

from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.amount import BYTES, INODES, Amount, amount, figures_of

SOURCE = "quota"
_HEAD = re.compile(r"Disk quotas for (?P<kind>user|group|project) (?P<name>\S+) \((?:uid|gid) .*\):\s*(?P<none>none)?")
NO_QUOTA = "not found or has no quota enabled"
"""What quota 4.06 writes to its standard error, with exit code 1, for a mount point without quotas."""

_EPOCH_S = 10**8
"""A raw grace beyond it is a time, not a rest."""


def quota_command(mount_point: str) -> list[str]:
    """`quota -u -g -v -w -p -f /home`."""
    return ["quota", "-u", "-g", "-v", "-w", "-p", "-f", mount_point]


def parse_quota(text: str, device: str, now: float) -> tuple[Amount, ...]:
    """Given the output of `quota`, return the amounts of one device, its name exactly.

    Raise ProbeError if it is no such output. Quotas of other devices, and `none`, give nothing.
    """
    amounts: list[Amount] = []
    scope, name = "", ""
    for line in text.split("\n"):
        head = _HEAD.match(line.strip())
        if head is not None:
            scope, name = f"{head['kind']} {head['name']}", ""
            continue
        words = line.split()
        if not scope or not words or words[0] == "Filesystem":
            continue
        if not name and len(words) == 1:  # without -w, a long name stands on a line of its own
            name = words[0]
            continue
        owner, row = (name, words) if name else (words[0], words[1:])
        name = ""
        if owner != device:
            continue
        size, files = figures_of(row, SOURCE)
        used, soft, limit, grace = size
        amounts.append(amount(BYTES, SOURCE, scope, used, soft, limit, _rest(grace, now)))
        used, soft, limit, grace = files
        amounts.append(amount(INODES, SOURCE, scope, used, soft, limit, _rest(grace, now)))
    if not scope:
        raise ProbeError(f"quota wrote no table: {text.strip()[:120]!r}")
    return tuple(amounts)


def _rest(grace: str, now: float) -> str:
    """The grace column, a raw time since the epoch as what is left of it."""
    if grace.isdecimal() and len(grace) < 19 and int(grace) > _EPOCH_S:
        return f"{max(0, int(int(grace) - now))}s"
    return grace
