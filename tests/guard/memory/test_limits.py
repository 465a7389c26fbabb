"""All limits of this process's memory with their use."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.guard.memory.limits import FAMILY, NODE, REFRESH_S, MemoryLimits, Reading
from tests.guard.memory.memory_cgroups import MIB, Machine, count_descriptors


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def limits(machine: Machine) -> Iterator[MemoryLimits]:
    found = MemoryLimits(str(machine.root))
    yield found
    found.close()


def bytes_by_owner(limits: MemoryLimits, now: float = 0.0, *, thorough: bool = True) -> dict[str, tuple[int, int]]:
    readings = limits.look(now, thorough=thorough)
    return {one.whose.rpartition("/")[2]: (one.used_bytes, one.limit_bytes) for one in readings}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("holder", ["job_12", "step_0", "task_0"])
def test_whichever_cgroup_holds_the_limit_is_read_and_the_node_besides(
    machine: Machine, limits: MemoryLimits, version: int, holder: str
) -> None:
    machine.slurm(version, used=150 * MIB, limits={holder: 200 * MIB})
    found = bytes_by_owner(limits)
    assert found == {holder: (150 * MIB, 200 * MIB), NODE: (4684096 * 1024, 24684096 * 1024)}


@pytest.mark.parametrize("version", [1, 2])
def test_every_limit_is_read_with_its_own_use(machine: Machine, limits: MemoryLimits, version: int) -> None:
    job = machine.slurm(version, used=100 * MIB, limits={"job_12": 400 * MIB, "step_0": 200 * MIB})
    (job / ("memory.usage_in_bytes" if version == 1 else "memory.current")).write_text(f"{390 * MIB}\n")
    found = bytes_by_owner(limits)
    assert found["step_0"] == (100 * MIB, 200 * MIB)
    assert found["job_12"] == (390 * MIB, 400 * MIB)  # another step of the job uses the rest


@pytest.mark.parametrize(
    ("version", "stat"),
    [
        (1, f"total_inactive_file {60 * MIB}\ntotal_active_file {20 * MIB}\ninactive_file 1\ntotal_shmem 5\n"),
        (2, f"inactive_file {60 * MIB}\nactive_file {20 * MIB}\nshmem 5\n"),
    ],
)
def test_file_cache_is_looked_up_only_where_it_could_matter(
    machine: Machine, limits: MemoryLimits, version: int, stat: str
) -> None:
    machine.slurm(version, used=190 * MIB, limits={"job_12": 200 * MIB}, stat=stat)
    plain = limits.look(0.0, matters=lambda limit, used: False)[0]
    assert (plain.used_bytes, plain.shared_bytes) == (190 * MIB, 0)
    near = limits.look(0.0, matters=lambda limit, used: used > 0.9 * limit)[0]
    assert (near.used_bytes, near.shared_bytes) == (110 * MIB, 5)
    assert (plain.is_exact, near.is_exact) == (False, True)


def test_between_two_looks_at_the_file_cache_it_is_taken_to_stay(machine: Machine, limits: MemoryLimits) -> None:
    job = machine.slurm(2, used=150 * MIB, limits={"job_12": 200 * MIB}, stat=f"active_file {80 * MIB}\n")
    assert limits.look(0.0, thorough=True)[0].used_bytes == 70 * MIB
    (job / "memory.current").write_text(f"{160 * MIB}\n")
    (job / "memory.stat").write_text(f"active_file {90 * MIB}\n")
    cheap = limits.look(1.0, matters=lambda limit, used: False)[0]
    assert (cheap.used_bytes, cheap.is_exact) == (80 * MIB, False)
    assert limits.look(2.0, thorough=True)[0].used_bytes == 70 * MIB


def test_a_limit_above_what_a_container_sees_is_known_in_version_1(machine: Machine, limits: MemoryLimits) -> None:
    machine.proc("4:memory:/docker/4f\n", "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup c rw,memory\n")
    stat = f"hierarchical_memory_limit {128 * MIB}\ntotal_inactive_file 0\n"
    machine.cgroup("/sys/fs/cgroup/memory", version=1, used=MIB, limit=None, memory__stat=stat)
    reading = limits.look(0.0)[0]
    assert (reading.whose, reading.limit_bytes) == ("a cgroup above /docker/4f", 128 * MIB)


def test_memory_and_swap_together_have_a_limit_of_their_own_in_version_1(
    machine: Machine, limits: MemoryLimits
) -> None:
    """SLURM's ConstrainSwapSpace: with 60 in memory and 40 in swap the kernel kills, although memory is at 60 %."""
    job = machine.slurm(1, used=60 * MIB, limits={"job_12": 100 * MIB})
    (job / "memory.memsw.usage_in_bytes").write_text(f"{98 * MIB}\n")
    (job / "memory.memsw.limit_in_bytes").write_text(f"{100 * MIB}\n")
    worst = max(limits.look(0.0), key=lambda reading: reading.percent)
    assert worst.percent == pytest.approx(98.0)
    assert "swap" in worst.whose


def test_a_limit_that_is_changed_is_noticed(machine: Machine, limits: MemoryLimits) -> None:
    job = machine.slurm(2, used=MIB, limits={"job_12": 200 * MIB})
    assert bytes_by_owner(limits)["job_12"][1] == 200 * MIB
    (job / "memory.max").write_text(f"{300 * MIB}\n")
    assert bytes_by_owner(limits, REFRESH_S + 1)["job_12"][1] == 300 * MIB


def test_a_process_that_is_moved_is_followed(machine: Machine, limits: MemoryLimits) -> None:
    machine.slurm(2, used=MIB, limits={"job_12": 200 * MIB})
    bytes_by_owner(limits)
    machine.cgroup("/sys/fs/cgroup/other", version=2, used=2 * MIB, limit=9 * MIB)
    (machine.root / "proc/self/cgroup").write_text("0::/other\n")
    assert bytes_by_owner(limits, REFRESH_S + 1) == {
        "other": (2 * MIB, 9 * MIB),
        NODE: (4684096 * 1024, 24684096 * 1024),
    }


def test_a_cgroup_that_vanishes_costs_its_reading_only(machine: Machine, limits: MemoryLimits) -> None:
    job = machine.slurm(2, used=MIB, limits={"job_12": 200 * MIB})
    bytes_by_owner(limits)
    shutil.rmtree(job)
    limits._cgroups[3]._usage.close()  # a real kernel says ENODEV here; a plain file goes on
    assert list(bytes_by_owner(limits)) == [NODE]
    assert list(bytes_by_owner(limits, 1.0)) == [NODE]


def test_nonsense_in_the_files_costs_nothing(machine: Machine, limits: MemoryLimits) -> None:
    job = machine.slurm(2, used=MIB, limits={"job_12": 200 * MIB})
    (job / "memory.current").write_text("many\n")
    assert list(bytes_by_owner(limits)) == [NODE]


def test_without_cgroup_and_meminfo_the_family_is_weighed(machine: Machine, limits: MemoryLimits) -> None:
    own = machine.root / "proc" / str(os.getpid())
    own.mkdir(parents=True)
    (own / "stat").write_text(f"{os.getpid()} (python) S 1 {' '.join(['0'] * 19)} 1000 0\n")
    (reading,) = limits.look(0.0)
    assert reading.whose == FAMILY
    assert reading.used_bytes == 1000 * os.sysconf("SC_PAGE_SIZE")


def test_with_nothing_to_see_nothing_is_said(limits: MemoryLimits) -> None:
    assert limits.look(0.0) == []


def test_here_and_now_a_look_is_cheap_and_keeps_no_more_descriptors() -> None:
    limits = MemoryLimits()
    assert limits.look(0.0)
    before = count_descriptors()
    took = []
    for _ in range(200):
        start = time.perf_counter()
        limits.look(1.0, matters=lambda limit, used: False)
        took.append(time.perf_counter() - start)
    assert count_descriptors() == before
    assert sorted(took)[100] < 0.001, "a look takes about 10 us"
    limits.close()


def test_guards_one_after_the_other_leave_no_descriptors() -> None:
    """A search over hyperparameters trains hundreds of times in one process."""
    before = count_descriptors()
    for _ in range(20):
        assert MemoryLimits().look(0.0, thorough=True)
    gc.collect()
    assert count_descriptors() <= before


def test_a_limit_of_nothing_is_full() -> None:
    assert Reading("x", 0, 5).percent == 100.0
