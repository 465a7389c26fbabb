"""Times one call of the guard, of what it replaces, and of its peers, in one process; prints every sample as JSON.

A program of its own: it runs in an environment where the peers are installed, and imports the guard from the directory
that PYTHONPATH names. `python _guard_costs.py RUN_DIRECTORY SAMPLES [store]`: with a store of checkpoints, no peers.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import repeat
from typing import Any

warnings.filterwarnings("ignore")

from resilience.guard import TrainingGuard  # noqa: E402 - after the filter: importing torch warns

BLOCK_S = 0.02
TAIL_CALLS = 200_000


class Empty:
    """The floor of everything that is called on an object."""

    def step(self) -> None:
        """Do nothing."""


def naive_step(stop: str, save: str, deadline: float) -> bool:
    """What a chapter on fault tolerance shows: look at two files, the memory and the clock in every step."""
    import psutil

    if os.path.exists(stop) or os.path.exists(save):  # noqa: PTH110 - as it is written there
        return True
    return bool(psutil.virtual_memory().percent > 95.0) or time.time() > deadline


def main() -> None:
    """Take the samples in turn and print them."""
    run, samples = sys.argv[1], int(sys.argv[2])
    for directory in ("switches", "beats", "journal", "attempts"):
        os.makedirs(os.path.join(run, directory), exist_ok=True)  # noqa: PTH103, PTH118
    environ = {"RESIL_RUN": "bench", "RESIL_RUN_DIR": run, "RESIL_JOB_ID": "1", "RESIL_ATTEMPT": "1"}
    environ["RESIL_END_TIME"] = str(int(time.time()) + 7 * 86400)
    has_store = sys.argv[3:] == ["store"]
    guard = _with_store(run, environ) if has_store else TrainingGuard.from_env(environ)
    guard.start()
    guard.step()  # the first one finishes the start
    empty, notes = Empty(), []
    calls: dict[str, Callable[[int], None]] = {
        "nothing": _nothing,
        "empty": lambda count: _calls(empty, count),
        "step": lambda count: _steps(guard, count),
        "step with loss": lambda count: _steps_with_loss(guard, count),
        "naive": lambda count: _naive(run, count),
    }
    peers = () if has_store else (("accelerate", _accelerate), ("lightning", _lightning), ("nvrx", _nvrx))
    for name, make in peers:
        try:
            calls[name] = make()
        except Exception as error:
            notes.append(f"{name} could not be measured: {error!r}"[:200])
    taken: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: _count_for(call) for name, call in calls.items()}
    order = list(calls)
    for turn in range(samples):
        for name in order if turn % 2 else reversed(order):
            began = time.perf_counter()
            calls[name](counts[name])
            taken[name].append((time.perf_counter() - began) / counts[name])
    tails = _tails(guard)
    guard.close()
    print(json.dumps({"seconds": taken, "tails": tails, "notes": notes}))
    sys.stdout.flush()
    os._exit(0)  # the peers leave threads and processes behind


def _with_store(run: str, environ: dict[str, str]) -> TrainingGuard:
    """Return a guard that saves into a store: in half an hour, since this loop does not save."""
    from resilience.checkpoints import Store

    return TrainingGuard.from_env(environ, store=Store(os.path.join(run, "checkpoints")), every="30 min")  # noqa: PTH118


def _count_for(call: Callable[[int], None]) -> int:
    """How many calls take about a block."""
    count = 1
    while True:
        began = time.perf_counter()
        call(count)
        took_s = time.perf_counter() - began
        if took_s > BLOCK_S / 4 or count > 1e7:
            return max(1, math.ceil(count * BLOCK_S / max(took_s, 1e-9)))
        count *= 4


def _nothing(count: int) -> None:
    for _ in repeat(None, count):
        pass


def _calls(empty: Empty, count: int) -> None:
    for _ in repeat(None, count):
        empty.step()


def _steps(guard: TrainingGuard, count: int) -> None:
    for _ in repeat(None, count):
        guard.step()


def _steps_with_loss(guard: TrainingGuard, count: int) -> None:
    for _ in repeat(None, count):
        guard.step(2.5)


def _naive(run: str, count: int) -> None:
    stop, save, deadline = run + "/switches/kill-bench", run + "/switches/save-bench", time.time() + 1e6
    for _ in repeat(None, count):
        naive_step(stop, save, deadline)


def _accelerate() -> Callable[[int], None]:
    import torch
    from accelerate import Accelerator

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)

    def run(count: int) -> None:
        for _ in repeat(None, count):
            accelerator.check_trigger()

    return run


def _lightning() -> Callable[[int], None]:
    from lightning.pytorch import Trainer

    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )

    def run(count: int) -> None:
        for _ in repeat(None, count):
            trainer.received_sigterm  # noqa: B018 - a property, read in every step

    return run


def _nvrx() -> Callable[[int], None]:
    """A real monitor process on a real socket, as its launcher would start it."""
    from nvidia_resiliency_ext import fault_tolerance

    path = os.path.join(tempfile.mkdtemp(prefix="nvrx-"), "monitor")  # noqa: PTH118
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "FT_RANK_MONITOR_IPC_SOCKET": path}
    import torch.multiprocessing

    context: Any = torch.multiprocessing.get_context("spawn")
    fault_tolerance.RankMonitorServer.run_in_subprocess(fault_tolerance.FaultToleranceConfig(), path, mp_ctx=context)
    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()

    def run(count: int) -> None:
        for _ in repeat(None, count):
            client.send_heartbeat()

    return run


def _tails(guard: TrainingGuard) -> dict[str, float]:
    """Single calls, the timer's own cost in them: median and 99.9th percentile, in seconds."""
    taken = []
    clock = time.perf_counter_ns
    for _ in repeat(None, TAIL_CALLS):
        began = clock()
        guard.step()
        taken.append(clock() - began)
    taken.sort()
    return {
        "p50": taken[len(taken) // 2] * 1e-9,
        "p99.9": taken[int(len(taken) * 0.999)] * 1e-9,
        "max": taken[-1] * 1e-9,
    }


if __name__ == "__main__":
    main()
