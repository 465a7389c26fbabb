"""Saves with a framework alone and into a store, in turn, in one process; prints every sample as JSON.

A sample is the mean of two saves in a row: on a virtual machine every second one can take double, whoever saves.

`python _checkpoint_saves.py DIRECTORY SAMPLES MIB`. The framework is PyTorch; without it, plain writes of bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

warnings.filterwarnings("ignore")

from resilience.checkpoints import Store, child  # noqa: E402 - after the filter: importing torch warns
from resilience.guard import TrainingGuard  # noqa: E402

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError:
    torch = dcp = None

TENSOR_BYTES = 2**25
LONGEST_S = 300.0


class Saves:
    """The samples; each leaves nothing behind, and the disk idle.

    Attributes:
        durable_s: what a save took until it was committed, and one of the framework alone until it was on disk.
        peak_kib: the most memory that a child had.
    """

    def __init__(self, directory: Path, mib: int) -> None:
        os.chdir(directory)
        self._alone = directory / "alone"
        self._store = Store(directory / "ckpt")
        self._guard = TrainingGuard.from_env({}, store=self._store)
        self._guard.start()
        count = max(1, mib * 2**20 // TENSOR_BYTES)
        if torch is None:
            self._state: Any = [os.urandom(TENSOR_BYTES)] * count
        else:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._state = {f"layer.{n}": torch.randn(TENSOR_BYTES // 4, device=device) for n in range(count)}
        self.durable_s: dict[str, list[float]] = {"alone": [], "store": []}
        self.peak_kib = 0
        self._pids: list[int] = []
        start = child.Worker.start

        def started(job: dict[str, Any]) -> child.Worker:
            worker = start(job)
            self._pids.append(worker.pid)
            return worker

        child.Worker.start = started  # type: ignore[method-assign]

    def alone(self) -> float:
        """A save by the framework."""
        self._alone.mkdir()
        began = time.perf_counter()
        self._write(self._alone)
        took_s = time.perf_counter() - began
        for path in (*self._alone.iterdir(), self._alone):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        self.durable_s["alone"].append(time.perf_counter() - began)
        self._clear(self._alone)
        return took_s

    def store(self) -> float:
        """The same into a part of the store."""
        self._guard.step()
        began = time.perf_counter()
        with self._guard.saving() as part:
            self._write(part.path)
        took_s = time.perf_counter() - began
        committed = self._wait()
        self.durable_s["store"].append(time.perf_counter() - began)
        self._clear(committed)
        return took_s

    def alone_in_background(self) -> float:
        """The time that an asynchronous save takes from the training."""
        self._alone.mkdir()
        began = time.perf_counter()
        handle = dcp.async_save(self._state, checkpoint_id=self._alone, no_dist=True)
        took_s = time.perf_counter() - began
        handle.result()
        self._clear(self._alone)
        return took_s

    def store_in_background(self) -> float:
        """The same into a part of the store."""
        self._guard.step()
        began = time.perf_counter()
        with self._guard.saving() as part:
            part.until(dcp.async_save(self._state, checkpoint_id=part.path, no_dist=True))
        took_s = time.perf_counter() - began
        self._clear(self._wait())
        return took_s

    def _write(self, directory: Path) -> None:
        if torch is not None:
            torch.save(self._state, directory / "state.pt")
            return
        with open(directory / "state.bin", "wb") as file:
            file.writelines(self._state)

    def _wait(self) -> Path:
        until = time.monotonic() + LONGEST_S
        found: list[Path] = []
        while not (found := list(self._store.path.glob("step-*"))):
            for pid in self._pids:
                try:
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                except OSError:
                    continue
                self.peak_kib = max([self.peak_kib, *(int(line.split()[1]) for line in lines if "VmHWM" in line)])
            if time.monotonic() > until:
                raise TimeoutError("the save was not committed")
            time.sleep(0.001)
        return found[0]

    @staticmethod
    def _clear(directory: Path) -> None:
        time.sleep(1.0)  # the guard learns of the commit, or the next save would wait for this one
        shutil.rmtree(directory)
        os.sync()  # or the next sample pays for the writes of this one


def main() -> None:
    """Take the samples in turn and print them."""
    directory, samples, mib = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    saves = Saves(directory, mib)
    kinds: dict[str, Callable[[], float]] = {"alone": saves.alone, "store": saves.store}
    if torch is not None:
        kinds |= {"alone, async": saves.alone_in_background, "store, async": saves.store_in_background}
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(-1, samples):
        for name in list(kinds) if turn % 2 else reversed(kinds):
            value = mean((kinds[name](), kinds[name]()))
            if turn >= 0:
                taken[name].append(value)
    durable_s = {
        name: [mean(values[i : i + 2]) for i in range(2, len(values), 2)] for name, values in saves.durable_s.items()
    }
    framework = "plain writes"
    if torch is not None:
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
        framework = f"PyTorch {torch.__version__} from {where}"
    print(json.dumps({"seconds": taken, "durable": durable_s, "peak_kib": saves.peak_kib, "framework": framework}))
    sys.stdout.flush()
    os._exit(0)  # the saves are gone, and the guard would wait for what it believes is there


if __name__ == "__main__":
    main()
