"""What is not known about a cluster is None, which is neither yes nor no."""

from __future__ import annotations

import pytest

from resilience.cluster import ClusterConfig


@pytest.mark.parametrize(
    "fact", ["accounting", "scrontab", "job_requeue", "kill_wait_s", "message_timeout_s", "max_array_size",
             "over_time_limit_min", "send_user_signal"],
)  # fmt: skip
def test_a_fact_nobody_told_is_not_known(fact: str) -> None:
    assert getattr(ClusterConfig("slurm"), fact) is None


def test_two_clusters_do_not_share_their_partitions() -> None:
    assert ClusterConfig("slurm").partitions is not ClusterConfig("slurm").partitions
