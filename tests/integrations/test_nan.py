"""A loss that is NaN on one rank of two, over gloo: one step for both, and the next attempt knows on both."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.integrations.launched import HERE, Launched, needs

pytestmark = needs("torch")
RANKS = """
for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "$@" & pids+=" $!"; done
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
"""


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="minutes of processor time: set RESIL_SOAK=1")
def test_one_rank_of_two_has_the_nan_and_both_are_told(launched: Launched) -> None:
    training = [sys.executable, str(HERE / "nan_training.py"), str(launched.directory), "60", "35", "1"]
    launched.launch(["bash", "-c", RANKS, "ranks", *training])
    assert launched.wait() == 1
    assert launched.last(0, "stop") == launched.last(1, "stop")
    assert {launched.last(rank, "left")["exit_code"] for rank in (0, 1)} == {1}

    launched.launch(["bash", "-c", RANKS, "ranks", *training], SKIPS="1")
    assert launched.wait() == 0, launched.output.read_text()
    starts = [[one for one in launched.diary(rank) if one["event"] == "start"] for rank in (0, 1)]
    assert starts[0] == starts[1]
    first, second = starts[0]
    assert (first["step"], first["told"], first["skip"]) == (0, None, [])
    assert (second["step"], second["skip"]) == (30, [34, 35])
    assert second["told"] == [35, 1, 30, "rank 1: the loss is NaN, at step 35"]
    (stop,) = json.loads((launched.run_dir / "learned" / "stops.json").read_text())["stops"]
    assert stop["is_passed"] and (stop["step"], stop["times"], stop["world"]) == (35, 1, 2)
