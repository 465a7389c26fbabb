"""The memory of this process's GPU: stop before an allocation fails. `judge` is pure; `GpuLook` looks.

The driver may never answer (a process that asks NVML can hang in D state for hours), so each question is put by a
thread of its own, which nobody waits for (0.1 ms every few seconds); the next one only after the answer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from resilience.guard.decision import Request
from resilience.guard.memory.gpu import GpuLook, GpuUse, initialised_torch
from resilience.guard.memory.limits import physical_bytes
from resilience.quantities import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-ctrl", "/dev/dxg")
"""Without one of these (the last is WSL's) there is no NVIDIA driver, and pynvml is not even imported."""
LATE_S = 10.0
"""A driver that has not answered for so long is said not to."""
LOOKS = 3
"""So many looks in a row must find too little: in the middle of a step the memory may be full and well so."""
COLLECT_EVERY_S = 60.0
MOST_FAILURES = 3
MOST_NAMED = 3


def judge(uses: Sequence[GpuUse], *, free_bytes: int, host: str) -> str | None:
    """Given the GPUs of this process, return the sentence for why to stop, or None.

    What torch's caching allocator holds unused counts as free: it would use that before it asks the device for more.
    """
    low = [use for use in uses if use.free_bytes + use.cached_bytes < free_bytes]
    if not low:
        return None
    worst = min(low, key=lambda use: use.free_bytes + use.cached_bytes)
    left = worst.free_bytes + worst.cached_bytes
    text = f"{worst.name} of {host} has {format_bytes(left)} left of {format_bytes(worst.total_bytes)}"
    if worst.cached_bytes:
        text += ", torch's unused cache counted in"
    text += f": less than the {format_bytes(free_bytes)} that are to stay free"
    if worst.others:
        named = [f"pid {pid}: {format_bytes(size)}" for pid, size in worst.others[:MOST_NAMED]]
        more = [f"{len(worst.others) - MOST_NAMED} more"] if len(worst.others) > MOST_NAMED else []
        total = format_bytes(sum(size for _, size in worst.others))
        text += f"; other processes use {total} of it ({', '.join(named + more)})"
    return text


class Asker:
    """Has one question at a time answered by a thread, which may hang without harm and leaves nothing behind."""

    def __init__(self, ask: Callable[[bool], list[GpuUse]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_at: float | None = None
        self._answer: list[GpuUse] | Exception | None = None

    @property
    def waits_s(self) -> float | None:
        """How long the present question is open; None if there is none."""
        return None if self._asked_at is None else self._clock() - self._asked_at

    def ask(self, *, collect: bool = False) -> None:
        """Put a question; only when the last one was answered and taken. Raise RuntimeError without threads left."""
        threading.Thread(target=self._run, args=(collect,), name="resil-gpu", daemon=True).start()
        self._asked_at = self._clock()

    def take(self) -> list[GpuUse] | Exception | None:
        """The answer, once; None if there is none yet."""
        answer = self._answer
        if answer is not None:
            self._answer = self._asked_at = None
        return answer

    def _run(self, collect: bool) -> None:
        try:
            self._answer = self._ask(collect)
        except Exception as error:  # told by poll()
            self._answer = error


class GpuMemory:
    """Asks for a save and a stop when this process's GPU is nearly full."""

    name = "gpu_memory"

    def __init__(
        self,
        place: Place,
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
        self._look = GpuLook(
            environ=os.environ if environ is None else environ,
            modules=self._modules,
            local_rank=place.local_rank,
            host_bytes=physical_bytes() or 0,
            insist=self._insist,
        )
        self._asker: Asker | None = None
        self._next = float("-inf")
        self._collected_at = float("-inf")
        self._low = 0
        self._failures = 0
        self._has_told = False

    def poll(self) -> Request | None:
        """Take the last answer, put the next question. Never waits."""
        if self._failures >= MOST_FAILURES:
            return None
        if self._asker is None:
            if not self._has_driver and not self._insist and initialised_torch(self._modules) is None:
                return None
            self._asker = Asker(lambda collect: self._look.look(collect=collect), self._clock)
        waits_s = self._asker.waits_s
        if waits_s is not None:
            answer = self._asker.take()
            if answer is None:
                if waits_s > LATE_S:
                    self._cannot_look(f"the driver has not answered for {LATE_S:g} s; it may hang")
                return None
            return self._understand(answer)
        now = self._clock()
        if now >= self._next or self._low:
            self._next = now + self._settings.poll_s
            self._asker.ask()
        return None

    def done(self, outcome: str) -> None:
        """Nothing follows: it is looked at again."""
        self._low = 0

    def _understand(self, answer: list[GpuUse] | Exception) -> Request | None:
        if isinstance(answer, Exception):
            self._failures += 1
            self._cannot_look(f"{type(answer).__name__}: {answer}")
            return None
        self._failures = 0
        if not answer and self._insist:
            self._cannot_look("no GPU of this process was found")
        why = judge(self._meaningful(answer), free_bytes=self._settings.gpu_memory_free_bytes, host=self._place.host)
        if why is None:
            self._low = 0
            return None
        now = self._clock()
        if self._settings.gpu_memory_collect and now >= self._collected_at + COLLECT_EVERY_S and self._asker:
            self._collected_at = now
            self._asker.ask(collect=True)
            return None
        self._low += 1
        return Request(self.name, why) if self._low >= LOOKS else None

    def _meaningful(self, uses: list[GpuUse]) -> list[GpuUse]:
        for use in uses:
            if use.meaningless and self._insist:
                text = f"the free memory of {use.name} may mean little: {use.meaningless}. It is watched, as you wish"
                self._recorder.warn(text, key=f"{self.name} {use.name}")
        return [use for use in uses if self._insist or not use.meaningless]

    def _cannot_look(self, why: str) -> None:
        """Said once; where nobody has asked for this, to the journal only."""
        text = f"could not look at the GPU memory of {self._place.host}: {why}"
        if self._insist:
            self._recorder.warn(text, key=self.name)
        elif not self._has_told:
            self._has_told = True
            self._recorder.event("warning", text=text)
