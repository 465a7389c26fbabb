"""`resil run` under the real torchrun with two gloo ranks: one attempt for a launch, and the rank that failed first."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# Looked for, not imported: every process of pytest collects this file.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
TRAINING = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, 6):
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        print("step", step, flush=True)
    if step == 3 and sys.argv[1] == str(dist.get_rank()):
        raise ValueError("this rank is broken")
    if step == 3 and sys.argv[1] != "none":
        time.sleep(100)  # else its next all_reduce fails, and it may be the first to exit
dist.destroy_process_group()
"""


@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="torch is loaded six times: RESIL_SOAK=1")
def test_each_launch_of_torchrun_is_an_attempt_that_ends_as_its_first_failing_rank(tmp_path: Path) -> None:
    run = tmp_path / "gpt"
    (run / "switches").mkdir(parents=True)
    (run / "run.toml").write_text('[run]\nname = "gpt"\n[scheduler]\nname = "local"\n')
    (tmp_path / "train.py").write_text(TRAINING)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("RESIL_", "SLURM"))}
    environ |= {
        "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1",
        "RESIL_RUN": "gpt", "RESIL_RUN_DIR": str(run), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1",
    }  # fmt: skip

    def launch(broken: str) -> int:
        python = sys.executable
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
        words = [*torchrun, python, "-m", "resilience", "run", "--", python, "train.py", broken]
        return subprocess.run(words, env=environ, cwd=tmp_path, timeout=200).returncode

    def end(number: int) -> dict[str, object]:
        return tomllib.loads((run / "attempts" / f"{number:04d}.end").read_text())

    assert launch("none") == 0
    assert (end(1)["end"], end(1)["exit_code"]) == ("exited", 0)
    assert launch("1") == 1
    assert (end(2)["end"], end(2)["exit_code"], end(2)["burnt"]) == ("exited", 1, 1)
    assert "rank 1 on " in str(end(2)["why"])
    assert "ValueError: this rank is broken" in (run / "logs" / "gpt-7.rank1.out").read_text()
    assert sorted(path.name for path in (run / "attempts").glob("????")) == ["0001", "0002"]
