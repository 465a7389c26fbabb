"""A step stores into memory that others can read and that leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.guard.heartbeat.beat import SIZE, Pulse, SharedProgress, read_phase


def test_another_process_reads_what_was_stored_without_asking() -> None:
    slot = SharedProgress()
    slot.words[0] = 41200
    slot.set_phase("eval")
    program = (
        "import mmap, sys; from resilience.guard.heartbeat.beat import read_phase\n"
        "m = mmap.mmap(int(sys.argv[1]), 4096, prot=1)\n"
        "print(memoryview(m).cast('Q')[0], read_phase(m))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(slot.descriptor)],
        pass_fds=[slot.descriptor], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "41200 eval\n"
    slot.close()


def test_the_memory_has_no_name_anywhere() -> None:
    slot = SharedProgress()
    assert str(Path(f"/proc/self/fd/{slot.descriptor}").readlink()).endswith("(deleted)")
    assert not [path for path in Path("/dev/shm").iterdir() if "resil" in path.name]
    slot.close()


def test_nobody_can_pull_the_memory_away_from_who_has_mapped_it() -> None:
    slot = SharedProgress()
    with pytest.raises(PermissionError):
        os.ftruncate(slot.descriptor, 0)
    slot.close()


@pytest.mark.parametrize(
    ("phase", "shown"),
    [("train", "train"), ("", ""), ("überprüfen", "überprüfen"), ("x" * 100, "x" * 63), ("x" * 62 + "ü", "x" * 62)],
)
def test_a_phase_is_cut_between_characters(phase: str, shown: str) -> None:
    slot = SharedProgress()
    slot.set_phase("a longer one that must be gone afterwards, all of it, to the end")
    slot.set_phase(phase)
    assert slot.read() == (0, 0, shown)
    slot.close()


def test_a_lone_surrogate_in_a_phase_does_not_raise() -> None:
    slot = SharedProgress()
    slot.set_phase("\udc80phase")
    assert slot.read()[2] == "?phase"
    slot.close()


def test_the_training_may_go_on_storing_after_the_guard_was_closed() -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    slot = SharedProgress()
    slot.close()
    slot.close()
    slot.words[0] = 5
    assert slot.read()[0] == 5
    del slot
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_forked_child_that_forgets_does_not_write_into_its_parents_memory() -> None:
    slot = SharedProgress()
    slot.words[0] = 7
    pid = os.fork()
    if pid == 0:
        slot.after_fork_in_child()
        slot.words[0] = 999
        slot.set_phase("child")
        os._exit(slot.read() != (999, 0, "child"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert slot.read() == (7, 0, "")
    slot.close()


def test_without_memfd_the_slot_works_for_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    slot = SharedProgress()
    slot.words[0] = 3
    assert (slot.descriptor, slot.read()[0]) == (-1, 3)
    slot.close()


def test_storing_a_step_makes_no_system_call(tmp_path: Path) -> None:
    program = (
        "import sys; from resilience.guard.heartbeat.beat import SharedProgress\n"
        "words = SharedProgress().words; n = int(sys.argv[1])\n"
        "for i in range(n): words[0] = i"
    )

    def calls(steps: int) -> int:
        log = tmp_path / f"{steps}.log"
        subprocess.run(["strace", "-f", "-o", log, sys.executable, "-c", program, str(steps)], check=True)
        return sum(1 for line in log.read_text().splitlines() if "(" in line)

    if not Path("/usr/bin/strace").exists():
        pytest.skip("needs strace (apt-get install strace)")
    assert abs(calls(1_000_000) - calls(0)) <= 20  # how an interpreter starts and ends differs by a few


def test_a_pulse_stands_still_when_the_rank_does() -> None:
    pulse = Pulse(100.0)
    pulse.look((5, 0, "train"), 101.0)
    pulse.look((5, 0, "train"), 190.0)
    assert (pulse.steps, pulse.phase, pulse.advanced) == (5, "train", 101.0)
    pulse.look((5, 1, "eval"), 191.0)
    assert pulse.advanced == 191.0  # a poll in an evaluation is a sign of life, too


def test_an_empty_memory_has_an_empty_phase() -> None:
    with mmap.mmap(-1, SIZE) as memory:
        assert read_phase(memory) == ""
