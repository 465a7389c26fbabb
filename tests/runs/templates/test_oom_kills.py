"""The batch shell records how many processes of its job the kernel killed for memory: the witness for exit code 137."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from resilience.attempts.classify import classify
from resilience.attempts.failure import Confidence, FailureClass
from resilience.attempts.ledger import evidence_of
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from tests.guard.memory.memory_cgroups import MIB, RECORDED, Machine, a_real_cgroup
from tests.runs.templates.batch import Batch

SHELL = Path(__file__).parents[3] / "slurm_templates" / "_attempt.bash"


def counted(root: Path, cgroup: str, job: int = 12) -> str:
    """Return what the function of the batch shell finds below a pretended /sys/fs/cgroup."""
    (root / "own").write_text(cgroup)
    script = (
        f'source <(sed -n "/^resil_oom_kills() /,/^}}/p" {SHELL}); RESIL_JOB_ID={job} resil_cgroups={root}; '
        'resil_oom_kills "$1"; echo "$REPLY"'
    )
    done = subprocess.run(
        ["bash", "-u", "-c", script, "bash", root / "own"], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_version_2_counts_all_steps_in_the_cgroup_of_the_job(tmp_path: Path) -> None:
    job = tmp_path / "system.slice/slurmstepd.scope/job_12"
    (job / "step_0/user/task_0").mkdir(parents=True)
    for directory, kills in (
        (job, 3),
        (job / "step_0", 2),
    ):  # the kernel has added those of the step to those of the job
        (directory / "memory.events").write_text(f"low 0\nhigh 0\nmax 61\noom 3\noom_kill {kills}\noom_group_kill 0\n")
    own = (RECORDED / "v2_cgroup.txt").read_text()
    assert counted(tmp_path, own) == "3"
    assert counted(tmp_path, own, job=1) == "", "job 1 is not job 12"


def test_version_1_counts_in_each_cgroup_its_own(tmp_path: Path) -> None:
    job = tmp_path / "memory/slurm/uid_1000/job_12"
    for name, kills in (("", 0), ("step_0", 0), ("step_0/task_0", 2), ("step_batch", 0), ("step_batch/task_0", 1)):
        (job / name).mkdir(parents=True, exist_ok=True)
        text = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        (job / name / "memory.oom_control").write_text(text)
    assert counted(tmp_path, (RECORDED / "v1_cgroup.txt").read_text()) == "3"


@pytest.mark.parametrize("own", ["0::/user.slice/session-3.scope\n", "4:memory:/\n0::/\n", "", "junk\n"])
def test_without_a_cgroup_of_the_job_the_number_is_unknown(tmp_path: Path, own: str) -> None:
    assert counted(tmp_path, own) == ""


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n", "oom_kill 99999999999999999999\n"])
def test_a_counter_that_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    job = Machine(tmp_path).cgroup("/system.slice/slurmstepd.scope/job_12", version=2, used=0, limit=None)
    (job / "memory.events").write_text(text)
    assert counted(tmp_path, (RECORDED / "v2_cgroup.txt").read_text()) == ""


def test_a_killed_training_is_a_lack_of_memory_and_one_that_was_killed_otherwise_is_not(batch: Batch) -> None:
    hungry = f"{sys.executable} -c 'x = b\"x\" * (256 * 2**20)'"
    with a_real_cgroup(64 * MIB) as cgroup:
        enter = (f"echo $$ >{cgroup.task}/cgroup.procs",)
        assert batch.run(hungry, job=12, setup=enter).wait() == 137
        assert batch.run("sh -c 'kill -9 $$'", job=12, setup=enter).wait() == 137
    first, second = read_attempts(RunDirectory(batch.run_dir))
    assert (first.oom_kills, second.oom_kills) == (1, 0), "the kills of an earlier attempt in this cgroup do not count"
    why = [classify(evidence_of(RunDirectory(batch.run_dir), one)) for one in (first, second)]
    assert [(one.failure, one.confidence) for one in why] == [
        (FailureClass.HOST_OOM, Confidence.CERTAIN),
        (FailureClass.KILLED, Confidence.GUESS),
    ]
    assert "killed 1 of its processes for memory, says the job's cgroup" in why[0].reason
    assert why[0].advice
