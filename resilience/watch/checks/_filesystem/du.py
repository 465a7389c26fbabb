"""What `du` counts, where nothing else tells: only when it is asked for, since it walks every folder. Pure.

Allocated blocks are counted, as quotas count (not `-b`, the apparent size), each hard link once, on one file system.
"""

from __future__ import annotations

from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.amount import BYTES, INODES, Amount

SOURCE = "du"


def du_command(path: str, kind: str) -> list[str]:
    """`du -s -x --block-size=1 -- /scratch/lab`, or with `--inodes`."""
    return ["du", "-s", "-x", "--inodes" if kind == INODES else "--block-size=1", "--", path]


def parse_du(text: str, errors: str, kind: str, limit: float) -> Amount:
    """Given what du printed, return the amount against a limit. Raise ProbeError if it printed no total.

    du goes on after folders that it may not read, and tells them on its standard error: the total is a lower bound.
    """
    total = text.split(None, 1)[0] if text.strip() else ""
    if not total.isdecimal() or len(total) > 18:
        first = errors.strip().split("\n")[0][:160]
        raise ProbeError(f"du printed no total{': ' + first if first else ''}")
    unread = sum(1 for line in errors.split("\n") if line.startswith("du: "))
    note = f"a lower bound: {unread} folder{'s' if unread > 1 else ''} could not be read" if unread else ""
    return Amount(kind=kind if kind == INODES else BYTES, source=SOURCE, scope="folder", used=float(total), limit=limit,
                  note=note)  # fmt: skip
