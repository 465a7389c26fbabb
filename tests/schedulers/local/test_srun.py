"""What the stand-in for srun understands."""

from __future__ import annotations

import pytest

from resilience.schedulers._local.srun import Step, parse_srun, task_variables


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["python", "-n", "3"], Step(("python", "-n", "3"), 2)),
        (["-n", "4", "cmd"], Step(("cmd",), 4)),
        (["-n4", "cmd"], Step(("cmd",), 4)),
        (["--ntasks=1", "--", "cmd", "--x"], Step(("cmd", "--x"), 1)),
        (["-ul", "-K1", "--cpu-bind=none", "--mpi", "pmix", "cmd"], Step(("cmd",), 2)),
        (["--kill-on-bad-exit=1", "cmd"], Step(("cmd",), 2, True)),
        (["-c", "8", "--gres=gpu:1", "-N1", "--exact", "cmd"], Step(("cmd",), 2)),
    ],
)
def test_steps(words: list[str], step: Step) -> None:
    found = parse_srun(words, {"SLURM_NTASKS": "2"})
    assert isinstance(found, Step)
    assert (found.command, found.ntasks) == (step.command, step.ntasks)


def test_kill_on_bad_exit() -> None:
    for words, kill in ((["-K", "x"], True), (["--kill-on-bad-exit=0", "x"], False), (["x"], False)):
        found = parse_srun(words, {})
        assert isinstance(found, Step) and found.kill_on_bad_exit is kill


@pytest.mark.parametrize("words", [[], ["-n", "2"], ["-N", "2", "cmd"], ["-n", "zero", "cmd"]])
def test_what_cannot_be_run_is_said(words: list[str]) -> None:
    assert isinstance(parse_srun(words, {}), str)


def test_each_task_knows_its_rank() -> None:
    seen = task_variables(1, 2, 5, {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0"})
    names = ("PROCID", "LOCALID", "NTASKS", "STEP_ID", "JOB_ID")
    assert [seen[f"SLURM_{name}"] for name in names] == ["1", "1", "2", "5", "9"]
