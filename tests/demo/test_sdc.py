"""`resil demo --sdc`: three corruptions are found, named and survived with the loss of a training without."""

from __future__ import annotations

import os
from pathlib import Path

from resilience.demo.sdc import ODD_RANK, play_sdc
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from tests.lab.fakes import make_system


def test_three_corruptions_are_found_named_and_survived(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "WORLD_SIZE": "64", "SLURM_JOB_ID": "7", "RESIL_GUARD": "off"}
    system = make_system(tmp_path, environ, clock=SystemClock(), runner=ProcessRunner())
    told: list[str] = []
    result = play_sdc(system, directory=tmp_path / "demo", say=told.append)
    file, gradient, replica = result.corruptions
    assert file.injected.startswith("bit 0 of byte ") and file.injected.endswith(" in step-00000060/model.json")
    assert file.named == "step-00000060/model.json" and file.survived_by.endswith("step 40")
    assert gradient.named == "the gradient of hidden weight, step 55"
    assert replica.named.startswith(f"rank {ODD_RANK} on ") and replica.named.endswith("step 50")
    assert replica.survived_by.endswith("step 40")
    assert result.is_survived and [len(one.losses) for one in result.corruptions] == [1, 1, 3]
    assert sum("found by" in line for line in told) == 3
