"""The threads that ask the triggers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from resilience.guard import watch as watch_module
from resilience.guard.decision import Request
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.watch import SOONEST_S, Watch, Watches, again_s, asked_here, name_of, understand
from tests.guard.guards import Wisher, wait_until


def make_watch(*triggers: Any, wished: list[Request], said: list[str] | None = None, **options: Any) -> Watch:
    recorder = Recorder(RankInfo(), (said if said is not None else []).append)
    return Watch("test", triggers, **{"every_s": 0.01, "on_request": wished.append, "recorder": recorder, **options})


@contextmanager
def watching(*triggers: Any, stop_s: float = 2.0, **options: Any) -> Iterator[Watch]:
    """A watch that is started, and stopped whatever happens."""
    watch = make_watch(*triggers, **options)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop(stop_s)


def test_a_trigger_that_asked_is_not_asked_again_until_it_was_obeyed() -> None:
    wisher, wished = Wisher("enough"), []  # type: ignore[var-annotated]
    with watching(wisher, wished=wished) as watch:
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


def test_the_first_look_is_reported_as_a_whole() -> None:
    first: list[Any] = []
    with watching(Wisher("one"), Wisher(), wished=[], first=first.append):
        pass
    assert [[request.why for request in requests] for requests in first] == [["one"]]


def test_the_last_outcome_is_heard_before_the_end() -> None:
    wisher, wished = Wisher("enough"), []  # type: ignore[var-annotated]
    with watching(wisher, wished=wished, every_s=60.0, stop_s=5.0) as watch:
        wait_until(lambda: wished)
        watch.obeyed(["wisher"], "saved")
    assert wisher.heard == ["saved"]


def test_a_trigger_that_hangs_does_not_hang_the_end() -> None:
    over = threading.Event()

    class Hung(Wisher):
        def poll(self) -> None:
            over.wait(30)

    with watching(Hung(), wished=[], stop_s=0.1):
        pass
    over.set()


def test_side_work_that_fails_is_named_once_and_tried_again(said: list[str]) -> None:
    times: list[int] = []

    def also() -> None:
        times.append(1)
        raise OSError("the disk is full")

    with watching(wished=[], said=said, also=also):
        wait_until(lambda: len(times) > 3)
    assert sum("the disk is full" in sentence for sentence in said) == 1


def test_a_trigger_that_wants_to_is_asked_sooner_and_the_others_are_not() -> None:
    hurried, other, passes = Wisher(), Wisher(), list[int]()
    hurried.look_again_s = 0.001  # type: ignore[attr-defined]
    with watching(hurried, other, wished=[], every_s=60.0, also=lambda: passes.append(1)) as watch:
        wait_until(lambda: hurried.polls > 5)
        assert (other.polls, len(passes)) == (1, 1)
        watch.wake()
        wait_until(lambda: other.polls == 2)


def test_a_hurried_trigger_that_asked_or_failed_waits_for_its_turn() -> None:
    class Broken(Wisher):
        look_again_s = 0.001

        def poll(self) -> None:
            self.polls += 1
            raise OSError

    asking, broken, calm, said = Wisher("enough"), Broken(), Wisher(), list[str]()
    asking.look_again_s = 0.001  # type: ignore[attr-defined]
    with watching(asking, broken, calm, wished=[], said=said, every_s=0.1):
        wait_until(lambda: calm.polls > 3)
        polls = broken.polls
        assert polls <= calm.polls + 1  # once in each round
        assert asking.polls == 1


def test_the_pause_never_gets_longer_than_usual_by_what_a_trigger_wants() -> None:
    slow = Wisher()
    slow.look_again_s = 3600.0  # type: ignore[attr-defined]
    with watching(slow, wished=[], every_s=0.01):
        wait_until(lambda: slow.polls > 3)


@pytest.mark.parametrize(
    ("wanted", "seconds"), [(0.5, 0.5), (0.0, SOONEST_S), (-1, SOONEST_S), (None, None), ("soon", None)]
)
def test_how_soon_a_trigger_can_be_asked_again(wanted: object, seconds: float | None) -> None:
    wisher = Wisher()
    wisher.look_again_s = wanted  # type: ignore[attr-defined]
    assert again_s(wisher) == (float("inf") if seconds is None else seconds)
    assert again_s(Wisher()) == float("inf")


def test_what_is_on_the_node_is_probed_when_a_save_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "LOOK_S", 3600.0)
    built_in, own = Wisher(), Wisher()
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    watches = Watches(
        RankInfo(), GuardSettings(poll_s=3600.0), Recorder(RankInfo(), nothing), [built_in], [own],
        on_request=nothing, first=nothing, at_files=nothing, at_node=nothing,
    )  # fmt: skip
    watches.start()
    try:
        wait_until(lambda: (built_in.polls, own.polls) == (1, 1))
        watches.save_began()
        wait_until(lambda: built_in.polls == 2)
        assert own.polls == 1
    finally:
        watches.stop(2.0)


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
    assert asked_here(wisher, RankInfo(rank=rank, world=4, local_rank=local_rank)) is is_asked


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
    with watching(Nameless(3), other, wished=wished, said=said):  # type: ignore[arg-type]
        wait_until(lambda: said)
        other.wish = "enough"
        wait_until(lambda: wished)
    assert "Nameless" in said[0]


def test_a_trigger_without_a_name_is_called_by_its_class() -> None:
    class QueueIsEmpty:
        poll: Callable[[], None]
        done: Callable[[str], None]

    assert name_of(QueueIsEmpty()) == "QueueIsEmpty"
