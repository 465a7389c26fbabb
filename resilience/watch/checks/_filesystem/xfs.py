"""XFS's quotas: `xfs_quota`, asked and read.

Format: xfs_quota(8) and quota/quota.c of xfsprogs 6.1: for each form three figures, the number of warnings and the time
in brackets. Blocks are of 1 KiB. Project quotas need no asking: statvfs of a folder with one shows its limit.
"""

from __future__ import annotations

import re

from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.amount import BYTES, INODES, Amount, amount

SOURCE = "xfs_quota"
_HEAD = re.compile(r"Disk quotas for (?P<kind>User|Group|Project) (?P<name>\S+) \(")
_FORM = re.compile(r"([0-9]{1,18})\s+([0-9]{1,18})\s+([0-9]{1,18})\s+[0-9]{1,4}\s+\[([^\]\n]*)\]", re.ASCII)


def quota_command(kind: str, name: str, mount_point: str) -> list[str]:
    """`xfs_quota -c "quota -v -b -i -u alice" /data`. `kind`: user or group.

    xfs_quota splits its command at blanks; names of accounts have none.
    """
    return ["xfs_quota", "-c", f"quota -v -b -i {'-u' if kind == 'user' else '-g'} {name}", mount_point]


def parse_quota(text: str) -> tuple[Amount, ...]:
    """Given the output of `xfs_quota -c "quota -b -i ..."`, return its amounts. Raise ProbeError if it is none.

    Nothing is printed where quotas are off: that gives nothing.
    """
    if not text.strip():
        return ()
    amounts: list[Amount] = []
    head = _HEAD.search(text)
    if head is None:
        raise ProbeError(f"xfs_quota wrote no table: {text.strip()[:120]!r}")
    body = text[head.end() :]
    only_files = "Blocks" not in body.partition("Mounted on")[0]
    scope = f"{head['kind'].lower()} {head['name']}"
    for kind, form in zip((INODES,) if only_files else (BYTES, INODES), _FORM.findall(body), strict=False):
        used, soft, limit, grace = form
        amounts.append(amount(kind, SOURCE, scope, used, soft, limit, grace))
    if not amounts:
        raise ProbeError(f"xfs_quota wrote no figures: {body.strip()[:120]!r}")
    return tuple(amounts)
