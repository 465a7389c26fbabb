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

WARM = 0x20
"""The bit for the driver's own limit of the temperature: the GPU goes on, more slowly."""

HARD_XIDS = frozenset(
    {46, 48, 54, 62, 64, 74, 78, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, *range(144, 152), 155, 156, 158}
)
"""Xids of the hardware: those of a root in docs/reference/xid.md that are not a program's, as 13 and 31 are."""
SOFT_XIDS = frozenset(
    {8, 39, 40, 41, 60, 68, *range(70, 73), *range(75, 78), *range(82, 87), 88, 89, 94, *range(96, 106)}
    | {*range(126, 136), 139}
)
"""Those of a cascade there: a restart of the program suffices. Two within five minutes are the hardware's
(nodes/standing.py); diagnostics, as 43 and 63, never count."""
SOFT_PAIR_S = 300.0
SAME_S = 10.0
"""One fault is logged several times, once for each channel of the GPU."""

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

    return {"given": given, **read_gpus(pynvml), "xids": _read_xids()}


def read_gpus(nvml: Any) -> dict[str, Any]:
    """Return what NVML knows about the GPUs of this node that this job may use."""
    gpus: list[dict[str, Any]] = []
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return {"gpus": gpus, "error": str(error)}
    for index in range(count):
        try:
            gpus.append({"index": index} | read_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) != nvml.NVML_ERROR_NO_PERMISSION:  # that of another job is counted too
                gpus.append({"index": index, "lost": str(error)})
    models = Counter(str(gpu["name"]) for gpu in gpus if "name" in gpu)
    limits = sorted({f"{gpu['power_limit_w']:.0f} W" for gpu in gpus if "power_limit_w" in gpu})
    clocks = sorted({f"{gpu['clock_max_mhz']} MHz" for gpu in gpus if "clock_max_mhz" in gpu})
    hottest = max((gpu["temperature_c"] for gpu in gpus if "temperature_c" in gpu), default=None)
    return ({} if hottest is None else {"hottest_c": hottest}) | {
        "count": len(gpus),
        "gpus": gpus,
        "model": ", ".join(f"{number} x {name}" for name, number in sorted(models.items())),
        "power limit": ", ".join(limits),
        "highest clock": ", ".join(clocks),
        "active NVLinks": ", ".join(str(gpu["nvlinks"]) for gpu in gpus if "nvlinks" in gpu),
    }


def judge(reading: Reading, expected: Expected) -> Iterable[Fault]:
    """A lost GPU, memory that needs repair, clocks that the hardware holds down, a narrow PCIe link, a recent hard Xid
    fail."""
    gpus, fail = reading["gpus"], Outcome.FAIL
    if "error" in reading:
        yield Fault(fail, f"the driver of the GPUs does not answer: {reading['error']}", "see it there: nvidia-smi")
    elif len(gpus) < reading["given"]:
        why = f"the scheduler gives {plural(reading['given'], 'GPU')}, NVML knows {len(gpus)}"
        yield Fault(fail, why, "see it there: nvidia-smi -L")
    links = Counter(gpu["nvlinks"] for gpu in gpus if "nvlinks" in gpu).most_common(1) or [(0, 0)]
    usual_links = links[0][0] if 2 * links[0][1] > len(gpus) > 2 else 0
    for place, gpu in enumerate(gpus):
        name = f"GPU {gpu.get('index', place)}"
        if "lost" in gpu:
            yield Fault(fail, f"{name} does not answer: {gpu['lost']}", "see it there: nvidia-smi; dmesg | grep Xid")
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
        elif gpu.get("slowed", 0) & WARM:
            yield Fault(Outcome.WARN, f"{name} is slowed down because it is hot, at {gpu.get('temperature_c', '?')} °C")
        clock, usual = gpu.get("clock_mhz", 0), gpu.get("clock_default_mhz", 0)
        if clock < usual:
            yield Fault(Outcome.WARN, f"the clock of {name} is set to {clock} MHz instead of {usual} MHz",
                        "it is set back by nvidia-smi -rac")  # fmt: skip
        if gpu.get("nvlinks", usual_links) < usual_links:
            yield Fault(fail, f"{name} has {plural(gpu['nvlinks'], 'active NVLink')}, the others have {usual_links}",
                        "see it there: nvidia-smi nvlink --status")  # fmt: skip
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
    note("clock_mhz", lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM))
    note("clock_default_mhz", lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_SM))
    note("clock_max_mhz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    note("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    note("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):  # those that a model does not have are no error
        with suppress(nvml.NVMLError, AttributeError):
            found["nvlinks"] = found.get("nvlinks", 0) + nvml.nvmlDeviceGetNvLinkState(handle, link)
    return found


def parse_xids(log: str, uptime_s: float) -> list[tuple[str, int]]:
    """Return device and number of each bad Xid of the last day, once: of the hardware, and soft ones that came twice
    on a GPU within five minutes. Pure.

    For instance, of `[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.`
    """
    bad, soft = dict[tuple[str, int], None](), dict[str, float]()
    for match in _XID.finditer(log):
        at, device, number = float(match[1]), match[2], int(match[3])
        if uptime_s - at >= DAY_S:
            continue
        if number in SOFT_XIDS:
            since_s = at - soft.get(device, -SOFT_PAIR_S)
            if since_s < SAME_S:
                continue
            if since_s < SOFT_PAIR_S:
                bad[device, number] = None
            soft[device] = at
        elif number in HARD_XIDS:
            bad[device, number] = None
    return [*bad]


def _read_xids() -> list[tuple[str, int]]:
    with suppress(OSError, ProbeError), open("/proc/uptime", encoding="ascii") as file:
        uptime_s = float(file.read().split()[0])
        return parse_xids(ProcessRunner().run(["dmesg"], timeout_s=5.0).stdout, uptime_s)
    return []  # most sites do not let users read the log (dmesg_restrict)


# The driver takes seconds to start where nothing keeps it loaded.
CHECK = Check(probe=probe, judge=judge, deadline_s=12.0, equal={"*": Outcome.FAIL})
