"""The beats file is TOML whatever a phase is called, and `step` is the slowest rank's."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from resilience.guard.mirror.beat import Pulse
from resilience.guard.mirror.beats_file import GONE, LEFT, RankBeat, compose, file_name, quote
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_step


def beat(pid: int, steps: int, phase: str = "train", end: str = "") -> RankBeat:
    pulse = Pulse(0.0)
    pulse.look((steps, 0, phase), 1700000000.25)
    return RankBeat(pid, pulse, end)


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


def test_status_reads_the_slowest_ranks_step(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "demo")
    directory.create("")
    text = compose(1, "n1", {rank: beat(rank, 70 - rank, 'step = 9\n"') for rank in range(16)}, 5.0)
    (directory.path / "beats" / file_name("12", "n1")).write_text(text)
    assert last_step(directory) == 55


def test_a_host_never_leads_out_of_the_folder() -> None:
    assert "/" not in file_name("12", "../../etc/passwd")
