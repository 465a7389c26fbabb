"""A step stores into memory that others can read and that leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.guard.heartbeat.beat import (
    GONE,
    LEFT,
    SIZE,
    Progress,
    RankBeat,
    SharedProgress,
    compose,
    file_name,
    quote,
    read_phase,
)
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_logs import last_step
from tests.lab.descriptors import count_descriptors


@pytest.fixture
def slot() -> Iterator[SharedProgress]:
    slot = SharedProgress()
    yield slot
    slot.close()


def test_another_process_reads_what_was_stored_without_asking(slot: SharedProgress) -> None:
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


def test_the_memory_has_no_name_anywhere(slot: SharedProgress) -> None:
    assert str(Path(f"/proc/self/fd/{slot.descriptor}").readlink()).endswith("(deleted)")
    assert not [path for path in Path("/dev/shm").iterdir() if "resil" in path.name]


def test_nobody_can_pull_the_memory_away_from_who_has_mapped_it(slot: SharedProgress) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(slot.descriptor, 0)


@pytest.mark.parametrize(
    ("phase", "shown"),
    [("train", "train"), ("", ""), ("überprüfen", "überprüfen"), ("x" * 100, "x" * 63), ("x" * 62 + "ü", "x" * 62)],
)
def test_a_phase_is_cut_between_characters(slot: SharedProgress, phase: str, shown: str) -> None:
    slot.set_phase("a longer one that must be gone afterwards, all of it, to the end")
    slot.set_phase(phase)
    assert slot.read() == (0, 0, shown)


def test_a_lone_surrogate_in_a_phase_does_not_raise(slot: SharedProgress) -> None:
    slot.set_phase("\udc80phase")
    assert slot.read()[2] == "?phase"


def test_the_training_may_go_on_storing_after_the_guard_was_closed() -> None:
    descriptors = count_descriptors()
    slot = SharedProgress()
    slot.close()
    slot.close()
    slot.words[0] = 5
    assert slot.read()[0] == 5
    del slot
    assert count_descriptors() <= descriptors


def test_a_forked_child_that_forgets_does_not_write_into_its_parents_memory(slot: SharedProgress) -> None:
    slot.words[0] = 7
    pid = os.fork()
    if pid == 0:
        slot.after_fork_in_child()
        slot.words[0] = 999
        slot.set_phase("child")
        os._exit(slot.read() != (999, 0, "child"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert slot.read() == (7, 0, "")


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


def test_progress_stands_still_when_the_rank_does() -> None:
    progress = Progress(100.0)
    progress.update((5, 0, "train"), 101.0)
    progress.update((5, 0, "train"), 190.0)
    assert (progress.steps, progress.phase, progress.advanced) == (5, "train", 101.0)
    progress.update((5, 1, "eval"), 191.0)
    assert progress.advanced == 191.0  # a poll in an evaluation is a sign of life, too


def test_an_empty_memory_has_an_empty_phase() -> None:
    with mmap.mmap(-1, SIZE) as memory:
        assert read_phase(memory) == ""


def beat(pid: int, steps: int, phase: str = "train", end: str = "") -> RankBeat:
    progress = Progress(0.0)
    progress.update((steps, 0, phase), 1700000000.25)
    return RankBeat(pid, progress, end)


def test_it_reads_as_the_reference_shows_it() -> None:
    text = compose(3, "n17", {1: beat(12, 41199, "save"), 0: beat(11, 41200)}, 1700000001.0)
    assert text == (
        'attempt = 3\nhost = "n17"\ntime = 1700000001.000\nstep = 41199\n'
        '[rank.0]\npid = 11\nstep = 41200\nadvanced = 1700000000.250\nphase = "train"\n'
        '[rank.1]\npid = 12\nstep = 41199\nadvanced = 1700000000.250\nphase = "save"\n'
    )


def test_a_rank_that_is_gone_and_one_that_left_are_told_apart() -> None:
    told = tomllib.loads(compose(1, "n1", {0: beat(1, 5, end=LEFT), 8: beat(2, 4, end=GONE)}, 0.0))
    assert told["rank"]["0"]["left"] is True and "gone" not in told["rank"]["0"]
    assert told["rank"]["8"]["gone"] is True
    assert told["step"] == 4


@given(st.text(), st.text())
def test_every_phase_and_host_is_valid_toml(phase: str, host: str) -> None:
    told = tomllib.loads(compose(1, host, {0: beat(1, 2, phase)}, 1.5))
    assert told["rank"]["0"]["phase"] == phase
    assert told["host"] == host


def test_a_name_from_a_strange_locale_is_shown_with_a_question_mark() -> None:
    assert quote("n\udc801") == '"n?1"'


def test_steps_are_news_for_a_while_after_the_first() -> None:
    progress = Progress(0.0)
    progress.update((900, 0, "start"), 1.0)  # resumed
    assert not progress.is_news(1.0, 10.0)
    progress.update((900, 1, "train"), 2.0)
    assert not progress.is_news(2.0, 10.0), "a phase is no step"
    progress.update((901, 1, "train"), 60.0)
    assert progress.is_news(60.0, 10.0)
    progress.update((901, 1, "train"), 61.0)
    assert not progress.is_news(61.0, 10.0)
    progress.update((902, 1, "train"), 69.0)
    assert progress.is_news(69.0, 10.0)
    progress.update((903, 1, "train"), 70.5)
    assert not progress.is_news(70.5, 10.0)


def test_status_reads_the_slowest_ranks_step(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "demo")
    directory.create("")
    text = compose(1, "n1", {rank: beat(rank, 70 - rank, 'step = 9\n"') for rank in range(16)}, 5.0)
    (directory.path / "beats" / file_name("12", "n1")).write_text(text)
    assert last_step(directory) == 55


def test_a_host_never_leads_out_of_the_directory() -> None:
    assert "/" not in file_name("12", "../../etc/passwd")
