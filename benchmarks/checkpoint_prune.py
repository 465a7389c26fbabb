"""How much a training is slowed while a checkpoint of 40,000 files is deleted beside it."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import BenchmarkError, Claim, Options, Report, Row, Spread
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import TRASH
from resilience.checkpoints.prune import start_prune
from resilience.checkpoints.retention import Policy

FILES, QUICK_FILES = 40_000, 10_000
WINDOW_S = 0.25
MOST_WINDOWS = 200
MOST_RATIO, MOST_MIB = 1.02, 32
COUNTER = "=q"
STEPS = """
import mmap, struct, sys, zlib
with open(sys.argv[1], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
buffer, step = bytes(2**18), 0
while True:
    zlib.crc32(buffer)
    step += 1
    struct.pack_into("=q", count, 0, step)
"""


def run(options: Options) -> Report:
    """Stop the pruning process in every other window, so that what else the machine does hits both kinds alike."""
    files = QUICK_FILES if options.quick else FILES
    store = StoreDirectory.create(options.scratch / "checkpoints")
    _fill(store.path / TRASH / "step-00000001.0123abcd", files)  # renamed, as `discard` does
    alone: list[float] = []
    beside: list[float] = []
    waits: dict[bool, list[float]] = {False: [], True: []}
    with _training(options.scratch) as counters:
        worker = start_prune(store, Policy())
        try:
            began, peak = time.perf_counter(), 0
            while len(beside) < MOST_WINDOWS:
                os.kill(worker.pid, signal.SIGSTOP)
                step_s = _window(counters, options.scratch, waits[False])
                os.kill(worker.pid, signal.SIGCONT)
                alone.append(step_s)
                step_s = _window(counters, options.scratch, waits[True])
                if worker.poll() is not None:
                    break
                beside.append(step_s)
                peak = _peak(worker.pid)
            took_s = (time.perf_counter() - began) / 2
        finally:
            worker.kill()
    left = sum(len(names) for _, _, names in os.walk(store.path / TRASH))
    if left == files or not beside:
        raise BenchmarkError(f"{left} of {files} files left, after {len(beside)} windows")
    rows = (
        Row(f"a step beside the prune of {files:,} files", _spread(beside), "a step alone", _spread(alone), MOST_RATIO),
        Row("a line of a log, to disk, beside it", _spread(waits[True]), "alone", _spread(waits[False])),
    )
    bare_s = _bare(options.scratch, files)
    claims = (
        Claim("memory of the process that deletes", peak / 2**20, MOST_MIB, "MiB"),
        Claim(f"time of the prune, with all cores busy; shutil.rmtree alone {bare_s:.1f} s", took_s, float("nan"), "s"),
    )
    pairs = statistics.median(one / other for one, other in zip(beside, alone, strict=False))
    note = f"{os.cpu_count()} processes train, one on each core; {len(beside)} windows of {WINDOW_S} s of each "
    note += f"kind; {files - left:,} files deleted; median of the ratios of neighbouring windows {pairs:.3f}x"
    return Report("deleting checkpoints beside a training", rows, (note,), claims)


def _fill(directory: Path, files: int) -> None:
    for number in range(files):
        if number % 1000 == 0:
            (directory / f"{number // 1000}").mkdir(parents=True)
        (directory / f"{number // 1000}" / f"{number}.distcp").write_bytes(b"x" * 64)


@contextlib.contextmanager
def _training(scratch: Path) -> Iterator[list[mmap.mmap]]:
    """Keep every core busy with steps; yield their counters."""
    processes: list[subprocess.Popen[bytes]] = []
    counters = []
    try:
        for number in range(os.cpu_count() or 1):
            path = scratch / f"steps-{number}"
            path.write_bytes(bytes(8))
            with open(path, "r+b") as file:
                counters.append(mmap.mmap(file.fileno(), 8))
            processes.append(subprocess.Popen([sys.executable, "-c", STEPS, str(path)]))
        time.sleep(0.5)
        yield counters
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for counter in counters:
            counter.close()


def _window(counters: list[mmap.mmap], scratch: Path, waits: list[float]) -> float:
    """Return the seconds of one step in a window of WINDOW_S; add the seconds of each line of the log."""

    def steps() -> int:
        return sum(struct.unpack_from(COUNTER, counter, 0)[0] for counter in counters)

    first, began = steps(), time.perf_counter()
    with open(scratch / "log", "ab", buffering=0) as log:
        while (now := time.perf_counter()) - began < WINDOW_S:
            log.write(b"iteration 1 | loss 2.1\n")
            os.fsync(log.fileno())
            waits.append(time.perf_counter() - now)
            time.sleep(0.05)
    taken = steps() - first
    return (time.perf_counter() - began) * len(counters) / max(1, taken)


def _bare(scratch: Path, files: int) -> float:
    _fill(scratch / "bare", files)
    began = time.perf_counter()
    shutil.rmtree(scratch / "bare")
    return time.perf_counter() - began


def _spread(values: list[float]) -> Spread:
    return Spread(tuple(values))


def _peak(pid: int) -> int:
    """Return the most memory that a process had, in bytes: VmHWM, proc_pid_status(5)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
