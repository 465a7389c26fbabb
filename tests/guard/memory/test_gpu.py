"""How full this process's GPUs are: whose device it is, and where figures mean nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from resilience.guard.triggers.gpu_memory import (
    GpuLook,
    choose,
    initialised_torch,
    others_of,
    parse_visible,
    why_meaningless,
)
from tests.guard.gpus import GIB, UUID, Card, FakeCuda, NVMLError, fake_nvml, fake_torch


def make_look(
    monkeypatch: pytest.MonkeyPatch,
    *,
    cards: list[Card] | None = None,
    cuda: FakeCuda | None = None,
    environ: dict[str, str] | None = None,
    local_rank: int = 0,
    insist: bool = False,
    modules: dict[str, Any] | None = None,
    error: Exception | None = None,
) -> GpuLook:
    """A look at these cards; without `cards` there is no pynvml."""
    monkeypatch.setitem(sys.modules, "pynvml", None if cards is None else fake_nvml(cards, error=error))
    seen = dict(modules or {})
    if cuda is not None:
        seen["torch"] = fake_torch(cuda)
    return GpuLook(environ=environ or {}, modules=seen, local_rank=local_rank, host_bytes=512 * GIB, insist=insist)


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
        (80 * GIB, True, False, "it shares its memory with the processor"),
        (80 * GIB, False, True, "its memory is a NUMA node of the operating system"),
        (511 * GIB, False, False, "its memory is as large as the machine's: it is the same"),
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


def test_torchs_devices_are_those_that_it_holds_memory_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device is each thread's own: in the guard's thread it would be device 0 for every rank."""
    cards = [Card(free=1), Card(free=2), Card(free=3), Card(free=4)]
    cuda = FakeCuda(reserved={2: 10 * GIB}, allocated={2: 9 * GIB})
    (use,) = make_look(monkeypatch, cards=cards, cuda=cuda).look()
    assert (use.name, use.free_bytes, use.cached_bytes) == ("GPU 2 (NVIDIA H100 80GB HBM3)", 3, GIB)


def test_without_nvml_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(reserved={0: 10 * GIB}, allocated={0: 4 * GIB}, info=(5 * GIB, 80 * GIB))
    (use,) = make_look(monkeypatch, cuda=cuda).look()
    assert (use.free_bytes, use.total_bytes, use.cached_bytes) == (5 * GIB, 80 * GIB, 6 * GIB)
    assert use.meaningless == ""
    cuda.integrated = True
    (use,) = make_look(monkeypatch, cuda=cuda).look()
    assert use.meaningless


def test_where_nvml_refuses_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards like Orin answer "not supported" to the one question that matters."""
    cuda = FakeCuda(reserved={0: 10 * GIB}, allocated={0: 4 * GIB}, info=(5 * GIB, 80 * GIB))
    look = make_look(monkeypatch, cards=[Card(free=1)], cuda=cuda)

    def refuse(card: Card) -> None:
        raise NVMLError("Not Supported")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetMemoryInfo", refuse)
    assert look.look()[0].free_bytes == 5 * GIB


def test_devices_of_other_jobs_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Card(free=1), Card(free=2)]

    def by_index(number: int) -> Card:
        if number == 0:
            raise NVMLError("Insufficient Permissions")
        return cards[number]

    for visible in ("GPU-8932f937-d72c", "0", None):
        environ: dict[str, str] = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        look = make_look(monkeypatch, cards=cards, environ=environ, insist=True)
        monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetHandleByIndex", by_index)
        assert look.look()[0].free_bytes == 2


def test_torch_that_has_not_begun_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking would initialise CUDA: hundreds of MiB, and no fork any more."""
    cuda = FakeCuda(initialized=False)
    assert make_look(monkeypatch, cards=[Card(free=1).used_by(os.getpid(), 1)], cuda=cuda).look() == []
    assert initialised_torch({}) is None
    assert initialised_torch({"torch": None}) is None
    assert initialised_torch({"torch": fake_torch(cuda)}) is None


def test_the_caches_are_left_alone_unless_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(reserved={0: 10 * GIB}, allocated={0: 9 * GIB}, garbage=2 * GIB, info=(GIB, 80 * GIB))
    look = make_look(monkeypatch, cuda=cuda)
    assert [look.look()[0].free_bytes for _ in range(3)] == [GIB] * 3
    assert cuda.emptied == 0
    (use,) = look.look(collect=True)
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
    monkeypatch: pytest.MonkeyPatch, visible: str | None, local_rank: int, free: int
) -> None:
    cards = [Card(free=number).used_by(os.getpid(), 1) for number in (1, 2, 3, 4)]
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    (use,) = make_look(monkeypatch, cards=cards, environ=environ, local_rank=local_rank).look()
    assert use.free_bytes == free


def test_the_beginning_of_a_uuid_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    look = make_look(monkeypatch, cards=[Card(free=5)], environ={"CUDA_VISIBLE_DEVICES": "GPU-8932"}, insist=True)
    assert look.look()[0].free_bytes == 5


@pytest.mark.parametrize("visible", ["", "-1", "9", "GPU-0000", "0,1,2"])
def test_a_device_that_cannot_be_told_is_not_judged(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    cards = [Card(free=1), Card(free=2)]
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert make_look(monkeypatch, cards=cards, environ=environ, local_rank=-1, insist=True).look() == []


def test_unlike_cards_are_numbered_in_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Card("NVIDIA T4", free=1), Card("NVIDIA A100", free=2)]
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    assert make_look(monkeypatch, cards=cards, environ=environ, insist=True).look() == []
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert make_look(monkeypatch, cards=cards, environ=environ, insist=True).look()[0].free_bytes == 2


def test_a_card_that_this_process_does_not_use_is_judged_only_if_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preprocessing on a node whose only GPU is full of somebody else's training."""
    cards = [Card(free=1).used_by(os.getpid() + 1, 79 * GIB)]
    assert make_look(monkeypatch, cards=cards).look() == []
    assert make_look(monkeypatch, cards=cards, insist=True).look()[0].free_bytes == 1


@pytest.mark.parametrize("pool", ["jax", "tensorflow", "cupy"])
def test_what_takes_all_memory_at_once_is_not_judged_by_what_is_left(
    monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    cards = [Card(free=1).used_by(os.getpid(), 79 * GIB)]
    assert make_look(monkeypatch, cards=cards, modules={pool: object()}).look() == []
    assert make_look(monkeypatch, cards=cards).look() != []


def test_a_numa_node_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (use,) = make_look(monkeypatch, cards=[Card("NVIDIA X", numa_node=4)], insist=True).look()
    assert "NUMA" in use.meaningless


def test_a_driver_that_refuses_is_an_error_only_if_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    error = NVMLError("Driver Not Loaded")
    assert make_look(monkeypatch, cards=[Card()], error=error).look() == []
    with pytest.raises(NVMLError):
        make_look(monkeypatch, cards=[Card()], error=error, insist=True).look()
    with pytest.raises(ImportError):
        make_look(monkeypatch, insist=True).look()


def test_the_real_pynvml_without_a_driver_fails_cleanly_and_soon() -> None:
    """In a process of its own, because the import stays."""
    code = """
import sys, time
from resilience.guard.triggers.gpu_memory import GpuLook
assert "pynvml" not in sys.modules
look = GpuLook(environ={}, modules={}, local_rank=0, host_bytes=0, insist=True)
for number in range(2):
    start = time.perf_counter()
    try:
        print("found", len(look.look()))
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
