"""Fake GPUs for tests: modules like pynvml and torch with given answers."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
UUID = "8932f937-d72c-4106-c12f-20bd9faed9f{}"


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Card:
    """One GPU."""

    name: str = "NVIDIA H100 80GB HBM3"
    free: int = 40 * GIB
    total: int = 80 * GIB
    processes: list[Any] = field(default_factory=list)
    numa_node: int | None = None

    def used_by(self, pid: int, size: int | None) -> Card:
        """Add a process that uses the GPU."""
        self.processes.append(types.SimpleNamespace(pid=pid, usedGpuMemory=size))
        return self


def fake_nvml(cards: list[Card], *, error: Exception | None = None) -> Any:
    """A module like pynvml; `calls` counts the memory queries."""
    module: Any = types.ModuleType("pynvml")
    module.calls = 0
    module.NVMLError = NVMLError
    names = [f"GPU-{UUID.format(number)}" for number in range(len(cards))]

    def init() -> None:
        if error is not None:
            raise error

    def by_uuid(uuid: str) -> Card:
        if uuid not in names:
            raise NVMLError("Not Found")
        return cards[names.index(uuid)]

    def memory(card: Card) -> Any:
        module.calls += 1
        return types.SimpleNamespace(free=card.free, total=card.total, used=card.total - card.free)

    def numa_node(card: Card) -> int:
        if card.numa_node is None:
            raise NVMLError("Not Supported")
        return card.numa_node

    module.nvmlInit = init
    module.nvmlDeviceGetCount = lambda: len(cards)
    module.nvmlDeviceGetHandleByIndex = lambda number: cards[number]
    module.nvmlDeviceGetHandleByUUID = by_uuid
    module.nvmlDeviceGetUUID = lambda card: names[next(n for n, one in enumerate(cards) if one is card)]
    module.nvmlDeviceGetMemoryInfo = memory
    module.nvmlDeviceGetName = lambda card: card.name
    module.nvmlDeviceGetNumaNodeId = numa_node
    module.nvmlDeviceGetComputeRunningProcesses = lambda card: card.processes
    return module


@dataclass
class FakeCuda:
    """The part of torch.cuda that the guard may use; everything else, `init` above all, raises AttributeError."""

    reserved: dict[int, int] = field(default_factory=dict)
    allocated: dict[int, int] = field(default_factory=dict)
    initialized: bool = True
    info: tuple[int, int] = (40 * GIB, 80 * GIB)
    integrated: bool = False
    name: str = "NVIDIA H100 80GB HBM3"
    emptied: int = 0
    garbage: int = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 4

    def memory_reserved(self, number: int) -> int:
        return self.reserved.get(number, 0)

    def memory_allocated(self, number: int) -> int:
        return self.allocated.get(number, 0)

    def mem_get_info(self, number: int) -> tuple[int, int]:
        assert self.memory_reserved(number), "this would make a context on a device that the training does not use"
        return self.info

    def get_device_properties(self, number: int) -> Any:
        return types.SimpleNamespace(name=self.name, uuid=UUID.format(number), is_integrated=int(self.integrated))

    def empty_cache(self) -> None:
        """Free unused memory."""
        self.emptied += 1
        for number in self.reserved:
            self.allocated[number] -= self.garbage
            given_back = self.reserved[number] - self.allocated[number]
            self.reserved[number] = self.allocated[number]
            self.info = (self.info[0] + given_back, self.info[1])


def fake_torch(cuda: FakeCuda) -> Any:
    """A module like torch, with the attributes that the guard uses."""
    module: Any = types.ModuleType("torch")
    module.cuda = cuda
    return module
