"""BeeGFS's quotas: `beegfs-ctl --getquota`, asked and read, as a table and as CSV.

Format: https://doc.beegfs.io/latest/advanced_topics/quota.html; a recorded table in tests/recorded/quota. Several
storage pools make several tables.
"""

from __future__ import annotations

import re

from resilience.errors import ProbeError, QuantityError
from resilience.watch.checks._filesystem.amount import BYTES, INODES, Amount, parse_limit

SOURCE = "beegfs-ctl --getquota"
_BYTE = re.compile(r"(?<=[0-9 ])Bytes?")
_POOL = re.compile(r"Quota information for storage pool (?P<name>.+?) \(ID: [0-9]+\)")


def quota_command(kind: str, name: str, mount_point: str) -> list[str]:
    """`beegfs-ctl --mount=/beegfs --getquota --uid alice`. `kind`: user or group."""
    return ["beegfs-ctl", f"--mount={mount_point}", "--getquota", "--uid" if kind == "user" else "--gid", name]


def parse_quota(text: str, kind: str, name: str) -> tuple[Amount, ...]:
    """Given the output for a user or group, return the amounts of each storage pool. The name must match exactly.

    Raise ProbeError if it is no such output.
    """
    amounts: list[Amount] = []
    pool, seen_head = "", False
    for line in text.split("\n"):
        match = _POOL.search(line)
        if match is not None:
            pool = match["name"]
            continue
        seen_head = seen_head or "user/group" in line or line.startswith("name,id,size")
        words = [word.strip() for word in re.split(r"\|\|?|,", line)]
        if len(words) != 6 or name not in words[:2]:
            continue
        scope = f"{kind} {name}" + (f" in pool {pool}" if pool and pool != "Default" else "")
        try:
            for what, used, limit in ((BYTES, words[2], words[3]), (INODES, words[4], words[5])):
                in_use, hard = (parse_limit(_BYTE.sub("", word).replace(" ", ""), what) for word in (used, limit))
                amounts.append(
                    Amount(kind=what, source=SOURCE, scope=scope, used=in_use or 0.0, limit=hard, age_s=None)
                )
        except (ProbeError, QuantityError) as error:
            raise ProbeError(f"beegfs-ctl wrote a row that is none: {error.message}") from error
    if not seen_head:
        raise ProbeError(f"beegfs-ctl wrote no table: {text.strip()[:120]!r}")
    return tuple(amounts)
