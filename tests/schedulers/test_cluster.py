"""Nodes and the configuration of a cluster."""

from __future__ import annotations

import pytest

from resilience.cluster import ClusterConfig, Node


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "ALLOCATED"])
def test_a_working_node_is_usable(state: str) -> None:
    assert Node("n1", state, ("CLOUD",)).is_usable


@pytest.mark.parametrize("state", ["DOWN", "ERROR", "FUTURE", "UNKNOWN", ""])
def test_a_node_in_no_good_state_is_not(state: str) -> None:
    assert not Node("n1", state).is_usable


@pytest.mark.parametrize("flag", ["DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "POWERED_DOWN", "REBOOT_ISSUED"])
def test_one_bad_flag_is_enough(flag: str) -> None:
    assert not Node("n1", "IDLE", ("CLOUD", flag)).is_usable


@pytest.mark.parametrize(
    "fact", ["accounting", "scrontab", "job_requeue", "kill_wait_s", "message_timeout_s", "max_array_size",
             "over_time_limit_min", "send_user_signal"],
)  # fmt: skip
def test_a_fact_nobody_told_is_not_known(fact: str) -> None:
    assert getattr(ClusterConfig("slurm"), fact) is None


def test_two_clusters_do_not_share_their_partitions() -> None:
    assert ClusterConfig("slurm").partitions is not ClusterConfig("slurm").partitions
