"""A launcher of several ranks on one node, like torchrun: a worker that fails ends the others, and the exit code is 1.

launcher.py RANKS PROGRAM ARGUMENT...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
ranks = int(sys.argv[1])
workers = []
for rank in range(ranks):
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    workers.append(subprocess.Popen([sys.executable, *sys.argv[2:]], env={**os.environ, **place}))


def pass_on(number: int, frame: object) -> None:
    for worker in workers:
        worker.terminate()


signal.signal(signal.SIGTERM, pass_on)
while None in [worker.poll() for worker in workers] and not any(worker.returncode for worker in workers):
    time.sleep(0.02)
for worker in workers:
    worker.terminate()
until = time.monotonic() + GRACE_S
for worker in workers:
    try:
        worker.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"launcher: {worker.pid} is killed", flush=True)
        worker.kill()
        worker.wait()
sys.exit(any(worker.returncode for worker in workers))
