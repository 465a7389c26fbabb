"""What a cluster's settings mean for a run: each with a verdict, and advice where it would bite."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.cluster import ClusterConfig, Node
from resilience.doctor.diagnosis import Diagnosis, diagnose_cluster, diagnose_nodes
from resilience.finding import Verdict

GOOD: dict[str, Any] = {
    "scheduler": "slurm", "version": "24.11", "cluster": "big", "accounting": True, "scrontab": True,
    "job_requeue": True, "kill_wait_s": 30, "proctrack": "cgroup", "max_array_size": 1001, "preempt_type": "none",
    "partitions": {"gpu": "UP"},
}  # fmt: skip


def diagnose(**settings: Any) -> dict[str, Diagnosis]:
    return {found.topic: found for found in diagnose_cluster(ClusterConfig(**{**GOOD, **settings}))}


def test_a_good_cluster_is_good_in_every_line() -> None:
    found = diagnose()
    assert {diagnosis.verdict for diagnosis in found.values()} == {Verdict.OK}
    assert list(found) == ["JobRequeue", "KillWait", "proctrack", "MaxArraySize", "preemption", "partitions"]


CASES: list[tuple[dict[str, Any], str, Verdict, str]] = [
    ({"job_requeue": False}, "JobRequeue", Verdict.WARNING, "a node failure ends a job"),
    ({"job_requeue": None}, "JobRequeue", Verdict.UNKNOWN, "does not name it"),
    ({"kill_wait_s": 5}, "KillWait", Verdict.OK, "5 s between"),
    ({"kill_wait_s": None}, "KillWait", Verdict.UNKNOWN, "does not name it"),
    ({"proctrack": "linuxproc"}, "proctrack", Verdict.WARNING, "data-loader workers"),
    ({"proctrack": ""}, "proctrack", Verdict.UNKNOWN, "does not name it"),
    ({"proctrack": "pgid"}, "proctrack", Verdict.OK, "srun's tasks only"),
    ({"max_array_size": 1}, "MaxArraySize", Verdict.WARNING, "disabled"),
    ({"max_array_size": None}, "MaxArraySize", Verdict.UNKNOWN, "does not name it"),
    ({"preempt_type": "qos", "preempt_mode": "REQUEUE"}, "preemption", Verdict.WARNING, "only SIGTERM"),
    ({"preempt_type": "qos", "send_user_signal": True}, "preemption", Verdict.OK, "is sent before it"),
    ({"preempt_type": ""}, "preemption", Verdict.UNKNOWN, "does not name it"),
    ({"preempt_type": "(null)"}, "preemption", Verdict.OK, "none"),
    ({"over_time_limit_min": 5}, "OverTimeLimit", Verdict.OK, "5 min over"),
    ({"partitions": {"gpu": "UP", "b": "DOWN", "a": "DRAIN"}}, "partitions", Verdict.OK, "gpu; not up: a, b"),
    ({"partitions": {"b": "DOWN", "a": "DRAIN"}}, "partitions", Verdict.CRITICAL, "no partition is up: a, b"),
    ({"partitions": {"gpu": ""}}, "partitions", Verdict.OK, "gpu"),
    ({"scheduler": "local"}, "signals", Verdict.OK, "reaches the batch shell"),
]


@pytest.mark.parametrize(("settings", "topic", "verdict", "said"), CASES)
def test_each_setting_is_judged(settings: dict[str, Any], topic: str, verdict: Verdict, said: str) -> None:
    found = diagnose(**settings)[topic]
    assert (found.verdict, said in found.text) == (verdict, True)
    assert found.advice or verdict is not Verdict.WARNING, "a warning says what to do"


def test_of_a_cluster_that_tells_nothing_nothing_is_claimed() -> None:
    found = list(diagnose_cluster(ClusterConfig("slurm")))
    assert {diagnosis.verdict for diagnosis in found} == {Verdict.UNKNOWN}


def test_nodes_that_can_start_no_job_are_a_warning_although_their_partition_is_up() -> None:
    idle, drained = Node("n1", "IDLE"), Node("n2", "IDLE", ("DRAIN",))
    for nodes, verdict, said in (
        ([idle, drained], Verdict.OK, "1 of 2 nodes"),
        ([drained], Verdict.WARNING, "0 of 1 node "),
        ([], Verdict.UNKNOWN, "0 of 0"),
    ):
        found = diagnose_nodes(nodes)
        assert (found.verdict, said in found.text) == (verdict, True), found
