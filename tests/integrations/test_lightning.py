"""The callback in the real Lightning: stops, resumes, signals, validation, two processes."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any

import pytest

from tests.integrations.launched import HERE, Launched, needs

pytestmark = needs("torch", "lightning")
FOREVER = "1000000"


def command(launched: Launched, steps: str = FOREVER, **trainer: Any) -> list[str]:
    words = [f"{key}={value}" for key, value in trainer.items()]
    return [sys.executable, str(HERE / "lightning_training.py"), str(launched.directory), steps, *words]


def checkpoints(launched: Launched) -> list[str]:
    return sorted(path.name for path in (launched.directory / "checkpoints").iterdir())


def test_a_stop_saves_and_the_next_attempt_does_no_batch_twice_and_leaves_none_out(launched: Launched) -> None:
    launched.launch(command(launched))
    launched.until_step(20, 1)
    launched.throw("kill", 'who = "bob"\n')
    assert launched.wait() == 75
    stop = launched.last(0, "stop")["step"]
    assert checkpoints(launched) == [f"resil-step={stop:08d}.ckpt"]
    launched.clear("kill")
    launched.launch(command(launched, str(stop + 5)))
    assert launched.wait() == 0
    steps = [entry["step"] for entry in launched.diary(0) if entry["event"] == "step"]
    assert steps == list(range(stop + 5))
    batches = [entry["batch"] for entry in launched.diary(0) if entry["event"] == "step"]
    assert batches == [step % 500 for step in steps]


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_sigterm_saves_and_stops_although_lightning_has_a_handler_of_its_own(launched: Launched) -> None:
    launched.launch(command(launched))
    launched.until_step(5, 1)
    os.kill(launched.last(0, "step")["pid"], signal.SIGTERM)
    assert launched.wait() == 75
    assert checkpoints(launched) == [f"resil-step={launched.last(0, 'stop')['step']:08d}.ckpt"]


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_labelled_save_continues_and_keeps_its_name_and_the_newest_plain_ones_stay(launched: Launched) -> None:
    launched.launch(command(launched))
    launched.until_step(5, 1)
    launched.throw("save", 'label = "before-drop"\n')
    launched.until(lambda: not (launched.run_dir / "switches" / "save").exists())
    for _ in range(3):
        launched.throw("save")
        launched.until(lambda: not (launched.run_dir / "switches" / "save").exists())
    launched.throw("kill")
    assert launched.wait() == 75
    names = checkpoints(launched)
    assert [name.startswith("resil-before-drop-step=") for name in names] == [True, False, False]
    assert names[-1] == f"resil-step={launched.last(0, 'stop')['step']:08d}.ckpt"


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_validation_is_left_when_a_stop_is_coming(launched: Launched) -> None:
    launched.launch(command(launched, limit_val_batches=1000, val_check_interval=3), VALIDATION_S="0.05")
    launched.until(lambda: launched.count(0, "validation") > 3)
    launched.throw("kill")
    assert launched.wait() == 75
    assert launched.count(0, "validation") < 500  # all of them would take 50 s
    assert checkpoints(launched) == [f"resil-step={launched.last(0, 'stop')['step']:08d}.ckpt"]


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_stop_does_not_wait_for_min_epochs_or_a_validation_but_for_all_accumulated_gradients(
    launched: Launched,
) -> None:
    launched.launch(command(launched, min_epochs=5, limit_val_batches=10, accumulate_grad_batches=4))
    launched.until_step(5, 1)
    launched.throw("kill")
    assert launched.wait() == 75
    assert launched.count(0, "validation") == 0
    assert launched.count(0, "step") == 4 * launched.last(0, "stop")["step"]
    assert launched.end()["step"] == launched.last(0, "stop")["step"]


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_nothing_is_trained_under_a_kill_switch(launched: Launched) -> None:
    launched.throw("kill")
    launched.launch(command(launched))
    assert launched.wait() == 75
    assert launched.count(0, "step") == 0


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a minute of processor time: set RESIL_SOAK=1")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_two_processes_of_lightnings_own_stop_at_one_step(launched: Launched, strategy: str) -> None:
    launched.launch(command(launched, devices=2, strategy=f'"{strategy}"'))
    launched.until_step(5, 2)
    os.kill(launched.last(1, "step")["pid"], signal.SIGUSR1)
    code = launched.wait()
    assert code == (75 if strategy == "ddp" else 1)  # spawn tells of 75 as an error
    stop = launched.last(0, "stop")["step"]
    assert launched.last(1, "stop")["step"] == stop
    assert checkpoints(launched) == [f"resil-step={stop:08d}.ckpt"]
    assert (launched.end()["exit_code"], launched.end()["stopped"]) == (75, True)


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_two_processes_of_lightnings_own_leave_together_when_a_kill_switch_is_there_before_them(
    launched: Launched,
) -> None:
    """Lightning kills its own process within 5 s once one that it has started has ended with anything but 0."""
    launched.throw("kill")
    launched.launch(command(launched, devices=2, strategy='"ddp"'))
    assert launched.wait() == 75, launched.output.read_text()
    assert launched.count(0, "step") == launched.count(1, "step") == 0
    end = launched.end()
    assert (end["exit_code"], end["stopped"], end["ranks"], end["well"]) == (75, True, 2, 2)


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_an_exception_is_no_stop_on_purpose(launched: Launched) -> None:
    launched.launch(command(launched, overfit_batches=3), FAIL_AT="7")
    assert launched.wait() == 1
    assert (launched.end()["exit_code"], launched.end()["stopped"]) == (1, False)


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_the_callback_can_be_pickled_before_fit() -> None:
    from resilience.integrations.lightning import ResilCallback

    callback = pickle.loads(pickle.dumps(ResilCallback("checkpoints", poll_s=1.0)))
    assert callback.guard is None and callback.exit_code == 0
