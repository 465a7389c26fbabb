"""A program that saves and commits without end, four saves at a time, and keeps the newest three: it is to be killed.

    python -m tests.checkpoints.endless_saves DIRECTORY ATTEMPT ACKNOWLEDGED

It appends to the file ACKNOWLEDGED each step whose commit was answered.
"""

from __future__ import annotations

import os
import sys
import time

from resilience.checkpoints import fence
from resilience.checkpoints.child import Worker
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.trash import discard, empty
from tests.checkpoints.saves import RUN, write_part

IN_FLIGHT = 4


def main(path: str, attempt: int, acknowledged: str) -> None:
    """Save until killed."""
    store = StoreDirectory.open(path)
    fence.begin(store, attempt)
    found = store.checkpoints()
    step = found[-1].step if found else 0
    in_flight: dict[int, Worker] = {}
    while True:
        while len(in_flight) < IN_FLIGHT:
            step += 1
            part = write_part(store, step, attempt, save=step)
            in_flight[step] = Worker.start({"do": "commit", "store": path, "part": part, "fields": {"run": RUN}})
        for number, worker in list(in_flight.items()):
            if worker.poll() is not None:
                del in_flight[number]
                with open(acknowledged, "a") as file:
                    file.write(f"{number}\n")
                    os.fsync(file.fileno())
        for one in store.checkpoints()[:-3]:
            discard(store, one.name)
        empty(store, busy=1)
        time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
