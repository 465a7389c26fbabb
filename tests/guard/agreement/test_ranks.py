"""Which ranks are there, which are lost, and which have done their last step."""

from __future__ import annotations

import pytest

from resilience.guard.agreement.ranks import RankRegistry, name_ranks


def joined(world: int = 3) -> RankRegistry:
    ranks = RankRegistry(world)
    for rank in range(world):
        assert not ranks.join(rank, f"life{rank}")
    return ranks


def test_a_rank_that_never_joined_or_is_lost_is_missing_and_named_so() -> None:
    ranks = RankRegistry(4)
    for rank in (0, 1):
        ranks.join(rank, f"life{rank}")
        assert not ranks.has_everybody_joined() and not ranks.are_all_there()
    assert ranks.name_missing() == "ranks 2, 3 of 4 did not join the guard"
    ranks.lost(1)
    assert ranks.name_missing() == "ranks 2, 3 of 4 did not join the guard and the connection to rank 1 of 4 is lost"
    ranks.join(2, "life2")
    ranks.join(3, "life3")
    assert ranks.has_everybody_joined() and not ranks.are_all_there()
    assert ranks.name_missing() == "the connection to rank 1 of 4 is lost"
    assert ranks.training() == [0, 1, 2, 3] and ranks.count_training() == 4, "a lost rank trains on"
    assert not ranks.join(1, "life1"), "the same process"
    assert ranks.has_everybody_joined() and ranks.are_all_there()


def test_a_rank_that_has_left_is_not_missing_even_when_its_connection_goes_and_trains_no_more() -> None:
    ranks = joined()
    ranks.lost(2)
    ranks.leave(2, 100)
    ranks.lost(2)
    assert ranks.are_all_there()
    assert ranks.training() == [0, 1] and ranks.count_training() == 2 and ranks.left == {2: 100}
    ranks.join(2, "life2")
    assert ranks.training() == [0, 1, 2] and ranks.left == {}


def test_a_process_that_comes_back_after_another_took_its_place_is_a_twin() -> None:
    ranks = joined()
    assert ranks.join(1, "again") and not ranks.is_duplicate(1)
    assert ranks.join(1, "life1") and ranks.is_duplicate(1)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([3], "rank 3"),
        ([1, 2], "ranks 1, 2"),
        (list(range(8)), "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        (list(range(4096)), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4088 more"),
    ],
)
def test_ranks_are_named_as_people_read_them(ranks: list[int], said: str) -> None:
    assert name_ranks(ranks) == said
