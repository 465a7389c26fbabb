"""A wish is said again and again, and obeyed once."""

from __future__ import annotations

import pytest

from resilience.guard.agreement.wishes import KNOWN_WISHES, Wishes
from resilience.guard.decision import Request

SAVE = Request("save switch", "alice wants a checkpoint", stop=False)


def test_a_wish_that_was_answered_is_not_heard_again() -> None:
    wishes = Wishes()
    wishes.hear(1, "w1", SAVE.as_dict())
    wishes.hear(1, "w1", SAVE.as_dict())
    assert wishes.open == {"w1": (1, SAVE)}
    wishes.answer(wishes.open)
    wishes.hear(1, "w1", SAVE.as_dict())
    assert wishes.open == {}


def test_a_wish_answered_before_it_was_heard_here_is_not_heard_at_all() -> None:
    """By a coordinator before this one."""
    wishes = Wishes()
    wishes.answer(["w1"])
    wishes.hear(1, "w1", SAVE.as_dict())
    assert wishes.open == {}


def test_what_a_void_verdict_had_answered_is_wished_anew() -> None:
    wishes = Wishes()
    wishes.hear(1, "w1", SAVE.as_dict())
    decided = dict(wishes.open)
    wishes.answer(decided)
    wishes.ask_anew(decided)
    assert wishes.open == decided
    wishes.answer(decided)
    wishes.hear(1, "w1", SAVE.as_dict())
    assert wishes.open == {}


def test_of_the_answers_of_a_long_run_the_oldest_are_forgotten() -> None:
    wishes = Wishes()
    wishes.answer(f"w{number}" for number in range(KNOWN_WISHES + 1))
    for name in ("w0", "w1"):
        wishes.hear(1, name, SAVE.as_dict())
    assert list(wishes.open) == ["w0"]


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="not a request"):
        Wishes().hear(1, "w1", {"save": True})
