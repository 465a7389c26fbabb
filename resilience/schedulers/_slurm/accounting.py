"""Parses sacct's rows. Pure.

Known losses of sacct: exit codes of 128 and more lose their top bit before 26.05 (255 becomes 127, 128 becomes 0), `"`
in a name becomes a backquote in the database, and comments are stored only if the site configured it.
"""

from __future__ import annotations

from resilience.errors import QuantityError
from resilience.job import ExitCode, Job, JobState
from resilience.schedulers._slurm.queue import (
    SEPARATOR,
    count_tasks,
    parse_count,
    parse_id,
    parse_state,
    parse_time,
    parse_wait_status,
    unexpected,
)

HISTORY_COLUMNS = (
    *("JobID", "JobIDRaw", "State", "ExitCode", "Submit", "Start", "End", "TimelimitRaw", "NNodes", "NodeList"),
    *("User", "Partition", "Account", "QOS", "Reason", "JobName"),
)
"""sacct's names, valid since 20.11 (22.05 rejects `Restarts`)."""
_COUNT = len(HISTORY_COLUMNS)
_NONE = frozenset({"None assigned", "None", "(null)", "Unknown"})


def parse_history(text: str) -> tuple[Job, ...]:
    """Parse sacct's rows of HISTORY_COLUMNS, each ended by the separator; return a job for each run of each job.

    Raise SchedulerUnavailable for an invalid or truncated row.
    """
    jobs: list[Job] = []
    held: str | None = None
    for line in text.removesuffix("\n").split("\n") if text else []:
        row = f"{held}\n{line}" if held is not None else line
        # A name may contain a newline or a separator, so it is the last column, and the row ends with a separator.
        if row.count(SEPARATOR) < _COUNT or not row.endswith(SEPARATOR):
            held = row
            continue
        held = None
        jobs.append(_job(row))
    if held is not None or (text and not text.endswith("\n")):
        raise unexpected("sacct", held or text[-200:])
    return tuple(jobs)


def _job(row: str) -> Job:
    columns = row.removesuffix(SEPARATOR).split(SEPARATOR, _COUNT - 1)
    (shown, raw, state_words, exit_code, submit, start, end, limit, nodes, node_list) = columns[:10]
    user, partition, account, qos, reason, name = columns[10:]
    try:
        job_id, tasks = parse_id(shown)
        state = parse_state(state_words.partition(" ")[0].removesuffix("+"))
        return Job(
            id=job_id,
            raw_id=int(raw.partition("_")[0].partition("+")[0]),
            name=name,
            state=state,
            user=user,
            reason="" if reason in _NONE else reason,
            tasks=tasks,
            task_count=count_tasks(tasks),
            partition=partition,
            account=account,
            qos="" if qos == "Unknown" else qos,
            nodes="" if node_list in _NONE else node_list,
            node_count=parse_count(nodes),
            submit_time=parse_time(submit),
            start_time=parse_time(start),
            end_time=parse_time(end),
            time_limit_s=int(limit) * 60 if limit.isdigit() else None,
            exit_code=_exit_code(exit_code, state),
            cancelled_by=state_words.partition(" by ")[2].strip(),
        )
    except (ValueError, QuantityError):
        raise unexpected("sacct", row) from None


def _exit_code(text: str, state: JobState) -> ExitCode | None:
    """Return the exit code, or None if missing or lost: a FAILED job with 0:0 had an exit code of 128."""
    code = parse_wait_status(text) if ":" in text else None
    lost = state is JobState.FAILED and code == ExitCode(0)
    return code if not lost and (state.is_final or state is JobState.REQUEUED) else None


def loses_exit_codes(version: str) -> bool:
    """Return whether sacct loses exit codes of 128 and more: all releases before 26.05, and unknown releases."""
    year, _, rest = version.partition(".")
    month = rest.partition(".")[0]
    return not (year.isdigit() and month.isdigit() and (int(year), int(month)) >= (26, 5))
