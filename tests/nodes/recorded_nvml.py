"""Stands in for pynvml with the values of a recorded `nvidia-smi -q`, which is what NVML said there.

What the text has as N/A, or not at all, raises NVMLError as NVML does. `change` replaces lines: a fault that was not
recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "recorded" / "nvidia_smi"
_GPU = re.compile(r"^(?=GPU [0-9A-F]{8}:)", re.MULTILINE)
_REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
}
"""Their bits in nvml.h."""
Values = Mapping[tuple[str, ...], str]


class NVMLError(Exception):
    def __init__(self, value: int, text: str = "Not Supported") -> None:
        super().__init__(text)
        self.value = value


class RecordedNvml:
    """The functions that the check calls. `lost` and `foreign`: GPUs that do not answer, or belong to another job."""

    NVMLError = NVMLError
    NVML_ERROR_NO_PERMISSION = 4
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 1
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(
        self,
        name: str,
        change: Mapping[str, str] = {},
        *,
        links: Sequence[int] = (),
        lost: Sequence[int] = (),
        foreign: Sequence[int] = (),
    ) -> None:
        text = (RECORDED / f"{name}.txt").read_text()
        for old, new in change.items():
            text, count = re.subn(rf"(?m)^( *{re.escape(old)} +: ).*", rf"\g<1>{new}", text)
            assert count, old
        self.gpus = [_values(one) for one in _GPU.split(text)[1:]]
        self.links, self.lost, self.foreign = links, lost, foreign

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.foreign:
            raise NVMLError(self.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions")
        if index in self.lost:
            raise NVMLError(15, "GPU is lost")
        return index

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return self._text(gpu, "Product Name")

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> int:
        found = {path: text for path, text in self.gpus[gpu].items() if path[:2] == ("ECC Errors", "Volatile")}
        counts = [text for (*_, name), text in found.items() if "Uncorrectable" in name]
        if "N/A" in counts:
            raise NVMLError(3)
        return sum(map(int, counts))

    def nvmlDeviceGetRemappedRows(self, gpu: int) -> tuple[int, ...]:
        names = ("Correctable Error", "Uncorrectable Error", "Pending", "Remapping Failure Occurred")
        words = [self._text(gpu, "Remapped Rows", one) for one in names]
        return tuple({"No": 0, "Yes": 1}[word] if word in ("No", "Yes") else int(word) for word in words)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        found = {path[-1]: text for path, text in self.gpus[gpu].items() if path[0] == "Clocks Event Reasons"}
        return sum(bit for name, bit in _REASONS.items() if found[name] == "Active")

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: int) -> int:
        return int(self._text(gpu, "PCI", "GPU Link Info", "Link Width", "Current").rstrip("x"))

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:
        return int(self._text(gpu, "PCI", "GPU Link Info", "Link Width", "Max").rstrip("x"))

    def nvmlDeviceGetApplicationsClock(self, gpu: int, kind: int) -> int:
        return self._number(gpu, "Applications Clocks", "Graphics")

    def nvmlDeviceGetDefaultApplicationsClock(self, gpu: int, kind: int) -> int:
        return self._number(gpu, "Default Applications Clocks", "Graphics")

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, kind: int) -> int:
        return self._number(gpu, "Max Clocks", "SM")

    def nvmlDeviceGetTemperature(self, gpu: int, kind: int) -> int:
        return self._number(gpu, "Temperature", "GPU Current Temp")

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return 1000 * self._number(gpu, "GPU Power Readings", "Current Power Limit")

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        if not self.links or link >= self.NVML_NVLINK_MAX_LINKS:
            raise NVMLError(3)
        return int(link < self.links[gpu])

    def _text(self, gpu: int, *path: str) -> str:
        text = self.gpus[gpu].get(path, "N/A")
        if text == "N/A":
            raise NVMLError(3)
        return text

    def _number(self, gpu: int, *path: str) -> int:
        return int(float(self._text(gpu, *path).split()[0]))


def _values(text: str) -> Values:
    """Return the lines of one GPU by their headings."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    for line in text.splitlines()[1:]:
        name, _, value = (word.strip() for word in line.partition(" : "))
        if name:
            path[(len(line) - len(line.lstrip())) // 4 - 1 :] = [name]
            found[tuple(path)] = value
    return found
