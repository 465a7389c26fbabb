"""A launcher starts its ranks seconds apart: a late rank gets the same decision."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.integrations.launched import Launched

JOIN_S = 30
RANK = f"""
import sys
from resilience.guard import TrainingGuard
with TrainingGuard.from_env(join_timeout_s={JOIN_S}) as guard:
    print(guard.should_stop_early(), flush=True)
    if not guard.decided:
        guard.finished()
sys.exit(guard.exit_code)
"""


def start(launched: Launched, rank: int, mirror: str) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment = launched.environment(RESIL_GUARD__MIRROR=mirror, **place)
    return subprocess.Popen([sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("mirror", ["thread", "process"])
@pytest.mark.parametrize("switch", ["kill", ""])
def test_a_rank_that_joins_after_rank_0_has_left_the_block_gets_the_same_decision(
    launched: Launched, mirror: str, switch: str
) -> None:
    """That of a kill switch, or of none: then there is nothing left to do, and a launcher that ends all a minute after
    the first one (`srun --wait=60`) would call it a crash."""
    if switch:
        launched.throw(switch)
    answer, code = (True, 75) if switch else (False, 0)
    ranks = [start(launched, 0, mirror)]
    try:
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline() == f"{answer}\n"  # and now it exits
        launched.until(lambda: (launched.run_dir / "journal" / "7.0.jsonl").exists())
        said = "decision" if switch else "end"
        launched.until(lambda: any(entry["event"] == said for entry in launched.guard_events()))
        began = time.monotonic()
        ranks.append(start(launched, 1, mirror))
        assert ranks[1].communicate(timeout=100)[0] == f"{answer}\n"
        assert [process.wait(100) for process in ranks] == [code, code]
        assert time.monotonic() - began < JOIN_S, "rank 1 has waited in vain"
        assert launched.end()["stopped"] is answer
        assert not switch or launched.end()["well"] == 2
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
