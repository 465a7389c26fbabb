"""What the host hears stays as it was told."""

from __future__ import annotations

from resilience.guard.agreement.heard import Heard
from resilience.guard.decision import OBEYED, Request


def test_news_does_not_change_after_it_was_told() -> None:
    """The host hears it in another thread, while the agreement goes on with its own list."""
    requests = [Request("signal", "SIGUSR1 came")]
    heard = Heard("committed", "a sentence", requests=requests)
    requests.clear()
    assert [request.why for request in heard.requests] == ["SIGUSR1 came"]


def test_news_of_no_decision_claims_no_save() -> None:
    heard = Heard("absent", "rank 3 did not join the guard")
    assert (heard.decision, heard.requests, heard.outcome, heard.seconds) == (None, (), OBEYED, 0.0)
