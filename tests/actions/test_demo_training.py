"""The demo's training is exact: interrupted anywhere, it ends where it would have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience.actions import _demo_training as training

SMALL = ["--steps", "6", "--save-every", "3"]


def train(folder: Path, *words: str, run_dir: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM_"))}
    if run_dir is not None:
        for name in ("journal", "beats", "switches"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        environ |= {"RESIL_RUN_DIR": str(run_dir), "RESIL_JOB_ID": "7", "RESIL_ATTEMPT": "1"}
    argv = [sys.executable, training.__file__, str(folder), *SMALL, *words]
    return subprocess.run(argv, env={**environ, **variables}, capture_output=True, text=True, timeout=60)


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "journal" / "7.0.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final loss of a training left alone."""
    folder = tmp_path_factory.mktemp("reference")
    assert train(folder).returncode == 0
    return (folder / "final-loss").read_text()


def test_a_crash_a_kill_and_a_stop_change_nothing_to_the_last_bit(tmp_path: Path, reference: str) -> None:
    run_dir = tmp_path / "run"
    crashed = train(tmp_path, "--faults", '{"1": ["crash", 2]}', run_dir=run_dir)
    assert crashed.returncode == 1 and "injected: CUDA error at step 2" in crashed.stderr
    killed = train(tmp_path, "--faults", '{"2": ["kill", 4]}', run_dir=run_dir, RESIL_ATTEMPT="2")
    assert killed.returncode == -9
    (run_dir / "switches" / "stop.7").touch()
    stopped = train(tmp_path, run_dir=run_dir, RESIL_ATTEMPT="3")
    assert stopped.returncode == training.STOPPED_ON_PURPOSE and "the time is nearly over; saved" in stopped.stdout
    (run_dir / "switches" / "stop.7").unlink()
    assert train(tmp_path, run_dir=run_dir, RESIL_ATTEMPT="4").returncode == 0
    assert (tmp_path / "final-loss").read_text() == reference
    assert [(event["attempt"], event["step"]) for event in events(run_dir) if event["event"] == "resume"] == [
        (1, 0), (2, 0), (3, 3), (4, 4)
    ]  # fmt: skip
    assert (run_dir / "beats").joinpath(f"7.{os.uname().nodename}").read_text().startswith("step = 6\nattempt = 4\n")


def test_a_kill_switch_stops_it_after_a_save(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "switches").mkdir(parents=True)
    (run_dir / "switches" / "kill").touch()
    done = train(tmp_path, run_dir=run_dir)
    assert (done.returncode, "kill switch; saved" in done.stdout) == (75, True)
    assert (tmp_path / "step-000001.json").exists()


def test_without_a_run_directory_it_is_a_plain_training(tmp_path: Path) -> None:
    reporter = training.Reporter.__new__(training.Reporter)
    reporter.run_dir = None
    reporter.event("x")
    reporter.beat(1)
    assert reporter.must_stop() == ""


def test_a_checkpoint_reads_back_exactly_and_old_ones_go(tmp_path: Path) -> None:
    model = training.new_model(5)
    for step in (1, 2, 3):
        assert training.save(tmp_path, step, model) >= 0.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002.json", "step-000003.json"]
    assert training.load(tmp_path) == (3, model)
    assert training.load(tmp_path / "nothing") is None


def test_training_lowers_the_loss() -> None:
    text = training.read_text()
    characters = sorted(set(text))
    data = [characters.index(character) for character in text]
    model = training.new_model(len(characters))
    before = training.evaluate(model, data)
    for step in range(20):
        training.train_step(model, data, step)
    assert training.evaluate(model, data) < before
