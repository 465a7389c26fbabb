"""Findings about a run's jobs: every state of a queue, and states that persist."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.finding import Verdict
from resilience.job import Job, JobState
from tests.lab.fakes import NOW, a_job
from tests.watch.checks.job.stage import CRITICAL, HOUR, OK, WARNING, Stage, running

PENDING = JobState.PENDING


GPT = ("gpt",)


def waiting(number: int, reason: str, **fields: Any) -> Job:
    return a_job(number, PENDING, reason=reason, **fields)


def runs(number: int, state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    """Return a job that started an hour ago and has 19 h left."""
    return a_job(number, state, **running(**fields))


# ---- what is fine -----------------------------------------------------------------------------------------------

FINE: dict[str, tuple[list[Job], str]] = {
    "running, a chain behind it": (
        [runs(1), waiting(2, "Dependency", dependency="afterany:1(unfulfilled)")],
        "running for 1 h as job 1 on n[1-4], 19 h left; 1 more queued",
    ),
    "a single job": ([runs(1)], "no job queued behind it"),
    "no time limit": ([runs(1, end_time=None)], "running for 1 h as job 1"),
    "waits for nodes": ([waiting(1, "Resources")], "waits for free nodes"),
    "waits behind others": ([waiting(1, "Priority")], "others are before it"),
    "waits for another user's job": ([waiting(1, "Dependency", dependency="afterany:9")], "waits for"),
    "a date is known": ([waiting(1, "Priority", start_time=NOW + 2 * HOUR)], "expected to start in 2 h"),
    "a date in the past": ([waiting(1, "Resources", start_time=NOW - 60)], "due to start now"),
    "requeued, waits for its credential": ([waiting(1, "BeginTime", restarts=1)], "begin time"),
    "ending, maybe to be requeued": ([runs(1, JobState.COMPLETING, end_time=NOW - 5)], "completing"),
    "configuring": ([runs(1, JobState.CONFIGURING, start_time=NOW - 60)], "configuring nodes"),
    "a limit that other runs of mine fill, while one runs": (
        [runs(1), waiting(2, "QOSMaxJobsPerUserLimit")], "1 more queued"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FINE)
def test_an_ok_finding_is_one_sentence_with_the_jobs_state(stage: Stage, case: str) -> None:
    jobs, sentence = FINE[case]
    stage.add(*jobs)
    finding = stage.expect("OK", sentence, names=GPT)
    assert "-" not in finding.summary.split(" as ")[0].replace("to-", ""), "no negative time"


# ---- what is not, at the first tick -----------------------------------------------------------------------------

HELD = "CRITICAL will-never-start"
FOUND: dict[str, tuple[list[Job], dict[str, Any], str, *tuple[str, ...]]] = {
    **{f"{state.value} is held and not called unknown": ([a_job(12, state)], {}, HELD)
       for state in (JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD)},
    "an array whose waiting tasks are held counts them": (
        [waiting(5, "JobHeldUser", tasks="2-9%1", task_count=8)], {}, HELD,
        "job 5_[2-9%1] will not start", "8 jobs in all", "advice: release it: scontrol release 5\n"),
    "a chain whose first job is held is stuck as a whole": (
        [waiting(1, "JobHeldUser"), waiting(2, "Dependency", dependency="afterany:1(unfulfilled)")], {}, HELD,
        "scontrol release 1\n"),
    "waiting is OK without a configured limit": (
        [waiting(1, "Priority", submit_time=NOW - 90 * HOUR)], {}, "OK"),
    "pending longer than allowed is critical": (
        [waiting(1, "Priority", submit_time=NOW - HOUR)], {"max_pending_s": 1800.0}, "CRITICAL pending-too-long",
        "1 h", "others are before it"),
    "pending for less than allowed is fine": (
        [waiting(1, "Priority", submit_time=NOW - HOUR)], {"max_pending_s": 2 * HOUR}, "OK"),
    "running but about to end with nothing behind": (
        [runs(1, start_time=NOW - 19 * HOUR, end_time=NOW + 50 * 60)], {}, "WARNING ends-soon",
        "ends in 50 min", "no job is queued behind it"),
    "about to end later than the notice asked for": (
        [runs(1, start_time=NOW - 19 * HOUR, end_time=NOW + 50 * 60)], {"end_notice_s": 600.0}, "OK"),
    "the last job that has been ending for minutes": (
        [runs(1, JobState.COMPLETING, end_time=NOW - 180)], {}, "WARNING ends-soon", "is ending"),
    "tasks of an array count as a chain": (
        [runs(1, task=3, raw_id=9), waiting(1, "JobArrayTaskLimit", tasks="4-5%1", task_count=2)],
        {"min_queued": 2}, "OK"),
    "a chain that runs dry": (
        [runs(1, task=3, raw_id=9), waiting(1, "JobArrayTaskLimit", tasks="4-5%1", task_count=2)],
        {"min_queued": 3}, "WARNING chain-short", "only 2 jobs queued behind 1_3"),
    "the last job of a chain, long before its end": ([runs(1, task=10)], {}, "WARNING chain-short"),
    "the last job of a chain where no chain is asked for": ([runs(1, task=10)], {"min_queued": 0}, "OK"),
    "nodes that do not get ready": (
        [runs(1, JobState.CONFIGURING, start_time=NOW - 25 * 60)], {}, "WARNING configuring", "25 min"),
    "a job that does not go away": (
        [runs(1, JobState.COMPLETING, end_time=NOW - 20 * 60), waiting(2, "Resources")], {}, "WARNING completing",
        "20 min"),
    "a state of a newer SLURM counts as alive and is said": (
        [runs(1, JobState.UNKNOWN)], {}, "UNKNOWN unknown-state", "counts as alive"),
}  # fmt: skip


@pytest.mark.parametrize("claim", FOUND)
def test_a_queue_is_judged_at_the_first_tick(stage: Stage, claim: str) -> None:
    jobs, settings, expected, *words = FOUND[claim]
    stage.add(*jobs)
    finding = stage.expect(expected, names=GPT, **settings)
    said = f"{finding.summary}\nadvice: {finding.advice}\n"
    assert all(word in said for word in words), finding
    assert finding.advice or expected != HELD


# ---- what never starts ------------------------------------------------------------------------------------------

NEVER = [
    ("JobHeldUser", CRITICAL, "held by its owner", "scontrol release 12"),
    ("JobHeldAdmin", CRITICAL, "held by an administrator", "ask"),
    ("DependencyNeverSatisfied", CRITICAL, "can never be satisfied", "afterany"),
    ("BadConstraints", CRITICAL, "no node satisfies", "--constraint"),
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
def test_a_job_that_will_not_start_is_reported_with_reason_and_advice(
    stage: Stage, reason: str, verdict: Verdict, words: str, advice: str
) -> None:
    """The original reported all of these as `waiting to be scheduled`: healthy."""
    stage.add(waiting(12, reason, partition="gpu"))
    finding = stage.expect(f"{verdict.value} will-never-start", words, "job 12 will not start", names=GPT)
    assert advice in finding.advice


def test_a_job_blocked_by_others_for_too_long_is_critical(stage: Stage) -> None:
    stage.add(waiting(12, "PartitionDown"))
    verdicts = []
    for _ in range(4):
        verdicts.append(stage.finding(blocked_s=HOUR, names=GPT).verdict)
        stage.wait(30 * 60)
    assert verdicts == [WARNING, WARNING, CRITICAL, CRITICAL]


def test_a_held_successor_of_a_running_job_is_a_warning_and_is_no_successor(stage: Stage) -> None:
    stage.add(runs(1, end_time=NOW + 60), waiting(2, "JobHeldUser"))
    assert stage.faults(names=GPT) == {"will-never-start": WARNING, "ends-soon": WARNING}


# ---- waiting too long -------------------------------------------------------------------------------------------


def test_on_a_dedicated_allocation_scheduled_is_not_enough(stage: Stage) -> None:
    """`require = "running"`, with a grace period for the gap between two jobs of a chain."""
    stage.add(waiting(1, "Priority", submit_time=NOW))
    stage.expect("OK", require="running", names=GPT)
    stage.wait(601)
    stage.expect("CRITICAL pending-too-long", "require is running", require="running", names=GPT)


def test_a_successor_queued_last_week_waits_only_since_the_job_before_it_ended(stage: Stage) -> None:
    stage.run("gpt", 1, 2)
    stage.job(1, JobState.TIMEOUT, end_time=NOW - 60, start_time=NOW - HOUR)
    stage.job(2, PENDING, reason="Priority", submit_time=NOW - 7 * 24 * HOUR)
    assert stage.finding(max_pending_s=300.0).fault == "chain-short"
    stage.wait(300)
    assert "pending-too-long" in stage.faults(max_pending_s=300.0)


def test_a_job_that_ran_in_between_restarts_the_waiting_time(stage: Stage) -> None:
    requeued = waiting(1, "BeginTime", submit_time=NOW + 400)
    for job in (waiting(1, "Priority", submit_time=NOW), runs(1), requeued):
        stage.queue.records[:] = [job]
        finding = stage.finding(max_pending_s=300.0, names=GPT)
        stage.wait(200)
    assert finding.verdict is OK


# ---- the end is near --------------------------------------------------------------------------------------------


def test_a_short_job_may_wait_a_quarter_of_its_time_by_default(stage: Stage) -> None:
    stage.add(runs(1, start_time=NOW - 60, end_time=NOW + 1140))
    assert stage.faults(names=GPT) == {"": OK}
    assert stage.faults(end_notice_s=3600.0, names=GPT) == {"ends-soon": WARNING}
    stage.wait(900)
    assert stage.faults(names=GPT) == {"ends-soon": WARNING}


def test_a_single_job_by_name_is_no_chain(stage: Stage) -> None:
    stage.add(runs(2, name="single"))
    assert stage.faults("single", names=("single",)) == {"": OK}


def test_a_run_of_several_jobs_is_a_chain(stage: Stage) -> None:
    stage.run("gpt", 1, 2)
    stage.job(2, **running())
    assert "resil submit --run gpt --after auto" in stage.expect("WARNING chain-short").advice


def test_a_job_that_requeues_itself_needs_no_successor(stage: Stage) -> None:
    directory = stage.run("gpt", 1)
    stage.job(1, **running(start_time=NOW - 19 * HOUR, end_time=NOW + 50 * 60))
    stage.expect("WARNING ends-soon")
    (directory.path / "run.toml").write_text("[act]\nenabled = true\nrequeue = true\n")
    stage.expect("OK", "running for")
    (directory.path / "run.toml").write_text("[act]\nrequeue = true\n")
    stage.expect("WARNING ends-soon")


@pytest.mark.parametrize(("option", "fault"), [("--comment=x", ""), ("--dependency=afterany:1", "chain-short")])
def test_an_own_script_submitted_again_after_its_end_is_no_chain(stage: Stage, option: str, fault: str) -> None:
    stage.run("gpt", 1, argv=("sbatch", "/home/ada/my.sh"))
    stage.run("gpt", 2, argv=("sbatch", option, "/home/ada/my.sh"))
    stage.job(1, JobState.COMPLETED)
    stage.job(2, **running())
    assert stage.finding().fault == fault


def test_a_finished_run_needs_no_successor(stage: Stage) -> None:
    stage.finish(stage.run("gpt", 1, 2))
    stage.job(2, **running(end_time=NOW + 5))
    assert stage.faults() == {"": OK}


# ---- states that last -------------------------------------------------------------------------------------------


def test_jobs_that_end_one_after_another_are_not_one_that_does_not_go_away(stage: Stage) -> None:
    stage.add(waiting(9, "Resources"))
    for number in range(1, 30):
        stage.add(runs(number, JobState.COMPLETING, end_time=None))
        assert "completing" not in stage.faults(names=GPT)
        stage.queue.records.pop()
        stage.wait(60)


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED])
def test_a_job_that_is_suspended_is_reported_and_critical_when_it_lasts(stage: Stage, state: JobState) -> None:
    stage.add(runs(1, state))
    assert stage.faults(names=GPT) == {"suspended": WARNING}
    stage.wait(1800)
    assert stage.expect("CRITICAL suspended", "30 min", names=GPT).advice


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
        stage.queue.records[:] = [runs(1, restarts=40 + restarts)]
        faults.append(stage.faults(names=GPT))
        stage.wait(60)
    assert faults[:4] == [{"": OK}] * 4, "restarts before the first probe are not reported"
    assert faults[4] == {"requeue-churn": WARNING}
    stage.wait(2 * HOUR)
    stage.queue.records[:] = [runs(1, restarts=45)]
    assert stage.faults(names=GPT) == {"": OK}, "and it is over an hour later"


def test_jobs_by_name_that_fail_one_after_another_are_churn(stage: Stage) -> None:
    for number in range(1, 5):
        stage.add(a_job(number, JobState.FAILED, start_time=NOW - 60 * number, end_time=NOW - 50 * number))
    stage.add(waiting(9, "Priority"))
    assert stage.faults(names=GPT) == {"requeue-churn": WARNING}
    assert stage.faults(churn_count=0, names=GPT) == {"": OK}


def test_readings_of_a_day_ago_do_not_count_for_durations(stage: Stage) -> None:
    stage.add(runs(1, JobState.SUSPENDED, end_time=NOW + 90 * HOUR))
    stage.tick(names=GPT)
    stage.wait(25 * HOUR)
    assert stage.faults(names=GPT) == {"suspended": WARNING}


def test_tasks_that_run_at_the_same_time_need_no_successor(stage: Stage) -> None:
    stage.run("gpt", 7)
    stage.job(7, JobState.RUNNING, task=1, raw_id=8, **running())
    stage.job(7, JobState.PENDING, task=None, tasks="2-3", task_count=2, reason="Resources")
    stage.expect("OK", "2 more queued")
    stage.queue.records.pop()
    for task in (2, 3):
        stage.job(7, JobState.RUNNING, task=task, raw_id=7 + task, **running())
    stage.expect("OK", "and 2 more")
    stage.queue.records[1:] = []
    stage.expect("OK", "no job queued behind it")
