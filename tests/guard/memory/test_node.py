"""How much memory the node has and how much of it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.guard.memory.node import (
    family_bytes,
    parse_available,
    parse_meminfo,
    parse_process,
    physical_bytes,
)
from tests.guard.memory.memory_cgroups import MIB, RECORDED

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


def test_the_beginning_is_enough_for_what_is_available() -> None:
    whole = next(line for line in RECORDED_MEMINFO.splitlines() if line.startswith("MemAvailable"))
    assert parse_available(RECORDED_MEMINFO[:256]) == int(whole.split()[1]) * 1024
    assert parse_available("MemTotal: 5 kB\n") is None
    assert parse_available("MemAvailable:   12") is None  # cut in the number


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
