"""A training for tests that meets its end by memory: `python leaking_training.py HOW CGROUP [FOLDER]`.

It enters the cgroup first. HOW is `leak` (a data-loader process leaks), `cache` (files are written and read, one of
them again and again, as data sets are), `shared` (/dev/shm fills), `slow` (a data-loader process leaks slowly, with
a save every 15 s, in a job of an hour), `fast` (a data-loader process leaks fast, see `train_with`), or `files` (one
writes and reads files). Prints one JSON line at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from resilience.guard import TrainingGuard

MIB = 2**20
LEAK = "import time, sys\nheld = []\nfor _ in range(1000):\n    held.append(bytearray(2**20)); time.sleep({})\n"
FAST_LEAK = """\
import sys, time
held, before = [], time.monotonic()
while True:
    time.sleep(0.01)
    now = time.monotonic()
    held.append(bytearray(int(float(sys.argv[1]) * 2**20 * min(now - before, 0.05))))
    before = now
"""
"""So many MiB each second. What it could not leak while the machine was busy is not made up for."""
FILES = """\
import os, sys, time
end = time.monotonic() + 10
while time.monotonic() < end:
    for name in ("a", "b", "c"):
        path = os.path.join(sys.argv[1], name)
        with open(path, "wb") as file:
            for _ in range(150):
                file.write(bytes(2**20))
        with open(path, "rb") as file:
            while file.read(2**20):
                pass
    os.unlink(path)
"""
"""More than 400 MiB of file cache, and a part of it goes now and then, and comes back as fast as the disk allows."""


def main(how: str, cgroup: str, directory: str) -> int:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    if how == "fast":
        return train_with([FAST_LEAK, os.environ["MIB_PER_S"]], int(os.environ["FIRST_SAVES"]))
    if how == "files":
        return train_with([FILES, directory], first_saves=2)
    highest, saves, last_save, steps, last_saved_step = 0, 0, time.monotonic(), 0, 0
    pause_s = {"leak": 0.015, "slow": 0.6}.get(how)
    worker = subprocess.Popen([sys.executable, "-c", LEAK.format(pause_s)]) if pause_s else None
    shared = Path("/dev/shm", f"resil-test-{os.getpid()}")
    usage, stat = Path(cgroup).parents[1] / "memory.usage_in_bytes", Path(cgroup).parents[1] / "memory.stat"
    guard = TrainingGuard.from_env(
        {"RESIL_GUARD": os.environ.get("RESIL_GUARD", "on"), "SLURM_JOB_END_TIME": str(int(time.time()) + 3600)},
        host_memory_percent=95.0 if how == "slow" else 60.0,
        poll_s=0.05,
        signals=(),
        walltime=False,
        gpu_memory="off",
    )
    decision = None
    try:
        with guard:
            if how == "cache":
                fill_the_cache(Path(directory, "hot"), 80 * MIB, times=3)
                fill_the_cache(Path(directory, "cold"), 100 * MIB, times=1)
            end = time.monotonic() + {"cache": 2, "slow": 200}.get(how, 60)
            while time.monotonic() < end and (worker is None or worker.poll() is None):
                if how == "shared":
                    with shared.open("ab") as file:
                        file.write(bytes(MIB))
                highest = max(highest, int(usage.read_text()))
                time.sleep(0.05 if how == "shared" else 0.01)  # the kernel brings memory.stat up to date every 2 s
                decision = guard.step()
                steps += 1
                if decision.save or (how == "slow" and time.monotonic() > last_save + 15):
                    with guard.saving():
                        saves += 1
                    last_save, last_saved_step = time.monotonic(), steps
                if decision.stop:
                    break
    finally:
        shared.unlink(missing_ok=True)
        if worker is not None:
            worker.kill()
            worker.wait()
    why = decision.why if decision is not None else ""
    active = next(int(line.split()[1]) for line in stat.read_text().splitlines() if "total_active_file" in line)
    told = {"highest": highest, "active": active, "saves": saves, "why": why, "exit_code": guard.exit_code}
    told["unsaved_steps"] = steps - last_saved_step
    print(json.dumps(told), flush=True)
    return 0


def train_with(source: list[str], first_saves: int) -> int:
    """Steps of 20 ms; after some saves, which take 0.2 s and 30 MiB, a process runs the source, and no save comes."""
    guard = TrainingGuard.from_env(
        {"RESIL_GUARD": os.environ.get("RESIL_GUARD", "on")}, walltime=False, gpu_memory="off"
    )
    saves, steps, worker, decision, end = 0, 0, None, None, time.monotonic() + 120
    try:
        with guard:
            while time.monotonic() < end and (worker is None or worker.poll() is None):
                time.sleep(0.02)
                decision = guard.step()
                steps += 1
                if decision.save or (worker is None and steps % 50 == 0):
                    with guard.saving():
                        held = bytearray(30 * MIB)
                        time.sleep(0.2)
                        del held
                        saves += 1
                if decision.stop:
                    break
                if worker is None and saves == first_saves and steps % 50 == 25:
                    worker = subprocess.Popen([sys.executable, "-c", *source])
    finally:
        if worker is not None:
            worker.kill()
            worker.wait()
    told = {"saves": saves, "why": decision.why if decision is not None else "", "exit_code": guard.exit_code}
    print(json.dumps(told), flush=True)
    return 0


def fill_the_cache(path: Path, size: int, *, times: int) -> None:
    """Write, and read so often: from the second time on the pages are on the active list."""
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
    for _ in range(times):
        with path.open("rb") as file:
            while file.read(MIB):
                pass


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
