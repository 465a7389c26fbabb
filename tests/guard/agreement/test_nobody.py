"""Ranks that cannot meet decide nothing, and none of them ever waits or stops alone."""

from __future__ import annotations

from resilience.guard.agreement.nobody import Nobody
from resilience.guard.decision import CONTINUE, SAVED, Decision, Request
from resilience.guard.gate import NEVER, Gate

STOP = Request("kill switch", "bob stops the run")


def test_whatever_is_wished_the_training_goes_on() -> None:
    gate = Gate()
    nobody = Nobody(gate)
    nobody.start()
    nobody.wish(STOP)
    nobody.decide_start(Decision(stop=True))
    assert nobody.wait_for_start(0.0) is CONTINUE
    assert nobody.awaited() is None
    assert nobody.arrive() is CONTINUE
    assert nobody.arrive_at_poll() is CONTINUE
    nobody.finish(SAVED, 1.0)
    nobody.leave(3600.0)
    nobody.forget()


def test_a_step_asks_once_and_then_never_again() -> None:
    gate = Gate()
    nobody = Nobody(gate)
    assert gate.limit == 1, "the first step asks, as every training's does"
    nobody.arrive()
    assert gate.limit == gate.poll_limit == NEVER
    gate.count_from(1000)
    gate.limit = gate.poll_limit = 0
    nobody.resumed()
    assert gate.limit == gate.poll_limit == NEVER


def test_a_signal_that_the_training_thread_has_not_looked_at_is_not_shut_out() -> None:
    gate = Gate()
    gate.urgent = True
    gate.limit = gate.poll_limit = 0
    nobody = Nobody(gate)
    nobody.arrive()
    assert gate.limit == gate.poll_limit == 0, "whoever asks next looks"
    gate.urgent = False
    nobody.arrive_at_poll()
    assert gate.limit == gate.poll_limit == NEVER
