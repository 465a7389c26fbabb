"""Reports of ranks, and the one answer that all get: every rank has reported, or one never will."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.guard.agreement.base import Agreement
from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.frames import LARGEST_FRAME, encode
from resilience.guard.agreement.messages import (
    FAULT_LIMIT,
    MOST_FAULTS,
    check_coordinator_message,
    check_member_message,
)
from resilience.guard.agreement.reports import MOST_ANSWERS, MOST_OPEN, SentReports, answer
from resilience.guard.decision import FAILED, Decision
from resilience.guard.gate import Gate
from resilience.guard.sdc.replicas import Replica, parse_difference
from tests.guard.agreement.ranks import meeting, meeting_over_a_cable
from tests.guard.agreement.sample_messages import goodbye, join, report
from tests.lab.waiting import until

KEY = "written 400.1"


def gathered(world: int = 3) -> Coordinator:
    """A coordinator that all ranks have joined."""
    coordinator = Coordinator(world)
    for rank in range(world):
        coordinator.receive(rank, join(rank), 0.0)
    return coordinator


def answers(said: list[tuple[int, dict[str, Any]]]) -> dict[int, list[str]]:
    """The faults that each rank is told."""
    return {rank: message["faults"] for rank, message in said if message["say"] == "reported"}


def told(fault: str, *ranks: int) -> dict[int, list[str]]:
    return {rank: [fault] for rank in ranks}


def test_all_are_told_once_the_last_rank_has_reported_with_the_text_of_rank_0() -> None:
    coordinator = gathered()
    assert answers(coordinator.receive(1, report(KEY), 0.0)) == {}
    assert answers(coordinator.receive(0, report(KEY, text="step-400"), 0.0)) == {}
    said = coordinator.receive(2, report(KEY, text="ignored"), 0.0)
    assert answers(said) == {0: [], 1: [], 2: []}
    assert {message["text"] for _, message in said} == {"step-400"}


def test_the_first_fault_is_told_to_all_at_once() -> None:
    coordinator = gathered()
    coordinator.receive(0, report(KEY), 0.0)
    fault = "rank 2: No space left on device"
    assert answers(coordinator.receive(2, report(KEY, "No space left on device"), 0.0)) == told(fault, 0, 1, 2)
    assert answers(coordinator.receive(1, report(KEY), 0.0)) == {1: [fault]}, "one that reports later is told the same"


def test_a_repeated_report_counts_once_and_is_answered_again() -> None:
    coordinator = gathered(2)
    assert answers(coordinator.receive(1, report(KEY), 0.0) + coordinator.receive(1, report(KEY), 0.0)) == {}
    assert answers(coordinator.receive(0, report(KEY), 0.0)) == {0: [], 1: []}
    assert answers(coordinator.receive(1, report(KEY), 0.0)) == {1: []}


def test_nothing_is_answered_before_a_late_rank_has_reported_too() -> None:
    coordinator = Coordinator(2)
    coordinator.receive(0, join(0), 0.0)
    coordinator.receive(0, report(KEY), 0.0)
    assert answers(coordinator.receive(1, join(1), 0.0)) == {}
    assert answers(coordinator.receive(1, report(KEY), 0.0)) == {0: [], 1: []}


@pytest.mark.parametrize("first", ["the report", "the leave"])
def test_a_rank_that_has_left_without_its_report_is_a_fault(first: str) -> None:
    coordinator = gathered()
    said = [] if first == "the leave" else coordinator.receive(0, report(KEY), 0.0)
    said += coordinator.receive(2, goodbye(4, FAILED, "ValueError('shape')"), 0.0)
    said += [] if first == "the report" else coordinator.receive(0, report(KEY), 0.0)
    assert answers(said) == told("rank 2: left with ValueError('shape')", 0, 1)


def test_a_rank_that_leaves_after_its_report_is_no_fault() -> None:
    coordinator = gathered(2)
    coordinator.receive(1, report(KEY), 0.0)
    assert answers(coordinator.receive(1, goodbye(4), 0.0)) == {}
    assert answers(coordinator.receive(0, report(KEY), 0.0)) == {0: []}


def test_the_restart_of_a_rank_is_told_to_all_others() -> None:
    coordinator = gathered(3)
    said = coordinator.receive(1, join(1, "another life"), 0.0)
    assert [(rank, message["restarts"]) for rank, message in said if message["say"] == "welcome"] == [
        (0, 1), (2, 1), (1, 1)
    ]  # fmt: skip


def test_a_fault_on_thousands_of_ranks_is_answered_in_one_frame() -> None:
    coordinator = gathered(20)
    for rank in range(1, 20):
        coordinator._reports.add(rank, report(KEY, "😀" * FAULT_LIMIT))
    (message,) = {id(said): said for _, said in coordinator.proceed(0.0)}.values()
    assert len(message["faults"]) == MOST_FAULTS and len(encode(check_coordinator_message(message))) < LARGEST_FRAME


def test_old_answers_are_forgotten() -> None:
    coordinator = gathered(1)
    for number in range(MOST_ANSWERS + 5):
        coordinator.receive(0, report(f"written {number}"), 0.0)
    assert len(coordinator._reports._answers) == MOST_ANSWERS


# ---- the rank's side -------------------------------------------------------------------------------------------------


def connected(coordinator: str = "life0") -> SentReports:
    reports = SentReports()
    assert reports.welcomed(coordinator, 0) == []
    return reports


def test_a_report_is_repeated_on_each_connection_until_it_is_answered() -> None:
    reports = connected()
    (said,) = reports.add(KEY, "", "text")
    assert check_member_message(said) == report(KEY, text="text")
    reports.disconnected()
    assert reports.add("written 500.1", "", "") == [], "sent once the coordinator has said who it is"
    assert [message["key"] for message in reports.welcomed("life0", 0)] == [KEY, "written 500.1"]
    reports.receive(answer(KEY, []))
    assert [message["key"] for message in reports.welcomed("life0", 0)] == ["written 500.1"]
    found = reports.answer(KEY)
    assert found is not None and not found.faults and reports.answer("written 500.1") is None


@pytest.mark.parametrize(("word", "restarts", "why"), [("life0", 1, "another rank"), ("another life", 0, "rank 0")])
def test_after_a_restart_all_that_was_begun_fails_and_nothing_new(word: str, restarts: int, why: str) -> None:
    reports = connected()
    reports.add(KEY, "", "")
    reports.begin("401.1")
    assert reports.welcomed(word, restarts) == [report(KEY, f"{why} was restarted")]
    assert reports.add("share 400.1", "", "") == [report("share 400.1", f"{why} was restarted")]
    assert reports.add("written 401.1", "", "") == [report("written 401.1", f"{why} was restarted")]
    assert reports.add("written 500.1", "", "") == [report("written 500.1")]


def test_a_new_process_of_rank_0_does_not_wait_for_what_has_ended_before() -> None:
    reports = connected()
    reports.add(KEY, "", "")
    reports.receive(answer(KEY, []))
    assert reports.welcomed("another life", 0) == [report(KEY, "rank 0 was restarted")]
    assert not reports.is_waiting
    found = reports.answer(KEY)
    assert found is not None and not found.faults


def test_without_rank_0_every_open_report_ends_as_a_fault_and_a_rank_0_that_returns_is_told() -> None:
    reports = connected()
    reports.add(KEY, "", "")
    reports.give_up("rank 0 is gone")
    found = reports.answer(KEY)
    assert found is not None and found.faults == ("rank 0 is gone",)
    reports.disconnected()
    assert reports.welcomed("life0", 0) == [report(KEY, "rank 0 is gone")]
    reports.receive(answer(KEY, []))
    again = reports.answer(KEY)
    assert again is not None and again.faults, "the first answer counts"


def test_a_process_alone_is_answered_at_once() -> None:
    agreement = Agreement(Gate())
    agreement.report(KEY, text="step-400")
    agreement.report("share 400.1", fault="disk full")
    well, ill = agreement.reported(KEY), agreement.reported("share 400.1")
    assert well is not None and (well.faults, well.text) == ((), "step-400")
    assert ill is not None and ill.faults == ("rank 0: disk full",)
    assert agreement.reported("commit 400.1") is None


# ---- over TCP --------------------------------------------------------------------------------------------------------


def test_ranks_report_over_tcp_and_a_report_survives_a_broken_connection() -> None:
    with meeting_over_a_cable(2) as (ranks, cable):
        first, second = ranks.ranks
        ranks.leader.decide_start(Decision())
        second.report(KEY)
        until(lambda: KEY in ranks.leader._coordinator._reports._open)
        cable.cut()
        first.report(KEY, text="step-400")
        until(lambda: second.reported(KEY) is not None)
        found = second.reported(KEY)
        assert found is not None and (found.faults, found.text) == ((), "step-400")
        second.report("share 400.1", fault="disk full")
        until(lambda: first.reported("share 400.1") is not None)
        other = first.reported("share 400.1")
        assert other is not None and other.faults == ("rank 1: disk full",)


def test_reports_end_when_rank_0_is_gone_also_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.guard.agreement.client.GONE_S", 0.2)
    with meeting(2, on_leader_lost="wait") as ranks:
        first, second = ranks.ranks
        second.report(KEY)
        until(lambda: KEY in ranks.leader._coordinator._reports._open)
        second.member.stopped = Decision(stop=True)
        first.leave(0.1)
        until(lambda: second.reported(KEY) is not None)
        found = second.reported(KEY)
        assert found is not None and found.faults


# ---- of the watch for silent data corruption -------------------------------------------------------------------------


def line(digest: str, node: str = "n") -> str:
    return Replica(digest, 1.0, "", node).line()


def test_replicas_are_compared_once_all_ranks_have_reported() -> None:
    coordinator = gathered()
    key = "same-100.1 sdc"
    assert not coordinator.receive(0, report(key, text=line("a")), 0.0)
    assert not coordinator.receive(1, report(key, text=line("b", "n1")), 0.0)
    said = coordinator.receive(2, report(key, text=line("a")), 0.0)
    assert answers(said) == {0: [], 1: [], 2: []}
    (text,) = {message["text"] for _, message in said}
    difference = parse_difference(text)
    assert difference is not None and difference.odd == ((1, "n1"),)


def test_of_equal_replicas_the_answer_is_empty() -> None:
    coordinator = gathered(2)
    coordinator.receive(0, report("same-100.1 sdc", text=line("a")), 0.0)
    said = coordinator.receive(1, report("same-100.1 sdc", text=line("a")), 0.0)
    assert [(message["faults"], message["text"]) for _, message in said] == [([], "")] * 2


def test_what_ranks_have_found_is_told_after_the_last_rank() -> None:
    coordinator = gathered()
    key = "found-7.1 sdc"
    assert not coordinator.receive(2, report(key, text="sdc on n2 d: bad"), 0.0)
    assert not coordinator.receive(0, report(key, text="sdc on n0 d: bad"), 0.0)
    fault = ["rank 0: sdc on n0 d: bad", "rank 2: sdc on n2 d: bad"]
    assert answers(coordinator.receive(1, report(key), 0.0)) == {0: fault, 1: fault, 2: fault}


@pytest.mark.parametrize("key", ["same-100.1 sdc", "found-7.1 sdc"])
def test_a_rank_that_leaves_is_a_fault_of_these_as_well(key: str) -> None:
    coordinator = gathered(2)
    coordinator.receive(0, report(key, text=line("a")), 0.0)
    said = coordinator.receive(1, goodbye(4), 0.0)
    assert answers(said) == {0: ["rank 1: left"]} and {message["text"] for _, message in said} == {""}


def test_a_comparison_that_a_rank_never_joins_is_given_up() -> None:
    coordinator = gathered(2)
    said = []
    for number in range(MOST_OPEN + 1):
        said += coordinator.receive(0, report(f"same-{number}.1 sdc", text=line("a")), 0.0)
    assert answers(said) == told("not every rank has reported", 0, 1)
    assert {message["key"] for _, message in said} == {"same-0.1 sdc"}


def test_answers_about_steps_do_not_push_out_those_about_saves() -> None:
    coordinator = gathered(1)
    coordinator.receive(0, report(KEY), 0.0)
    for number in range(MOST_ANSWERS + 5):
        coordinator.receive(0, report(f"found-{number}.1 sdc"), 0.0)
    assert answers(coordinator.receive(0, report(KEY), 0.0)) == {0: []}
    assert KEY in coordinator._reports._answers and len(coordinator._reports._answers) == MOST_ANSWERS
