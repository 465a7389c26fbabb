"""A submission whose outcome is unknown settles by itself, and every command gives the same answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.errors import NotSupported, ResilError, SchedulerError
from resilience.job import JobId, JobState
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.settle import IN_FLIGHT_S, UNCERTAIN_S
from resilience.runs.status import RunStatus, run_statuses
from resilience.runs.submissions import Intent, Outcome, read_intents, record_intent, record_result
from resilience.submission import make_comment
from resilience.watch.checks.job import CHECK
from resilience.watch.watchdogs import context_of
from tests.lab.fakes import DOWN, ME, NOW, FakeClock, FakeScheduler, a_job, make_project


class Case:
    """A run whose last sbatch had no answer."""

    def __init__(self, directory: Path, outcome: Outcome) -> None:
        self.queue, self.clock = FakeScheduler(), FakeClock()
        self.project: Project = make_project(directory, self.queue, clock=self.clock)
        self.run: RunDirectory = self.project.directory("gpt")
        self.run.create("")
        record_intent(self.run, Intent("aa", "fake", "/x.sh", (), NOW, by=ME))
        if outcome is Outcome.UNCERTAIN:
            record_result(self.run, "aa", outcome, NOW)

    def status(self) -> RunStatus:
        return run_statuses(self.project, (self.run,), fresh=True)[0]

    def verdict(self) -> tuple[str, str]:
        settings, context = CHECK.Settings(), context_of(self.project)
        (target,) = CHECK.targets(settings, context)
        reading = CHECK.probe(target, settings, context, {})["gpt"]
        from resilience.watch.reading import Timed

        now = self.clock.now()
        finding = CHECK.judge("gpt", (Timed(now, reading),), settings, now)[0]
        return finding.verdict.name, finding.summary

    def outcome(self) -> tuple[Outcome, JobId | None]:
        (intent,) = read_intents(self.run)
        return intent.outcome, intent.job_id


OUTCOMES = [(Outcome.UNCERTAIN, UNCERTAIN_S), (Outcome.OPEN, IN_FLIGHT_S)]


@pytest.fixture(params=OUTCOMES, ids=["uncertain", "open"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made = Case(tmp_path, request.param[0])
    made.clock.at_sleep = lambda _: None
    made.due_s = request.param[1]  # type: ignore[attr-defined]
    return made


def wait(case: Case) -> None:
    case.clock.time += case.due_s  # type: ignore[attr-defined]


def test_at_first_nothing_is_known_in_any_command(case: Case) -> None:
    case.clock.time += 5
    assert case.status().headline == "unknown" and "submission by" in case.status().trouble
    assert case.verdict()[0] == "UNKNOWN" and "submission by" in case.verdict()[1]


@pytest.mark.parametrize("first", ["status", "verdict"])
def test_a_job_that_came_after_all_is_found_by_its_token(case: Case, first: str) -> None:
    case.queue.records = [a_job(7, comment=make_comment("gpt", "aa"), start_time=NOW, user=ME)]
    wait(case)
    getattr(case, first)()
    assert case.outcome() == (Outcome.SUBMITTED, JobId(7))
    assert case.status().headline == "running" and case.verdict()[0] == "OK"


@pytest.mark.parametrize("first", ["status", "verdict"])
def test_a_job_that_was_never_created_is_not_queued_in_every_command(case: Case, first: str) -> None:
    wait(case)
    getattr(case, first)()
    assert case.outcome() == (Outcome.REFUSED, None)
    assert case.status().headline == "not queued"
    assert case.verdict() == ("CRITICAL", "neither running nor queued: no job was ever submitted for it")


def test_a_job_that_ran_and_ended_meanwhile_is_found_in_accounting(case: Case) -> None:
    case.queue.accounting = [a_job(7, JobState.COMPLETED, comment=make_comment("gpt", "aa"), end_time=NOW + 60)]
    case.clock.time += 3600
    assert case.status().headline == "not queued"
    assert case.outcome() == (Outcome.SUBMITTED, JobId(7))


@pytest.mark.parametrize("error", [DOWN, SchedulerError("sacct refused: Access denied")], ids=["dead", "refused"])
def test_accounting_that_does_not_answer_proves_nothing(case: Case, error: SchedulerError) -> None:
    """The job may have run and ended; only accounting knows after MinJobAge."""
    case.queue.accounting = [a_job(7, JobState.COMPLETED, comment=make_comment("gpt", "aa"), end_time=NOW + 60)]
    case.queue.troubles["find_past"] = error
    case.clock.time += 3600
    assert case.status().headline == "unknown" and "`resil submit` asks again" in case.status().trouble
    assert case.verdict()[0] == "UNKNOWN" and f"submission by {ME} 1 h ago" in case.verdict()[1]
    assert case.outcome()[0] in (Outcome.OPEN, Outcome.UNCERTAIN)

    del case.queue.troubles["find_past"]
    assert case.status().headline == "not queued" and case.outcome() == (Outcome.SUBMITTED, JobId(7))


def test_a_cluster_without_accounting_has_only_its_queue(case: Case) -> None:
    case.queue.troubles["find_past"] = NotSupported("accounting is off on this cluster")
    wait(case)
    assert case.status().headline == "not queued" and case.outcome() == (Outcome.REFUSED, None)


def test_without_an_answer_it_stays_unknown(case: Case) -> None:
    case.queue.trouble = DOWN
    case.clock.time += 3600
    assert case.status().headline == "unknown"
    assert case.outcome()[0] in (Outcome.OPEN, Outcome.UNCERTAIN)


def test_a_journal_that_cannot_be_written_changes_nothing_about_the_answer(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ResilError("read-only")

    monkeypatch.setattr("resilience.runs.settle.record_result", fail)
    case.queue.records = [a_job(7, comment=make_comment("gpt", "aa"), start_time=NOW, user=ME)]
    wait(case)
    assert case.status().headline == "running" and case.verdict()[0] == "OK"
