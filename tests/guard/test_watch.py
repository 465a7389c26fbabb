"""The threads that poll the triggers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from resilience.guard import watch as watch_module
from resilience.guard.decision import Request
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.watch import MIN_POLL_S, Watch, Watches, is_polled_on, name_of, next_poll_s, to_request
from tests.guard.guards import Requester
from tests.lab.waiting import until


def make_watch(*triggers: Any, requested: list[Request], said: list[str] | None = None, **options: Any) -> Watch:
    recorder = Recorder(RankInfo(), (said if said is not None else []).append)
    return Watch("test", triggers, **{"every_s": 0.01, "on_request": requested.append, "recorder": recorder, **options})


@contextmanager
def watching(*triggers: Any, stop_s: float = 2.0, **options: Any) -> Iterator[Watch]:
    """Start a watch, and stop it in any case."""
    watch = make_watch(*triggers, **options)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop(stop_s)


def test_a_trigger_with_an_open_request_is_not_polled_until_its_outcome() -> None:
    requester, requested = Requester("enough"), []  # type: ignore[var-annotated]
    with watching(requester, requested=requested) as watch:
        until(lambda: requested)
        polls = requester.polls
        requester.request = "again"
        watch.wake()
        watch.notify(["somebody else"], "saved")
        threading.Event().wait(0.1)
        assert (requester.polls, requester.outcomes) == (polls, [])
        watch.notify(["requester"], "saved")
        until(lambda: len(requested) == 2)
        assert requester.outcomes == ["saved"]


def test_the_requests_of_the_first_poll_are_reported_together() -> None:
    first: list[Any] = []
    with watching(Requester("one"), Requester(), requested=[], first=first.append):
        pass
    assert [[request.why for request in requests] for requests in first] == [["one"]]


def test_the_last_outcome_is_delivered_before_the_end() -> None:
    requester, requested = Requester("enough"), []  # type: ignore[var-annotated]
    with watching(requester, requested=requested, every_s=60.0, stop_s=5.0) as watch:
        until(lambda: requested)
        watch.notify(["requester"], "saved")
    assert requester.outcomes == ["saved"]


def test_a_trigger_that_hangs_does_not_hang_the_end() -> None:
    over = threading.Event()

    class Hung(Requester):
        def poll(self) -> None:
            over.wait(30)

    with watching(Hung(), requested=[], stop_s=0.1):
        pass
    over.set()


def test_a_failed_background_task_is_reported_once_and_retried(said: list[str]) -> None:
    times: list[int] = []

    def also() -> None:
        times.append(1)
        raise OSError("the disk is full")

    with watching(requested=[], said=said, also=also):
        until(lambda: len(times) > 3)
    assert sum("the disk is full" in sentence for sentence in said) == 1


def test_a_trigger_that_wants_to_is_asked_sooner_and_the_others_are_not() -> None:
    urgent, other, passes = Requester(), Requester(), list[int]()
    urgent.look_again_s = 0.001  # type: ignore[attr-defined]
    with watching(urgent, other, requested=[], every_s=60.0, also=lambda: passes.append(1)) as watch:
        until(lambda: urgent.polls > 5)
        assert (other.polls, len(passes)) == (1, 1)
        watch.wake()
        until(lambda: other.polls == 2)


def test_an_urgent_trigger_with_an_open_request_or_a_failure_is_polled_at_the_usual_interval() -> None:
    class Broken(Requester):
        look_again_s = 0.001

        def poll(self) -> None:
            self.polls += 1
            raise OSError

    asking, broken, calm, said = Requester("enough"), Broken(), Requester(), list[str]()
    asking.look_again_s = 0.001  # type: ignore[attr-defined]
    with watching(asking, broken, calm, requested=[], said=said, every_s=0.1):
        until(lambda: calm.polls > 3)
        polls = broken.polls
        assert polls <= calm.polls + 1  # once in each round
        assert asking.polls == 1


def test_a_trigger_cannot_lengthen_the_poll_interval() -> None:
    slow = Requester()
    slow.look_again_s = 3600.0  # type: ignore[attr-defined]
    with watching(slow, requested=[], every_s=0.01):
        until(lambda: slow.polls > 3)


@pytest.mark.parametrize(
    ("wanted", "seconds"), [(0.5, 0.5), (0.0, MIN_POLL_S), (-1, MIN_POLL_S), (None, None), ("soon", None)]
)
def test_the_shortest_interval_between_polls(wanted: object, seconds: float | None) -> None:
    requester = Requester()
    requester.look_again_s = wanted  # type: ignore[attr-defined]
    assert next_poll_s(requester) == (float("inf") if seconds is None else seconds)
    assert next_poll_s(Requester()) == float("inf")


def test_the_nodes_triggers_are_polled_when_a_save_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "POLL_S", 3600.0)
    built_in, own = Requester(), Requester()
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    watches = Watches(
        RankInfo(), GuardSettings(poll_s=3600.0), Recorder(RankInfo(), nothing), [built_in], [own],
        on_request=nothing, first=nothing, at_files=nothing, at_node=nothing,
    )  # fmt: skip
    watches.start()
    try:
        until(lambda: (built_in.polls, own.polls) == (1, 1))
        watches.save_began()
        until(lambda: built_in.polls == 2)
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
    requester = Requester()
    requester.ranks = ranks  # type: ignore[attr-defined]
    assert is_polled_on(requester, RankInfo(rank=rank, world=4, local_rank=local_rank)) is is_asked


def test_a_trigger_returns_a_request_a_text_or_none() -> None:
    requester = Requester()
    request = Request("kill", "because")
    assert to_request(requester, None) is None
    assert to_request(requester, request) is request
    assert to_request(requester, "enough") == Request("requester", "enough")
    with pytest.raises(TypeError):
        to_request(requester, True)


@pytest.mark.parametrize("wrong", [{"save": "yes"}, {"stop": 1}, {"label": None}, {"exit_code": "75"}])
def test_a_request_with_fields_of_wrong_types_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        to_request(Requester(), Request("own", "because", **wrong))


def test_a_trigger_whose_name_raises_does_not_end_its_thread() -> None:
    class Nameless(Requester):
        @property
        def name(self) -> str:  # type: ignore[override]
            raise RuntimeError("no name")

    other, requested, said = Requester(), list[Request](), list[str]()
    with watching(Nameless(3), other, requested=requested, said=said):  # type: ignore[arg-type]
        until(lambda: said)
        other.request = "enough"
        until(lambda: requested)
    assert "Nameless" in said[0]


def test_a_trigger_without_a_name_is_called_by_its_class() -> None:
    class QueueIsEmpty:
        poll: Callable[[], None]
        done: Callable[[str], None]

    assert name_of(QueueIsEmpty()) == "QueueIsEmpty"


def test_the_node_is_looked_at_irregularly_so_that_steps_are_not_always_seen_at_the_same_point() -> None:
    times: list[float] = []
    with watching(requested=[], every_s=0.05, is_irregular=True, also=lambda: times.append(time.monotonic())):
        until(lambda: len(times) > 30)
    waits = [after - before for before, after in pairwise(times[:30])]
    assert 0.024 < min(waits) < 0.04  # a regular one never waits less than 0.05 s, however loaded the machine is
