"""Starts programs that hold a fault on their hosts, and hears from them whether it has begun."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from resilience.errors import ResilError

READY = "ready"
"""What a holder says on stdout when the fault has begun; anything else is why it could not."""
START_S = 60.0
"""How long a holder may take to start: srun waits for a slot, and a Python starts on each node from a shared disk."""
END_S = 2.0
_started: list[subprocess.Popen[bytes]] = []
"""The holders that this process has started: their standard input ends with it."""


def start_holders(argv: Sequence[str], count: int) -> subprocess.Popen[bytes]:
    """Start a holder, or an srun of several, and return it once `count` of them are ready.

    Raise ResilError with what they say instead.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    for one in [one for one in _started if one.poll() is not None]:
        one.stdin.close()  # type: ignore[union-attr]
        _started.remove(one)
    _started.append(process)
    assert process.stdin is not None and process.stdout is not None
    heard, until = b"", time.monotonic() + START_S
    while heard.count(f"{READY}\n".encode()) < count:
        more = b""
        if select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            more = os.read(process.stdout.fileno(), 4096)
        if not more:
            said = heard.decode(errors="replace").replace(f"{READY}\n", "").strip()
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.terminate()
            raise ResilError(f"the fault did not begin: {said or 'its process said nothing'}")
        heard += more
    process.stdout.close()
    return process
