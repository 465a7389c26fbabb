"""The memory of this process's GPU, from NVML, or from torch without NVML: stop before an allocation fails.

`judge` is pure; `GpuProbe` reads. NVML is preferred because it does not touch CUDA: cudaMemGetInfo from another thread
may interfere with a graph capture. This module never imports torch and never initialises CUDA; it uses them only after
the training has done so (`sys.modules`, `torch.cuda.is_initialized()`).

The driver may never answer (a process that calls NVML can hang in D state for hours), so each query runs in a thread of
its own, which is not joined (0.1 ms every few seconds); the next query starts only after the answer.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

from resilience.base.background import BackgroundCall
from resilience.guard.decision import BuiltInTrigger, Request
from resilience.guard.memory.limits import physical_bytes
from resilience.quantities import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

UNIFIED = frozenset({"GH200", "GB200", "GB300", "GB10", "GRACE", "THOR", "ORIN", "XAVIER", "TEGRA", "NVGPU", "MI300A"})
"""Words in the names of GPUs that share their memory with the CPU, or provide it to the operating system."""
POOLS = ("jax", "tensorflow", "cupy", "paddle", "mxnet")
"""Modules that preallocate GPU memory: the free memory of the device says nothing about what is left to them."""
SAME_MEMORY = 0.01
"""A GPU whose memory size equals the machine's within this fraction has no memory of its own."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU of this process.

    Attributes:
        name: as shown in messages: `GPU 3 (NVIDIA H100 80GB HBM3)`.
        cached_bytes: unused bytes reserved by torch's caching allocator.
        others: (pid, bytes) of other processes, the largest first; empty if unknown.
        meaningless: why the figures are meaningless; empty if they are valid.
    """

    name: str
    free_bytes: int
    total_bytes: int
    cached_bytes: int = 0
    others: tuple[tuple[int, int], ...] = ()
    meaningless: str = ""


def parse_visible(text: str | None) -> list[str] | None:
    """Given CUDA_VISIBLE_DEVICES, return its entries; None if it is not set: all devices.

    The first invalid entry ends the list, such as `-1` or an empty one (CUDA C++ Programming Guide,
    "CUDA Environment Variables"). Entries are numbers, `GPU-...` or `MIG-...`; UUIDs may be abbreviated.
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
    """Given the visible devices, return the one of this rank, or None if unknown."""
    if len(entries) == 1:
        return entries[0]
    return entries[local_rank] if 0 <= local_rank < len(entries) else None


def why_meaningless(name: str, total_bytes: int, *, host_bytes: int, is_integrated: bool, is_numa_node: bool) -> str:
    """Return why a GPU's free memory is meaningless; an empty text if it is valid.

    If the memory is shared with the CPU, or is a NUMA node of the operating system (GH200, GB200), "the accuracy
    depends on the memory accounting of the operating system" (nvmlDeviceGetMemoryInfo): pages are not freed when a
    process ends, and may hold file cache.
    """
    if is_integrated or UNIFIED & set(re.split(r"[^A-Z0-9]+", name.upper())):
        return "it shares its memory with the CPU"
    if is_numa_node:
        return "its memory is a NUMA node of the operating system"
    if host_bytes and abs(total_bytes - host_bytes) <= SAME_MEMORY * host_bytes:
        return "its memory is as large as the machine's, and so probably shared with the CPU"
    return ""


def others_of(processes: Iterable[Any], pid: int) -> tuple[tuple[int, int], ...]:
    """Given NVML's processes, return (pid, bytes) of the others; nothing if this process is not among them.

    In a container NVML may return the host's pids: then this process cannot be identified.
    """
    found = [(int(one.pid), int(getattr(one, "usedGpuMemory", 0) or 0)) for one in processes]
    if pid not in [number for number, _ in found]:
        return ()
    return tuple(sorted(((number, size) for number, size in found if number != pid), key=lambda pair: -pair[1]))


class GpuProbe:
    """Reads the memory of this process's GPUs. One thread at a time."""

    def __init__(
        self, *, environ: Mapping[str, str], modules: Mapping[str, Any], local_rank: int, host_bytes: int, insist: bool
    ) -> None:
        """With `insist`, read the rank's device from NVML even if no sign shows that this process uses it."""
        self._environ = environ
        self._modules = modules
        self._local_rank = local_rank
        self._host_bytes = host_bytes
        self._insist = insist
        self._nvml: Any = None
        self._no_nvml: Exception | None = None

    def read(self, *, collect: bool = False) -> list[GpuUse]:
        """Return all devices on which this process's torch holds memory; without torch, the device of this rank.

        With `collect`, first collect garbage and empty torch's cache, in the calling thread: the collector blocks all
        Python threads meanwhile, and finalizers run here; `empty_cache` takes the allocator's lock and waits for the
        device, but is safe from any thread, except while another one captures a CUDA graph. Raise whatever NVML and
        torch raise.
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
            is_numa_node = False  # "not supported" on a GPU with memory of its own
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
            return []  # no permission, or not supported on this card: no processes are named

    def _is_ours(self, handle: Any) -> bool:
        return os.getpid() in [one.pid for one in self._processes(handle)]

    def _by_number(self, number: int) -> Any:
        """Return the device of a CUDA number; None if unknown: with unlike cards CUDA and NVML number differently,
        unless CUDA_DEVICE_ORDER is PCI_BUS_ID."""
        nvml = self._nvml
        handles = self._handles()
        if number >= len(handles):
            return None
        names = {_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}
        is_ordered = len(names) == 1 or self._environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return handles[number] if is_ordered else None

    def _by_uuid(self, uuid: str) -> Any:
        """Return the device of a UUID, which torch gives without `GPU-` and users may abbreviate; None if unknown."""
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
        """Return the devices that this process may open: NVML also counts those of other jobs, CUDA does not."""
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
    """Return the training's torch if it has initialised CUDA (or HIP); else None."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return modules["torch"] if is_initialized is not None and is_initialized() else None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-ctrl", "/dev/dxg")
"""Without one of these (the last is WSL's) there is no NVIDIA driver, and pynvml is not even imported."""
LATE_S = 10.0
"""Warn when the driver has not answered for this long."""
LOW_IN_A_ROW = 3
"""This many readings in a row must be too low: within a step the memory may legitimately be full."""
COLLECT_EVERY_S = 60.0
MOST_FAILURES = 3
MOST_NAMED = 3


def judge(uses: Sequence[GpuUse], *, free_bytes: int, host: str) -> str | None:
    """Given the GPUs of this process, return the reason to stop as a sentence, or None.

    Unused memory in torch's caching allocator counts as free: the allocator uses that before it allocates more.
    """
    low = [use for use in uses if use.free_bytes + use.cached_bytes < free_bytes]
    if not low:
        return None
    worst = min(low, key=lambda use: use.free_bytes + use.cached_bytes)
    left = worst.free_bytes + worst.cached_bytes
    text = f"{worst.name} of {host} has {format_bytes(left)} left of {format_bytes(worst.total_bytes)}"
    if worst.cached_bytes:
        text += ", torch's unused cache included"
    text += f": less than the {format_bytes(free_bytes)} that must stay free"
    if worst.others:
        named = [f"pid {pid}: {format_bytes(size)}" for pid, size in worst.others[:MOST_NAMED]]
        more = [f"{len(worst.others) - MOST_NAMED} more"] if len(worst.others) > MOST_NAMED else []
        total = format_bytes(sum(size for _, size in worst.others))
        text += f"; other processes use {total} of it ({', '.join(named + more)})"
    return text


class GpuMemory(BuiltInTrigger):
    """Requests a save and a stop when this process's GPU is nearly full."""

    name = "gpu_memory"

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        *,
        environ: Mapping[str, str] | None = None,
        modules: Mapping[str, Any] | None = None,
        device_files: Sequence[str] = DEVICE_FILES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._modules = sys.modules if modules is None else modules
        self._clock = clock
        self._insist = settings.gpu_memory == "on"
        self._has_driver = any(os.path.exists(path) for path in device_files)
        self._probe = GpuProbe(
            environ=os.environ if environ is None else environ,
            modules=self._modules,
            local_rank=place.local_rank,
            host_bytes=physical_bytes() or 0,
            insist=self._insist,
        )
        self._query: BackgroundCall[list[GpuUse]] | None = None
        self._queried_at = float("-inf")
        self._next = float("-inf")
        self._collected_at = float("-inf")
        self._low = 0
        self._failures = 0
        self._has_noted = False

    def poll(self) -> Request | None:
        """Process the last answer, start the next query. Never waits."""
        if self._failures >= MOST_FAILURES:
            return None
        has_queried = self._queried_at > float("-inf")
        if not (has_queried or self._has_driver or self._insist) and initialised_torch(self._modules) is None:
            return None
        now, query = self._clock(), self._query
        if query is not None and query.is_over:
            self._query = None
            return self._on_answer(query)
        if query is not None and now - self._queried_at > LATE_S:
            self._report_unreadable(f"the driver has not answered for {LATE_S:g} s; it may hang")
        if query is None and (now >= self._next or self._low):
            self._next = now + self._settings.poll_s
            self._start_query()
        return None

    def done(self, outcome: str) -> None:
        """Count low readings anew."""
        self._low = 0

    def _start_query(self, *, collect: bool = False) -> None:
        self._queried_at = self._clock()
        self._query = BackgroundCall(lambda: self._probe.read(collect=collect), "resil-gpu").start()

    def _on_answer(self, query: BackgroundCall[list[GpuUse]]) -> Request | None:
        try:
            answer = query.result()
        except Exception as error:
            self._failures += 1
            self._report_unreadable(f"{type(error).__name__}: {error}")
            return None
        self._failures = 0
        if not answer and self._insist:
            self._report_unreadable("no GPU of this process was found")
        why = judge(self._meaningful(answer), free_bytes=self._settings.gpu_memory_free_bytes, host=self._place.host)
        if why is None:
            self._low = 0
            return None
        now = self._clock()
        if self._settings.gpu_memory_collect and now >= self._collected_at + COLLECT_EVERY_S:
            self._collected_at = now
            self._start_query(collect=True)
            return None
        self._low += 1
        return Request(self.name, why) if self._low >= LOW_IN_A_ROW else None

    def _meaningful(self, uses: list[GpuUse]) -> list[GpuUse]:
        for use in uses:
            if use.meaningless and self._insist:
                text = f"the free memory of {use.name} may be meaningless: {use.meaningless}. Watched as configured"
                self._recorder.warn(text, key=f"{self.name} {use.name}")
        return [use for use in uses if self._insist or not use.meaningless]

    def _report_unreadable(self, why: str) -> None:
        """Warn once; only in the journal unless the setting insists on this trigger."""
        text = f"cannot read the GPU memory of {self._place.host}: {why}"
        if self._insist:
            self._recorder.warn(text, key=self.name)
        elif not self._has_noted:
            self._has_noted = True
            self._recorder.event("warning", text=text)
