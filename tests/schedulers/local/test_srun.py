"""What the stand-in for srun understands."""

from __future__ import annotations

import pytest

from resilience.errors import UsageError
from resilience.schedulers._local.shim import Step, parse_srun, task_variables


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["python", "-n", "3"], Step(("python", "-n", "3"), 2)),
        (["-n", "4", "cmd"], Step(("cmd",), 4)),
        (["-n4", "cmd"], Step(("cmd",), 4)),
        (["--ntasks=1", "--", "cmd", "--x"], Step(("cmd", "--x"), 1)),
        (["-ul", "-K1", "--cpu-bind=none", "--mpi", "pmix", "cmd"], Step(("cmd",), 2, True)),
        (["--kill-on-bad-exit=1", "cmd"], Step(("cmd",), 2, True)),
        (["-K", "cmd"], Step(("cmd",), 2, True)),
        (["--kill-on-bad-exit=0", "cmd"], Step(("cmd",), 2)),
        (["-c", "8", "--gres=gpu:1", "-N1", "--exact", "cmd"], Step(("cmd",), 2)),
    ],
)
def test_steps(words: list[str], step: Step) -> None:
    assert parse_srun(words, {"SLURM_NTASKS": "2"}) == step


@pytest.mark.parametrize("words", [[], ["-n", "2"], ["-N", "2", "cmd"], ["-n", "zero", "cmd"], ["-n"]])
def test_a_step_that_cannot_run_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_srun(words, {})


def test_each_task_knows_its_rank() -> None:
    seen = task_variables(1, 2, 5, {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0"})
    names = ("PROCID", "LOCALID", "NTASKS", "STEP_ID", "JOB_ID")
    assert [seen[f"SLURM_{name}"] for name in names] == ["1", "1", "2", "5", "9"]
