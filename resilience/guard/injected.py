"""Faults that people inject into this rank on purpose: a hang, slow steps, an exit, a leak, the end of memory.

Only in runs with `allow_inject = true` below [run]. A thread reads the records in the run directory
(docs/reference/run-directory.md, `injections/`); `guard.step()` does not know of it. What has to happen in the main
thread happens in the handler of a real-time signal, which the thread sends: the heartbeat goes on, as in a true hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

from resilience.base.files import read_regular, replace_file
from resilience.base.processes import name_thread
from resilience.layout import INJECTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder

POLL_S = 0.25
SIGNAL = signal.SIGRTMIN + 8
"""Of the main thread; faulthandler has the next one (stacks.py)."""
SLICE_S = 0.1
"""A slow rank works for so long, then waits."""
CHUNK = 2**25
MOMENT_S = 60.0
"""A fault of a moment that was recorded longer ago is not done any more."""
SPARED_PART = 0.1
"""Of the host's memory, which a leak leaves free."""
BY_GUARD = ("hang", "slow", "leak", "oom", "exit")


class InjectedFaults:
    """Does in this process what the records of injected faults say, and stops when they end."""

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._place, self._recorder = place, recorder
        self._directory = os.path.join(place.run_dir, INJECTIONS)
        self._on: dict[str, Mapping[str, Any]] = {}
        self._seen: set[str] = set()
        self._memory: dict[str, list[bytearray]] = {}
        self._rests = 0.0
        self._end: BaseException | None = None
        self._has_handler = self._over = False
        self._wakeup = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resil-injected", daemon=True)

    def start(self) -> None:
        """Install the handler, if this is the main thread, and start to look for records."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(SIGNAL) == signal.SIG_DFL:
            signal.signal(SIGNAL, self._handle)
            self._has_handler = True
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a fault that is on ends."""
        self._over = True
        self._on = {}
        self._wakeup.set()

    # ---- in the main thread ---------------------------------------------------------------------------------------

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Hang or rest here, as the main thread, or raise what ends the training."""
        if (error := self._end) is not None:
            self._end = None
            raise error
        while any(one["fault"] == "hang" for one in self._on.values()):
            time.sleep(0.05)
        rests_s, self._rests = self._rests, 0.0
        if rests_s > 0:
            time.sleep(rests_s)

    def _interrupt(self) -> None:
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, SIGNAL)

    # ---- in its own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        name_thread()
        while not self._over:
            try:
                self._look()
                self._tend()
            except Exception as error:  # never the training's
                self._recorder.warn(f"an injected fault failed in the guard: {error!r}", key="injected")
            slow = any(one["fault"] == "slow" for one in self._on.values())
            self._wakeup.wait(SLICE_S if slow else POLL_S)

    def _look(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".json") and name[0] != ".")
        except FileNotFoundError:
            return
        for name in names:
            if name in self._on and self._on[name]["fault"] == "oom":
                continue  # over in a moment: nothing undoes it
            if name in self._on or name not in self._seen:
                record = self._read(name)
                if record is None or record["fault"] not in BY_GUARD or not self._is_meant(record):
                    self._seen.add(name)
                    if self._on.pop(name, None) is not None:
                        self._ended(name)
                elif name not in self._on:
                    self._seen.add(name)
                    self._begin(name, record)
        for name in self._on.keys() - set(names):
            del self._on[name]
            self._ended(name)

    def _read(self, name: str) -> dict[str, Any] | None:
        found = read_regular(os.path.join(self._directory, name), limit_bytes=2**22)
        if found is None or found[1].st_uid != os.geteuid():
            return None
        try:
            record = json.loads(found[0])
            return record if isinstance(record, dict) else None
        except (ValueError, RecursionError):
            return None

    def _is_meant(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record is of a fault that is on in this rank."""
        state, now = record.get("state") or {}, time.time()
        is_on = record.get("ended") is None and now < (record.get("until") or record["begun"] + MOMENT_S)
        is_here = record.get("attempt") == self._place.attempt and self._place.rank in (state.get("guarded") or ())
        return bool(is_on and is_here)

    def _begin(self, name: str, record: Mapping[str, Any]) -> None:
        fault, settings = record["fault"], record.get("settings") or {}
        answer = os.path.join(self._directory, f"{name.removesuffix('.json')}.{self._place.rank}")
        if record.get("until") is None and os.path.exists(answer):
            return  # done, by this rank's process before a restart
        refusal = self._refusal(fault, settings)
        content = json.dumps({"refused": refusal, "pid": os.getpid(), "time": time.time()})
        replace_file(answer, content, mode=0o600)
        if refusal:
            return
        what = {"fault": fault, "id": name.removesuffix(".json")}
        self._recorder.event("injected", **what)
        self._recorder.say(f"a fault was injected on purpose into rank {self._place.rank}: {fault} ({what['id']})")
        if fault == "exit":
            self._end = SystemExit(int(settings.get("code", 1)))
        elif fault == "oom" and settings.get("how") == "error":
            self._end = MemoryError("injected on purpose: see resil inject list")
        else:
            self._on[name] = {**record, "since": time.monotonic()}
        if self._end is not None or fault == "hang":
            self._interrupt()

    def _refusal(self, fault: str, settings: Mapping[str, Any]) -> str:
        if fault == "oom" and settings.get("how") != "error" and memory_limit() is None:
            return "its job has no memory limit of its own, so the host would run out of memory"
        needs_main = fault in ("hang", "slow", "exit") or (fault == "oom" and settings.get("how") == "error")
        if needs_main and not self._has_handler:
            return "its guard was not started in the main thread, or another handler has the signal"
        return ""

    def _ended(self, name: str) -> None:
        self._memory.pop(name, None)
        self._recorder.event("injected_end", id=name.removesuffix(".json"))

    def _tend(self) -> None:
        """Go on with the faults that need it."""
        for name, record in self._on.items():
            settings, fault = record.get("settings") or {}, record["fault"]
            if fault == "slow":
                rests_s = self._rests = SLICE_S * max(0.0, float(settings.get("factor", 2.0)) - 1)
                self._interrupt()
                time.sleep(rests_s)
            elif fault == "leak":
                length_s = time.monotonic() - record["since"]
                most = int(settings.get("most_bytes", 2**30))
                self._grow(name, min(most, int(length_s * float(settings.get("rate_bytes", 2**24)))), is_spared=True)
            elif fault == "oom":
                self._grow(name, 2**62, is_spared=False)

    def _grow(self, name: str, size: int, *, is_spared: bool) -> None:
        """Fill memory up to a size; a leak leaves the host a part of its own."""
        held = self._memory.setdefault(name, [])
        left = size - sum(map(len, held))
        while left > 0 and not self._over and (not is_spared or _free_part() > SPARED_PART):
            chunk = min(left, CHUNK)
            held.append(bytearray(b"\1") * chunk)  # written, so that the kernel gives the pages
            left -= chunk


def memory_limit() -> int | None:
    """Return the smallest memory limit of this process's control groups below the host's memory; None without one."""
    from resilience.guard.memory.cgroup import CgroupMemory, find_directories
    from resilience.guard.memory.limits import physical_bytes

    limits: list[int | None] = []
    for one in find_directories():
        with contextlib.suppress(OSError):  # the root has no files of memory
            limits.append(CgroupMemory(one).limit_bytes)
    physical = physical_bytes() or 0
    return min((one for one in limits if one is not None and one < 0.8 * physical), default=None)


def _free_part() -> float:
    try:
        with open("/proc/meminfo") as file:
            found = {line.split(":")[0]: int(line.split()[1]) for line in file}
        return found["MemAvailable"] / found["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0
