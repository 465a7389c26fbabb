"""`resil doctor` on a real cluster: what it says was asked, and a job answers from a node."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import until


@pytest.fixture
def run(accounted: Cluster) -> ClusterRun:
    made = ClusterRun(accounted, "gpt")
    made.write("resil.toml", f'[run]\nname = "gpt"\ncommand = "{accounted.python} train.py"\n[sbatch]\nnodes = 64\n')
    return made


def examined(run: ClusterRun, *words: str) -> dict[str, dict[str, Any]]:
    return {d["topic"]: d for d in json.loads(run.resil("doctor", "--json", *words).stdout)["diagnoses"]}


def test_a_job_on_a_node_answers_and_is_gone_afterwards(accounted: Cluster, run: ClusterRun) -> None:
    found = examined(run, "--on-node")
    verdicts = {name: found[name]["verdict"] for name in ("node", "state directory on a node", "training")}
    assert set(verdicts.values()) == {"OK"}, [found[name] for name in verdicts]
    assert "answered from n1" in found["node"]["text"] and "on n1" in found["training"]["text"]
    assert not list((run.project / ".resil").iterdir())
    until(lambda: not set(accounted.squeue("%T")) & {"PENDING", "RUNNING", "COMPLETING"}, "the job to end")


@pytest.mark.soak
def test_accounting_is_what_sacct_says_and_not_slurm_conf(accounted: Cluster, run: ClusterRun) -> None:
    assert examined(run)["accounting"] | {"advice": ""} == {
        "topic": "accounting", "verdict": "OK", "text": "`sacct -j 1` answered", "advice": ""
    }  # fmt: skip
    daemon = accounted.daemon("slurmdbd").pid
    os.kill(daemon, signal.SIGSTOP)
    try:
        found = examined(run)["accounting"]
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert found["verdict"] == "UNKNOWN" and "`sacct -j 1` failed" in found["text"]


def test_scrontab_is_what_its_program_says(run: ClusterRun) -> None:
    found = examined(run)["scrontab"]
    assert found["verdict"] == "OK" and ("not usable here" in found["text"] or "answered" in found["text"])
