"""How cron's words are printed: short, and never steering a terminal."""

from __future__ import annotations

import pytest

from resilience.cli.show_cron import ago, outcome_text, print_ignored, show_status, sign, span, status_to_json, when
from resilience.cron.drivers import DriverState
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.status import CronStatus, Health, Judgement, Lateness
from resilience.job import Liveness
from tests.fakes import NOW


def run(outcome: Outcome, **given: object) -> RunRecord:
    return RunRecord(name="cron.hourly/backup", slot=int(NOW), outcome=outcome, time=NOW + 5, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "given", "text"),
    [
        (Outcome.DONE, {"exit_code": 0, "summary": "all well"}, "done"),
        (Outcome.FAILED, {"exit_code": 3, "summary": "exit code 3"}, "failed, exit code 3"),
        (Outcome.FAILED, {"exit_code": 3, "summary": "no \x1b[31mroom"}, "failed, exit code 3: no ?[31mroom"),
        (Outcome.SUBMITTED, {"job_id": "88"}, "submitted as job 88"),
        (Outcome.MISSED, {"count": 4}, "missed 4"),
        (Outcome.SKIPPED, {}, "skipped"),
        (Outcome.TIMEOUT, {"summary": "x" * 100}, "timeout: " + "x" * 67 + "..."),
        (Outcome.RUNNING, {"started": NOW - 300}, "running for 5 min"),
    ],
)
def test_an_outcome_is_one_line(outcome: Outcome, given: dict[str, object], text: str) -> None:
    assert outcome_text(run(outcome, **given), NOW) == text


def test_every_outcome_has_a_sign_and_failures_stand_out() -> None:
    for outcome in Outcome:
        assert len(sign(outcome)) == 2
        assert (sign(outcome) == "!!") == outcome.is_failure


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (-3, "0 s"), (90, "90 s"), (150, "2 min"), (7100, "118 min"), (7200, "2 h"), (100000, "1 d 3 h")],
)
def test_a_span_has_no_more_than_it_needs(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_moment_says_how_far_it_is() -> None:
    assert when(NOW + 720, NOW).endswith(", in 12 min") and when(NOW - 1, NOW).endswith(", now")
    assert ago(NOW - 720, NOW) == "12 min ago"
    assert "in the future" in ago(NOW + 720, NOW), "some clock is wrong, and that is said"


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (0, ""),
        (1, "1 thing in the cron folder does not run, most probably by mistake: resil cron doctor\n"),
        (3, "3 things in the cron folder do not run, most probably by mistake: resil cron doctor\n"),
    ],
)
def test_only_what_is_ignored_by_mistake_is_counted(capsys: pytest.CaptureFixture[str], faults: int, text: str) -> None:
    print_ignored(faults)
    assert capsys.readouterr().out == text


def full_status() -> CronStatus:
    return CronStatus(
        now=NOW,
        judgement=Judgement(Health.LATE, "the last tick was 10 min ago", "resil cron doctor"),
        installation=Installation(driver="slurm", token="secret-token", time=NOW - 9000, by="ada", host="login1",
                                  project="/p", python="/py", mode="daemon",
                                  facts={"why": "no crontab here", "$PATH": "/bin"}),
        driver=DriverState(Liveness.UNKNOWN, "squeue did\x1b[2J not answer", NOW + 60),
        heartbeat=Heartbeat(time=NOW - 600, expected=NOW - 540, alive_since=NOW - 9000, ticks=1, late_s=2.0,
                            driver="slurm", host="n1", job_id="88", trouble="the disk is full"),
        lateness=Lateness(1.25, 75.0, 40),
        trouble=("a history cannot be read",),
        folder="/p/cron",
    )  # fmt: skip


def test_the_status_has_all_that_people_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(full_status())
    said = capsys.readouterr().out
    for text in (
        "cron  late: the last tick was 10 min ago", "try: resil cron doctor", "slurm (daemon), installed by ada",
        "no crontab here", "UNKNOWN: squeue did?[2J not answer", "next tick: ", "last tick: 10 min ago, by slurm on n1",
        "job 88", ": 1 tick\n", "trouble in that tick: the disk is full", "late by 2 s",
        "the last 40 runs began 1.2 s after the slot, jitter included (median; 1 min 15 s at p95)",
        "a history cannot be read",
    ):  # fmt: skip
        assert text in said, said
    assert "\x1b" not in said and "secret-token" not in said and "/bin" not in said
    assert "nothing is scheduled" not in said, "nobody could look"


def test_the_json_has_no_token_and_no_environment() -> None:
    document = status_to_json(full_status())
    assert document["installation"]["facts"] == {"why": "no crontab here"}
    assert "secret-token" not in str(document) and document["driver"]["liveness"] == "UNKNOWN"
    assert document["lateness"] == {"median_s": 1.25, "p95_s": 75.0, "runs": 40}
