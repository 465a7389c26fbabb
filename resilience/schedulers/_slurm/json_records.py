"""Reads SLURM's JSON documents about jobs, both shapes: 22.05's plain values and 23.11's lists and numbers. Pure.

22.05 writes `"job_state": "RUNNING"`, `"time_limit": 10` and a raw wait status; since 23.11 it is `["RUNNING"]`,
`{"set": true, "infinite": false, "number": 10}` and an object. Both keep times as seconds since the epoch.
An empty list of jobs proves nothing, with or without `errors`: 24.11 writes both empty when the controller is down.
"""

from __future__ import annotations

import json
from typing import Any

from resilience.errors import SchedulerUnavailable
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.schedulers._slurm.queue import count_tasks, parse_count, parse_wait_status, unexpected

_FLAGS_FIRST = ("COMPLETING", "REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "CONFIGURING", "STAGE_OUT", "STOPPED")
"""Flags that squeue shows instead of the base state, so that text and JSON say the same of a job."""


def parse_document(text: str, program: str = "scontrol") -> tuple[Job, ...]:
    """Given a document of squeue or scontrol, return its jobs, which may be none.

    Raise SchedulerUnavailable if it is no such document, is cut, or names errors.
    """
    try:
        document = json.loads(text)
        jobs = document["jobs"]
        if errors := document.get("errors"):
            said = "; ".join(str(e.get("description") or e.get("error") or e) for e in errors)
            raise SchedulerUnavailable(f"{program} reported an error in its JSON: {said[:300]}")
        return tuple(parse_job(job) for job in jobs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise unexpected(program, text[:200] or "nothing at all") from None


def parse_job(record: dict[str, Any]) -> Job:
    """Given one job of either shape, return it. Raise KeyError, TypeError or ValueError if it is none."""
    raw_id = int(record["job_id"])
    array = _number(record.get("array_job_id")) or 0
    leader = _number(record.get("het_job_id")) or 0
    tasks = record.get("array_task_string") or ""
    task = _number(record.get("array_task_id")) if array and not tasks else None
    state = parse_states(record["job_state"])
    limit_minutes = _number(record.get("time_limit"))
    reason = record.get("state_description") or record.get("state_reason") or ""
    return Job(
        id=JobId(int(array or leader or raw_id), None if task is None else int(task)),
        raw_id=raw_id,
        name=str(record["name"]),
        state=state,
        user=str(record.get("user_name") or ""),
        reason="" if reason == "None" else str(reason).replace("_", " "),
        tasks=tasks,
        task_count=count_tasks(tasks),
        partition=str(record.get("partition") or ""),
        account=str(record.get("account") or ""),
        qos=str(record.get("qos") or ""),
        nodes=str(record.get("nodes") or ""),
        node_count=_count(record.get("node_count")),
        submit_time=_time(record.get("submit_time")),
        start_time=_time(record.get("start_time")),
        # of a job without a limit it is a year ahead
        end_time=None if limit_minutes is None and state.is_alive else _time(record.get("end_time")),
        time_limit_s=None if limit_minutes is None else int(limit_minutes * 60),
        dependency=str(record.get("dependency") or ""),
        comment=str(record.get("comment") or ""),
        command=str(record.get("command") or ""),
        stdout=str(record.get("stdout_expanded") or record.get("standard_output") or "").replace("4294967294", "%a"),
        restarts=int(_number(record.get("restart_cnt")) or 0),
        exit_code=parse_exit_code(record.get("exit_code")) if state.is_final else None,
    )


def parse_states(value: str | list[str]) -> JobState:
    """Given `"RUNNING"` or `["CANCELLED", "COMPLETING"]`, return the state as squeue's text would show it."""
    states = [value] if isinstance(value, str) else list(value)
    if not states or not all(isinstance(state, str) for state in states):
        raise ValueError(f"no state in {value!r}")
    shown = next((flag for flag in _FLAGS_FIRST if flag in states), states[0])
    return JobState.parse(shown)


def parse_exit_code(value: Any) -> ExitCode | None:
    """Given 22.05's raw wait status or the object since 23.11, return the exit code; None if there is none."""
    if value is None:
        return None
    if isinstance(value, int):
        return parse_wait_status(str(value))
    signal = value.get("signal") or {}
    return ExitCode(int(_number(value.get("return_code")) or 0), int(_number(signal.get("id")) or 0))


def _number(value: Any) -> float | int | None:
    """A plain number, or `{"set", "infinite", "number"}`; None when there is none or it has no end."""
    if isinstance(value, dict):
        return None if value.get("infinite") or not value.get("set") else value["number"]
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _time(value: Any) -> float | None:
    number = _number(value)
    return float(number) if number else None


def _count(value: Any) -> int:
    return parse_count(value) if isinstance(value, str) else int(_number(value) or 0)
