"""Asynchronous saves in each framework: a checkpoint is recorded once durable."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.checkpoints import Store
from tests.integrations.launched import HERE, Launched, needs
from tests.lab.disks import fill, small_disk

SAVE_S = 1.5
SOAK = (
    pytest.mark.soak,
    pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="minutes of processor time: set RESIL_SOAK=1"),
)
FORMS = [
    pytest.param("pytorch-thread", marks=(needs("torch"), *SOAK)),
    pytest.param("pytorch-process", marks=(needs("torch"), *SOAK)),
    pytest.param("lightning", marks=(needs("torch", "lightning"), *SOAK)),
    pytest.param("jax", marks=(needs("jax", "orbax.checkpoint"), *SOAK)),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as mounted:
        yield mounted


def newest_step(disk: Path) -> int:
    """Return the step of the newest checkpoint, as the next job finds it."""
    checkpoint = Store(disk / "checkpoints").latest()
    assert checkpoint is not None
    return int(checkpoint.step)


@pytest.mark.parametrize("form", FORMS)
def test_an_asynchronous_save_counts_once_durable(launched: Launched, disk: Path, form: str) -> None:
    command = [sys.executable, str(HERE / "async_training.py"), form, str(disk)]
    launched.launch(command, SAVE_S=str(SAVE_S), JAX_PLATFORMS="cpu")
    launched.until_step(5, 1)
    launched.throw("kill")
    assert launched.wait() == 75, launched.output.read_text()
    events = [event for event in launched.guard_events() if event["event"].startswith(("save", "end"))]
    assert [event["event"] for event in events] == ["save_begin", "save_staged", "save", "end"]
    _, staged, saved, end = events
    assert (end["exit_code"], end["stopped"]) == (75, True)
    assert newest_step(disk) == end["step"] == saved["step"]
    if form != "jax":
        assert saved["seconds"] > SAVE_S > staged["seconds"]

    launched.clear("kill")
    launched.launch(command, JAX_PLATFORMS="cpu")
    launched.until(lambda: launched.count(0, "begins") == 2)
    assert launched.last(0, "begins")["step"] == end["step"], "the next job goes on from it"
    fill(disk)
    launched.throw("kill")
    assert launched.wait() == 1, launched.output.read_text()
    failed, end = [event for event in launched.guard_events() if event["event"] in ("save_failed", "end")][-2:]
    assert (failed["event"], end["exit_code"], end["stopped"]) == ("save_failed", 1, False)
    assert failed["step"] == end["step"] > saved["step"]
    assert re.search(r"No space left on device|RESOURCE_EXHAUSTED", end["why"]), end
    assert newest_step(disk) == saved["step"], "what could not be written counts for nothing"
    assert f"the save of step {failed['step']} is not durable: " in launched.output.read_text()
