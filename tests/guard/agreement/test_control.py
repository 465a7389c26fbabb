"""The control thread: it outlives its own faults and its host's, holds no lock while others act, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.agreement import control as control_module
from resilience.guard.agreement.base import AgreementEvent
from tests.guard.agreement.ranks import Meeting, meeting, save
from tests.guard.guards import wait_until


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_news_is_told_with_no_lock_held() -> None:
    ranks = Meeting(2)

    def request_again(heard: AgreementEvent) -> None:
        ranks.news.append(heard)
        if heard.kind == "outcome" and len(ranks.heard("outcome")) < 3:
            ranks.ranks[0].request(save(f"after {len(ranks.news)}"))  # waits for the lock

    ranks.ranks[0].after_fork_in_child()
    ranks.ranks[0] = ranks.make(0, on_event=request_again)
    ranks.start()
    with ranks.training():
        ranks.ranks[1].request(save())
        ranks.wait_for("outcome", 3)
    ranks.leave()


def test_a_host_that_fails_when_it_hears_news_does_not_end_the_agreement() -> None:
    ranks = Meeting(2)

    def fail(heard: AgreementEvent) -> None:
        ranks.news.append(heard)
        raise RuntimeError("the host's own fault")

    ranks.ranks[0].after_fork_in_child()
    ranks.ranks[0] = ranks.make(0, on_event=fail)
    ranks.start()
    with ranks.training() as given:
        for number in range(2):
            ranks.ranks[1].request(save(str(number)))
            wait_until(lambda number=number: len(given[0]) > number)  # type: ignore[misc]
    ranks.leave()


def test_a_fault_in_the_control_thread_costs_a_pause_and_not_the_agreement() -> None:
    with meeting(2) as ranks, ranks.training() as given:
        control = ranks.leader
        proceed = control.coordinator.proceed

        def fail_once(now: float) -> list[Any]:
            control.coordinator.proceed = proceed  # type: ignore[method-assign]
            raise RuntimeError("once")

        control.coordinator.proceed = fail_once  # type: ignore[method-assign]
        ranks.ranks[1].request(save())
        wait_until(lambda: given[0] and given[1])
    assert "once" in ranks.heard("fault")[0].text


def test_a_message_that_was_lost_in_a_fault_is_said_again() -> None:
    with meeting(2) as ranks, ranks.training() as given:
        coordinator = ranks.leader.coordinator
        receive = coordinator.receive

        def fail_at_the_request(rank: int, message: dict[str, Any], now: float) -> list[tuple[int, dict[str, Any]]]:
            if message["say"] == "request":
                coordinator.receive = receive  # type: ignore[method-assign]
                raise RuntimeError("once")
            return receive(rank, message, now)

        wait_until(lambda: ranks.client(1).is_up())
        coordinator.receive = fail_at_the_request  # type: ignore[method-assign]
        ranks.ranks[1].request(save())
        wait_until(lambda: given[0] and given[1])


def test_nothing_is_left_open() -> None:
    with meeting(2):  # what Python itself opens at the first time
        pass
    before = descriptors()
    threads = threading.active_count()
    for _ in range(3):
        with meeting(3) as ranks, ranks.training() as given:
            ranks.ranks[1].request(save())
            wait_until(lambda given=given: all(given))  # type: ignore[misc]
    assert descriptors() == before
    assert threading.active_count() == threads


def tcp_sockets() -> set[str]:
    """The TCP sockets that this process has open."""
    tcp = Path("/proc/self/net/tcp").read_text()
    found = []
    for name in descriptors():
        with contextlib.suppress(OSError):
            found.append(str(Path("/proc/self/fd", name).readlink()))
    return {name for name in found if name.startswith("socket:") and name[8:-1] in tcp}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # 3.12 warns of threads: they are the point here
def test_a_forked_child_closes_its_copies_and_the_parent_goes_on() -> None:
    others = tcp_sockets()  # a server of another test's, which lives as long as the tests do
    with meeting(2) as ranks, ranks.training() as given:
        wait_until(lambda: ranks.client(1).is_up())
        child = os.fork()
        if child == 0:
            try:
                for rank in ranks.ranks:
                    rank.after_fork_in_child()
                os._exit(len(tcp_sockets() - others))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ranks.ranks[1].request(save("after the fork"))
        wait_until(lambda: given[0] and given[1])
    assert given[0] == given[1]


def test_a_thread_that_cannot_be_started_costs_the_decisions_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ranks = Meeting(2)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", no_thread)
        ranks.start(1)
    assert "did not start" in ranks.heard_by[1][0].text
    assert ranks.step(1) is None
    ranks.leave()


def test_a_control_thread_that_fails_again_and_again_gives_up_and_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_module, "FAULT_PAUSE_S", 0.0)
    with meeting(2, start=False) as ranks:
        control = ranks.leader

        def fail(now: float) -> list[Any]:
            raise RuntimeError("always")

        ranks.start(0)
        wait_until(lambda: ranks.address is not None)  # it has joined itself
        with control.changed:
            control.coordinator.proceed = fail  # type: ignore[method-assign]
        control.wake()
        wait_until(lambda: not control.is_alive())
        assert [heard.kind for heard in ranks.news] == ["fault"] * (control_module.MOST_FAULTS - 1) + ["broken"]
        assert "nothing will be decided" in ranks.news[-1].text and "always" in ranks.news[-1].text
        ranks.ranks[0].request(save())
        assert ranks.step(0) is None
        with control.changed:
            assert control.is_over(), "nobody waits for it"


def test_nothing_is_over_before_the_host_has_heard_how_it_went() -> None:
    hold, heard = threading.Event(), threading.Event()
    ranks = Meeting(2)

    def hear(news: AgreementEvent) -> None:
        ranks.news.append(news)
        if news.kind == "outcome":
            heard.set()
            assert hold.wait(20)

    ranks.ranks[0].after_fork_in_child()
    ranks.ranks[0] = ranks.make(0, on_event=hear)
    ranks.start()
    control = ranks.leader
    with ranks.training():
        ranks.ranks[1].request(save())
        assert heard.wait(20)
        with control.changed:
            assert control.coordinator.is_over() and not control.is_over()
        hold.set()

        def is_over() -> bool:
            with control.changed:
                return control.is_over()

        wait_until(is_over)
    ranks.leave()


def test_a_thread_is_woken_however_often_and_nobody_waits_for_that_or_fails_when_it_has_ended() -> None:
    ranks = Meeting(2)
    control = ranks.ranks[1]._control
    assert not select.select([control._reader], [], [], 0)[0]
    for _ in range(100_000):  # more than a socket holds
        control.wake()
    assert select.select([control._reader], [], [], 0)[0]
    control._woken(1)
    assert not select.select([control._reader], [], [], 0)[0]
    ranks.leave()
    control.wake()
