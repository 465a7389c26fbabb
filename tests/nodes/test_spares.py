"""Which nodes of a job with spares are left: by SLURM's states, and by srun's own words."""

from __future__ import annotations

import pytest

from resilience.cluster import Node
from resilience.errors import UsageError
from resilience.nodes.spares import Left, lost_by_state, parse_silent, read_left

LEFT = Left(2, ("n1", "n2", "n3", "n4"))
# srun 22.05.8 on nodes n[1-3], half a second after slurmd of n2 was killed: sinfo called it "mixed" for minutes.
SRUN = """\
srun: error: Task launch for StepId=1.1 failed on node n2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted
"""


@pytest.mark.parametrize(
    ("bad", "rest"),
    [
        ([], "n1,n2,n3,n4"),
        (["n2"], "n1,n3,n4"),
        (["n1", "n4", "n9"], "n2,n3"),
        (["n1", "n2", "n3"], "-"),
    ],
)
def test_the_others_are_left_in_their_order_or_too_few(bad: list[str], rest: str) -> None:
    assert LEFT.without(bad) == rest


def test_the_batch_shell_says_what_it_has() -> None:
    assert read_left({"RESIL_LEFT": "2 n1 n2 n3 n4"}) == LEFT
    assert LEFT.launch == ("n1", "n2")
    assert read_left({}) is None
    with pytest.raises(UsageError, match="not a number"):
        read_left({"RESIL_LEFT": "n1 n2"})


def test_a_node_that_drains_is_not_lost() -> None:
    nodes = [
        Node("n1", "MIXED", ("DRAIN",)),
        Node("n2", "MIXED", ("NOT_RESPONDING",)),
        Node("n3", "DOWN", ("NOT_RESPONDING",)),
        Node("n4", "ALLOCATED"),
        Node("n5", "DOWN"),
    ]
    assert lost_by_state(LEFT, nodes) == {
        "n2": "SLURM says that n2 is NOT_RESPONDING",
        "n3": "SLURM says that n3 is DOWN, NOT_RESPONDING",
    }


def test_srun_names_the_node_that_it_cannot_reach() -> None:
    assert parse_silent(SRUN) == {"n2": "srun cannot reach n2: Communication connection failure"}


@pytest.mark.parametrize(
    "errors",
    [
        "",
        "srun: error: Only allocated 2 nodes asked for 3",
        "srun: error: Unable to create step for job 1: Invalid job id",
    ],
)
def test_an_srun_that_fails_in_another_way_says_nothing_about_a_node(errors: str) -> None:
    assert parse_silent(errors) == {}
