"""The threads that ask the triggers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from resilience.guard.decision import Request
from resilience.guard.place import Place
from resilience.guard.recorder import Recorder
from resilience.guard.watch import Watch, asked_here, name_of, understand
from tests.guard.guards import Wisher, wait_until


def make_watch(*triggers: Any, wished: list[Request], said: list[str] | None = None, **options: Any) -> Watch:
    recorder = Recorder(Place(), (said if said is not None else []).append)
    return Watch("test", triggers, **{"every_s": 0.01, "wish": wished.append, "recorder": recorder, **options})


def test_a_trigger_that_asked_is_not_asked_again_until_it_was_obeyed() -> None:
    wisher, wished = Wisher("enough"), []  # type: ignore[var-annotated]
    watch = make_watch(wisher, wished=wished)
    watch.start()
    try:
        wait_until(lambda: wished)
        polls = wisher.polls
        wisher.wish = "again"
        watch.wake()
        watch.obeyed(["somebody else"], "saved")
        threading.Event().wait(0.1)
        assert (wisher.polls, wisher.heard) == (polls, [])
        watch.obeyed(["wisher"], "saved")
        wait_until(lambda: len(wished) == 2)
        assert wisher.heard == ["saved"]
    finally:
        watch.stop(2.0)


def test_the_first_look_is_told_as_a_whole() -> None:
    first: list[Any] = []
    watch = make_watch(Wisher("one"), Wisher(), wished=[], first=first.append)
    watch.start()
    watch.stop(2.0)
    assert [[request.why for request in requests] for requests in first] == [["one"]]


def test_the_last_outcome_is_heard_before_the_end() -> None:
    wisher, wished = Wisher("enough"), []  # type: ignore[var-annotated]
    watch = make_watch(wisher, wished=wished, every_s=60.0)
    watch.start()
    wait_until(lambda: wished)
    watch.obeyed(["wisher"], "saved")
    watch.stop(5.0)
    assert wisher.heard == ["saved"]


def test_a_trigger_that_hangs_does_not_hang_the_end() -> None:
    over = threading.Event()

    class Hung(Wisher):
        def poll(self) -> None:
            over.wait(30)

    watch = make_watch(Hung(), wished=[])
    watch.start()
    watch.stop(0.1)
    over.set()


def test_side_work_that_fails_is_named_once_and_tried_again() -> None:
    said: list[str] = []
    times: list[int] = []

    def also() -> None:
        times.append(1)
        raise OSError("the disk is full")

    watch = make_watch(wished=[], said=said, also=also)
    watch.start()
    wait_until(lambda: len(times) > 3)
    watch.stop(2.0)
    assert sum("the disk is full" in sentence for sentence in said) == 1


@pytest.mark.parametrize(
    ("ranks", "rank", "local_rank", "is_asked"),
    [
        ("every", 3, 1, True),
        ("node", 3, 1, False),
        ("node", 2, 0, True),
        ("node", 3, -1, True),
        ("first", 0, 0, True),
        ("first", 2, 0, False),
    ],
)
def test_which_ranks_ask_a_trigger(ranks: str, rank: int, local_rank: int, is_asked: bool) -> None:
    wisher = Wisher()
    wisher.ranks = ranks  # type: ignore[attr-defined]
    assert asked_here(wisher, Place(rank=rank, world=4, local_rank=local_rank)) is is_asked


def test_what_a_trigger_may_return() -> None:
    wisher = Wisher()
    request = Request("kill", "because")
    assert understand(wisher, None) is None
    assert understand(wisher, request) is request
    assert understand(wisher, "enough") == Request("wisher", "enough")
    with pytest.raises(TypeError):
        understand(wisher, True)


@pytest.mark.parametrize("wrong", [{"save": "yes"}, {"stop": 1}, {"label": None}, {"exit_code": "75"}])
def test_a_request_that_would_mean_something_else_on_another_rank_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        understand(Wisher(), Request("own", "because", **wrong))


def test_a_trigger_whose_name_raises_does_not_end_its_thread() -> None:
    class Nameless(Wisher):
        @property
        def name(self) -> str:  # type: ignore[override]
            raise RuntimeError("no name")

    other, wished, said = Wisher(), list[Request](), list[str]()
    watch = make_watch(Nameless(3), other, wished=wished, said=said)  # type: ignore[arg-type]
    watch.start()
    try:
        wait_until(lambda: said)
        other.wish = "enough"
        wait_until(lambda: wished)
    finally:
        watch.stop(2.0)
    assert "Nameless" in said[0]


def test_a_trigger_without_a_name_is_called_by_its_class() -> None:
    class QueueIsEmpty:
        poll: Callable[[], None]
        done: Callable[[str], None]

    assert name_of(QueueIsEmpty()) == "QueueIsEmpty"
