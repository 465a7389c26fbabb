"""What the GPUs and InfiniBand ports of a node do while its ranks make no steps.

A collective that is stuck keeps a GPU "100 % busy": its kernel spins, at a fraction of the power of one that computes.
Whether anything is exchanged is seen from the bytes of the ports. Sources: nvmlDeviceGetUtilizationRates and
nvmlDeviceGetPowerUsage (nvml.h); port_xmit_data in the kernel's Documentation/ABI/stable/sysfs-class-infiniband, in
units of 4 bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PORTS = Path("/sys/class/infiniband")
DEVICES_S = 2.0
"""How long the bytes are counted."""
BUSY, SPINNING, IDLE = 95, 0.35, 5
"""Per cent of the time with a kernel, share of the power limit, per cent: a GPU that trains draws more than half its
limit, one that spins a fifth (an H100 of 700 W about 120 W)."""
QUIET_BYTES = 2**20
"""Per second; a training exchanges hundreds of megabytes, heartbeats of the fabric kilobytes."""
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its number on the node, per cent of the time with a kernel, power and power limit in watts."""

    index: int
    busy: int
    power_w: float
    limit_w: float


def look_at_devices() -> list[str]:
    """Return what the devices of this node do, in words; takes DEVICES_S and the time that NVML needs."""
    before = read_sent(PORTS)
    time.sleep(DEVICES_S if before is not None else 0.0)
    after = read_sent(PORTS)
    rate = (after - before) / DEVICES_S if before is not None and after is not None else None
    return list(judge(_read_gpus(), rate))


def judge(gpus: list[Gpu], sent_per_s: float | None) -> Iterator[str]:
    """Yield what a person would want to know. `sent_per_s`: bytes that all ports sent; None without a port. Pure."""
    spinning = [one for one in gpus if one.busy >= BUSY and one.power_w <= SPINNING * one.limit_w]
    if spinning:
        first = spinning[0]
        names = ", ".join(str(one.index) for one in spinning)
        yield (
            f"{'GPUs' if len(spinning) > 1 else 'GPU'} {names} {first.busy} % busy at {first.power_w:.0f} W of "
            f"{first.limit_w:.0f} W: inside a collective that is stuck"
        )
    elif gpus and all(one.busy <= IDLE for one in gpus):
        yield f"all {len(gpus)} GPUs idle" if len(gpus) > 1 else "its GPU idle"
    if sent_per_s is not None and sent_per_s < QUIET_BYTES:
        yield f"InfiniBand sends {sent_per_s:.0f} bytes/s: next to nothing"


def read_sent(root: Path) -> int | None:
    """Return the bytes that all InfiniBand ports have sent; None without one."""
    counts = []
    for path in root.glob("*/ports/*/counters/port_xmit_data"):
        with suppress(OSError, ValueError):
            counts.append(4 * int(path.read_text()))
    return sum(counts) if counts else None


def _read_gpus() -> list[Gpu]:
    if not any(map(os.path.exists, _DEVICE_FILES)):
        return []
    import pynvml

    found = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            power_w = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
            limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
            found.append(Gpu(index, pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, power_w, limit_w))
    return found
