"""Which nodes are bad, for how long, and how many of them a run may avoid: tables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from resilience.cluster import Node
from resilience.nodes.evidence import Evidence, Source
from resilience.nodes.message import compose
from resilience.nodes.standing import (
    COUNTS_S,
    EXCLUDED_S,
    LONGEST_S,
    PROBATION_S,
    Choice,
    Standing,
    State,
    choose,
    judge,
)

NOW = 1_800_000_000.0
HOUR, DAY = 3600.0, 86400.0
S = Source


def seen(source: Source, ago_s: float, node: str = "n7", *, run: str = "gpt", share: float = 1.0, until: float = 0.0,
         why: str = "it broke") -> Evidence:  # fmt: skip
    about = f"/runs/{run} {ago_s}"
    return Evidence(node=node, time=NOW - ago_s, source=source, why=why, about=about, run=run, job="12", share=share,
                    until=until, by="ada")  # fmt: skip


def judged(*evidence: Evidence, now: float = NOW) -> Standing:
    (found,) = judge(evidence, now)
    return found


@pytest.mark.parametrize(
    ("evidence", "state", "score"),
    [
        ([seen(S.NAMED, HOUR)], State.SUSPECT, 0.5),
        ([seen(S.NAMED, DAY), seen(S.NAMED, HOUR)], State.EXCLUDED, 1.0),
        ([seen(S.NAMED, COUNTS_S + HOUR), seen(S.NAMED, 0)], State.SUSPECT, 0.5),
        ([seen(S.NAMED, COUNTS_S + HOUR)], State.GOOD, 0.0),
        ([seen(S.XID, HOUR)], State.EXCLUDED, 1.0),
        ([seen(S.SOFT_XID, HOUR)], State.SUSPECT, 0.25),
        ([seen(S.SOFT_XID, 400), seen(S.SOFT_XID, 101)], State.EXCLUDED, 1.0),
        ([seen(S.SOFT_XID, 401), seen(S.SOFT_XID, 101), seen(S.SOFT_XID, 1001)], State.SUSPECT, 0.25),
        ([seen(S.CHECK, HOUR)], State.EXCLUDED, 1.0),
        ([seen(S.COMMON, HOUR)], State.EXCLUDED, 1.0),
        ([seen(S.COMMON, HOUR, share=0.5)], State.SUSPECT, 0.5),
        ([seen(S.COMMON, HOUR, share=0.5), seen(S.COMMON, 0, share=0.5)], State.EXCLUDED, 1.0),
        ([seen(S.SLOW, ago) for ago in (5, 4, 3, 2, 1)], State.SUSPECT, 0.5),
        ([seen(S.SLOW, 2), seen(S.SLOW, 1), seen(S.NAMED, 0)], State.EXCLUDED, 1.0),
        ([seen(S.AVOIDED, HOUR), seen(S.USED, HOUR)], State.GOOD, 0.0),
        ([seen(S.NAMED, -HOUR), seen(S.NAMED, HOUR)], State.EXCLUDED, 1.0),
    ],
)  # fmt: skip
def test_what_counts_and_how_much(evidence: Sequence[Evidence], state: State, score: float) -> None:
    found = judged(*evidence)
    assert (found.state, found.score) == (state, score)
    assert judged(*reversed(evidence)) == found, "files are read in any order"


def test_the_reason_names_each_kind_of_evidence_and_the_last_of_it() -> None:
    found = judged(
        seen(S.NAMED, 2, why="io error"), seen(S.SLOW, 1.5, why="20% late"), seen(S.NAMED, 1, why="gpu fault")
    )
    assert found.why == "a failure names it (2 times): gpu fault; it is slow: 20% late"
    assert (found.since, found.until) == (NOW - 1, NOW - 1 + EXCLUDED_S)


def test_after_its_time_a_node_is_on_probation_and_the_next_failure_excludes_it_for_twice_as_long() -> None:
    first = seen(S.CHECK, 0)
    over = NOW + EXCLUDED_S
    assert judged(first, now=over - 1).state is State.EXCLUDED
    found = judged(first, now=over + HOUR)
    assert found.state is State.PROBATION and found.why == "it was: a check failed: it broke"
    again = seen(S.NAMED, -EXCLUDED_S - HOUR)
    found = judged(first, again, now=over + HOUR)
    assert found.state is State.EXCLUDED and found.until - found.since == 2 * EXCLUDED_S
    slow = seen(S.SLOW, -EXCLUDED_S - HOUR)
    assert judged(first, slow, now=over + HOUR).state is State.PROBATION
    assert judged(first, now=over + PROBATION_S + HOUR).state is State.GOOD
    late = seen(S.NAMED, -EXCLUDED_S - PROBATION_S - HOUR)
    assert judged(first, late, now=over + PROBATION_S + HOUR).state is State.SUSPECT, "as any other node"


def test_a_node_that_never_recovers_is_not_excluded_for_longer_than_the_longest() -> None:
    evidence = [seen(S.XID, -number * 7.5 * DAY) for number in range(5)]
    assert judged(*evidence, now=NOW + 30 * DAY + HOUR).until == NOW + 30 * DAY + LONGEST_S


def test_failures_of_attempts_that_still_ran_there_do_not_lengthen_an_exclusion() -> None:
    found = judged(seen(S.CHECK, HOUR), seen(S.NAMED, 60), seen(S.XID, 30))
    assert found.until == NOW - HOUR + EXCLUDED_S and len(found.evidence) == 3


def test_people_exclude_and_allow_and_the_last_word_counts() -> None:
    by_hand = seen(S.EXCLUDED, HOUR, until=NOW + HOUR, why="slow disk")
    found = judged(by_hand)
    assert (found.state, found.why, found.until, found.by_hand) == (State.EXCLUDED, "ada: slow disk", NOW + HOUR, True)
    assert judged(by_hand, seen(S.ALLOWED, 60)).state is State.GOOD
    assert judged(seen(S.ALLOWED, 2 * HOUR), by_hand).state is State.EXCLUDED
    assert judged(seen(S.NAMED, HOUR), seen(S.ALLOWED, 60), seen(S.NAMED, 0)).state is State.SUSPECT
    assert judged(seen(S.XID, HOUR), seen(S.ALLOWED, 60)).allowed == NOW - 60


def test_a_run_that_convicts_more_than_three_nodes_is_the_cause_itself() -> None:
    def states(count: int) -> set[State]:
        evidence = [seen(S.NAMED, ago, f"n{number}") for number in range(count) for ago in (HOUR + number, number)]
        return {one.state for one in judge(evidence, NOW)}

    assert states(3) == {State.EXCLUDED} and states(4) == {State.GOOD}
    other = [seen(S.NAMED, ago, "n9", run="bert") for ago in (2, 1)]
    many = [seen(S.COMMON, number, f"n{number}") for number in range(4)]
    assert [one.node for one in judge(other + many, NOW) if one.state is State.EXCLUDED] == ["n9"]
    assert judged(*[seen(S.XID, number, f"n{number}") for number in range(1)]).state is State.EXCLUDED


# ---- the cap --------------------------------------------------------------------------------------------------------


def cluster(count: int, state: str = "ALLOCATED", partition: str = "gpu") -> tuple[Node, ...]:
    return tuple(Node(f"n{number}", state, partitions=(partition,)) for number in range(1, count + 1))


def bad(*names: str, by_hand: bool = False) -> list[Standing]:
    return [
        Standing(node=name, state=State.EXCLUDED, why="broken", since=NOW + at, until=NOW + DAY, by_hand=by_hand)
        for at, name in enumerate(names)
    ]


def chosen(standings: Sequence[Standing], nodes: Sequence[Node], needed: int, *kept: str) -> Choice:
    return choose(standings, nodes, {"gpu"}, needed, kept=kept)


@pytest.mark.parametrize(
    ("nodes", "needed", "avoided"),
    [
        (cluster(64), 8, ["n1", "n2", "n3"]),
        (cluster(10), 2, ["n1"]),
        (cluster(10, "IDLE"), 2, ["n1", "n2", "n3", "n4"]),
        (cluster(6, "IDLE"), 2, ["n1"]),
        (cluster(4), 4, []),
        (cluster(4), 3, ["n1"]),
    ],
    ids=["5 percent", "at least one", "all idle", "idle but bad", "needs all", "needs all but one"],
)
def test_at_most_so_many_are_avoided_and_the_others_are_told(
    nodes: Sequence[Node], needed: int, avoided: Sequence[str]
) -> None:
    choice = chosen(bad("n1", "n2", "n3", "n4"), nodes, needed)
    assert [*choice.avoid] == avoided and choice.avoid.keys().isdisjoint(choice.beyond)
    assert {*choice.avoid, *choice.beyond} == {"n1", "n2", "n3", "n4"} and all(choice.beyond.values())


def test_what_people_exclude_is_no_part_of_the_cap_but_a_run_keeps_the_nodes_that_it_needs() -> None:
    assert [*chosen(bad("n1", "n2", "n3", by_hand=True), cluster(10), 2).avoid] == ["n1", "n2", "n3"]
    choice = chosen(bad("n1", "n2", "n3", by_hand=True), cluster(4), 2)
    assert [*choice.avoid] == ["n1", "n2"] and choice.beyond == {"n3": "the run needs 2 nodes, and no other is left"}


def test_drained_nodes_are_no_spares_and_those_of_other_partitions_do_not_matter() -> None:
    drained = (*cluster(2), Node("n3", "IDLE", ("DRAIN",), partitions=("gpu",)))
    assert chosen(bad("n1"), drained, 2).avoid == {}
    assert chosen(bad("n1"), drained, 1).avoid == {"n1": "broken"}
    cpu = (*cluster(2), Node("n9", "IDLE", partitions=("cpu",)))
    assert chosen(bad("n9"), cpu, 1) == Choice(avoid={}, beyond={})
    assert choose(bad("n9"), cpu, {""}, 1).avoid == {"n9": "broken"}


def test_a_node_that_is_gone_is_not_named_to_sbatch() -> None:
    assert chosen(bad("gone", "n1"), cluster(4), 1) == Choice(avoid={"n1": "broken"}, beyond={}, gone=("gone",))


def test_what_is_excluded_already_stays_so_while_fewer_nodes_are_idle() -> None:
    assert [*chosen(bad("n1", "n2", "n3"), cluster(10), 1, "n2", "n3").avoid] == ["n2", "n3"]


def test_the_message_for_the_administrators_has_each_observation() -> None:
    standing = judged(seen(S.NAMED, HOUR, why="gpu fault:\nECC"), seen(S.XID, 60, why="Xid 79"),
                      seen(S.AVOIDED, 0, why="attempt 4 (job 13) began on n8, without it"))  # fmt: skip
    text = compose(standing, "alpha", "ada")
    assert text.startswith("Subject: node n7 of alpha seems to be faulty\n")
    assert "2 observations:" in text and "named, job 12, ada: gpu fault: ECC\n" in text
    assert "xid, job 12, ada: Xid 79" in text and "Elsewhere it goes on: attempt 4 (job 13) began on n8" in text
