"""What a run's jobs amount to: every state of a queue, and what lasts."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.finding import Verdict
from resilience.job import JobState
from tests.fakes import NOW, a_job
from tests.watch.checks.job.stage import CRITICAL, HOUR, OK, UNKNOWN, WARNING, Stage, running

PENDING = JobState.PENDING


def queue(stage: Stage, number: int, state: JobState = PENDING, **fields: Any) -> None:
    stage.queue.records.append(a_job(number, state, **fields))


WATCH: dict[str, Any] = {"names": ("gpt",)}


# ---- what is fine -----------------------------------------------------------------------------------------------

FINE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "running, a chain behind it": (
        [{"number": 1, "state": JobState.RUNNING, **running()},
         {"number": 2, "dependency": "afterany:1(unfulfilled)", "reason": "Dependency"}],
        "running for 1 h as job 1 on n[1-4], 19 h left; 1 more queued",
    ),
    "a single job": ([{"number": 1, "state": JobState.RUNNING, **running()}], "nothing queued behind it"),
    "no time limit": ([{"number": 1, "state": JobState.RUNNING, **running(end_time=None)}], "running for 1 h as job 1"),
    "waits for nodes": ([{"number": 1, "reason": "Resources"}], "waits for free nodes"),
    "waits behind others": ([{"number": 1, "reason": "Priority"}], "others are before it"),
    "waits for somebody else's job": ([{"number": 1, "reason": "Dependency", "dependency": "afterany:9"}], "waits for"),
    "a date is known": (
        [{"number": 1, "reason": "Priority", "start_time": NOW + 2 * HOUR}], "expected to start in 2 h",
    ),
    "a date in the past": ([{"number": 1, "reason": "Resources", "start_time": NOW - 60}], "due to start now"),
    "requeued, waits for its credential": ([{"number": 1, "reason": "BeginTime", "restarts": 1}], "begin time"),
    "configuring": (
        [{"number": 1, "state": JobState.CONFIGURING, **running(start_time=NOW - 60)}], "nodes are getting ready",
    ),
    "a limit that other runs of mine fill, while one runs": (
        [{"number": 1, "state": JobState.RUNNING, **running()}, {"number": 2, "reason": "QOSMaxJobsPerUserLimit"}],
        "1 more queued",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FINE)
def test_what_is_fine_is_one_sentence_that_says_what_it_does(stage: Stage, case: str) -> None:
    jobs, sentence = FINE[case]
    for job in jobs:
        queue(stage, **job)
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (OK, "")
    assert sentence in finding.summary
    assert "-" not in finding.summary.split(" as ")[0].replace("to-", ""), "no negative time"


# ---- what never starts ------------------------------------------------------------------------------------------

NEVER = [
    ("JobHeldUser", CRITICAL, "held by its owner", "scontrol release 12"),
    ("JobHeldAdmin", CRITICAL, "held by an administrator", "ask"),
    ("DependencyNeverSatisfied", CRITICAL, "can never happen", "afterany"),
    ("BadConstraints", CRITICAL, "no node fits", "--constraint"),
    ("JobLaunchFailure", CRITICAL, "could not be started", "sinfo -R"),
    ("launch failed requeued held", CRITICAL, "its start failed", "scontrol release 12"),
    ("job requeued in held state", CRITICAL, "requeued and held", "scontrol release 12"),
    ("InvalidAccount", CRITICAL, "account is not valid", "sacctmgr"),
    ("InvalidQOS", CRITICAL, "QOS is not valid", "sacctmgr"),
    ("AssocMaxWallDurationPerJobLimit", CRITICAL, "more than one job may have", "--time"),
    ("AssocGrpCPUMinutesLimit", CRITICAL, "used up", "account"),
    ("AssocGrpCpuLimit", WARNING, "AssocGrpCpuLimit", "others end"),
    ("QOSMaxJobsPerUserLimit", WARNING, "QOSMaxJobsPerUserLimit", "wait"),
    ("PartitionDown", WARNING, "the partition is down", "sinfo"),
    ("PartitionInactive", WARNING, "the partition is closed", "sinfo"),
    ("ReqNodeNotAvail, UnavailableNodes:n1", WARNING, "a node it needs is not available", "sinfo -R"),
]


@pytest.mark.parametrize(("reason", "verdict", "words", "advice"), NEVER)
def test_a_job_that_will_not_start_is_told_with_the_reason_and_what_to_do(
    stage: Stage, reason: str, verdict: Verdict, words: str, advice: str
) -> None:
    """The original reported all of these as `waiting to be scheduled`: healthy."""
    queue(stage, 12, reason=reason, partition="gpu")
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (verdict, "will-never-start")
    assert words in finding.summary and advice in finding.advice and "job 12 will not start" in finding.summary


@pytest.mark.parametrize("state", [JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD])
def test_states_that_hold_a_job_are_not_called_unknown(stage: Stage, state: JobState) -> None:
    queue(stage, 12, state)
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (CRITICAL, "will-never-start")
    assert finding.advice


def test_what_waits_for_others_too_long_is_critical(stage: Stage) -> None:
    queue(stage, 12, reason="PartitionDown")
    verdicts = []
    for _ in range(4):
        verdicts.append(stage.finding(blocked_s=HOUR, **WATCH).verdict)
        stage.wait(30 * 60)
    assert verdicts == [WARNING, WARNING, CRITICAL, CRITICAL]


def test_a_held_successor_of_a_running_job_is_a_warning_and_is_no_successor(stage: Stage) -> None:
    queue(stage, 1, JobState.RUNNING, **running(end_time=NOW + 60))
    queue(stage, 2, reason="JobHeldUser")
    faults = stage.faults(**WATCH)
    assert faults == {"will-never-start": WARNING, "ends-soon": WARNING}


def test_a_chain_whose_first_job_is_held_is_stuck_as_a_whole(stage: Stage) -> None:
    queue(stage, 1, reason="JobHeldUser")
    queue(stage, 2, reason="Dependency", dependency="afterany:1(unfulfilled)")
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (CRITICAL, "will-never-start")
    assert "12" not in finding.advice and "scontrol release 1" in finding.advice


def test_an_array_whose_waiting_tasks_are_held_counts_them(stage: Stage) -> None:
    queue(stage, 5, reason="JobHeldUser", tasks="2-9%1", task_count=8)
    finding = stage.finding(**WATCH)
    assert "job 5_[2-9%1] will not start" in finding.summary and "8 jobs in all" in finding.summary
    assert finding.advice == "release it: scontrol release 5"


# ---- waiting too long -------------------------------------------------------------------------------------------


def test_waiting_is_fine_unless_somebody_says_how_long(stage: Stage) -> None:
    queue(stage, 1, reason="Priority", submit_time=NOW - 90 * HOUR)
    assert stage.finding(**WATCH).verdict is OK


def test_pending_longer_than_allowed_is_critical(stage: Stage) -> None:
    queue(stage, 1, reason="Priority", submit_time=NOW - HOUR)
    finding = stage.finding(max_pending_s=1800.0, **WATCH)
    assert (finding.verdict, finding.fault) == (CRITICAL, "pending-too-long")
    assert "1 h" in finding.summary and "others are before it" in finding.summary
    assert stage.finding(max_pending_s=2 * HOUR, **WATCH).verdict is OK


def test_on_a_dedicated_allocation_scheduled_is_not_enough(stage: Stage) -> None:
    """`require = "running"`, with a grace for what lies between two jobs of a chain."""
    queue(stage, 1, reason="Priority", submit_time=NOW)
    assert stage.finding(require="running", **WATCH).verdict is OK
    stage.wait(601)
    finding = stage.finding(require="running", **WATCH)
    assert (finding.verdict, finding.fault) == (CRITICAL, "pending-too-long") and "it must run" in finding.summary


def test_a_successor_queued_last_week_waits_only_since_the_job_before_it_ended(stage: Stage) -> None:
    stage.run("gpt", 1, 2)
    stage.job(1, JobState.TIMEOUT, end_time=NOW - 60, start_time=NOW - HOUR)
    stage.job(2, PENDING, reason="Priority", submit_time=NOW - 7 * 24 * HOUR)
    assert stage.finding(max_pending_s=300.0).fault == "chain-short"
    stage.wait(300)
    assert "pending-too-long" in stage.faults(max_pending_s=300.0)


def test_what_ran_in_between_starts_the_waiting_anew(stage: Stage) -> None:
    queue(stage, 1, reason="Priority", submit_time=NOW)
    stage.look(max_pending_s=300.0, **WATCH)
    stage.wait(200)
    stage.queue.records[0] = a_job(1, JobState.RUNNING, **running())
    stage.look(max_pending_s=300.0, **WATCH)
    stage.wait(200)
    stage.queue.records[0] = a_job(1, PENDING, reason="BeginTime", submit_time=NOW + 400)
    assert stage.finding(max_pending_s=300.0, **WATCH).verdict is OK


# ---- the end is near --------------------------------------------------------------------------------------------


def test_running_but_about_to_end_with_nothing_behind_is_told(stage: Stage) -> None:
    queue(stage, 1, JobState.RUNNING, **running(start_time=NOW - 19 * HOUR, end_time=NOW + 50 * 60))
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (WARNING, "ends-soon")
    assert "ends in 50 min" in finding.summary and "nothing is queued behind it" in finding.summary
    assert stage.finding(end_notice_s=600.0, **WATCH).verdict is OK


def test_a_short_job_is_given_a_quarter_of_its_time_unless_said_otherwise(stage: Stage) -> None:
    queue(stage, 1, JobState.RUNNING, **running(start_time=NOW - 60, end_time=NOW + 1140))
    assert stage.faults(**WATCH) == {"": OK}
    assert stage.faults(end_notice_s=3600.0, **WATCH) == {"ends-soon": WARNING}
    stage.wait(900)
    assert stage.faults(**WATCH) == {"ends-soon": WARNING}


def test_the_last_job_that_is_ending_already_is_told(stage: Stage) -> None:
    queue(stage, 1, JobState.COMPLETING, **running(end_time=NOW - 5))
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (WARNING, "ends-soon") and "is ending" in finding.summary


def test_a_chain_that_runs_dry_is_told_and_tasks_of_an_array_count(stage: Stage) -> None:
    queue(stage, 1, JobState.RUNNING, task=3, **running(raw_id=9))
    queue(stage, 1, tasks="4-5%1", task_count=2, reason="JobArrayTaskLimit")
    assert stage.finding(min_queued=2, **WATCH).verdict is OK
    finding = stage.finding(min_queued=3, **WATCH)
    assert (finding.verdict, finding.fault) == (WARNING, "chain-short")
    assert "2 jobs left behind 1_3" in finding.summary


def test_the_last_job_of_a_chain_is_told_long_before_its_end_and_a_single_job_is_not(stage: Stage) -> None:
    queue(stage, 1, JobState.RUNNING, task=10, **running())
    assert stage.faults(**WATCH) == {"chain-short": WARNING}
    assert stage.faults(min_queued=0, **WATCH) == {"": OK}
    stage.queue.records[:] = [a_job(2, name="single", **running())]
    assert stage.faults("single", names=("single",)) == {"": OK}


def test_a_run_of_several_jobs_is_a_chain(stage: Stage) -> None:
    stage.run("gpt", 1, 2)
    stage.job(2, **running())
    finding = stage.finding()
    assert finding.fault == "chain-short" and "resil submit --run gpt --after auto" in finding.advice


def test_what_is_finished_needs_nothing_behind_it(stage: Stage) -> None:
    directory = stage.run("gpt", 1, 2)
    (directory.path / "finished").write_text("")
    stage.job(2, **running(end_time=NOW + 5))
    assert stage.faults() == {"": OK}


# ---- states that last -------------------------------------------------------------------------------------------


def test_nodes_that_do_not_get_ready_are_told(stage: Stage) -> None:
    queue(stage, 1, JobState.CONFIGURING, **running(start_time=NOW - 25 * 60))
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (WARNING, "configuring") and "25 min" in finding.summary


def test_a_job_that_does_not_go_away_is_told(stage: Stage) -> None:
    queue(stage, 1, JobState.COMPLETING, **running(end_time=NOW - 20 * 60))
    queue(stage, 2, reason="Resources")
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (WARNING, "completing") and "20 min" in finding.summary


def test_jobs_that_end_one_after_another_are_not_one_that_does_not_go_away(stage: Stage) -> None:
    queue(stage, 9, reason="Resources")
    for number in range(1, 30):
        stage.queue.records.append(a_job(number, JobState.COMPLETING, **running(end_time=None)))
        assert "completing" not in stage.faults(**WATCH)
        stage.queue.records.pop()
        stage.wait(60)


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED])
def test_a_job_that_is_suspended_is_told_and_critical_when_it_lasts(stage: Stage, state: JobState) -> None:
    queue(stage, 1, state, **running())
    assert stage.faults(**WATCH) == {"suspended": WARNING}
    stage.wait(1800)
    finding = stage.finding(**WATCH)
    assert finding.verdict is CRITICAL and "30 min" in finding.summary and finding.advice


def test_a_state_of_a_newer_slurm_counts_as_alive_and_is_said(stage: Stage) -> None:
    queue(stage, 1, JobState.UNKNOWN, **running())
    finding = stage.finding(**WATCH)
    assert (finding.verdict, finding.fault) == (UNKNOWN, "unknown-state") and "counts as alive" in finding.summary


# ---- churn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "verdict"), [(3, OK), (4, WARNING), (7, WARNING), (8, CRITICAL)])
def test_many_attempts_in_short_time_are_churn(stage: Stage, count: int, verdict: Verdict) -> None:
    directory = stage.run("gpt", 1)
    stage.job(1, PENDING, tasks="9-20%1", task_count=12, reason="JobArrayTaskLimit")
    for number in range(1, count + 1):
        stage.attempt(directory, number, NOW - 60 * (count - number), "exited")
    finding = stage.finding()
    assert (finding.verdict, finding.fault) == (verdict, "" if verdict is OK else "requeue-churn")
    if verdict is not OK:
        assert f"{count} attempts began within 1 h" in finding.summary and "resil logs" in finding.advice
        assert any("exited, exit code 1 after 10 s" in line for line in finding.evidence)


def test_attempts_of_yesterday_are_no_churn(stage: Stage) -> None:
    directory = stage.run("gpt", 1)
    stage.job(1, **running())
    for number in range(1, 20):
        stage.attempt(directory, number, NOW - 30 * HOUR + number, "exited")
    assert stage.finding().verdict is OK


def test_restarts_that_grow_from_tick_to_tick_are_churn(stage: Stage) -> None:
    faults = []
    for restarts in range(6):
        stage.queue.records[:] = [a_job(1, JobState.RUNNING, **running(restarts=40 + restarts))]
        faults.append(stage.faults(**WATCH))
        stage.wait(60)
    assert faults[:4] == [{"": OK}] * 4, "what was requeued before we looked is no news"
    assert faults[4] == {"requeue-churn": WARNING}
    stage.wait(2 * HOUR)
    stage.queue.records[:] = [a_job(1, JobState.RUNNING, **running(restarts=45))]
    assert stage.faults(**WATCH) == {"": OK}, "and it is over an hour later"


def test_jobs_by_name_that_fail_one_after_another_are_churn(stage: Stage) -> None:
    for number in range(1, 5):
        queue(stage, number, JobState.FAILED, start_time=NOW - 60 * number, end_time=NOW - 50 * number)
    queue(stage, 9, reason="Priority")
    assert stage.faults(**WATCH) == {"requeue-churn": WARNING}
    assert stage.faults(churn_count=0, **WATCH) == {"": OK}


def test_what_was_seen_a_day_ago_says_nothing_about_how_long_it_lasts(stage: Stage) -> None:
    queue(stage, 1, JobState.SUSPENDED, **running(end_time=NOW + 90 * HOUR))
    stage.look(**WATCH)
    stage.wait(25 * HOUR)
    assert stage.faults(**WATCH) == {"suspended": WARNING}
