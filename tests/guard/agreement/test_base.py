"""One process decides at its next step."""

from __future__ import annotations

import threading

import pytest

from resilience.guard.agreement.base import Agreement, AgreementEvent, SingleProcess
from resilience.guard.decision import CONTINUE, FAILED, OBEYED, SAVED, Decision, Request
from resilience.guard.gate import NEVER, Gate
from tests.guard.agreement.sample_messages import SAVE, STOP


class Training(SingleProcess):
    """The agreement of one process, and the news that its host heard."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.news: list[AgreementEvent] = []
        super().__init__(self.gate, self.news.append)
        self.restore()

    def step(self) -> Decision:
        self.gate.count += 1
        return CONTINUE if self.gate.count < self.gate.limit else self.on_step()


@pytest.fixture
def training() -> Training:
    return Training()


def test_nothing_is_asked_while_nothing_is_requested(training: Training) -> None:
    assert training.gate.limit == training.gate.poll_limit == NEVER and training.step() is CONTINUE


def test_requests_of_the_moment_are_one_decision_at_the_next_step(training: Training) -> None:
    training.request(SAVE)
    training.request(STOP)
    decision = training.step()
    assert decision.save and decision.stop and decision.step == 1 and len(decision.reasons) == 2
    training.finish(SAVED, 2.0)
    assert [(event.kind, event.outcome) for event in training.news] == [("committed", OBEYED), ("outcome", SAVED)]
    again = training.step()
    assert again.stop and not again.save and again.step == 2


def test_a_save_lets_the_training_go_on(training: Training) -> None:
    training.request(SAVE)
    assert training.step().save
    assert training.gate.limit == 2, "the next step reports that it was obeyed, if nothing did"
    training.finish(FAILED, 2.0)
    training.finish(SAVED, 2.0)
    assert [event.outcome for event in training.news if event.kind == "outcome"] == [FAILED]
    assert training.gate.limit == NEVER and training.step() is CONTINUE


def test_a_stop_is_announced_at_a_poll_and_obeyed_at_the_step(training: Training) -> None:
    training.request(SAVE)
    assert training.on_poll() is CONTINUE
    training.request(STOP)
    announced = training.on_poll()
    assert announced.stop and not announced.save
    assert training.step().save


def test_no_request_is_lost_between_two_threads(training: Training) -> None:
    requests = 3_000

    def request() -> None:
        for number in range(requests):
            training.request(Request("mine", f"request {number}", stop=False))

    thread = threading.Thread(target=request)
    thread.start()
    reasons: list[str] = []
    while thread.is_alive() or training.gate.limit != NEVER:
        reasons += training.step().reasons
        training.finish(SAVED, 0.0)
    thread.join()
    assert sorted(reasons) == sorted(f"request {number}" for number in range(requests))


def test_a_careless_request_is_no_error(training: Training) -> None:
    training.request(Request("mine", None, stop=0))  # type: ignore[arg-type]
    training.request(Request(7, "why", stop=0))  # type: ignore[arg-type]
    assert training.step().save


def test_what_is_requested_while_it_saves_is_decided_at_the_next_step(training: Training) -> None:
    training.request(SAVE)
    assert training.step().save
    training.request(STOP)
    training.finish(SAVED, 1.0)
    assert training.step().stop


def test_a_request_outlives_the_loading_of_a_checkpoint(training: Training) -> None:
    training.request(STOP)
    training.gate.count_from(1000)
    training.resumed()
    assert training.step().step == 1001


def test_the_first_decision_about_the_start_counts(training: Training) -> None:
    assert training.wait_for_start(0.0) is None
    training.decide_start(CONTINUE)
    training.decide_start(Decision(stop=True))
    assert training.wait_for_start(0.0) is CONTINUE


# ---- ranks that have no way to meet ----------------------------------------------------------------------------------


def test_whatever_is_requested_the_training_goes_on() -> None:
    gate = Gate()
    nobody = Agreement(gate)
    nobody.start()
    nobody.request(STOP)
    nobody.decide_start(Decision(stop=True))
    assert nobody.wait_for_start(0.0) is nobody.on_step() is nobody.on_poll() is CONTINUE
    assert nobody.pending_decision() is None
    nobody.finish(SAVED, 1.0)
    nobody.leave(3600.0)
    nobody.after_fork_in_child()


def test_a_step_asks_once_and_then_never_again() -> None:
    gate = Gate()
    nobody = Agreement(gate)
    assert gate.limit == 1, "the first step asks, as every training's does"
    nobody.on_step()
    assert gate.limit == gate.poll_limit == NEVER
    gate.count_from(1000)
    gate.limit = gate.poll_limit = 0
    nobody.resumed()
    assert gate.limit == gate.poll_limit == NEVER


def test_a_signal_that_the_training_thread_has_not_read_is_not_shut_out() -> None:
    gate = Gate()
    gate.urgent = True
    gate.limit = gate.poll_limit = 0
    nobody = Agreement(gate)
    nobody.on_step()
    assert gate.limit == gate.poll_limit == 0, "the next step or poll reads it"
    gate.urgent = False
    nobody.on_poll()
    assert gate.limit == gate.poll_limit == NEVER


def test_news_does_not_change_after_the_host_has_heard_it() -> None:
    """The host hears it in another thread, while the agreement goes on with its own list."""
    requests = [Request("signal", "SIGUSR1 received")]
    event = AgreementEvent("committed", "a sentence", requests=requests)
    requests.clear()
    assert [request.why for request in event.requests] == ["SIGUSR1 received"]


def test_news_of_no_decision_claims_no_save() -> None:
    event = AgreementEvent("absent", "rank 3 did not join the guard")
    assert (event.decision, event.requests, event.outcome, event.seconds) == (None, (), OBEYED, 0.0)


# ---- a wanted step -------------------------------------------------------------------------------------------------


def at(step: int) -> Request:
    return Request("cadence", f"every {step} steps", stop=False, at=step)


def test_a_save_is_decided_at_the_wanted_step_and_steps_before_it_ask_nothing(training: Training) -> None:
    training.request(at(5))
    decisions = [training.step() for _ in range(2)]
    assert training.gate.limit == 5
    pending = training.pending_decision()
    assert pending is not None and pending.step == 5
    decisions += [training.step() for _ in range(3)]
    assert [decision.save for decision in decisions] == [False] * 4 + [True] and decisions[-1].step == 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stop_does_not_wait_for_a_wanted_step(training: Training, when: str) -> None:
    training.request(at(50))
    training.step()
    if when == "after":
        training.step()
    training.request(STOP)
    decision = training.step()
    assert decision.stop and decision.save and len(decision.reasons) == 2


@pytest.mark.parametrize("step", [1, 2, 100_000, -5, 1 << 70])
def test_a_wanted_step_that_has_passed_or_lies_far_ahead_is_the_next_one(training: Training, step: int) -> None:
    training.gate.count = 2
    training.request(at(step))
    assert training.step().step == 3


def test_a_wanted_step_is_void_when_the_training_resumes(training: Training) -> None:
    training.gate.count = 40
    training.request(at(50))
    training.step()
    training.gate.count_from(10)
    training.resumed()
    assert training.step().step == 11
