"""What this product believes about sacct, as claims that a real slurmdbd confirms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.slurm import accounting
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until


@pytest.fixture(scope="module")
def accounted() -> Iterator[Cluster]:
    """A small cluster with a database of its own."""
    if reasons := Cluster.requirements(dbd=True):
        pytest.skip(f"no SLURM accounting: {'; '.join(reasons)}; to get it: {accounting.HOW_TO_GET}")
    with Cluster(nodes=1, dbd=True) as cluster:
        yield cluster


def sacct(cluster: Cluster, job: str, fields: str, *options: str) -> list[str]:
    """Return a job's own record; wait for it, because slurmctld sends records every few seconds."""
    argv = ["sacct", "-P", "-n", "-X", "-j", job, "-o", fields, *options]

    def lines() -> list[str]:
        return cluster.run(argv, cluster.users[0], check=True).stdout.splitlines()

    until(lambda: bool(lines()) and "RUNNING" not in "".join(lines()), f"the record of job {job}", every_s=0.2)
    return lines()


def test_sacct_loses_exit_codes_from_128_on_and_scontrol_does_not(accounted: Cluster) -> None:
    """Seen in SLURM 20.11 to 24.11; 26.05 tells the truth."""
    jobs = {code: accounted.sbatch(f"#!/bin/bash\nexit {code}\n") for code in (3, 130, 255)}
    for code, job in jobs.items():
        accounted.wait_for(job, "FAILED")
        assert f"ExitCode={code}:0" in accounted.run(["scontrol", "show", "job", job]).stdout.split()
        assert sacct(accounted, job, "ExitCode") in ([f"{code}:0"], [f"{code % 128}:0"])


def test_a_job_cancelled_by_its_owner_says_by_whom(accounted: Cluster) -> None:
    alice = accounted.users[0]
    job = accounted.sbatch("#!/bin/bash\nsleep 100\n", "--comment", "token 42")
    accounted.wait_for(job, "RUNNING")
    accounted.run(["scancel", job], alice, check=True)
    uid = accounted.run(["id", "-u"], alice).stdout.strip()
    assert sacct(accounted, job, "State,User,Account,Comment") == [f"CANCELLED by {uid}|{alice}|lab|token 42"]


def test_accounting_answers_while_the_controller_is_dead(accounted: Cluster) -> None:
    job = accounted.sbatch("#!/bin/bash\ntrue\n")
    accounted.wait_for(job, "COMPLETED")
    assert sacct(accounted, job, "State") == ["COMPLETED"]
    accounted.terminate_controller()
    assert sacct(accounted, job, "State") == ["COMPLETED"]
    accounted.start_controller()


def test_an_unknown_job_is_no_error_and_no_line(accounted: Cluster) -> None:
    done = accounted.run(["sacct", "-P", "-n", "-j", "999999"], accounted.users[0])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
