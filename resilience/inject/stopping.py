"""Stops processes of this node, stays there, and lets them go on: whatever becomes of those who asked for it.

With a factor it lets them work for a tenth of a second in turn, so that everything takes so many times as long.

    python -m resilience.inject.stopping ORDER [HOST]

They go on when the time is over, on SIGTERM and SIGHUP, when standard input ends (it is a pipe of the injector, whose
end srun passes on without the controller), and when the record of the fault says why it ends. A child of this process
lets them go on if this one is killed; so does this one if the child is. In the end the file ID.HOST beside the record
says that they go on.
"""

from __future__ import annotations

import ctypes
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

from resilience.base.files import replace_file
from resilience.errors import ResilError
from resilience.inject.holding import READY
from resilience.inject.processes import send
from resilience.system.files import read_regular

MODULE = "resilience.inject.stopping"
LOOK_S = 0.2
"""How often it looks at its standard input and at the record."""
WORK_S = 0.1
_PR_SET_PDEATHSIG = 1
_ENDS = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD}


def main(order: str, host: str = "") -> int:
    """Stop this node's processes of an order, say so, and let them go on when it is time."""
    host = host or os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    asked = json.loads(order)
    record, left_s, pids = Path(asked["record"]), float(asked["left_s"]), asked["pids"][host]
    answer = record.with_name(f"{record.stem}.{host}")
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:
            signal.sigtimedwait(_ENDS, left_s)
        send(signal.SIGCONT, pids)
        if os.getppid() != parent:
            replace_file(answer, "", mode=0o600)
        os._exit(0)
    found = send(signal.SIGSTOP, pids)
    if not found["refused"] and found["sent"]:
        _say(READY)
        _wait(record, time.monotonic() + left_s, pids, asked["factor"])
    elif found["refused"]:
        _say(f"the system does not let you signal {found['refused']} on {host}")
    else:
        _say(f"the processes on {host} have ended before they got the signal")
    send(signal.SIGCONT, pids)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    replace_file(answer, "", mode=0o600)
    return 0 if found["sent"] else 1


def _say(line: str) -> None:
    with suppress(OSError):  # nobody listens
        os.write(1, line.encode() + b"\n")


def _wait(record: Path, end: float, pids: Sequence[Sequence[int]], factor: float) -> None:
    """Return when it is time to let the processes go on for good."""
    now = looked = time.monotonic()
    turns = itertools.cycle([(signal.SIGCONT, WORK_S), (signal.SIGSTOP, WORK_S * (factor - 1))])
    turn = now + WORK_S * (factor - 1) if factor else end
    while now < end:
        if signal.sigtimedwait(_ENDS, max(0.0, min(looked + LOOK_S, turn, end) - now)) is not None:
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
        with suppress(ResilError, ValueError):
            found = read_regular(record)
            if found is None or json.loads(found[0])["how"]:
                return


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
