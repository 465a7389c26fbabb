"""Few requests travel, and they make the decision that all would have made."""

from __future__ import annotations

import random

from resilience.guard.agreement.selection import MOST_REQUESTS, effect, select
from resilience.guard.decision import EXIT_ERROR, Request, merge


def test_few_requests_make_the_decision_that_all_would_have_made() -> None:
    chance = random.Random(5)
    for _ in range(300):
        requests = [
            Request(
                chance.choice("abc"),
                f"why {number}",
                save=chance.random() < 0.5,
                stop=chance.random() < 0.1,
                label=chance.choice(["", "", "", "", "x", "y"]),
                discard=chance.random() < 0.3,
                exit_code=chance.choice([75, 75, EXIT_ERROR, 0]),
                rank=chance.randrange(8),
            )
            for number in range(chance.randrange(1, 80))
        ]
        chosen = select(requests)
        assert len(chosen) <= MOST_REQUESTS
        few, all_ = merge(chosen, 1), merge(requests, 1)
        assert (few.save, few.stop, few.label) == (all_.save, all_.stop, all_.label)
        assert not few.stop or few.exit_code == all_.exit_code


def test_the_signal_of_4096_ranks_is_one_request() -> None:
    requests = [Request("signal", "SIGUSR1 came", rank=rank) for rank in reversed(range(4096))]
    (chosen,) = select(requests)
    assert chosen.rank == 0


def test_few_different_requests_all_travel_and_the_lowest_rank_speaks_for_the_others() -> None:
    requests = [Request("signal", f"reason {number % 3}", rank=9 - number) for number in range(9)]
    assert sorted((request.why, request.rank) for request in select(requests)) == [
        ("reason 0", 3),
        ("reason 1", 2),
        ("reason 2", 1),
    ]


def test_a_single_refusal_to_save_is_among_the_few_that_travel() -> None:
    many = [Request("a", f"why {number}", rank=number) for number in range(500)]
    chosen = select([*many, Request("superseded", "another attempt", discard=True, rank=4000)])
    assert len(chosen) == MOST_REQUESTS and not merge(chosen, 1).save


def test_the_effect_of_a_request_is_what_all_ranks_do_and_not_who_wishes_it_or_why() -> None:
    assert effect(Request("signal", "one reason", rank=1)) == effect(Request("signal", "another", rank=2))
    assert effect(Request("signal", "why")) != effect(Request("signal", "why", stop=False))
    assert effect(Request("signal", "why")) != effect(Request("signal", "why", label="best"))
