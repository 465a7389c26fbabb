"""Stacks of ranks that do not answer, read from outside by py-spy, where it is installed. In the writer process.

It is a child of that process because Yama (ptrace_scope 1) lets only those read a rank whom the rank has named, and
their descendants: `allow_reader` in guard/stacks.py.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_S = 3.0
"""For all ranks together; whoever asked for the stacks waits a little longer."""
MOST_RANKS, MOST_BYTES = 16, 2**20


def read_outside(silent: Sequence[tuple[int, int]], add: Callable[[int, int, bytes, bytes], None]) -> None:
    """Given (rank, pid) of ranks without an answer, call `add(rank, pid, b"", text)`; the text may be empty."""
    program = shutil.which("py-spy")
    readers: list[tuple[int, int, subprocess.Popen[bytes] | None]] = []
    for rank, pid in silent:
        reader = None
        if program is not None and len(readers) < MOST_RANKS:
            argv = [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
            with contextlib.suppress(OSError):
                reader = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
        readers.append((rank, pid, reader))
    until = time.monotonic() + READ_S
    for rank, pid, reader in readers:
        text = b""
        if reader is not None:
            try:
                text = reader.communicate(timeout=max(0.01, until - time.monotonic()))[0][:MOST_BYTES]
            except subprocess.TimeoutExpired:
                reader.kill()  # no wait: it may be blocked in the kernel, as the rank is
            if reader.returncode:
                text = b""
        add(rank, pid, b"", text)
