"""Which of many things is due next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resilience.system.deadlines import Deadlines


def test_what_is_due_comes_out_once_the_longest_overdue_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, due in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        deadlines.set(key, due)
    assert deadlines.next() == 1.0
    assert deadlines.pop_due(2.0) == ["a", "b"]
    assert deadlines.pop_due(2.0) == []
    assert (len(deadlines), deadlines.next()) == (1, 3.0)


def test_a_new_deadline_replaces_the_old_and_a_removed_one_is_gone() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    deadlines.set("b", 2.0)
    deadlines.remove("b")
    deadlines.remove("nothing")
    assert deadlines.pop_due(4.0) == []
    assert deadlines.pop_due(5.0) == ["a"]
    assert deadlines.next() is None


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), max_size=400))
def test_it_agrees_with_a_plain_dictionary_and_does_not_grow(changes: list[tuple[int, float]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, float] = {}
    for key, due in changes:
        deadlines.set(key, due)
        plain[key] = due
        assert deadlines.next() == min(plain.values())
        assert len(deadlines._heap) <= 64 + 4 * len(plain) + 1
    assert set(deadlines.pop_due(50.0)) == {key for key, due in plain.items() if due <= 50.0}
