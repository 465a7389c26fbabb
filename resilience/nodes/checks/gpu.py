"""Checks the GPUs of a node by NVML and the kernel's log: count, memory, throttling, PCIe, NVLink, power, Xid."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from resilience.errors import ProbeError
from resilience.messages import plural
from resilience.nodes.checks import Check, Expected, Fault, Outcome, Reading
from resilience.system.process import ProcessRunner

SLOWED = {0x8: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
"""Bits of nvmlClocksEventReasons (nvml.h) that say that the hardware protects itself. 0x4, the power cap, is normal."""

BAD_XIDS = {46, 48, 54, 62, 64, 74, 78, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143}
"""Those that docs/reference/xid.md calls hardware. 13, 31 and 43 are a program's; 63 and 94 are handled by the GPU."""

DAY_S = 86400.0
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_XID = re.compile(r"^\[\s*(\d+\.\d+)\] .*NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\).*?: (\d+)[,\s]", re.MULTILINE)


def probe(expected: Expected, environ: Mapping[str, str]) -> Reading | None:
    """Ask NVML, and dmesg where users may read it."""
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    given = int(count) if count.isdigit() else 0
    if not given and not any(map(os.path.exists, _DEVICE_FILES)):
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return {"given": given, "gpus": [], "error": str(error)}
    gpus = [read_gpu(pynvml, handle) for handle in handles]
    models = Counter(str(gpu.get("name", "?")) for gpu in gpus)
    limits = sorted({f"{gpu['power_limit_w']:.0f} W" for gpu in gpus if "power_limit_w" in gpu})
    return {
        "given": given,
        "gpus": gpus,
        "model": ", ".join(f"{count} x {name}" for name, count in sorted(models.items())),
        "power limit": ", ".join(limits),
        "active NVLinks": ", ".join(str(gpu["nvlinks"]) for gpu in gpus if "nvlinks" in gpu),
        "xids": _read_xids(),
    }


def judge(reading: Reading, expected: Expected) -> Iterable[Fault]:
    """Memory that needs repair, clocks that the hardware holds down, a narrow PCIe link, a recent hard Xid fail."""
    gpus, fail = reading["gpus"], Outcome.FAIL
    if "error" in reading:
        yield Fault(fail, f"the driver of the GPUs does not answer: {reading['error']}", "see it there: nvidia-smi")
    elif len(gpus) < reading["given"]:
        why = f"the scheduler gives {plural(reading['given'], 'GPU')}, NVML knows {len(gpus)}"
        yield Fault(fail, why, "see it there: nvidia-smi -L")
    for index, gpu in enumerate(gpus):
        name = f"GPU {index}"
        if gpu.get("remap_failed"):
            yield Fault(fail, f"{name} could not remap a row of its memory", "it needs to be replaced")
        if count := gpu.get("ecc_uncorrected"):
            yield Fault(fail, f"{name} had {plural(count, 'uncorrected memory error')} since its driver was loaded",
                        "it needs a reset: nvidia-smi -q -d ECC,ROW_REMAPPER")  # fmt: skip
        elif gpu.get("remap_pending"):
            yield Fault(Outcome.WARN, f"{name} waits for a reset to remap a row of its memory")
        if slowed := [word for bit, word in SLOWED.items() if gpu.get("slowed", 0) & bit]:
            yield Fault(fail, f"{name} is slowed down by its hardware ({', '.join(slowed)})"
                        + (f" at {gpu['temperature_c']} °C" if "temperature_c" in gpu else ""),
                        "see it there: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER")  # fmt: skip
        width, widest = gpu.get("pcie_width", 0), gpu.get("pcie_width_max", 0)
        if width < widest:  # not its generation: an idle GPU lowers that to save power
            yield Fault(fail, f"the PCIe link of {name} has {width} of {widest} lanes", "it needs to be reseated")
    for device, number in reading.get("xids", ()):
        yield Fault(
            fail, f"Xid {number} of the GPU at {device} in the last day", f"see it there: dmesg | grep {device}"
        )


def read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what NVML knows about one GPU; what a model does not support is left out."""
    found: dict[str, Any] = {}

    def note(key: str, read: Callable[[], Any]) -> None:
        with suppress(nvml.NVMLError, AttributeError):  # AttributeError: an NVML older than the function
            found[key] = read()

    note("name", lambda: nvml.nvmlDeviceGetName(handle))
    note("ecc_uncorrected", lambda: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC))  # fmt: skip
    note("remapped", lambda: list(nvml.nvmlDeviceGetRemappedRows(handle)))
    if remapped := found.pop("remapped", None):  # correctable, uncorrectable, is pending, has failed
        found |= {"remap_pending": bool(remapped[2]), "remap_failed": bool(remapped[3])}
    note("slowed", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    note("pcie_width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    note("pcie_width_max", lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    note("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    note("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):  # those that a model does not have are no error
        with suppress(nvml.NVMLError, AttributeError):
            found["nvlinks"] = found.get("nvlinks", 0) + nvml.nvmlDeviceGetNvLinkState(handle, link)
    return found


def parse_xids(log: str, uptime_s: float) -> list[tuple[str, int]]:
    """Return device and number of each bad Xid of the last day, once. Pure.

    For instance, of `[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.`
    """
    recent = ((m[2], int(m[3])) for m in _XID.finditer(log) if uptime_s - float(m[1]) < DAY_S)
    return [(device, number) for device, number in dict.fromkeys(recent) if number in BAD_XIDS]


def _read_xids() -> list[tuple[str, int]]:
    with suppress(OSError, ProbeError), open("/proc/uptime", encoding="ascii") as file:
        uptime_s = float(file.read().split()[0])
        return parse_xids(ProcessRunner().run(["dmesg"], timeout_s=5.0).stdout, uptime_s)
    return []  # most sites do not let users read the log (dmesg_restrict)


# The driver takes seconds to start where nothing keeps it loaded.
CHECK = Check(probe=probe, judge=judge, deadline_s=12.0, equal={"*": Outcome.FAIL})
