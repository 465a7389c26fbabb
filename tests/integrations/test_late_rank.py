"""A launcher starts its ranks seconds apart: whoever comes late hears the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integrations.launched import Launched

RANK = """
import sys
from resilience.guard import TrainingGuard
with TrainingGuard.from_env(join_timeout_s=30) as guard:
    print(guard.should_stop_early(), flush=True)
sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize("mirror", ["thread", "process"])
def test_a_rank_that_comes_after_rank_0_has_left_the_block_hears_of_the_kill_switch(
    launched: Launched, mirror: str
) -> None:
    launched.throw("kill")
    ranks = []
    for rank in ("0", "1"):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        environment = launched.environment(RESIL_GUARD__MIRROR=mirror, **variables)
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE, text=True))
        if rank == "0":
            assert ranks[0].stdout is not None
            assert ranks[0].stdout.readline() == "True\n"  # and now it leaves
            launched.until(lambda: (launched.run_dir / "journal" / "7.0.jsonl").exists())
            launched.until(lambda: any(entry["event"] == "decision" for entry in launched.guard_events()))
    try:
        assert ranks[1].communicate(timeout=100)[0] == "True\n"
        assert [process.wait(100) for process in ranks] == [75, 75]
        assert (launched.end()["stopped"], launched.end()["well"]) == (True, 2)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
