"""The jobs of a run as rows for people: arrays folded, reasons in words, what runs first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilience.errors import EX_TEMPFAIL
from resilience.job import Job, JobState
from resilience.pending_reason import explain_reason

CANNOT_OPEN_OUTPUT = 53
"""What SLURM tells (0:53) of a job that ended before it began, mostly for its --output."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, or one array folded.

    Attributes:
        job: the id as people write it; the array's for a folded array.
        state: the state of what runs, else of what waits, else of what ended last.
        counts: how many tasks are in each state; a plain job counts 1.
        words: why it waits or how it ended, in words.
        advice: what to do about it, or empty.
        time_left_s: of what runs, None when unlimited or not known.
        nodes: hostlist.
        is_alive: whether anything of it may run now or later.
    """

    job: str
    state: JobState
    counts: Mapping[str, int]
    words: str
    advice: str
    time_left_s: float | None
    nodes: str
    is_alive: bool


def fold(jobs: Sequence[Job], now: float) -> tuple[JobRow, ...]:
    """Given the jobs of a run, return one row per job or array: what runs first, then what waits, then what ended."""
    arrays: dict[int, list[Job]] = {}
    for job in jobs:
        arrays.setdefault(job.id.array, []).append(job)
    rows = [_row(array, records, now) for array, records in arrays.items()]
    return tuple(sorted(rows, key=lambda row: (_rank(row.state), int(row.job.split("_")[0]))))


def _row(array: int, records: list[Job], now: float) -> JobRow:
    counts: Counter[str] = Counter()
    for job in records:
        counts[job.state.value] += job.task_count
    leading = min(records, key=lambda job: (_rank(job.state), -(job.start_time or 0.0)))
    words, advice = _explain(leading)
    left = leading.end_time - now if leading.state.may_have_processes and leading.end_time is not None else None
    return JobRow(
        job=str(leading.id if len(records) == 1 and not leading.is_array_record else array),
        state=leading.state,
        counts=dict(counts),
        words=words,
        advice=advice,
        time_left_s=None if left is None else max(0.0, left),
        nodes=leading.nodes,
        is_alive=any(job.state.is_alive for job in records),
    )


def _rank(state: JobState) -> int:
    if state is JobState.RUNNING:
        return 0
    if state.may_have_processes:
        return 1
    return 2 if state.is_waiting else 3


def _explain(job: Job) -> tuple[str, str]:
    if job.state.is_waiting:
        reason = explain_reason(job.reason, str(job.id))
        return reason.words, reason.advice
    if job.state is JobState.COMPLETING:
        return "its processes are ending", ""
    if job.state.is_final and job.exit_code is not None and (job.exit_code.status or job.exit_code.signal):
        if job.exit_code.signal == CANNOT_OPEN_OUTPUT:
            return "SLURM could not open its output file, or not start it", "look at --output, and at sinfo -R"
        if job.exit_code.signal:
            return f"ended by signal {job.exit_code.signal}", ""
        if job.exit_code.status == EX_TEMPFAIL:
            return f"stopped on purpose, to go on in the next job (exit code {EX_TEMPFAIL})", ""
        return f"exit code {job.exit_code.status}", ""
    return "", ""
