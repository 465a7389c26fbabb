"""What the guard makes of a real squeue's answer about the end of a job."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from resilience.guard.end_time import NO_LIMIT, EndTime, find_end_time, query_slurm
from resilience.guard.rank_info import RankInfo
from resilience.guard.triggers.walltime import STOP, decide
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until

SLEEP = "#!/bin/bash\nsleep 600\n"


def ask(cluster: Cluster, job_id: str, **variables: str) -> float | None:
    return query_slurm(job_id, cluster.environment() | variables)


def test_the_end_is_that_of_the_limit_whatever_the_environment_would_make_squeue_show(cluster: Cluster) -> None:
    job_id = cluster.sbatch(SLEEP, "-t", "10")
    cluster.wait_for(job_id, "RUNNING")
    end = ask(cluster, job_id, SQUEUE_FORMAT="%j", SQUEUE_STATES="PD", SLURM_TIME_FORMAT="relative", TZ="Asia/Kolkata")
    assert end is not None and end == pytest.approx(time.time() + 600, abs=10)


def test_a_limit_that_was_changed_is_seen_to_the_second(cluster: Cluster) -> None:
    job_id = cluster.sbatch(SLEEP, "-t", "10")
    cluster.wait_for(job_id, "RUNNING")
    environ = cluster.environment() | {"SLURM_JOB_ID": job_id}
    end = find_end_time(RankInfo(job_id=job_id, end_time=time.time() + 600), environ, 1.0)
    wanted = int(time.time()) + 95
    cluster.run(["scontrol", "update", f"jobid={job_id}", "EndTime=now+95"], cluster.users[0], check=True)
    until(lambda: refreshed(end).end == pytest.approx(wanted, abs=5), "the shorter limit to be seen")
    cluster.run(["scontrol", "update", f"jobid={job_id}", "TimeLimit=60"], check=True)  # root may lengthen
    until(lambda: (refreshed(end).end or 0) > time.time() + 3000, "the longer limit to be seen")
    cluster.run(["scontrol", "update", f"jobid={job_id}", "TimeLimit=UNLIMITED"], check=True)
    until(lambda: refreshed(end).end == NO_LIMIT, "the limit to be gone")


def refreshed(end: EndTime) -> EndTime:
    end.refresh(time.monotonic())
    return end


def test_a_job_without_a_limit_has_no_end(cluster: Cluster) -> None:
    job_id = cluster.sbatch(SLEEP, "-t", "UNLIMITED")
    cluster.wait_for(job_id, "RUNNING")
    assert ask(cluster, job_id) == NO_LIMIT


def test_a_job_that_waits_and_one_that_nobody_knows_have_no_end_that_is_known(cluster: Cluster) -> None:
    held = cluster.sbatch(SLEEP, "-t", "10", "--hold")
    assert ask(cluster, held) is None
    assert ask(cluster, "999999") is None


def test_each_task_of_an_array_has_its_own_end_the_one_with_the_array_s_number_too(cluster: Cluster) -> None:
    array = cluster.sbatch(SLEEP, "-t", "10", "--array=1-2")
    cluster.wait_for(array, "RUNNING")
    raw = {row.split()[0] for row in cluster.squeue("%A %T", "-j", array)}
    assert len(raw) == 2 and array in raw
    for job_id in raw:
        end = ask(cluster, job_id)
        assert end is not None and end == pytest.approx(time.time() + 600, abs=20)


@pytest.fixture
def frozen(cluster: Cluster) -> Iterator[Cluster]:
    cluster.stop_controller()
    yield cluster
    cluster.continue_controller()
    cluster.wait_served()


def test_a_controller_that_hangs_gives_no_answer_and_costs_no_more_than_the_deadline(frozen: Cluster) -> None:
    scontrol = frozen.popen(["scontrol", "show", "job", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert query_slurm("1", frozen.environment(), deadline_s=1.0) is None
    assert scontrol.poll() is None, "left alone it waits for 10 s"
    scontrol.kill()
    scontrol.wait()


@pytest.mark.soak
def test_a_job_that_slurm_lets_overrun_has_the_limit_for_its_end_and_stops_for_that() -> None:
    """OverTimeLimit: it lives on, and squeue goes on telling the limit itself, in the past by then."""
    with Cluster(nodes=1, extra="OverTimeLimit=5\n") as cluster:
        job_id = cluster.sbatch(SLEEP, "-t", "10")
        cluster.wait_for(job_id, "RUNNING")
        cluster.run(["scontrol", "update", f"jobid={job_id}", "EndTime=now+5"], cluster.users[0], check=True)
        limit = time.time() + 5
        time.sleep(45)  # slurmctld looks at limits every 30 s
        assert cluster.job_state(job_id) == "RUNNING"
        end = ask(cluster, job_id)
    assert end is not None and end == pytest.approx(limit, abs=5)
    verdict = decide(end - time.time(), 1.0, 1.0, safety=1.5, margin_s=10.0, first_save_s=60.0)
    assert verdict.action == STOP and verdict.why.startswith("the job's time limit was ")
