"""A training of real gloo ranks, in which one rank stops making steps: `hanging_training.py KIND RANK STEP [PATH]`.

With the kind `slow` it takes 30 % longer than the others from that step on. Without arguments, it forks ranks as its
standard input says: one JSON list for each training, of [environment, file for stderr, KIND, RANK, STEP, ...] for each
rank. Torch takes seconds to import, and so it is imported once.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from resilience.guard import TrainingGuard


def hang(kind: str) -> None:
    """Never return."""
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "loop":
        while True:
            pass
    elif kind == "gil":
        collections.deque(itertools.count(), maxlen=0)
    elif kind == "sleeping-gil":
        while True:
            ctypes.PyDLL(None).sleep(1000)
    elif kind == "disk":
        Path(sys.argv[4]).stat()
    elif kind == "other":
        dist.barrier()
    time.sleep(1000)


def main() -> None:
    """Train until killed."""
    kind, odd, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = f"file://{os.environ['RESIL_RUN_DIR']}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    gradient = torch.ones(1000)
    is_slow = kind == "slow"
    with TrainingGuard.from_env(beat_s=0.2, poll_s=0.01 if is_slow else 0.1) as guard:
        for step in itertools.count(1):
            is_odd = step >= at and rank == odd
            time.sleep((0.26 if is_odd else 0.2) if is_slow else 0.01)
            if step == at and is_odd and kind == "left":
                break
            if step == at and is_odd and not is_slow:
                hang(kind)
            try:
                dist.all_reduce(gradient)
            except RuntimeError:  # gloo notices that a rank is dead, NCCL waits for it
                time.sleep(1000)
            guard.step()
    time.sleep(1000)


def serve() -> None:
    """Fork ranks until the end of the standard input; print the pids of each training."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody else waits for them
    for line in sys.stdin:
        pids = []
        for environ, errors, *argv in json.loads(line):
            if (pid := os.fork()) == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600), 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(2, 1)
                os.environ |= environ
                sys.argv[1:] = argv
                main()
                os._exit(0)
            pids.append(pid)
        print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    main() if sys.argv[1:] else serve()
