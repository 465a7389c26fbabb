"""A finished run is not trained again; what only looks like it, or cannot be looked at, is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.guard.decision import OBEYED
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.triggers.finished import FinishedRun
from tests.guard.guards import make_guard
from tests.system.people import acting_as, needs_root, open_the_way


@pytest.fixture
def trigger(run: Path, said: list[str]) -> FinishedRun:
    place = RankInfo(run_dir=str(run))
    return FinishedRun(place, Recorder(place, said.append))


def test_a_finished_run_ends_without_a_save_and_with_0(run: Path, trigger: FinishedRun) -> None:
    (run / "finished").write_text("attempt = 7\n")
    request = trigger.poll()
    assert request is not None
    assert (request.save, request.stop, request.exit_code) == (False, True, 0)
    assert request.why == "the run is already finished (to train further: resil clear demo --finished)"
    trigger.done(OBEYED)
    assert trigger.poll() is None


def test_it_looks_at_the_start_only(run: Path, trigger: FinishedRun) -> None:
    """Later it would see what this very training writes when it is done."""
    assert trigger.poll() is None
    (run / "finished").touch()
    assert trigger.poll() is None


@pytest.mark.parametrize(
    ("kind", "word"), [("fifo", "a FIFO"), ("directory", "a directory"), ("link", "a symbolic link")]
)
def test_what_is_no_regular_file_is_named_and_does_not_count(
    run: Path, trigger: FinishedRun, said: list[str], kind: str, word: str
) -> None:
    path = run / "finished"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/nowhere")
    assert trigger.poll() is None
    assert len(said) == 1 and f"is {word}, not a regular file" in said[0]


@needs_root
def test_a_run_that_cannot_be_probed_is_trained_on(run: Path, trigger: FinishedRun, said: list[str]) -> None:
    open_the_way(run / "x")
    (run / "finished").touch()
    run.chmod(0o700)
    with acting_as(65532):
        assert trigger.poll() is None
    assert len(said) == 1 and "cannot check whether the run is finished" in said[0]


def test_a_training_of_a_finished_run_does_not_start(run: Path) -> None:
    (run / "finished").touch()
    with make_guard(run) as guard:
        assert guard.should_stop_early()
    assert guard.exit_code == 0
