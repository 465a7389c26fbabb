"""All limits of this process's memory with their use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.guard.memory.limits import (
    FAMILY,
    NODE,
    REFRESH_S,
    MemoryLimits,
    Reading,
    family_bytes,
    parse_meminfo,
    parse_process,
    physical_bytes,
)
from tests.guard.memory.memory_cgroups import MIB, RECORDED, Machine
from tests.lab.descriptors import count_descriptors


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def limits(machine: Machine) -> MemoryLimits:
    return MemoryLimits(str(machine.root))


def bytes_by_owner(limits: MemoryLimits, now: float = 0.0) -> dict[str, tuple[int, int]]:
    readings = limits.read(now)
    return {one.owner.rpartition("/")[2]: (one.used_bytes, one.limit_bytes) for one in readings}


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
def test_file_cache_is_not_counted_and_shared_memory_is_named(
    machine: Machine, limits: MemoryLimits, version: int, stat: str
) -> None:
    machine.slurm(version, used=190 * MIB, limits={"job_12": 200 * MIB}, stat=stat)
    reading = limits.read(0.0)[0]
    assert (reading.used_bytes, reading.shared_bytes) == (110 * MIB, 5)


def test_a_limit_above_what_a_container_sees_is_known_in_version_1(machine: Machine, limits: MemoryLimits) -> None:
    machine.proc("4:memory:/docker/4f\n", "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup c rw,memory\n")
    stat = f"hierarchical_memory_limit {128 * MIB}\ntotal_inactive_file 0\n"
    machine.cgroup("/sys/fs/cgroup/memory", version=1, used=MIB, limit=None, memory__stat=stat)
    reading = limits.read(0.0)[0]
    assert (reading.owner, reading.limit_bytes) == ("a cgroup above /docker/4f", 128 * MIB)


def test_memory_and_swap_together_have_a_limit_of_their_own_in_version_1(
    machine: Machine, limits: MemoryLimits
) -> None:
    """SLURM's ConstrainSwapSpace: with 60 in memory and 40 in swap the kernel kills, although memory is at 60 %."""
    job = machine.slurm(1, used=60 * MIB, limits={"job_12": 100 * MIB})
    (job / "memory.memsw.usage_in_bytes").write_text(f"{98 * MIB}\n")
    (job / "memory.memsw.limit_in_bytes").write_text(f"{100 * MIB}\n")
    worst = max(limits.read(0.0), key=lambda reading: reading.percent)
    assert worst.percent == pytest.approx(98.0)
    assert "swap" in worst.owner


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
    (reading,) = limits.read(0.0)
    assert reading.owner == FAMILY
    assert reading.used_bytes == 1000 * os.sysconf("SC_PAGE_SIZE")


def test_with_nothing_to_see_nothing_is_said(limits: MemoryLimits) -> None:
    assert limits.read(0.0) == []


def test_here_and_now_a_look_is_cheap_and_keeps_no_descriptors() -> None:
    before = count_descriptors()
    limits = MemoryLimits()
    assert limits.read(0.0)
    took = []
    for _ in range(200):
        start = time.perf_counter()
        limits.read(1.0)
        took.append(time.perf_counter() - start)
    assert count_descriptors() <= before
    assert sorted(took)[100] < 0.001, "a look takes about 300 us"


def test_a_limit_of_nothing_is_full() -> None:
    assert Reading("x", 0, 5).percent == 100.0


RECORDED_MEMINFO = (RECORDED / "meminfo_linux_6.18.txt").read_text()


def test_used_is_what_is_not_available() -> None:
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in RECORDED_MEMINFO.splitlines()}
    total, used = parse_meminfo(RECORDED_MEMINFO)
    assert total == values["MemTotal"] - values["Hugetlb"]
    assert used == total - values["MemAvailable"]
    assert used < values["MemTotal"] - values["MemFree"]  # file cache does not count


def test_huge_pages_that_are_set_aside_are_nobodys() -> None:
    """A node with 90 % of its memory in huge pages would else look full before anything runs."""
    text = "MemTotal: 1000 kB\nMemFree: 90 kB\nMemAvailable: 90 kB\n"
    assert parse_meminfo(text + "Hugetlb: 900 kB\n") == (100 * 1024, 10 * 1024)
    assert parse_meminfo(text + "HugePages_Total: 9\nHugepagesize: 100 kB\n") == (100 * 1024, 10 * 1024)


def test_an_old_kernel_tells_by_free_memory_and_file_cache() -> None:
    text = "MemTotal: 1000 kB\nMemFree: 100 kB\nActive(file): 200 kB\nInactive(file): 300 kB\nSReclaimable: 50 kB\n"
    assert parse_meminfo(text) == (1000 * 1024, 350 * 1024)


@pytest.mark.parametrize("text", ["", "garbage\n", "MemTotal: 0 kB\n", "MemTotal: many kB\n", "\0\0\0"])
def test_what_is_no_meminfo_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no MemTotal"):
        parse_meminfo(text)


def test_a_process_may_be_called_anything() -> None:
    fields = " ".join(str(number) for number in range(5, 30))
    assert parse_process(f"42 (a) b) (c) S 7 {fields}") == (7, 24)
    with pytest.raises(ValueError, match="not a process"):
        parse_process("42 (a) S 7")


def test_children_and_their_children_are_family() -> None:
    """A data loader holds 60 MiB in a process of its own; a stranger's memory does not count."""
    hold = "import sys; held = bytearray(60 * 2**20); print('held', flush=True); sys.stdin.read()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    before = family_bytes(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        grown = family_bytes(os.getpid()) - before
        assert 60 * MIB <= grown < 200 * MIB
        assert family_bytes(child.pid) < family_bytes(os.getpid())
    finally:
        child.communicate("")


def test_the_machines_memory_is_at_least_what_meminfo_says() -> None:
    physical = physical_bytes()
    assert physical is not None
    assert physical >= parse_meminfo(Path("/proc/meminfo").read_text())[0]
