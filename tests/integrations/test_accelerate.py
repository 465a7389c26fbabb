"""The guard in a loop with the real Accelerate, two processes under `accelerate launch`."""

from __future__ import annotations

import os
import signal

import pytest

from resilience.checkpoints.directory import StoreDirectory
from tests.integrations.launched import ACCELERATE, HERE, Launched, needs

pytestmark = needs("torch", "accelerate")


def command(launched: Launched, steps: str) -> list[str]:
    script = str(HERE / "accelerate_training.py")
    return [*ACCELERATE, "--num_processes=2", script, str(launched.directory), steps]


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_a_signal_to_one_process_stops_both_at_one_step_and_the_next_continues_there(
    launched: Launched,
) -> None:
    launched.launch(command(launched, "1000000"))
    launched.until_step(20, 2)
    os.kill(launched.last(1, "step")["pid"], signal.SIGUSR1)
    assert launched.wait() == 1  # the launcher's own code
    stop = launched.last(0, "stop")["step"]
    assert launched.last(1, "stop")["step"] == stop
    assert [one.step for one in StoreDirectory(str(launched.directory / "checkpoints")).checkpoints()] == [stop]
    assert (launched.end()["exit_code"], launched.end()["stopped"]) == (75, True)

    launched.launch(command(launched, str(stop + 5)))
    assert launched.wait() == 0
    batches = sorted(entry["batch"] for rank in (0, 1) for entry in launched.diary(rank) if entry["event"] == "step")
    assert batches == list(range(2 * (stop + 5)))  # each once, none left out


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half a minute of a framework's own start: set RESIL_SOAK=1")
def test_nothing_is_trained_under_a_kill_switch(launched: Launched) -> None:
    launched.throw("kill")
    launched.launch(command(launched, "1000000"))
    assert launched.wait() == 1
    assert not launched.diary(0)
    assert (launched.end()["exit_code"], launched.end()["stopped"]) == (75, True)
