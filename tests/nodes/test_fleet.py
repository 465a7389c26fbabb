"""Nodes are judged by rules, by each other and by the past."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.errors import UsageError
from resilience.nodes.check import load_checks
from resilience.nodes.checks import Expected, Outcome
from resilience.nodes.fleet import (
    NO_ANSWER,
    NodeReading,
    NodeReport,
    base_of,
    chosen,
    figures_of,
    judge_nodes,
    parse_rule,
)

EXPECTED = Expected(directory="/shared")
KIND = "64 x EPYC"


def node(host: str, error: str = "", hung: tuple[str, ...] = (), **readings: Any) -> NodeReading:
    return NodeReading(host=host, kind=KIND, readings=readings, errors={"mounts": error} if error else {}, hung=hung)


def judged(nodes: list[NodeReading], history: Any = (), **rules: str) -> dict[str, NodeReport]:
    given = {key.replace("__", "."): text for key, text in rules.items()}
    return {one.host: one for one in judge_nodes(nodes, load_checks(), EXPECTED, given, history)}


@pytest.mark.parametrize(
    ("name", "text", "value", "base", "is_bad"),
    [
        ("x", "< -5%", 94, 100, True),
        ("x", "< -5%", 96, 100, False),
        ("x", "> 100%", 201, 100, True),
        ("x", "> 100%", 201, None, False),  # nothing to compare with
        ("x", "> 100%", 201, 0, False),
        ("free_bytes", "< 1GiB", 2**30 - 1, None, True),
        ("free_bytes", "< 1GiB", 2**30, None, False),
        ("ahead_s", "> 2m", 119, None, False),
        ("gpus", "!= 8", 7, None, True),
        ("gpus", "== 0", 0, None, True),
    ],
)
def test_a_rule_compares_a_value_or_its_variance(
    name: str, text: str, value: float, base: float | None, is_bad: bool
) -> None:
    assert parse_rule(name, text).is_broken(value, base) is is_bad


@pytest.mark.parametrize("text", ["", "5", "< ", "< many", "__import__('os')", "lambda x: x > 5", ">= 5", "< 5 %%"])
def test_another_text_is_no_rule_and_is_not_evaluated(text: str) -> None:
    with pytest.raises(UsageError, match="is no rule for x"):
        parse_rule("x", text)


def test_a_base_leaves_out_what_is_bad_and_needs_a_majority() -> None:
    rule = parse_rule("x", "> 50%")
    assert base_of([10, 10, 10, 40], rule) == 10
    assert base_of([10, 10], rule) is None
    assert base_of([10, 10, 40, 40, 40, 10, 40, 40], parse_rule("x", "< -5%")) == 40  # 5 of 8
    assert base_of([10, 10, 40, 40, 40, 10, 40], parse_rule("x", "< -5%")) is None  # 4 of 7


def test_a_slow_node_is_named_with_what_is_normal() -> None:
    nodes = [node(f"n{i}", compute={"compute_s": 0.5 if i == 3 else 0.1}) for i in range(5)]
    found = judged(nodes)
    assert [host for host, one in found.items() if one.outcome is Outcome.FAIL] == ["n3"]
    assert found["n3"].why == "compute: compute is 0.5 s, 0.1 s is normal (rule: > 100%)"


def test_a_node_alone_is_compared_with_earlier_checks_of_its_kind() -> None:
    past = [figures_of(node(f"n{i}", compute={"compute_s": 0.1})) for i in range(4)]
    slow = [node("n9", compute={"compute_s": 0.5})]
    assert judged(slow, past)["n9"].outcome is Outcome.FAIL
    assert judged(slow, [{**line, "kind": "32 x Xeon"} for line in past])["n9"].outcome is Outcome.PASS


def test_a_node_that_was_checked_often_has_no_more_votes_than_others() -> None:
    """A slow node that gets job after job would become what is normal."""
    past = [figures_of(node("n3", compute={"compute_s": 0.5})) for _ in range(50)]
    past += [figures_of(node(f"n{i}", compute={"compute_s": 0.1})) for i in range(10, 20)]
    assert judged([node("n3", compute={"compute_s": 0.5})], past)["n3"].outcome is Outcome.FAIL
    own = [figures_of(node("n3", compute={"compute_s": 0.1})) for _ in range(4)]
    assert judged([node("n3", compute={"compute_s": 0.5})], own)["n3"].outcome is Outcome.FAIL, "its own past counts"


@pytest.mark.parametrize(
    "line", [{}, {"kind": KIND, "figures": 3}, {"kind": KIND, "figures": {"compute.compute_s": "x"}}]
)
def test_a_line_of_the_history_that_is_none_hides_nothing(line: Any) -> None:
    past = [line, *(figures_of(node(f"n{i}", compute={"compute_s": 0.1})) for i in range(4))]
    assert judged([node("n9", compute={"compute_s": 0.5})], past)["n9"].outcome is Outcome.FAIL


def test_a_rule_of_the_user_replaces_the_default() -> None:
    full = [node("n1", memory={"memory": "8 GiB", "available_percent": 50.0, "shm_free_bytes": 2**30})]
    assert judged(full)["n1"].outcome is Outcome.PASS
    found = judged(full, memory__shm_free_bytes="< 64GiB")
    assert found["n1"].why == "memory: shm free is 1.0 GiB (rule: < 64.0 GiB)"


def test_the_node_that_differs_is_named_and_without_a_majority_none() -> None:
    same = {"kernel": "6.1", "torch": "2.13.0", "$NCCL_DEBUG": "aa"}
    nodes = [node("n1", versions=same), node("n2", versions=same), node("n3", versions=same | {"torch": "2.9.1"})]
    assert judged(nodes)["n3"].why == "versions: torch is 2.9.1, 2.13.0 on 2 nodes"
    assert {one.outcome for one in judged(nodes[1:]).values()} == {Outcome.PASS}
    nodes[2] = node("n3", versions={"kernel": "5.15", "torch": "2.13.0"})
    assert [(f.outcome, f.why) for f in judged(nodes)["n3"].faults["versions"]] == [
        (Outcome.FAIL, "$NCCL_DEBUG is not set here"),
        (Outcome.WARN, "kernel is 5.15, 6.1 on 2 nodes"),
    ]


def test_a_directory_that_is_not_mounted_on_one_node_is_named_although_it_can_be_written() -> None:
    """The empty directory below a missing mount is on the node's own disk."""
    there = {"/scratch": 900.0, "/scratch is on": "lustre, mounted at /scratch"}
    missing = {"/scratch": 800.0, "/scratch is on": "xfs, mounted at /"}
    found = judged([node("n1", mounts=there), node("n2", mounts=there), node("n3", mounts=missing)])
    assert found["n3"].outcome is Outcome.FAIL
    assert found["n3"].why == "mounts: /scratch is on xfs, mounted at /; on 2 nodes: lustre, mounted at /scratch"
    assert found["n1"].outcome is Outcome.PASS


def test_hardware_that_only_one_node_lacks_is_a_fault() -> None:
    port = {"mlx5_0 port 1": "4: ACTIVE, 400 Gb/sec (4X NDR)"}
    found = judged([node("n1", infiniband=port), node("n2", infiniband=port), node("n3", infiniband=None)])
    assert found["n3"].why == "infiniband: nothing of the kind is there, but on 2 other nodes"
    assert found["n1"].outcome is Outcome.PASS
    assert judged([node("n1", infiniband=None)])["n1"].faults == {}


def test_a_hung_check_fails_and_a_refused_one_is_told() -> None:
    found = judged([node("n1", "no answer within 12 s", ("mounts",)), node("n2", "not permitted")])
    assert [one.outcome for one in found.values()] == [Outcome.FAIL, Outcome.WARN]
    silent = judged([NodeReading(host="n3", errors={NO_ANSWER: "no answer"})])["n3"]
    assert (silent.outcome, silent.why) == (Outcome.FAIL, "answer: no answer")


def test_patterns_choose_checks() -> None:
    assert chosen(["gpu", "memory", "mounts"], ["m*"]) == ["memory", "mounts"]
    with pytest.raises(UsageError, match="no check matches nvlink"):
        chosen(["gpu"], ["nvlink"])
