"""The demo's training is exact: interrupted anywhere, it ends where it would have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints.directory import StoreDirectory
from resilience.demo import _training as training

SMALL = ["--steps", "6", "--save-every", "3"]


def train(
    directory: Path, *words: str, run_dir: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("RESIL_", "SLURM_"))}
    if run_dir is not None:
        for name in ("journal", "beats", "switches", "attempts"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        environ |= {"RESIL_RUN_DIR": str(run_dir), "RESIL_JOB_ID": "7", "RESIL_ATTEMPT": "1"}
        environ |= {"RESIL_GUARD__POLL_S": "0.05", "RESIL_GUARD__BEAT_S": "0.05"}
    argv = [sys.executable, training.__file__, str(directory), *SMALL, *words]
    return subprocess.run(argv, env={**environ, **variables}, capture_output=True, text=True, timeout=60)


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run_dir / "journal" / "7.0.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == name]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final loss of a training left alone."""
    directory = tmp_path_factory.mktemp("reference")
    assert train(directory, RESIL_GUARD="off").returncode == 0
    return (directory / "final-loss").read_text()


def test_a_crash_a_kill_and_a_leak_change_nothing_to_the_last_bit(tmp_path: Path, reference: str) -> None:
    run_dir = tmp_path / "run"
    crashed = train(tmp_path, "--faults", '{"1": ["crash", 2]}', run_dir=run_dir)
    assert crashed.returncode == 1 and "injected: CUDA error at step 2" in crashed.stderr
    # Paced: the save is committed, and the journal written, a moment later.
    killed = train(tmp_path, "--faults", '{"2": ["kill", 5]}', "--pace", "1.5", run_dir=run_dir, RESIL_ATTEMPT="2")
    assert killed.returncode == -9
    leaked = train(
        tmp_path, "--faults", '{"3": ["leak", 4]}', "--steps", "400", "--pace", "0.02", run_dir=run_dir,
        RESIL_ATTEMPT="3",
    )  # fmt: skip
    assert leaked.returncode == 75, leaked.stderr
    (stop,) = events(run_dir, "decision")
    assert (stop["triggers"], stop["stop"]) == (["host_memory"], True)
    assert stop["save"] or "the last save has just completed" in stop["reasons"][0]
    saved = events(run_dir, "save")[-1]["step"]
    whole, alone = ["--steps", str(stop["step"] + 2)], tmp_path / "alone"
    assert train(tmp_path, *whole, run_dir=run_dir, RESIL_ATTEMPT="4").returncode == 0
    assert train(alone, *whole, RESIL_GUARD="off").returncode == 0
    assert (tmp_path / "final-loss").read_text() == (alone / "final-loss").read_text() != reference
    assert [(event["attempt"], event["step"]) for event in events(run_dir, "resume")] == [
        (1, 0), (2, 0), (3, 3), (4, saved)
    ]  # fmt: skip
    assert (run_dir / "finished").exists()


@pytest.mark.parametrize("switch", ["kill", "stop.7"])
def test_it_does_not_begin_where_it_shall_stop(tmp_path: Path, switch: str) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "switches").mkdir(parents=True)
    (run_dir / "switches" / switch).touch()
    assert train(tmp_path, run_dir=run_dir).returncode == 75
    assert not (tmp_path / "final-loss").exists()


@pytest.mark.soak
def test_a_save_switch_makes_a_checkpoint_that_is_kept(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "switches").mkdir(parents=True)
    (run_dir / "switches" / "save").write_text('label = "best"\n')
    done = train(tmp_path, "--steps", "60", "--pace", "0.02", run_dir=run_dir)
    assert done.returncode == 0, done.stderr
    labels = [checkpoint.manifest().label for checkpoint in StoreDirectory(tmp_path / "checkpoints").checkpoints()]
    assert "best" in labels and not (run_dir / "switches" / "save").exists()


def test_as_a_program_it_needs_no_installation_and_takes_no_module_beside_it_for_another(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", training.__file__, str(tmp_path), *SMALL]
    done = subprocess.run(argv, cwd=tmp_path, env={"RESIL_GUARD": "off"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_reads_back_exactly(tmp_path: Path) -> None:
    model = training.new_model(5)
    training.save(tmp_path, 3, model)
    assert training.load(tmp_path) == (3, model)


def test_training_lowers_the_loss() -> None:
    text = training.read_text()
    characters = sorted(set(text))
    data = [characters.index(character) for character in text]
    model = training.new_model(len(characters))
    before = training.evaluate(model, data)
    for step in range(20):
        training.train_step(model, data, step)
    assert training.evaluate(model, data) < before
