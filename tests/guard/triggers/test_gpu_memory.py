"""A GPU that is nearly full stops the training; a driver that hangs or is not there does not."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import GuardError
from resilience.guard import Request
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings, read_settings
from resilience.guard.triggers import gpu_memory
from resilience.guard.triggers.gpu_memory import (
    LATE_S,
    LOW_IN_A_ROW,
    GpuMemory,
    GpuProbe,
    GpuUse,
    choose,
    initialised_torch,
    judge,
    others_of,
    parse_visible,
    why_meaningless,
)
from tests.guard.gpus import GIB, UUID, Card, FakeCuda, NVMLError, fake_nvml, fake_torch
from tests.lab.waiting import until


def make_probe(
    monkeypatch: pytest.MonkeyPatch,
    *,
    cards: list[Card] | None = None,
    cuda: FakeCuda | None = None,
    environ: dict[str, str] | None = None,
    local_rank: int = 0,
    insist: bool = False,
    modules: dict[str, Any] | None = None,
    error: Exception | None = None,
) -> GpuProbe:
    """A probe of these cards; without `cards` there is no pynvml."""
    monkeypatch.setitem(sys.modules, "pynvml", None if cards is None else fake_nvml(cards, error=error))
    seen = dict(modules or {})
    if cuda is not None:
        seen["torch"] = fake_torch(cuda)
    return GpuProbe(environ=environ or {}, modules=seen, local_rank=local_rank, host_bytes=512 * GIB, insist=insist)


ProbeOf = Callable[..., GpuProbe]


@pytest.fixture
def probe_of(monkeypatch: pytest.MonkeyPatch) -> ProbeOf:
    return functools.partial(make_probe, monkeypatch)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", ["0"]),
        ("2, 0", ["2", "0"]),
        ("0,-1,1", ["0"]),
        ("GPU-8932f937,MIG-aa/1/0", ["GPU-8932f937", "MIG-aa/1/0"]),
        ("٣", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, entries: list[str] | None) -> None:
    assert parse_visible(text) == entries


@pytest.mark.parametrize(
    ("entries", "local_rank", "chosen"),
    [(["3"], 7, "3"), (["3", "1"], 1, "1"), (["3", "1"], 2, None), (["3", "1"], -1, None), ([], 0, None)],
)
def test_a_rank_has_the_device_of_its_number(entries: list[str], local_rank: int, chosen: str | None) -> None:
    assert choose(entries, local_rank) == chosen


@pytest.mark.parametrize(
    ("name", "means_nothing"),
    [
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", False),
        ("NVIDIA GH200 480GB", True),
        ("NVIDIA GB200", True),
        ("NVIDIA GB10", True),
        ("NVIDIA GB300", True),
        ("Orin (nvgpu)", True),
        ("NVIDIA Thor", True),
        ("Tesla V100-SXM2-16GB", False),
    ],
)
def test_superchips_and_boards_with_one_memory_are_known_by_name(name: str, means_nothing: bool) -> None:
    why = why_meaningless(name, 80 * GIB, host_bytes=512 * GIB, is_integrated=False, is_numa_node=False)
    assert bool(why) is means_nothing


@pytest.mark.parametrize(
    ("total_bytes", "is_integrated", "is_numa_node", "said"),
    [
        (80 * GIB, False, False, ""),
        (80 * GIB, True, False, "it shares its memory with the CPU"),
        (80 * GIB, False, True, "its memory is a NUMA node of the operating system"),
        (511 * GIB, False, False, "its memory is as large as the machine's, and so probably shared with the CPU"),
    ],
)
def test_unknown_ones_are_known_by_what_they_say(
    total_bytes: int, is_integrated: bool, is_numa_node: bool, said: str
) -> None:
    why = why_meaningless(
        "NVIDIA X", total_bytes, host_bytes=512 * GIB, is_integrated=is_integrated, is_numa_node=is_numa_node
    )
    assert why == said


def test_others_are_named_the_largest_first_and_only_if_we_see_ourselves() -> None:
    card = Card().used_by(7, GIB).used_by(42, 3 * GIB).used_by(8, 2 * GIB).used_by(9, None)
    assert others_of(card.processes, 42) == ((8, 2 * GIB), (7, GIB), (9, 0))
    assert others_of(card.processes, 43) == ()  # in a container the numbers are the host's


def test_torchs_devices_are_those_that_it_holds_memory_on(probe_of: ProbeOf) -> None:
    """The current device is each thread's own: in the guard's thread it would be device 0 for every rank."""
    cards = [Card(free=1), Card(free=2), Card(free=3), Card(free=4)]
    cuda = FakeCuda(reserved={2: 10 * GIB}, allocated={2: 9 * GIB})
    (use,) = probe_of(cards=cards, cuda=cuda).read()
    assert (use.name, use.free_bytes, use.cached_bytes) == ("GPU 2 (NVIDIA H100 80GB HBM3)", 3, GIB)


def test_without_nvml_torch_is_asked(probe_of: ProbeOf) -> None:
    cuda = FakeCuda(reserved={0: 10 * GIB}, allocated={0: 4 * GIB}, info=(5 * GIB, 80 * GIB))
    (use,) = probe_of(cuda=cuda).read()
    assert (use.free_bytes, use.total_bytes, use.cached_bytes) == (5 * GIB, 80 * GIB, 6 * GIB)
    assert use.meaningless == ""
    cuda.integrated = True
    (use,) = probe_of(cuda=cuda).read()
    assert use.meaningless


def test_where_nvml_refuses_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards like Orin answer "not supported" to the one question that matters."""
    cuda = FakeCuda(reserved={0: 10 * GIB}, allocated={0: 4 * GIB}, info=(5 * GIB, 80 * GIB))
    probe = make_probe(monkeypatch, cards=[Card(free=1)], cuda=cuda)

    def refuse(card: Card) -> None:
        raise NVMLError("Not Supported")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetMemoryInfo", refuse)
    assert probe.read()[0].free_bytes == 5 * GIB


def test_devices_of_other_jobs_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Card(free=1), Card(free=2)]

    def by_index(number: int) -> Card:
        if number == 0:
            raise NVMLError("Insufficient Permissions")
        return cards[number]

    for visible in ("GPU-8932f937-d72c", "0", None):
        environ: dict[str, str] = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        probe = make_probe(monkeypatch, cards=cards, environ=environ, insist=True)
        monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetHandleByIndex", by_index)
        assert probe.read()[0].free_bytes == 2


def test_torch_that_has_not_begun_is_left_alone(probe_of: ProbeOf) -> None:
    """Asking would initialise CUDA: hundreds of MiB, and no fork any more."""
    cuda = FakeCuda(initialized=False)
    assert probe_of(cards=[Card(free=1).used_by(os.getpid(), 1)], cuda=cuda).read() == []
    assert initialised_torch({}) is None
    assert initialised_torch({"torch": None}) is None
    assert initialised_torch({"torch": fake_torch(cuda)}) is None


def test_the_caches_are_left_alone_unless_wished(probe_of: ProbeOf) -> None:
    cuda = FakeCuda(reserved={0: 10 * GIB}, allocated={0: 9 * GIB}, garbage=2 * GIB, info=(GIB, 80 * GIB))
    probe = probe_of(cuda=cuda)
    assert [probe.read()[0].free_bytes for _ in range(3)] == [GIB] * 3
    assert cuda.emptied == 0
    (use,) = probe.read(collect=True)
    assert (cuda.emptied, use.free_bytes, use.cached_bytes) == (1, 4 * GIB, 0)


@pytest.mark.parametrize(
    ("visible", "local_rank", "free"),
    [
        (None, 1, 2),
        ("3,2", 0, 4),
        (f"GPU-{UUID.format(1)}", 5, 2),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f2", 0, 3),
        ("0", 3, 1),
    ],
)
def test_without_torch_it_is_the_device_of_the_rank(
    probe_of: ProbeOf, visible: str | None, local_rank: int, free: int
) -> None:
    cards = [Card(free=number).used_by(os.getpid(), 1) for number in (1, 2, 3, 4)]
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    (use,) = probe_of(cards=cards, environ=environ, local_rank=local_rank).read()
    assert use.free_bytes == free


def test_the_beginning_of_a_uuid_is_enough(probe_of: ProbeOf) -> None:
    probe = probe_of(cards=[Card(free=5)], environ={"CUDA_VISIBLE_DEVICES": "GPU-8932"}, insist=True)
    assert probe.read()[0].free_bytes == 5


@pytest.mark.parametrize("visible", ["", "-1", "9", "GPU-0000", "0,1,2"])
def test_a_device_that_cannot_be_found_out_is_not_judged(probe_of: ProbeOf, visible: str) -> None:
    cards = [Card(free=1), Card(free=2)]
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert probe_of(cards=cards, environ=environ, local_rank=-1, insist=True).read() == []


def test_unlike_cards_are_numbered_in_two_ways(probe_of: ProbeOf) -> None:
    cards = [Card("NVIDIA T4", free=1), Card("NVIDIA A100", free=2)]
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    assert probe_of(cards=cards, environ=environ, insist=True).read() == []
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert probe_of(cards=cards, environ=environ, insist=True).read()[0].free_bytes == 2


def test_a_card_that_this_process_does_not_use_is_judged_only_if_wished(probe_of: ProbeOf) -> None:
    """Preprocessing on a node whose only GPU is full of somebody else's training."""
    cards = [Card(free=1).used_by(os.getpid() + 1, 79 * GIB)]
    assert probe_of(cards=cards).read() == []
    assert probe_of(cards=cards, insist=True).read()[0].free_bytes == 1


@pytest.mark.parametrize("pool", ["jax", "tensorflow", "cupy"])
def test_what_takes_all_memory_at_once_is_not_judged_by_what_is_left(probe_of: ProbeOf, pool: str) -> None:
    cards = [Card(free=1).used_by(os.getpid(), 79 * GIB)]
    assert probe_of(cards=cards, modules={pool: object()}).read() == []
    assert probe_of(cards=cards).read() != []


def test_a_numa_node_says_so(probe_of: ProbeOf) -> None:
    (use,) = probe_of(cards=[Card("NVIDIA X", numa_node=4)], insist=True).read()
    assert "NUMA" in use.meaningless


def test_a_driver_that_refuses_is_an_error_only_if_wished(probe_of: ProbeOf) -> None:
    error = NVMLError("Driver Not Loaded")
    assert probe_of(cards=[Card()], error=error).read() == []
    with pytest.raises(NVMLError):
        probe_of(cards=[Card()], error=error, insist=True).read()
    with pytest.raises(ImportError):
        probe_of(insist=True).read()


def test_the_real_pynvml_without_a_driver_fails_cleanly_and_soon() -> None:
    """In a process of its own, because the import stays."""
    code = """
import sys, time
from resilience.guard.triggers.gpu_memory import GpuProbe
assert "pynvml" not in sys.modules
probe = GpuProbe(environ={}, modules={}, local_rank=0, host_bytes=0, insist=True)
for number in range(2):
    start = time.perf_counter()
    try:
        print("found", len(probe.read()))
    except Exception as error:
        print(type(error).__name__, time.perf_counter() - start)
"""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py (scripts/environment dev)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    if lines[0][0] == "found":
        pytest.skip("this machine has an NVIDIA driver: needs one without")
    assert all(name.startswith("NVMLError") for name, _ in lines), done.stdout
    assert float(lines[0][1]) < 5.0
    assert float(lines[1][1]) < 0.01, "it is not tried again"


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
        "GPU 3 (NVIDIA H100 80GB HBM3) of n17 has 300 MiB left of 80.0 GiB, torch's unused cache included: "
        "less than the 512 MiB that must stay free"
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
        return self.trigger._query is not None

    def poll(self) -> Request | None:
        """One question put, answered and judged."""
        assert not self.is_asking()
        self.now += 10.0
        requested = self.trigger.poll()
        while self.trigger._query is not None:  # a second one where garbage was collected
            assert requested is None
            until(lambda: self.trigger._query is None or self.trigger._query.is_over)
            requested = self.trigger.poll()
        return requested


Watch = Callable[..., Watched]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watch:
    return functools.partial(Watched, monkeypatch, tmp_path)


def own(card: Card) -> Card:
    return card.used_by(os.getpid(), 70 * GIB)


def test_too_little_three_times_in_a_row_asks_to_save_and_stop(watch: Watch) -> None:
    card = own(Card(free=300 * MIB)).used_by(4242, 9 * GIB)
    watched = watch(cards=[card])
    assert [watched.poll() for _ in range(LOW_IN_A_ROW - 1)] == [None] * (LOW_IN_A_ROW - 1)
    wanted = watched.poll()
    assert wanted is not None
    assert (wanted.trigger, wanted.save, wanted.stop) == ("gpu_memory", True, True)
    assert "300 MiB left of 80.0 GiB" in wanted.why
    assert wanted.why.endswith("other processes use 9.0 GiB of it (pid 4242: 9.0 GiB)")


def test_a_peak_within_a_step_does_not(watch: Watch) -> None:
    card = own(Card(free=300 * MIB))
    watched = watch(cards=[card])
    for _ in range(5):
        assert watched.poll() is None
        assert watched.poll() is None
        card.free = 10 * GIB
        assert watched.poll() is None
        card.free = 300 * MIB


def test_torchs_cache_does_not_fire_it_and_is_not_emptied(watch: Watch) -> None:
    cuda = FakeCuda(reserved={0: 79 * GIB}, allocated={0: 30 * GIB})
    watched = watch(cards=[Card(free=200 * MIB)], cuda=cuda)
    assert [watched.poll() for _ in range(6)] == [None] * 6
    assert cuda.emptied == 0
    cuda.allocated[0] = 79 * GIB - MIB
    assert [bool(watched.poll()) for _ in range(3)] == [False, False, True]
    assert cuda.emptied == 0


def test_collecting_is_tried_once_before_judging_and_only_at_the_level(watch: Watch) -> None:
    cuda = FakeCuda(reserved={0: 70 * GIB}, allocated={0: 69 * GIB}, garbage=20 * GIB, info=(100 * MIB, 80 * GIB))
    watched = watch(cuda=cuda, gpu_memory_collect=True)
    assert [watched.poll() for _ in range(4)] == [None] * 4
    assert cuda.emptied == 0  # 1.1 GiB are left: the level is not reached
    cuda.allocated[0] = 70 * GIB
    assert [watched.poll() for _ in range(4)] == [None] * 4
    assert cuda.emptied == 1  # garbage was 20 GiB
    cuda.garbage = 0
    cuda.info, cuda.reserved[0], cuda.allocated[0] = (100 * MIB, 80 * GIB), 79 * GIB, 79 * GIB
    watched.now += 100.0
    assert [bool(watched.poll()) for _ in range(3)] == [False, False, True]
    assert cuda.emptied == 2


def test_collecting_is_not_done_by_the_thread_that_polls(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    cuda = FakeCuda(reserved={0: GIB}, allocated={0: GIB}, info=(1, 80 * GIB))
    monkeypatch.setattr(cuda, "empty_cache", lambda: threads.append(threading.current_thread().name))
    watched = watch(cuda=cuda, gpu_memory_collect=True)
    watched.poll()
    assert threads == ["resil-gpu"]


def test_a_driver_that_hangs_is_said_once_and_nobody_waits(watch: Watch) -> None:
    watched = watch(cards=[own(Card())], gpu_memory="on")
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
        f"warning: cannot read the GPU memory of n17: the driver has not answered for {LATE_S:g} s; it may hang"
    ]
    answer.set()


def test_a_driver_that_fails_is_left_alone_after_three_times(watch: Watch) -> None:
    watched = watch(cards=[own(Card())], error=NVMLError("Driver Not Loaded"), gpu_memory="on")
    for _ in range(3):
        assert watched.poll() is None
    for _ in range(5):
        watched.now += 10.0
        assert watched.trigger.poll() is None
    assert watched.told == ["warning: cannot read the GPU memory of n17: NVMLError: Driver Not Loaded"]


def test_on_and_nothing_found_is_a_warning(watch: Watch) -> None:
    watched = watch(has_driver=False, gpu_memory="on")
    assert watched.poll() is None
    assert len(watched.told) == 1
    assert watched.told[0].startswith("warning: cannot read the GPU memory of n17:")


def test_auto_and_no_gpu_is_silent_and_starts_and_imports_nothing(
    monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    threads = set(threading.enumerate())
    watched = watch(cuda=FakeCuda(initialized=False), has_driver=False)
    monkeypatch.delitem(sys.modules, "pynvml")
    for _ in range(10):
        watched.now += 10.0
        assert watched.trigger.poll() is None
    assert watched.told == []
    assert not watched.recorder.events
    assert "pynvml" not in sys.modules
    assert set(threading.enumerate()) <= threads


def test_torch_that_begins_to_use_cuda_later_is_watched_from_then_on(watch: Watch) -> None:
    cuda = FakeCuda(reserved={0: GIB}, allocated={0: GIB}, info=(1, 80 * GIB), initialized=False)
    watched = watch(cuda=cuda, has_driver=False)
    assert watched.trigger.poll() is None
    cuda.initialized = True
    assert [bool(watched.poll()) for _ in range(3)] == [False, False, True]


def test_unified_memory_is_not_judged_unless_wished_and_then_with_a_word(watch: Watch) -> None:
    card = own(Card("NVIDIA GH200 480GB", free=1))
    watched = watch(cards=[card])
    assert [watched.poll() for _ in range(4)] == [None] * 4
    assert watched.told == []
    watched = watch(cards=[card], gpu_memory="on")
    assert [bool(watched.poll()) for _ in range(3)] == [False, False, True]
    assert len(watched.told) == 1
    assert "it shares its memory with the CPU. Watched as configured" in watched.told[0]


def test_it_is_asked_no_more_often_than_set_while_all_is_well(watch: Watch) -> None:
    watched = watch(cards=[own(Card())], poll_s=30.0)
    watched.poll()
    assert watched.nvml is not None
    calls = watched.nvml.calls
    for _ in range(10):
        watched.now += 1.0
        watched.trigger.poll()
    assert watched.nvml.calls == calls
    assert not watched.is_asking()


def test_no_thread_stays_behind(watch: Watch) -> None:
    watched = watch(cards=[own(Card())])
    watched.poll()
    until(lambda: "resil-gpu" not in [thread.name for thread in threading.enumerate()])


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
