"""A GPU that is nearly full stops the training; a driver that hangs or is not there does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import GuardError
from resilience.guard import Request
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings, read_settings
from resilience.guard.triggers import gpu_memory
from resilience.guard.triggers.gpu_memory import LATE_S, LOOKS, GpuMemory, GpuUse, judge
from tests.guard.gpus import GIB, Card, FakeCuda, NVMLError, fake_nvml, fake_torch
from tests.guard.guards import wait_until

MIB = 2**20
H100 = "GPU 3 (NVIDIA H100 80GB HBM3)"


def say(*uses: GpuUse, free_bytes: int = 512 * MIB) -> str | None:
    return judge(uses, free_bytes=free_bytes, host="n17")


def test_enough_is_free_or_it_is_not() -> None:
    assert say() is None
    assert say(GpuUse(H100, 512 * MIB, 80 * GIB)) is None
    assert say(GpuUse(H100, 512 * MIB - 1, 80 * GIB)) is not None


def test_what_torch_holds_unused_is_free() -> None:
    """The caching allocator keeps nearly the whole device: by NVML alone every healthy training would look full."""
    assert say(GpuUse(H100, 100 * MIB, 80 * GIB, cached_bytes=30 * GIB)) is None
    assert say(GpuUse(H100, 100 * MIB, 80 * GIB, cached_bytes=200 * MIB)) == (
        "GPU 3 (NVIDIA H100 80GB HBM3) of n17 has 300 MiB left of 80.0 GiB, torch's unused cache counted in: "
        "less than the 512 MiB that are to stay free"
    )


def test_the_use_of_others_is_named() -> None:
    others = ((7, 5 * GIB), (8, 3 * GIB), (9, GIB), (10, GIB), (11, GIB))
    text = str(say(GpuUse(H100, 300 * MIB, 80 * GIB, others=others)))
    assert text.endswith(
        "; other processes use 11.0 GiB of it (pid 7: 5.0 GiB, pid 8: 3.0 GiB, pid 9: 1.0 GiB, 2 more)"
    )
    assert "other processes" not in str(say(GpuUse(H100, 300 * MIB, 80 * GIB)))


def test_the_fullest_of_several_is_named() -> None:
    text = say(GpuUse("GPU 0", 400 * MIB, 80 * GIB), GpuUse("GPU 1", 100 * MIB, 80 * GIB), GpuUse("GPU 2", GIB, GIB))
    assert str(text).startswith("GPU 1 of n17 has 100 MiB left")


class Watched:
    """A trigger with fakes around it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        *,
        cards: list[Card] | None = None,
        cuda: FakeCuda | None = None,
        has_driver: bool = True,
        error: Exception | None = None,
        **settings: Any,
    ) -> None:
        self.nvml = None if cards is None else fake_nvml(cards, error=error)
        monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        self.now = 0.0
        self.told: list[str] = []
        (tmp_path / "nvidiactl").touch()
        place = RankInfo(host="n17", local_rank=0)
        self.recorder = Recorder(place, self.told.append)
        self.modules: dict[str, Any] = {} if cuda is None else {"torch": fake_torch(cuda)}
        self.trigger = GpuMemory(
            place,
            GuardSettings(**settings),
            self.recorder,
            environ={},
            modules=self.modules,
            device_files=[str(tmp_path / "nvidiactl")] if has_driver else [str(tmp_path / "nothing")],
            clock=lambda: self.now,
        )

    def is_asking(self) -> bool:
        return self.trigger._question is not None

    def look(self) -> Request | None:
        """One question put, answered and judged."""
        assert not self.is_asking()
        self.now += 10.0
        requested = self.trigger.poll()
        while (question := self.trigger._question) is not None:  # a second one where garbage was collected
            assert requested is None
            assert question.wait(20)
            requested = self.trigger.poll()
        return requested


def own(card: Card) -> Card:
    return card.used_by(os.getpid(), 70 * GIB)


def test_too_little_three_times_in_a_row_asks_to_save_and_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card = own(Card(free=300 * MIB)).used_by(4242, 9 * GIB)
    watched = Watched(monkeypatch, tmp_path, cards=[card])
    assert [watched.look() for _ in range(LOOKS - 1)] == [None] * (LOOKS - 1)
    wanted = watched.look()
    assert wanted is not None
    assert (wanted.trigger, wanted.save, wanted.stop) == ("gpu_memory", True, True)
    assert "300 MiB left of 80.0 GiB" in wanted.why
    assert wanted.why.endswith("other processes use 9.0 GiB of it (pid 4242: 9.0 GiB)")


def test_a_peak_within_a_step_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card = own(Card(free=300 * MIB))
    watched = Watched(monkeypatch, tmp_path, cards=[card])
    for _ in range(5):
        assert watched.look() is None
        assert watched.look() is None
        card.free = 10 * GIB
        assert watched.look() is None
        card.free = 300 * MIB


def test_torchs_cache_does_not_fire_it_and_is_not_emptied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda = FakeCuda(reserved={0: 79 * GIB}, allocated={0: 30 * GIB})
    watched = Watched(monkeypatch, tmp_path, cards=[Card(free=200 * MIB)], cuda=cuda)
    assert [watched.look() for _ in range(6)] == [None] * 6
    assert cuda.emptied == 0
    cuda.allocated[0] = 79 * GIB - MIB
    assert [bool(watched.look()) for _ in range(3)] == [False, False, True]
    assert cuda.emptied == 0


def test_collecting_is_tried_once_before_judging_and_only_at_the_level(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda(reserved={0: 70 * GIB}, allocated={0: 69 * GIB}, garbage=20 * GIB, info=(100 * MIB, 80 * GIB))
    watched = Watched(monkeypatch, tmp_path, cuda=cuda, gpu_memory_collect=True)
    assert [watched.look() for _ in range(4)] == [None] * 4
    assert cuda.emptied == 0  # 1.1 GiB are left: the level is not reached
    cuda.allocated[0] = 70 * GIB
    assert [watched.look() for _ in range(4)] == [None] * 4
    assert cuda.emptied == 1  # garbage was 20 GiB
    cuda.garbage = 0
    cuda.info, cuda.reserved[0], cuda.allocated[0] = (100 * MIB, 80 * GIB), 79 * GIB, 79 * GIB
    watched.now += 100.0
    assert [bool(watched.look()) for _ in range(3)] == [False, False, True]
    assert cuda.emptied == 2


def test_collecting_is_not_done_by_the_thread_that_polls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    threads: list[str] = []
    cuda = FakeCuda(reserved={0: GIB}, allocated={0: GIB}, info=(1, 80 * GIB))
    monkeypatch.setattr(cuda, "empty_cache", lambda: threads.append(threading.current_thread().name))
    watched = Watched(monkeypatch, tmp_path, cuda=cuda, gpu_memory_collect=True)
    watched.look()
    assert threads == ["resil-gpu"]


def test_a_driver_that_hangs_is_said_once_and_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch, tmp_path, cards=[own(Card())], gpu_memory="on")
    answer = threading.Event()
    begun = threading.Event()
    assert watched.nvml is not None

    def hang(card: Card) -> Any:
        begun.set()
        answer.wait(60)
        raise NVMLError("Timeout")

    watched.nvml.nvmlDeviceGetMemoryInfo = hang
    start = time.monotonic()
    watched.trigger.poll()
    assert begun.wait(20)
    for _ in range(100):
        watched.now += 1.0
        assert watched.trigger.poll() is None
    assert time.monotonic() - start < 20
    assert watched.told == [
        f"warning: could not look at the GPU memory of n17: the driver has not answered for {LATE_S:g} s; it may hang"
    ]
    answer.set()


def test_a_driver_that_fails_is_left_alone_after_three_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch, tmp_path, cards=[own(Card())], error=NVMLError("Driver Not Loaded"), gpu_memory="on")
    for _ in range(3):
        assert watched.look() is None
    for _ in range(5):
        watched.now += 10.0
        assert watched.trigger.poll() is None
    assert watched.told == ["warning: could not look at the GPU memory of n17: NVMLError: Driver Not Loaded"]


def test_on_and_nothing_found_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch, tmp_path, has_driver=False, gpu_memory="on")
    assert watched.look() is None
    assert len(watched.told) == 1
    assert watched.told[0].startswith("warning: could not look at the GPU memory of n17:")


@pytest.fixture
def threads() -> Iterator[set[threading.Thread]]:
    yield set(threading.enumerate())


def test_auto_and_no_gpu_is_silent_and_starts_and_imports_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: set[threading.Thread]
) -> None:
    watched = Watched(monkeypatch, tmp_path, cuda=FakeCuda(initialized=False), has_driver=False)
    monkeypatch.delitem(sys.modules, "pynvml")
    for _ in range(10):
        watched.now += 10.0
        assert watched.trigger.poll() is None
    assert watched.told == []
    assert not watched.recorder.events
    assert "pynvml" not in sys.modules
    assert set(threading.enumerate()) <= threads


def test_torch_that_begins_to_use_cuda_later_is_watched_from_then_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda(reserved={0: GIB}, allocated={0: GIB}, info=(1, 80 * GIB), initialized=False)
    watched = Watched(monkeypatch, tmp_path, cuda=cuda, has_driver=False)
    assert watched.trigger.poll() is None
    cuda.initialized = True
    assert [bool(watched.look()) for _ in range(3)] == [False, False, True]


def test_unified_memory_is_not_judged_unless_wished_and_then_with_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = own(Card("NVIDIA GH200 480GB", free=1))
    watched = Watched(monkeypatch, tmp_path, cards=[card])
    assert [watched.look() for _ in range(4)] == [None] * 4
    assert watched.told == []
    watched = Watched(monkeypatch, tmp_path, cards=[card], gpu_memory="on")
    assert [bool(watched.look()) for _ in range(3)] == [False, False, True]
    assert len(watched.told) == 1
    assert "it shares its memory with the processor. It is watched, as you wish" in watched.told[0]


def test_it_is_asked_no_more_often_than_set_while_all_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch, tmp_path, cards=[own(Card())], poll_s=30.0)
    watched.look()
    assert watched.nvml is not None
    calls = watched.nvml.calls
    for _ in range(10):
        watched.now += 1.0
        watched.trigger.poll()
    assert watched.nvml.calls == calls
    assert not watched.is_asking()


def test_no_thread_stays_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch, tmp_path, cards=[own(Card())])
    watched.look()
    wait_until(lambda: "resil-gpu" not in [thread.name for thread in threading.enumerate()])


def test_every_rank_looks_at_its_own() -> None:
    assert getattr(GpuMemory, "ranks", "every") == "every"


def test_without_torch_and_pynvml_a_real_poll_here_costs_nothing() -> None:
    if any(Path(path).exists() for path in gpu_memory.DEVICE_FILES):
        pytest.skip("this machine has an NVIDIA driver: needs one without")
    place = RankInfo()
    trigger = GpuMemory(place, GuardSettings(), Recorder(place), modules={})
    start = time.perf_counter()
    for _ in range(1000):
        assert trigger.poll() is None
    assert time.perf_counter() - start < 5


def test_a_guard_with_all_settings_as_they_are_imports_none_of_the_large_modules() -> None:
    code = """
import sys, time
from resilience.guard import TrainingGuard
with TrainingGuard.from_env({}) as guard:
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        guard.step()
        time.sleep(0.01)
print([name for name in ("torch", "psutil", "pynvml", "numpy") if name in sys.modules])
"""
    if any(Path(path).exists() for path in gpu_memory.DEVICE_FILES):
        pytest.skip("this machine has an NVIDIA driver: needs one without")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu_memory", "yes please"), ("gpu_memory_free_bytes", -1), ("gpu_memory_free_bytes", "much")],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(GuardError, match=name):
        read_settings({}, **{name: value})
