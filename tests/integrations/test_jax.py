"""The recipe for JAX, run on a CPU."""

from __future__ import annotations

import os
import signal
import sys

from tests.integrations.launched import HERE, Launched, needs

pytestmark = needs("jax")


def test_a_signal_saves_and_stops_and_the_next_attempt_continues_there(launched: Launched) -> None:
    command = [sys.executable, str(HERE / "jax_training.py"), str(launched.directory)]
    launched.launch([*command, "1000000"], JAX_PLATFORMS="cpu")
    launched.until_step(20, 1)
    os.kill(launched.last(0, "step")["pid"], signal.SIGTERM)
    assert launched.wait() == 75
    stop = launched.last(0, "stop")["step"]
    launched.launch([*command, str(stop + 5)], JAX_PLATFORMS="cpu")
    assert launched.wait() == 0
    steps = [entry["step"] for entry in launched.diary(0) if entry["event"] == "step"]
    assert steps == list(range(stop + 5))
