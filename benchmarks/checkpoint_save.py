"""What a store adds to a save: to its stall, until it is durable, in memory; and what deleting old ones takes away."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from benchmarks._peers import run_program
from benchmarks.measure import BenchmarkError, Claim, Options, Report, Row, Spread
from resilience.checkpoints.child import Worker
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import TRASH
from resilience.checkpoints.prune import start_prune
from resilience.checkpoints.retention import Policy

MIB, QUICK_MIB = 1024, 128
STALL, STALL_ASYNC, BESIDE = 1.10, 1.02, 1.02
MOST_MIB = 32.0
FILES, QUICK_FILES = 40_000, 4_000
TURNS = 3
STEP = 20_000


def run(options: Options) -> Report:
    """Save in a process of its own; then delete beside a training."""
    mib = QUICK_MIB if options.quick else MIB
    saves = options.scratch / "saves"
    saves.mkdir()
    samples = str(min(options.samples, 11))
    line = run_program(
        "_checkpoint_saves", [str(saves), samples, str(mib)], python=sys.executable, scratch=options.scratch,
        deadline_s=1200,
    )  # fmt: skip
    found = json.loads(line)
    taken = {name: Spread(tuple(values)) for name, values in found["seconds"].items()}
    durable = {name: Spread(tuple(values)) for name, values in found["durable"].items()}
    rows = [Row(f"stall of a save of {mib:,} MiB", taken["store"], "the framework alone", taken["alone"], STALL)]
    if "store, async" in taken:
        alone = taken["alone, async"]
        rows.append(Row("stall of an asynchronous one", taken["store, async"], "DCP alone", alone, STALL_ASYNC))
    rows.append(Row("until it is committed", durable["store"], "until it is on disk", durable["alone"]))
    rows.append(_beside_a_prune(options))
    claims = (Claim("memory of the child that commits", found["peak_kib"] / 1024, MOST_MIB, "MiB"),)
    return Report("a store around a save", tuple(rows), (f"saved with {found['framework']}",), claims)


def _beside_a_prune(options: Options) -> Row:
    """Steps of a training, alone and while a child empties the trash, in turn."""
    files = QUICK_FILES if options.quick else FILES
    alone: list[float] = []
    beside: list[float] = []
    for turn in range(TURNS):
        store = StoreDirectory.create(options.scratch / f"prune{turn}")
        _fill(store.path / TRASH, files)
        os.sync()
        worker = start_prune(store, Policy())
        steps = _steps_until_done(worker)
        beside += steps
        alone += _steps(len(steps))
    return Row(
        f"a training's step while {files:,} files are deleted", Spread(tuple(beside)), "alone", Spread(tuple(alone)),
        BESIDE,
    )  # fmt: skip


def _fill(trash: Path, files: int) -> None:
    for number in range(files):
        if number % 1000 == 0:
            directory = trash / f"step-{number:08d}.x"
            directory.mkdir(parents=True)
        (directory / f"{number}.bin").write_bytes(b"x" * 100)


def _steps_until_done(worker: Worker) -> list[float]:
    steps: list[float] = []
    until = time.monotonic() + 300
    while (answer := worker.poll()) is None:
        steps += _steps(10)
        if time.monotonic() > until:
            worker.kill()
            raise BenchmarkError("the trash was not empty after 300 s")
    if answer["failed"]:
        raise BenchmarkError(f"not all was deleted: {answer['failed']}")
    return steps


def _steps(count: int) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        sum(number * number for number in range(STEP))
        took.append(time.perf_counter() - began)
    return took
