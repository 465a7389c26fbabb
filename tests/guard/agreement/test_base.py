"""One process decides at its next step."""

from __future__ import annotations

import threading

from resilience.guard.agreement.base import Agreement, AgreementEvent, Alone
from resilience.guard.decision import CONTINUE, FAILED, OBEYED, SAVED, Decision, Request
from resilience.guard.gate import NEVER, Gate

SAVE = Request("save switch", "alice wants a checkpoint", stop=False)
STOP = Request("kill switch", "bob stops the run")


class Training:
    """A gate, its agreement, and what was heard."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.heard: list[AgreementEvent] = []
        self.agreement = Alone(self.gate, self.heard.append)
        self.agreement.restore()

    def step(self) -> Decision:
        self.gate.count += 1
        return CONTINUE if self.gate.count < self.gate.limit else self.agreement.on_step()


def test_nothing_is_asked_while_nothing_is_requested() -> None:
    training = Training()
    assert training.gate.limit == training.gate.poll_limit == NEVER and training.step() is CONTINUE


def test_requests_of_the_moment_are_one_decision_at_the_next_step() -> None:
    training = Training()
    training.agreement.request(SAVE)
    training.agreement.request(STOP)
    decision = training.step()
    assert decision.save and decision.stop and decision.step == 1 and len(decision.reasons) == 2
    training.agreement.finish(SAVED, 2.0)
    assert [(heard.kind, heard.outcome) for heard in training.heard] == [("committed", OBEYED), ("outcome", SAVED)]
    again = training.step()
    assert again.stop and not again.save and again.step == 2


def test_a_save_lets_the_training_go_on() -> None:
    training = Training()
    training.agreement.request(SAVE)
    assert training.step().save
    assert training.gate.limit == 2, "the next step tells that it was obeyed, if nothing did"
    training.agreement.finish(FAILED, 2.0)
    training.agreement.finish(SAVED, 2.0)
    assert [heard.outcome for heard in training.heard if heard.kind == "outcome"] == [FAILED]
    assert training.gate.limit == NEVER and training.step() is CONTINUE


def test_a_stop_is_announced_at_a_poll_and_obeyed_at_the_step() -> None:
    training = Training()
    training.agreement.request(SAVE)
    assert training.agreement.on_poll() is CONTINUE
    training.agreement.request(STOP)
    announced = training.agreement.on_poll()
    assert announced.stop and not announced.save
    assert training.step().save


def test_no_request_is_lost_between_two_threads() -> None:
    training = Training()
    requests = 3_000

    def request() -> None:
        for number in range(requests):
            training.agreement.request(Request("mine", f"request {number}", stop=False))

    thread = threading.Thread(target=request)
    thread.start()
    reasons: list[str] = []
    while thread.is_alive() or training.gate.limit != NEVER:
        reasons += training.step().reasons
        training.agreement.finish(SAVED, 0.0)
    thread.join()
    assert sorted(reasons) == sorted(f"request {number}" for number in range(requests))


def test_a_careless_request_is_no_error() -> None:
    training = Training()
    training.agreement.request(Request("mine", None, stop=0))  # type: ignore[arg-type]
    training.agreement.request(Request(7, "why", stop=0))  # type: ignore[arg-type]
    assert training.step().save


def test_what_is_requested_while_it_saves_is_decided_at_the_next_step() -> None:
    training = Training()
    training.agreement.request(SAVE)
    assert training.step().save
    training.agreement.request(STOP)
    training.agreement.finish(SAVED, 1.0)
    assert training.step().stop


def test_a_request_outlives_the_loading_of_a_checkpoint() -> None:
    training = Training()
    training.agreement.request(STOP)
    training.gate.count_from(1000)
    training.agreement.resumed()
    assert training.step().step == 1001


def test_the_first_word_about_the_start_counts() -> None:
    training = Training()
    assert training.agreement.wait_for_start(0.0) is None
    training.agreement.decide_start(CONTINUE)
    training.agreement.decide_start(Decision(stop=True))
    assert training.agreement.wait_for_start(0.0) is CONTINUE


# ---- ranks that have no way to meet ----------------------------------------------------------------------------------


def test_whatever_is_requested_the_training_goes_on() -> None:
    gate = Gate()
    nobody = Agreement(gate)
    nobody.start()
    nobody.request(STOP)
    nobody.decide_start(Decision(stop=True))
    assert nobody.wait_for_start(0.0) is CONTINUE
    assert nobody.pending_decision() is None
    assert nobody.on_step() is CONTINUE
    assert nobody.on_poll() is CONTINUE
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


def test_a_signal_that_the_training_thread_has_not_looked_at_is_not_shut_out() -> None:
    gate = Gate()
    gate.urgent = True
    gate.limit = gate.poll_limit = 0
    nobody = Agreement(gate)
    nobody.on_step()
    assert gate.limit == gate.poll_limit == 0, "whoever asks next looks"
    gate.urgent = False
    nobody.on_poll()
    assert gate.limit == gate.poll_limit == NEVER


def test_news_does_not_change_after_it_was_told() -> None:
    """The host hears it in another thread, while the agreement goes on with its own list."""
    requests = [Request("signal", "SIGUSR1 came")]
    heard = AgreementEvent("committed", "a sentence", requests=requests)
    requests.clear()
    assert [request.why for request in heard.requests] == ["SIGUSR1 came"]


def test_news_of_no_decision_claims_no_save() -> None:
    heard = AgreementEvent("absent", "rank 3 did not join the guard")
    assert (heard.decision, heard.requests, heard.outcome, heard.seconds) == (None, (), OBEYED, 0.0)
