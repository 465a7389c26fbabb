"""Which files a site's purge policy will delete for their age. A bounded look.

Sites go by the last access ("not accessed for 30 days") or the last change; the later of the two is taken, and a file
system mounted `noatime` or `relatime` may know an access that is a day late.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass

MOST_FILES = 20_000
MOST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """What will be deleted soon.

    Attributes:
        folder: where was looked.
        files: how many files are that old.
        size_bytes: what they take.
        oldest_s: how long the oldest was not used.
        example: the oldest, by its path.
        seen: how many files were looked at.
        is_whole: whether that were all.
        spares_newest: whether the newest file of all is not among them.
    """

    folder: str
    files: int = 0
    size_bytes: int = 0
    oldest_s: float = 0.0
    example: str = ""
    seen: int = 0
    is_whole: bool = True
    spares_newest: bool = True


def doomed(folder: str, unused_s: float, now: float) -> Doomed:
    """Find the files below a folder that were not used for `unused_s`."""
    files = size_bytes = seen = 0
    oldest_s, youngest_s, example = 0.0, float("inf"), ""
    waiting, is_whole, end = [folder], True, time.monotonic() + MOST_S
    while waiting and is_whole:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if seen >= MOST_FILES or time.monotonic() > end:
                    is_whole = False
                    break
                with suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(entry.path)
                        continue
                    seen += 1
                    age_s = now - max(info.st_atime, info.st_mtime)
                    youngest_s = min(youngest_s, age_s)
                    if age_s <= unused_s:
                        continue
                    files, size_bytes = files + 1, size_bytes + info.st_blocks * 512
                    if age_s > oldest_s:
                        oldest_s, example = age_s, entry.path
    return Doomed(folder=folder, files=files, size_bytes=size_bytes, oldest_s=oldest_s, example=example, seen=seen,
                  is_whole=is_whole, spares_newest=youngest_s <= unused_s)  # fmt: skip
