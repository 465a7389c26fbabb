"""Reads /proc for real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.base import processes
from resilience.base.processes import (
    descendants,
    is_alive,
    is_same,
    is_there,
    is_waiting_in_kernel,
    pid_space,
    start_ticks,
    switches,
)
from tests.lab.waiting import until


def test_a_process_is_alive_until_it_ends_and_a_zombie_is_not() -> None:
    process = subprocess.Popen(["sleep", "100"])
    assert is_alive(process.pid) and not is_waiting_in_kernel(process.pid)
    process.kill()
    until(lambda: not is_alive(process.pid))  # not reaped yet
    assert start_ticks(process.pid) is not None
    process.wait()
    assert not is_alive(process.pid) and start_ticks(process.pid) is None and switches(process.pid) is None


def test_the_start_time_distinguishes_processes_with_the_same_pid() -> None:
    assert start_ticks(os.getpid()) == start_ticks(os.getpid())
    ticks = start_ticks(os.getpid())
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert ticks is not None and 0 < ticks / os.sysconf("SC_CLK_TCK") <= uptime


def test_a_name_with_brackets_and_blanks_is_no_riddle(tmp_path: object) -> None:
    code = "import time; open('/proc/self/comm', 'w').write('a) D (b'); print(1, flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_alive(process.pid) and not is_waiting_in_kernel(process.pid)
        assert start_ticks(process.pid) is not None
        process.kill()


def test_all_descendants_are_found_in_any_process_group() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 100 & wait' & setsid sleep 100 & wait"], start_new_session=True
    ) as shell:
        until(lambda: len(descendants(shell.pid)) == 3)
        found = descendants(shell.pid)
        for pid in (*found, shell.pid):
            os.kill(pid, signal.SIGKILL)
    assert descendants(shell.pid) == ()


def test_descendants_are_found_without_the_kernels_list_of_children_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without CONFIG_PROC_CHILDREN provides only the parent of each process."""
    monkeypatch.setattr(processes, "_children", processes._children_by_parent)
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 100 & wait' & sleep 100 & wait"], start_new_session=True) as shell:
        until(lambda: len(descendants(shell.pid)) == 3)
        first = descendants(shell.pid)[0]
        assert len(descendants(shell.pid, spare=first)) < 3
        os.killpg(shell.pid, signal.SIGKILL)


def test_a_process_is_the_same_only_with_its_start() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None and is_same(os.getpid(), ticks) and not is_same(os.getpid(), ticks + 1)
    assert not is_same(os.getpid(), 0)


def test_numbers_belong_to_a_boot_and_a_namespace() -> None:
    boot, namespace = pid_space()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert namespace.startswith("pid:[")


def test_a_process_that_is_switched_out_again_is_not_in_the_same_wait() -> None:
    before = switches(os.getpid())
    time.sleep(0.01)
    after = switches(os.getpid())
    assert before is not None and after is not None and after > before


def test_a_process_exists_until_it_is_reaped_and_no_pid_is_too_large() -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert is_there(process.pid) and is_there(1)
    process.kill()
    process.wait()
    assert not is_there(process.pid) and not is_there(10**30)


def test_the_work_of_a_process_is_that_of_its_threads_and_children_without_the_guards() -> None:
    """Read beside a training: a thread of the guard that computes and reads counts for nothing."""
    program = """
import sys, threading, time, subprocess
from resilience.base.processes import name_thread
def work():
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        open("/proc/self/maps").read()
    worked.set()
def guard():
    name_thread()
    work()
def run(target):
    thread = threading.Thread(target=target)
    thread.start()
    return thread
for line in sys.stdin:
    hold, worked = threading.Event(), threading.Event()
    if line == "child\\n":
        kept = subprocess.Popen([sys.executable, "-c", "open('/dev/zero').read(2**22); print(flush=True); input()"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        kept.stdout.readline()
    else:
        target = globals()[line.strip()]
        thread = run(lambda: (target(), hold.wait()))  # the counts of a thread that has ended are lost
        worked.wait()
    print("done", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        seen = []
        for told in ("", "guard", "work", "child"):
            if told:
                print(told, file=process.stdin, flush=True)
                assert process.stdout.readline() == "done\n"
            seen.append(processes.work_of(process.pid))
        process.kill()
    (_, read), (after_guard, read_by_guard), (after_work, read_by_work), (_, read_by_child) = seen
    assert after_guard < 0.2 and read_by_guard - read < 2**20, "it was the guard's"
    assert after_work > after_guard + 0.1 and read_by_work > read_by_guard + 2**18
    assert read_by_child >= read_by_work + 2**22
    assert processes.work_of(2**22 + 1) == (0.0, 0)
