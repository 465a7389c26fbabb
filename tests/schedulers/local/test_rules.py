"""Who may start, who is due what, and how an end is told: by tables, without a process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilience.job import JobId, JobState
from resilience.schedulers._local import dependency, rules
from resilience.schedulers._local.dependency import Answer
from resilience.schedulers._local.records import (
    DamagedRecord,
    Entry,
    Task,
    format_indices,
    from_json,
    jobs_of,
    to_json,
)
from resilience.schedulers._local.rules import Due, Exit

NOW = 1000.0


def entry(key: int, **changes: Any) -> Entry:
    plain = Entry(key, f"job{key}", "me", f"t{key}", "resil:r:t", 0.0, "/s", (), "/", "/")
    return replace(plain, **changes)


def task(state: JobState, *, raw: int = 1, index: int | None = None, start: float | None = None, **more: Any) -> Task:
    return Task(raw=raw, index=index, state=state, start=start, **more)


def planned(*entries: Entry, cpus: int = 4, **states: Task) -> rules.Plan:
    tasks = {one.id: [states.get(f"raw{raw}", one.fresh(raw)) for raw in one.raw_ids] for one in entries}
    return rules.plan({one.id: one for one in entries}, tasks, NOW, cpus)


def test_first_come_first_served_within_the_cpus() -> None:
    plan = planned(entry(1, cpus_per_task=3), entry(2, cpus_per_task=2), entry(3))
    assert plan.start == (1,)
    assert plan.reasons == {2: "Resources", 3: "Priority"}


def test_what_never_fits_holds_nobody_back() -> None:
    plan = planned(entry(1, ntasks=5), entry(2))
    assert (plan.start, plan.reasons) == ((2,), {1: "Resources"})


def test_the_throttle_counts_what_is_completing() -> None:
    array = entry(1, indices=(1, 2, 3), throttle=1)
    assert planned(array).start == (2,)
    completing = replace(array.fresh(2), state=JobState.COMPLETING)
    assert planned(array, raw2=completing).start == ()
    assert planned(array, raw2=completing).reasons == {3: "JobArrayTaskLimit", 4: "JobArrayTaskLimit"}


def test_a_requeued_task_goes_behind_the_others() -> None:
    array = entry(1, indices=(1, 2), throttle=1)
    assert planned(array, raw2=rules.requeued(array.fresh(2), NOW)).start == (3,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"held": True}, "JobHeldUser"),
        ({"begin": NOW + 5}, "BeginTime"),
        ({"begin": NOW}, None),
        ({"dependency": "afterany:9"}, None),
    ],
)
def test_own_reasons(changes: dict[str, Any], reason: str | None) -> None:
    plan = planned(entry(1, **changes))
    assert plan.reasons.get(1) == reason
    assert plan.again_at == (NOW + 5 if reason == "BeginTime" else None)


def test_singletons_wait_for_those_before_them_and_for_running_ones_of_their_name() -> None:
    plan = planned(*(entry(key, name="same", dependency="singleton") for key in (1, 2)), entry(3))
    assert (plan.start, plan.reasons) == ((1, 3), {2: "Dependency"})


def test_an_impossible_dependency_is_cancelled_only_on_wish() -> None:
    failed = task(JobState.FAILED)
    for kill, cancel in ((True, (2,)), (False, ())):
        plan = planned(entry(1), entry(2, dependency="afterok:1", kill_invalid=kill), raw1=failed)
        assert plan.cancel == cancel and plan.reasons[2] == "DependencyNeverSatisfied"


R, P, OK, BAD, GONE = JobState.RUNNING, JobState.PENDING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED


@pytest.mark.parametrize(
    ("text", "states", "answer"),
    [
        ("afterany:1", [OK, R], Answer.NOT_YET),
        ("afterany:1", [OK, BAD], Answer.YES),
        ("afterany:1_1", [OK, R], Answer.YES),
        ("afterok:1", [OK, OK], Answer.YES),
        ("afterok:1", [OK, R], Answer.NOT_YET),
        ("afterok:1", [BAD, R], Answer.NEVER),
        ("afterok:1", [GONE, OK], Answer.NEVER),
        ("afterok:1_*", [OK, OK], Answer.YES),
        ("afternotok:1", [OK, OK], Answer.NEVER),
        ("afternotok:1", [BAD, R], Answer.NOT_YET),
        ("afternotok:1", [BAD, OK], Answer.YES),
        ("after:1", [R, OK], Answer.YES),
        ("after:1", [R, P], Answer.NOT_YET),
        ("after:1+1", [R, R], Answer.NOT_YET),
        ("aftercorr:1", [OK, R], Answer.YES),
        ("aftercorr:1", [BAD, OK], Answer.NEVER),
        ("afterany:1_2,afterok:1_1", [OK, R], Answer.NOT_YET),
        ("afterany:1_2?afterok:1_1", [OK, R], Answer.YES),
        ("afterok:1_1?afterok:1_2", [BAD, BAD], Answer.NEVER),
        ("afterok:1_1:1_2", [OK, BAD], Answer.NEVER),
        ("afterany:77", [R, R], Answer.YES),
        ("singleton", [R, R], Answer.NOT_YET),
    ],
)
def test_dependencies(text: str, states: list[JobState], answer: Answer) -> None:
    tasks = [
        task(state, raw=1 + i, index=i, start=None if state is P else NOW - 30)
        for i, state in enumerate(states, start=1)
    ]
    assert dependency.judge(text, 1, {1: tasks}, NOW, singleton=False) is answer


def test_a_delay_is_minutes_after_the_start() -> None:
    running = [task(R, start=NOW - 60)]
    assert dependency.judge("after:1+1", None, {1: running}, NOW, singleton=True) is Answer.YES


def test_raw_ids_of_tasks_are_renamed_to_their_array() -> None:
    assert dependency.with_array_ids("afterany:5:7,after:5+2", {5: (4, 1)}) == "afterany:4_1:7,after:4_1+2"


@pytest.mark.parametrize(
    ("changes", "now", "what"),
    [
        ({}, 50, Due.NOTHING),
        ({}, 70, Due.SIGNAL),
        ({"signalled": True}, 70, Due.NOTHING),
        ({}, 100, Due.TIMEOUT),
        ({"state": JobState.COMPLETING}, 200, Due.NOTHING),
        ({"ending": "CANCELLED", "ending_at": 40.0}, 41, Due.TERM),
        ({"ending": "CANCELLED", "ending_at": 40.0, "termed": True}, 41, Due.NOTHING),
        ({"ending": "CANCELLED", "ending_at": 40.0, "termed": True}, 70, Due.KILL),
        ({"state": P}, 500, Due.NOTHING),
    ],
)
def test_what_a_running_job_is_due(changes: dict[str, Any], now: float, what: Due) -> None:
    job = replace(task(R, start=0.0, time_limit_s=100), **changes)
    assert rules.due(entry(1, signal=10, signal_lead_s=30), job, now) is what


@pytest.mark.parametrize(
    ("changes", "exit_", "state", "code", "reason"),
    [
        ({}, Exit(0, 0, 9), OK, (0, 0), ""),
        ({}, Exit(3, 0, 9), BAD, (3, 0), "NonZeroExitCode"),
        ({}, Exit(0, 12, 9), BAD, (0, 12), "RaisedSignal:12(User defined signal 2)"),
        ({}, Exit(0, 0, 9, "no directory"), BAD, (0, 53), "JobLaunchFailure"),
        ({"ending": "TIMEOUT"}, Exit(0, 15, 9), JobState.TIMEOUT, (0, 15), ""),
        ({"ending": "CANCELLED"}, None, GONE, (0, 9), ""),
        ({"ending": "REQUEUED"}, Exit(0, 15, 9), P, (None, 0), ""),
        ({"ending": "REQUEUED", "requeue_held": True}, None, P, (None, 0), "job requeued in held state"),
        ({}, None, P, (None, 0), "NodeDown"),
    ],
)
def test_how_an_end_is_told(
    changes: dict[str, Any], exit_: Exit | None, state: JobState, code: tuple[int | None, int], reason: str
) -> None:
    job = rules.ended(entry(1), task(R, start=1.0, **changes), exit_, NOW)
    assert (job.state, (job.exit_status, job.exit_signal), job.reason) == (state, code, reason)
    assert job.restarts == (1 if state is P else 0)


def test_a_lost_job_that_may_not_be_requeued_stays_down() -> None:
    job = rules.ended(entry(1, requeue=False), task(R, start=1.0), None, NOW)
    assert (job.state, job.reason, job.restarts) == (JobState.NODE_FAIL, "NodeDown", 0)


@pytest.mark.parametrize(
    ("changes", "now", "reason"),
    [
        ({}, NOW, "NodeDown"),
        ({}, NOW + rules.LOST_WAIT_S, None),
        ({"held": True}, NOW + 100, "JobHeldUser"),
        ({"begin": NOW + 500}, NOW + 100, "NodeDown"),
        ({"dependency": "afterok:1"}, NOW + 100, "DependencyNeverSatisfied"),
    ],
)
def test_a_lost_job_says_so_while_it_waits(changes: dict[str, Any], now: float, reason: str | None) -> None:
    lost = replace(rules.ended(entry(1), task(R, start=1.0), None, NOW), **changes)
    lost = replace(lost, raw=2)
    entries, tasks = {1: entry(1), 2: entry(2)}, {1: [task(BAD)], 2: [lost]}
    assert rules.plan(entries, tasks, now, 4).reasons.get(2) == reason
    assert rules.started(lost, now).reason == ""


def test_a_lost_job_that_waits_for_cpus_says_so_too() -> None:
    lost = rules.ended(entry(1), task(R, start=1.0), None, NOW - 60)
    assert planned(entry(1), entry(2), cpus=1, raw1=lost).reasons == {1: "NodeDown"}


def test_cancelling_what_is_being_requeued_ends_it() -> None:
    job = rules.cancelled(task(R, ending="REQUEUED", ending_at=1.0), NOW)
    assert job.ending == "CANCELLED"


def test_records_survive_the_disk_and_damage_is_noticed() -> None:
    whole = entry(1, indices=(1, 5), command="/a\udcff", script_args=("x",))
    assert from_json(Entry, to_json(whole)) == whole
    job = task(R, reason="NodeDown", index=3)
    assert from_json(Task, to_json(job)) == job
    for text in ("", "{", "[]", "{}", '{"raw":1,"state":"NONSENSE"}', to_json(job)[:40]):
        with pytest.raises(DamagedRecord):
            from_json(Task, text)
        with pytest.raises(DamagedRecord):
            from_json(Entry, text)


def test_tasks_of_one_reason_fold_and_others_stand_alone() -> None:
    array = entry(1, indices=tuple(range(1, 8)), throttle=2)
    tasks = [array.fresh(raw) for raw in array.raw_ids]
    tasks[0] = replace(tasks[0], state=R, start=1.0)
    tasks[4] = replace(tasks[4], held=True)
    records = jobs_of(array, tasks, "box")
    assert [(job.id, job.tasks, job.task_count) for job in records] == [
        (JobId(1), "2-4,6-7%2", 5),
        (JobId(1, 1), "", 1),
        (JobId(1, 5), "", 1),
    ]


@pytest.mark.parametrize(("indices", "text"), [([1], "1"), ([1, 2, 3, 7], "1-3,7"), ([5, 1, 2], "1-2,5"), ([], "")])
def test_indices_are_written_short(indices: list[int], text: str) -> None:
    assert format_indices(indices) == text
