"""What becomes of what the agreement tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilience.guard.agreement.heard import Heard
from resilience.guard.decision import Decision, Request
from tests.guard.guards import make_guard, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["absent", "lost", "back", "skew", "twins", "fault", "broken"])
def test_news_that_nothing_can_be_decided_reaches_a_person(run: Path, kind: str) -> None:
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        assert guard._parts is not None
        guard._parts.news.hear(Heard(kind, "two processes say that they are rank 3"))
    assert any("rank 3" in sentence for sentence in said)


def test_other_news_of_the_agreement_stand_in_the_journal_only(run: Path) -> None:
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        assert guard._parts is not None
        guard._parts.news.hear(Heard("restarted", "rank 3 was restarted"))
    assert said == []
    assert "restarted" in events(run)


def test_rounds_that_come_to_nothing_again_and_again_are_told_to_people(run: Path) -> None:
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        assert guard._parts is not None
        for _ in range(2):
            guard._parts.news.hear(Heard("aborted", "no decision yet: rank 1 did not answer in 10 s"))
        assert said == []
        guard._parts.news.hear(Heard("aborted", "no decision yet: rank 1 did not answer in 10 s"))
    assert sum("rank 1 did not answer" in sentence for sentence in said) == 1


def test_a_failed_last_save_is_no_stop_on_purpose(run: Path) -> None:
    """The batch shell reads this line: a job whose last save failed must not count as stopped in good order."""
    with make_guard(run, say=lambda text: None) as guard:
        assert guard._parts is not None
        stop = Decision(save=True, stop=True, step=1, reasons=["enough"])
        guard.decided = stop
        guard._has_stopped = True
        guard._parts.news.hear(
            Heard("outcome", "failed", decision=stop, requests=[Request("a", "b")], outcome="failed")
        )
    end = json.loads((run / "journal" / "12.0.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["stopped"], end["exit_code"]) == ("end", False, 1)
    assert guard.exit_code == 1


def test_a_training_that_was_stopped_before_it_began_had_nothing_to_save(run: Path) -> None:
    """Its wish is decided when late ranks come; nobody saves then, and nobody has failed."""
    (run / "switches" / "kill").touch()
    with make_guard(run, say=lambda text: None) as guard:
        assert guard.should_stop_early()
        assert guard._parts is not None
        stop = Decision(save=True, stop=True, step=1, reasons=["killed"])
        guard._parts.news.hear(Heard("outcome", "failed", decision=stop, outcome="failed"))
    assert guard.exit_code == 75
