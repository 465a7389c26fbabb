"""How full the GPUs are that this process uses, by NVML, or by torch where there is no NVML.

NVML is preferred because it leaves CUDA alone: cudaMemGetInfo from another thread may come in the middle of a graph
capture. torch is never imported and CUDA never initialised here; both are only looked at when the training has done
so (`sys.modules`, `torch.cuda.is_initialized()`). All of this may hang in a broken driver (D state): call it from a
thread that nobody waits for.
"""

from __future__ import annotations

import gc
import os
import re
from dataclasses import dataclass
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNIFIED = frozenset({"GH200", "GB200", "GB300", "GB10", "GRACE", "THOR", "ORIN", "XAVIER", "TEGRA", "NVGPU", "MI300A"})
"""Words in the names of GPUs that share their memory with the processor, or lend it to the operating system."""
POOLS = ("jax", "tensorflow", "cupy", "paddle", "mxnet")
"""Modules that take GPU memory ahead of need: what is free on the device says nothing about what is left to them."""
SAME_MEMORY = 0.01
"""A GPU whose size is the machine's within this part has no memory of its own."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU of this process.

    Attributes:
        name: for people: `GPU 3 (NVIDIA H100 80GB HBM3)`.
        cached_bytes: what torch's caching allocator has reserved on it and does not use.
        others: (pid, bytes) of other processes, the largest first; empty if that cannot be told.
        meaningless: why the figures mean nothing; empty if they do.
    """

    name: str
    free_bytes: int
    total_bytes: int
    cached_bytes: int = 0
    others: tuple[tuple[int, int], ...] = ()
    meaningless: str = ""


def parse_visible(text: str | None) -> list[str] | None:
    """Given CUDA_VISIBLE_DEVICES, return its entries; None if it is not set: all devices.

    The first entry that is none ends the list, as `-1` or an empty one does (CUDA C++ Programming Guide,
    "CUDA Environment Variables"). Entries are numbers, `GPU-...` or `MIG-...`, UUIDs also by their beginning.
    """
    if text is None:
        return None
    found = []
    for entry in text.split(","):
        entry = entry.strip()
        if not (entry.isascii() and entry.isdigit()) and not entry.startswith(("GPU-", "MIG-")):
            break
        found.append(entry)
    return found


def choose(entries: Sequence[str], local_rank: int) -> str | None:
    """Given the visible devices, return the one of this rank, or None if that cannot be told."""
    if len(entries) == 1:
        return entries[0]
    return entries[local_rank] if 0 <= local_rank < len(entries) else None


def why_meaningless(name: str, total_bytes: int, *, host_bytes: int, is_integrated: bool, is_numa_node: bool) -> str:
    """Say why a GPU's free memory means nothing; an empty text if it means something.

    Where the memory is shared with the processor, or is a NUMA node that the operating system lends out (GH200,
    GB200), "the accuracy depends on the memory accounting of the operating system" (nvmlDeviceGetMemoryInfo): pages
    are not given back when a process ends, and file cache may lie there.
    """
    if is_integrated or UNIFIED & set(re.split(r"[^A-Z0-9]+", name.upper())):
        return "it shares its memory with the processor"
    if is_numa_node:
        return "its memory is a NUMA node of the operating system"
    if host_bytes and abs(total_bytes - host_bytes) <= SAME_MEMORY * host_bytes:
        return "its memory is as large as the machine's: it is the same"
    return ""


def others_of(processes: Iterable[Any], pid: int) -> tuple[tuple[int, int], ...]:
    """Given NVML's processes, return the others' (pid, bytes); nothing if this process is not among them.

    In a container the numbers are the host's: then nobody can tell which one is this process.
    """
    found = [(int(one.pid), int(getattr(one, "usedGpuMemory", 0) or 0)) for one in processes]
    if pid not in [number for number, _ in found]:
        return ()
    return tuple(sorted(((number, size) for number, size in found if number != pid), key=lambda pair: -pair[1]))


class GpuLook:
    """Looks at this process's GPUs. One thread at a time."""

    def __init__(
        self, *, environ: Mapping[str, str], modules: Mapping[str, Any], local_rank: int, host_bytes: int, insist: bool
    ) -> None:
        """With `insist` the process's device is judged by NVML even if nothing shows that this process uses it."""
        self._environ = environ
        self._modules = modules
        self._local_rank = local_rank
        self._host_bytes = host_bytes
        self._insist = insist
        self._nvml: Any = None
        self._no_nvml: Exception | None = None

    def look(self, *, collect: bool = False) -> list[GpuUse]:
        """All devices on which this process's torch holds memory; without torch, the device of this rank.

        With `collect` garbage is collected and torch's cache given back before. That is done in the calling thread:
        the collector holds all Python threads up meanwhile, and finalizers run here; `empty_cache` takes the
        allocator's lock and waits for the device, but is safe from any thread, except while another one captures a
        CUDA graph. Raise whatever NVML and torch raise.
        """
        torch = initialised_torch(self._modules)
        if torch is not None:
            if collect:
                gc.collect()
                torch.cuda.empty_cache()
            held = [number for number in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(number) > 0]
            return [self._use_of_torch(torch, number) for number in held]
        if not self._insist and ("torch" in self._modules or any(name in self._modules for name in POOLS)):
            return []
        return self._use_of_rank()

    def _use_of_torch(self, torch: Any, number: int) -> GpuUse:
        properties = torch.cuda.get_device_properties(number)
        cached = int(torch.cuda.memory_reserved(number)) - int(torch.cuda.memory_allocated(number))
        is_integrated = bool(getattr(properties, "is_integrated", False))
        handle = self._by_uuid(str(getattr(properties, "uuid", "")))
        if handle is not None:
            try:
                return self._use(handle, number, cached, is_integrated)
            except self._nvml.NVMLError:
                pass  # not supported on this card, or not permitted
        free, total = torch.cuda.mem_get_info(number)
        why = why_meaningless(
            properties.name, total, host_bytes=self._host_bytes, is_integrated=is_integrated, is_numa_node=False
        )
        return GpuUse(f"GPU {number} ({properties.name})", int(free), int(total), max(0, cached), meaningless=why)

    def _use_of_rank(self) -> list[GpuUse]:
        nvml = self._start_nvml()
        if nvml is None:
            if self._no_nvml is not None and self._insist:
                raise self._no_nvml
            return []
        visible = parse_visible(self._environ.get("CUDA_VISIBLE_DEVICES"))
        entries = [str(number) for number in range(len(self._handles()))] if visible is None else visible
        entry = choose(entries, self._local_rank)
        if entry is None:
            return []
        handle = self._by_uuid(entry) if not entry.isdigit() else self._by_number(int(entry))
        if handle is None or not (self._insist or self._is_ours(handle)):
            return []
        return [self._use(handle, int(entry) if entry.isdigit() else None, 0, False)]

    def _use(self, handle: Any, number: int | None, cached: int, is_integrated: bool) -> GpuUse:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        name = _text(nvml.nvmlDeviceGetName(handle))
        try:
            is_numa_node = nvml.nvmlDeviceGetNumaNodeId(handle) >= 0
        except (nvml.NVMLError, AttributeError):
            is_numa_node = False  # says "not supported" where it has memory of its own
        why = why_meaningless(
            name, memory.total, host_bytes=self._host_bytes, is_integrated=is_integrated, is_numa_node=is_numa_node
        )
        shown = f"GPU {number} ({name})" if number is not None else f"GPU {name}"
        others = others_of(self._processes(handle), os.getpid())
        return GpuUse(shown, int(memory.free), int(memory.total), max(0, cached), others, why)

    def _processes(self, handle: Any) -> list[Any]:
        try:
            return list(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except self._nvml.NVMLError:
            return []  # no permission, or not supported on this card: nobody is named

    def _is_ours(self, handle: Any) -> bool:
        return os.getpid() in [one.pid for one in self._processes(handle)]

    def _by_number(self, number: int) -> Any:
        """CUDA numbers the fastest device first unless told otherwise: with unlike cards NVML's numbers are others."""
        nvml = self._nvml
        handles = self._handles()
        if number >= len(handles):
            return None
        names = {_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}
        is_ordered = len(names) == 1 or self._environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return handles[number] if is_ordered else None

    def _by_uuid(self, uuid: str) -> Any:
        """torch tells the UUID without `GPU-`; people may write its beginning only."""
        nvml = self._start_nvml() if uuid else None
        if nvml is None:
            return None
        names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        for name in names:
            try:
                return nvml.nvmlDeviceGetHandleByUUID(name)
            except nvml.NVMLError:
                continue
        for handle in self._handles():
            if any(_text(nvml.nvmlDeviceGetUUID(handle)).startswith(name) for name in names):
                return handle
        return None

    def _handles(self) -> list[Any]:
        """The devices that may be opened. A job may see those of others as well; CUDA does not count them."""
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                found.append(self._nvml.nvmlDeviceGetHandleByIndex(index))
            except self._nvml.NVMLError:
                continue
        return found

    def _start_nvml(self) -> Any:
        if self._nvml is None and self._no_nvml is None:
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
            except Exception as error:  # not installed, no library, no driver, another version: no NVML
                self._no_nvml = error
        return self._nvml


def initialised_torch(modules: Mapping[str, Any]) -> Any:
    """The training's torch if it has begun to use CUDA (or HIP); else None."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return modules["torch"] if is_initialized is not None and is_initialized() else None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
