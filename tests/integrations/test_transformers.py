"""The callback in the real Trainer of transformers: stops, resumes, labels, evaluation, two processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.launched import HERE, TORCHRUN, Launched, needs

pytestmark = needs("torch", "transformers", "accelerate")
FOREVER = "1000000"
TRAINING = str(HERE / "transformers_training.py")


def words(launched: Launched, steps: str = FOREVER, **arguments: Any) -> list[str]:
    return [TRAINING, str(launched.directory), steps, *(f"{key}={value}" for key, value in arguments.items())]


def checkpoints(launched: Launched) -> list[str]:
    return sorted(path.name for path in (launched.directory / "checkpoints").iterdir())


@pytest.mark.soak
def test_a_stop_saves_and_the_next_attempt_does_no_batch_twice_and_leaves_none_out(launched: Launched) -> None:
    launched.launch([sys.executable, *words(launched)])
    launched.until_step(20, 1)
    launched.throw("kill", 'who = "bob"\n')
    assert launched.wait() == 75
    stop = launched.last(0, "stop")["step"]
    assert checkpoints(launched) == [f"checkpoint-{stop}"]

    launched.launch([sys.executable, *words(launched)])
    assert launched.wait() == 75
    assert launched.diary(0)[-1]["event"] == "not_started"

    launched.clear("kill")
    launched.launch([sys.executable, *words(launched, str(stop + 5))])
    assert launched.wait() == 0
    first = [entry["first"] for entry in launched.diary(0) if entry["event"] == "step"]
    assert len(first) == len(set(first)) == stop + 5  # all batches differ
    assert launched.end()["step"] == stop + 5


def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path) -> None:
    from resilience.integrations.transformers import newest_checkpoint

    assert newest_checkpoint(tmp_path / "none") is None
    assert newest_checkpoint(tmp_path) is None
    for step, state in ((900, "{}"), (1000, "{}"), (1100, ""), (1200, '{"epoch": 0.0'), (1300, None), (1400, "{}")):
        directory = tmp_path / f"checkpoint-{step}{'-copy' if step == 1400 else ''}"
        directory.mkdir()
        if state is not None:
            (directory / "trainer_state.json").write_text(state)
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1000")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        newest_checkpoint(tmp_path / "file")


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_labelled_save_is_kept_although_the_trainer_removes_old_checkpoints(launched: Launched) -> None:
    launched.launch([sys.executable, *words(launched, save_total_limit=1)])
    launched.until_step(5, 1)
    for text in ('label = "before-drop"\n', "", ""):
        launched.throw("save", text)
        launched.until(lambda: not (launched.run_dir / "switches" / "save").exists())
    launched.throw("kill")
    assert launched.wait() == 75
    kept, plain = sorted(checkpoints(launched), key=lambda name: not name.startswith("before-drop-"))
    assert plain == f"checkpoint-{launched.last(0, 'stop')['step']}"
    assert (launched.directory / "checkpoints" / kept / "trainer_state.json").is_file()


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_stop_does_not_wait_for_an_evaluation_and_saves_once(launched: Launched) -> None:
    arguments: dict[str, Any] = {"eval_strategy": '"steps"', "eval_steps": 1000, "save_strategy": '"epoch"'}
    launched.launch([sys.executable, *words(launched, **arguments)])
    launched.until_step(5, 1)
    os.kill(launched.last(0, "step")["pid"], signal.SIGTERM)
    assert launched.wait() == 75
    assert launched.count(0, "evaluation") == 0
    events = [entry["event"] for entry in launched.guard_events()]
    assert events.count("save_begin") == events.count("save") == 1


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_the_trainers_own_saves_are_measured_without_the_evaluation_before_them(launched: Launched) -> None:
    arguments: dict[str, Any] = {
        "eval_strategy": '"steps"',
        "eval_steps": 10,
        "save_strategy": '"steps"',
        "save_steps": 10,
    }
    arguments |= {"per_device_eval_batch_size": 4000}
    launched.launch([sys.executable, *words(launched, "20", **arguments)], EVALUATION_S="2")
    assert launched.wait() == 0
    saves = [entry["seconds"] for entry in launched.guard_events() if entry["event"] == "save"]
    assert len(saves) == 2
    assert all(seconds < 1.9 for seconds in saves)


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_accumulated_gradients_make_one_step(launched: Launched) -> None:
    launched.launch([sys.executable, *words(launched, gradient_accumulation_steps=4)])
    launched.until_step(20, 1)
    launched.throw("kill")
    assert launched.wait() == 75
    stop = launched.last(0, "stop")["step"]
    assert launched.last(0, "step")["step"] == 4 * stop
    assert launched.end()["step"] == stop


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_loss_that_is_logged_as_no_number_stops_the_training(launched: Launched) -> None:
    arguments: dict[str, Any] = {"learning_rate": "1e30", "lr_scheduler_type": '"constant"', "max_grad_norm": 0}
    arguments |= {"logging_nan_inf_filter": "false", "optim": '"sgd"', "logging_steps": 1}
    launched.launch([sys.executable, *words(launched, "2000", **arguments)])
    assert launched.wait() == 1  # an error, not a stop on purpose
    assert launched.last(0, "stop")["step"] < 2000


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_under_torchrun_a_signal_to_one_worker_stops_both_at_one_step(launched: Launched) -> None:
    launched.launch([*TORCHRUN, "--nproc-per-node=2", *words(launched)])
    launched.until_step(5, 2)
    os.kill(launched.last(1, "step")["pid"], signal.SIGUSR1)
    assert launched.wait() == 1
    stop = launched.last(0, "stop")
    assert launched.last(1, "stop")["step"] == stop["step"]
    assert checkpoints(launched) == [f"checkpoint-{stop['step']}"]
    assert (launched.end()["exit_code"], launched.end()["stopped"]) == (75, True)
