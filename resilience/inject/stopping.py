"""Stops processes of this node, stays there, and lets them go on: whatever becomes of those who asked for it.

With a factor it lets them work for a tenth of a second in turn, so that everything takes so many times as long.

    python -m resilience.inject.stopping ORDER [HOST]

They go on when the time is over, on SIGTERM and SIGHUP, when standard input ends (it is a pipe of the injector, whose
end srun passes on without the controller), and when the record of the fault says why it ends. Two processes do it, and
each lets them go on if the other is killed. In the end the file ID.HOST beside the record says that they go on.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from resilience.base.files import read_regular, replace_file
from resilience.inject.holding import ENDS, READY, guarded, say, send

MODULE = "resilience.inject.stopping"
LOOK_S = 0.2
"""How often it looks at its standard input and at the record."""
WORK_S = 0.1
LATE_S = 5.0
"""How long after the end a process that reads the record, and hangs, is waited for."""


def main(order: str, host: str = "") -> int:
    """Stop this node's processes of an order, say so, and let them go on when it is time."""
    host = host or os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    asked = json.loads(order)
    record, end, pids = Path(asked["record"]), time.monotonic() + float(asked["left_s"]), asked["pids"][host]

    def go_on() -> None:
        send(signal.SIGCONT, pids)
        replace_file(record.with_name(f"{record.stem}.{host}"), "", mode=0o600)

    def hold() -> None:
        found = send(signal.SIGSTOP, pids)
        if found["refused"]:
            say(f"the system does not let you signal {found['refused']} on {host}")
        elif not found["sent"]:
            say(f"the processes on {host} have ended before they got the signal")
        else:
            say(READY)
            _wait(record, end, pids, asked["factor"])
        go_on()

    return guarded(hold, go_on, float(asked["left_s"]) + LATE_S)


def _wait(record: Path, end: float, pids: Sequence[Sequence[int]], factor: float) -> None:
    """Return when it is time to let the processes go on for good."""
    now = looked = time.monotonic()
    turns = itertools.cycle([(signal.SIGCONT, WORK_S), (signal.SIGSTOP, WORK_S * (factor - 1))])
    turn = now + WORK_S * (factor - 1) if factor else end
    while now < end:
        if signal.sigtimedwait(ENDS, max(0.0, min(looked + LOOK_S, turn, end) - now)) is not None:
            return
        now = time.monotonic()
        if now >= turn:
            number, length_s = next(turns)
            send(number, pids)
            turn = now + length_s
        if now < looked + LOOK_S:
            continue
        looked = now
        if select.select([0], [], [], 0)[0] and not os.read(0, 4096):
            return
        with suppress(OSError, ValueError):
            found = read_regular(record, limit_bytes=2**22)
            if found is None or json.loads(found[0])["how"]:
                return


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
