"""Makes forks of a process that has collected ten thousand tests cheap: most tests of commands fork, some ten times.

Each such process has about 170 MiB in pages of 4 KiB. To fork copies a table entry for each page, and whatever the two
processes write to afterwards is copied as well: 13 ms of the kernel's time, with huge pages 3 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from pathlib import Path

MADV_COLLAPSE = 25
"""Joins pages to huge ones now, whatever /sys/kernel/mm/transparent_hugepage says (madvise(2), since Linux 6.1)."""

HUGE = 2 << 20
"""Bytes of a huge page on x86-64."""


def make_cheap() -> None:
    """Join this process's memory to huge pages, and leave it out of garbage collections. Elsewhere than on Linux, and
    where the kernel cannot, forks are as slow as before."""
    gc.collect()
    gc.freeze()
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, mode, _, _, inode, *name = line.split()
            if mode == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                first, end = (int(address, 16) for address in addresses.split("-"))
                first, end = -(-first // HUGE) * HUGE, end // HUGE * HUGE
                if first < end:
                    libc.madvise(first, end - first, MADV_COLLAPSE)
