"""A node is usable only where SLURM would start new work."""

from __future__ import annotations

import pytest

from resilience.cluster import Node


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "ALLOCATED"])
def test_a_working_node_is_usable(state: str) -> None:
    assert Node("n1", state, ("CLOUD",)).is_usable


@pytest.mark.parametrize("state", ["DOWN", "ERROR", "FUTURE", "UNKNOWN", ""])
def test_a_node_in_no_good_state_is_not(state: str) -> None:
    assert not Node("n1", state).is_usable


@pytest.mark.parametrize("flag", ["DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "POWERED_DOWN", "REBOOT_ISSUED"])
def test_one_bad_flag_is_enough(flag: str) -> None:
    assert not Node("n1", "IDLE", ("CLOUD", flag)).is_usable
