"""The parts of a running guard, and the routing of agreement events."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from resilience.guard.agreement.base import AgreementEvent
from resilience.guard.decision import Decision, Request
from tests.guard.guards import Requester, make_guard, train


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]


def test_the_journal_has_the_events_from_start_to_end(run: Path) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        guard.resumed(100)
        train(guard)
        with guard.saving():
            pass
    told = [event for event in events(run) if event != "phase"]
    assert [told[0], told[-1]] == ["start", "end"]
    kept = ("resume", "request", "decision", "save_begin", "save")
    assert sorted(event for event in told if event in kept) == sorted(kept)
    assert told.index("decision") < told.index("save_begin") < told.index("save")


def test_the_start_names_the_paths_that_the_training_uses(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--data=/datasets/c4", "/apps/one.yaml", "--key=s3cret", "-v"])
    with make_guard(run):
        pass
    start = json.loads((run / "journal" / "12.0.jsonl").read_text().splitlines()[0])
    assert {"/datasets/c4", "/apps/one.yaml", sys.prefix, str(Path.cwd())} <= set(start["uses"])
    assert "s3cret" not in str(start)


def test_a_trigger_that_wants_to_is_notified_of_every_save(run: Path) -> None:
    class Listener(Requester):
        def __init__(self) -> None:
            super().__init__()
            self.saves: list[int] = []

        def saved(self, step: int) -> None:
            self.saves.append(step)
            raise ValueError("and it has a fault")

    listener, said = Listener(), list[str]()
    with make_guard(run, triggers=[listener], say=said.append) as guard:
        guard.step()
        with guard.saving():
            pass
        guard.step()
        with guard.saving():
            pass
        with pytest.raises(OSError), guard.saving():
            raise OSError
    assert listener.saves == [1, 2]
    assert sum("saved()" in sentence for sentence in said) == 1


def test_notes_about_the_environment_are_reported_at_the_start(run: Path, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        pass
    guard = make_guard(run, say=said.append)
    guard.place.notes = ("RANK=3 is odd",)
    with guard:
        pass
    assert any("RANK=3 is odd" in sentence for sentence in said)


def test_the_training_phase_begins_also_after_a_resume(run: Path) -> None:
    with make_guard(run) as guard:
        guard.resumed(40)
        guard.step()
        assert guard._loop.phase == "train"


def test_the_training_phase_begins_with_the_first_step(run: Path) -> None:
    with make_guard(run) as guard:
        assert guard._loop.phase == "start"
        guard.step()
        assert guard._loop.phase == "train"
    beat = (run / "beats").glob("12.*")
    assert 'phase = "train"' in next(beat).read_text()


# ---- what the agreement tells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["absent", "lost", "back", "skew", "twins", "fault", "broken"])
def test_events_that_prevent_decisions_are_warnings(run: Path, kind: str, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        assert guard._runtime is not None
        guard._runtime.on_event(AgreementEvent(kind, "two processes say that they are rank 3"))
    assert any("rank 3" in sentence for sentence in said)


def test_other_agreement_events_are_only_in_the_journal(run: Path, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        assert guard._runtime is not None
        guard._runtime.on_event(AgreementEvent("restarted", "rank 3 was restarted"))
    assert said == []
    assert "restarted" in events(run)


def test_repeatedly_aborted_rounds_are_reported(run: Path, said: list[str]) -> None:
    with make_guard(run, say=said.append) as guard:
        assert guard._runtime is not None
        for _ in range(2):
            guard._runtime.on_event(
                AgreementEvent("aborted", "rank 1 did not respond within 10 s; retrying the decision")
            )
        assert said == []
        guard._runtime.on_event(AgreementEvent("aborted", "rank 1 did not respond within 10 s; retrying the decision"))
    assert sum("rank 1 did not respond" in sentence for sentence in said) == 1


def test_a_failed_last_save_is_no_stop_on_purpose(run: Path) -> None:
    """The batch shell reads this record: a job whose last save failed must not count as cleanly stopped."""
    with make_guard(run, say=lambda text: None) as guard:
        guard.step()
        assert guard._runtime is not None
        stop = Decision(save=True, stop=True, step=1, reasons=["enough"])
        guard._loop.decided = stop
        guard._loop.has_stopped = True
        guard._runtime.on_event(
            AgreementEvent("outcome", "failed", decision=stop, requests=[Request("a", "b")], outcome="failed")
        )
    end = json.loads((run / "journal" / "12.0.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["stopped"], end["exit_code"]) == ("end", False, 1)
    assert guard.exit_code == 1


def test_a_training_stopped_before_its_start_has_nothing_to_save(run: Path) -> None:
    """The request is decided when late ranks join; no rank saves, and none has failed."""
    (run / "switches" / "kill").touch()
    with make_guard(run, say=lambda text: None) as guard:
        assert guard.should_stop_early()
        assert guard._runtime is not None
        stop = Decision(save=True, stop=True, step=1, reasons=["killed"])
        guard._runtime.on_event(AgreementEvent("outcome", "failed", decision=stop, outcome="failed"))
    assert guard.exit_code == 75
    assert "save_failed" not in events(run)
