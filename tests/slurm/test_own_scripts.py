"""A user's own script on a real cluster with accounting: its log is found, and deeds of its owner are no faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until
from tests.slurm.test_commands import Desk

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=mine
#SBATCH --time=10
#SBATCH -o logs/%x-%4j.%N.txt
for step in $(seq 1 9999); do echo "step $step loss 1"; sleep 0.3; done
"""


@pytest.fixture
def desk(accounted: Cluster) -> Desk:
    desk = Desk(accounted, accounted.users[0], accounted.shared / "own")
    accounted.run(["mkdir", "-p", str(desk.directory / "logs")], user=desk.user, check=True)
    accounted.run(["tee", str(desk.directory / "my.sh")], user=desk.user, input=SCRIPT, check=True)
    return desk


def finding(desk: Desk, *words: str) -> dict[str, Any]:
    reports = json.loads(desk.resil("watch", *words, "--json", "--no-alert").stdout)["reports"]
    return next(one for report in reports for one in report["findings"] if one["subject"] == "mine")


def test_an_own_script_is_watched_until_its_owner_ends_it(desk: Desk) -> None:
    job = desk.submit("my.sh", "--run", "mine")
    written = (desk.directory / "logs").glob
    until(lambda: any(b"step 2" in path.read_bytes() for path in written("*")), "the script to train")
    (log,) = written(f"mine-{int(job):04d}.*.txt")
    assert desk.resil("logs", "mine", "--path").stdout.strip() == str(log)
    assert desk.status()["step"] >= 2
    found = finding(desk, "log")
    assert found["verdict"] == "OK" and found["summary"].startswith("step "), found
    assert any(str(log) in line for line in found["looked"])

    desk.cluster.run(["scancel", job], user=desk.user, check=True)  # by hand, without resil
    text = f"cancelled on purpose: {desk.user} cancelled job {job}"
    until(lambda: text in finding(desk, "job")["summary"], "accounting to name the user")
    assert finding(desk, "job")["verdict"] == "OK"
    over = f"job {job} is over: CANCELLED"
    until(lambda: over in finding(desk, "log")["summary"], "the cached answer of the queue to expire")


def test_a_job_that_an_administrator_cancelled_is_missed(desk: Desk) -> None:
    job = desk.submit("my.sh", "--run", "mine")
    desk.cluster.wait_for(job, "RUNNING")
    desk.cluster.run(["scancel", job], check=True)
    desk.cluster.wait_for(job, "CANCELLED")
    assert finding(desk, "job")["fault"] == "not-queued"


def test_a_submission_without_an_answer_is_settled_by_accounting(desk: Desk) -> None:
    """The controller has forgotten the job; only the submit line in accounting has its token."""
    desk.cluster.run(["tee", str(desk.directory / "short.sh")], user=desk.user, input="#!/bin/bash\ntrue\n", check=True)
    job = desk.submit("short.sh", "--run", "mine")
    desk.cluster.wait_for(job, "COMPLETED")
    journal = desk.state / "mine" / "submissions.jsonl"
    *_, intent, _ = journal.read_text().splitlines()
    token = json.loads(intent)["token"]
    journal.write_text(intent.replace('"time":', '"time":0.0,"was":', 1) + "\n")
    script = "from resilience.schedulers.slurm import SCHEDULER; from resilience.system.ports import System; "
    script += "s = System(); c = SCHEDULER(clock=s.clock, runner=s.runner, environ=s.environ); "
    script += f"print([str(j.id) for j in c.find_past({token!r}, since=s.clock.now() - 600)])"

    def found() -> str:
        return desk.cluster.run([str(desk.cluster.python), "-c", script], user=desk.user, check=True).stdout.strip()

    until(lambda: found() == f"['{job}']", "accounting to have the submit line")
    assert desk.status()["headline"] == "not queued"
    assert f'"job_id":"{job}"' in journal.read_text().splitlines()[-1]
