"""Parses squeue's rows as a stream. Pure.

A row is the columns of `QUEUE_COLUMNS`, each ended by SEPARATOR, then ROW_END. Any other line (the banner of a wrapper,
a missing column, a truncated row) invalidates the whole answer, because the job of a dropped row would read as gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from resilience.errors import QuantityError, SchedulerUnavailable, UsageError
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.quantities import parse_slurm_time_s
from resilience.schedulers import Keep
from resilience.submission import ArrayExpression

SEPARATOR = "\x1f"
"""ASCII unit separator. Names and comments contain `|`, blanks and quotes."""
ROW_END = "\x1e"
"""ASCII record separator after the last column: names may contain newlines, and rows without it are truncated."""

QUEUE_COLUMNS = (
    # Columns for filters come first, free text comes last (see `scan_jobs`).
    *("JobArrayID", "JobID", "UserName", "State"),
    *("ArrayTaskID", "SubmitTime", "StartTime", "EndTime", "TimeLimit", "NumNodes", "Partition", "Account", "QOS"),
    *("RestartCnt", "exit_code", "NodeList", "Reason", "Dependency", "Command", "Comment", "Name"),
)
"""Columns of squeue -O, from 20.11 to 26.05. -O has the exit code and the restarts, unlike -o. A field without
`:SUFFIX` would be truncated to 20 characters."""

HEAD = 4
"""Number of columns that are split for a filter: id, raw id, user, state. Splitting more would be slow for 100,000
rows."""
REST = HEAD
"""Index of the unsplit rest of the row in the columns of a filter."""

_END = SEPARATOR + ROW_END
_COUNT = len(QUEUE_COLUMNS)
_MAX_ROW_CHARACTERS = 2**20
_is_id = re.compile(r"[1-9]\d*(?:_(?:\d+|\*|\[[^\]\s]*\])|\+\d+)?", re.ASCII).fullmatch
_plain_head = re.compile(rf"[0-9]+{SEPARATOR}[0-9]+{SEPARATOR}").match
_parts_of_id = re.compile(r"(\d+)(?:_(?:(\d+)|\*|\[([^\]]*)\])|\+\d+)?", re.ASCII).fullmatch
_is_state = re.compile(r"[A-Z][A-Z_]*").fullmatch
_NO_TIME = frozenset({"N/A", "NONE", "None", "Unknown", "UNKNOWN", "(null)", ""})
_NO_LIMIT = frozenset({"UNLIMITED", "INVALID", "NOT_SET", "Partition_Limit", "N/A", ""})
_number = re.compile(r"\d+", re.ASCII).match

RowFilter = Callable[[Sequence[str]], bool]


def scan_jobs(lines: Iterable[str], accepts: RowFilter | None = None, *, mark: str = "") -> Iterator[Job]:
    """Yield the accepted jobs of squeue's lines (without newlines), and build no object for the others.

    Rows that do not contain `mark` are skipped, which is the fastest test. `accepts` gets [id, raw id, user, state,
    rest of the row] of the other rows, unconverted. Every row is validated, accepted or not. A row whose name contains
    a newline spans several lines. Raise SchedulerUnavailable at the first invalid line, and at the end for a truncated
    row: the yielded jobs are reliable only after the iteration has ended.
    """
    held = ""
    end, separator, count = _END, SEPARATOR, _COUNT  # local names are faster in a loop over 100,000 rows
    is_plain = _plain_head
    for line in lines:
        if held:
            line = f"{held}\n{line}"
        if not line.endswith(end):
            held = line or "\n"
            if len(line) > _MAX_ROW_CHARACTERS:
                raise unexpected("squeue", line)
            continue
        held = ""
        if line.count(separator) < count or not (is_plain(line) or _is_head(line)):
            raise unexpected("squeue", line)
        if mark in line and (accepts is None or accepts(line.split(separator, HEAD))):
            yield parse_row(line)
    if held:
        raise unexpected("squeue", held)


def only(names: Collection[str], keep: Keep | None) -> RowFilter:
    """Return a filter of `scan_jobs` for jobs of these names (empty: any) for which `keep` returns True."""
    names = frozenset(names)

    def accepts(columns: Sequence[str]) -> bool:
        rest = columns[REST].split(SEPARATOR, _COUNT - HEAD - 1)
        comment, name = rest[-2], rest[-1].removesuffix(_END)
        if names and name not in names:
            return False
        return keep is None or keep(int(_number(columns[0])[0]), name, known(comment))  # type: ignore[index]

    return accepts


def _is_head(line: str) -> bool:
    """Return whether a row begins with a displayed id and a raw id."""
    shown, raw, _ = line.split(SEPARATOR, 2)
    return raw.isdecimal() and (shown.isdecimal() or _is_id(shown) is not None)


def unexpected(program: str, line: str) -> SchedulerUnavailable:
    """Return the error for an invalid line of a program."""
    shown = line.strip().replace(SEPARATOR, "|").replace(ROW_END, "")[:120]
    return SchedulerUnavailable(
        f"{program} wrote an unexpected line: {shown!r}",
        hint=f"the answer is discarded; does a wrapper or a login script write to the output of {program}?",
    )


def parse_row(line: str) -> Job:
    """Return the job of a row. Raise SchedulerUnavailable for an invalid column."""
    columns = line.removesuffix(_END).split(SEPARATOR, _COUNT - 1)
    if len(columns) != _COUNT:
        raise unexpected("squeue", line)
    (shown, raw, user, state, task, submit, start, end, limit, nodes) = columns[:10]
    (partition, account, qos, restarts, exit_code, node_list, reason, dependency, command, comment, name) = columns[10:]
    try:
        job_id, tasks = parse_id(shown, task)
        parsed = parse_state(state)
        return Job(
            id=job_id,
            raw_id=int(raw),
            name=name,
            state=parsed,
            user=user,
            reason=known(reason) if reason != "None" else "",
            tasks=tasks,
            task_count=count_tasks(tasks),
            partition=partition,
            account=known(account),
            qos=known(qos),
            nodes=known(node_list),
            node_count=parse_count(nodes),
            submit_time=parse_time(submit),
            start_time=parse_time(start),
            end_time=parse_time(end),
            time_limit_s=parse_limit(limit),
            dependency=known(dependency),
            comment=known(comment),
            command=known(command),
            restarts=int(restarts),
            exit_code=parse_wait_status(exit_code) if parsed.is_final else None,
        )
    except (ValueError, QuantityError):
        raise unexpected("squeue", line) from None


def parse_id(shown: str, task: str = "") -> tuple[JobId, str]:
    """Parse `12`, `12_3`, `12_[2-10%1]` or `12+1`; return the id and the set of tasks of the record, or "".

    A component of a heterogeneous job (`12+1`) has its leader's id. `task` is squeue's column ArrayTaskID, which lists
    the tasks that the id omits (`12_*`). Raise ValueError for an invalid id.
    """
    match = _parts_of_id(shown)
    if match is None or int(match[1]) == 0:
        raise ValueError(shown)
    number, element, tasks = match.groups()
    if shown.endswith("_*"):
        tasks = task
    return JobId(int(number), None if element is None else int(element)), tasks or ""


def parse_state(text: str) -> JobState:
    """Parse the long name of a state; states of a newer SLURM are UNKNOWN. Raise ValueError for an invalid text."""
    if _is_state(text) is None:
        raise ValueError(text)
    return JobState.parse(text)


def parse_time(text: str) -> float | None:
    """Parse seconds since the epoch (SLURM_TIME_FORMAT=%s); return None if there is no time yet."""
    if text in _NO_TIME:
        return None
    seconds = int(text)
    return float(seconds) if seconds > 0 else None


def parse_limit(text: str) -> int | None:
    """Parse a time limit of squeue or scontrol; return seconds, or None if unlimited."""
    return None if text in _NO_LIMIT else parse_slurm_time_s(text)


def parse_count(text: str) -> int:
    """Parse a number of nodes. `2-4` is 2 (the minimum), `1K` is 1024."""
    number = text.partition("-")[0]
    factor = {"K": 1024, "k": 1024, "M": 1024**2}.get(number[-1:], 1)
    return int(float(number.rstrip("KkM")) * factor) if number else 0


def parse_wait_status(text: str) -> ExitCode | None:
    """Parse squeue's exit_code: `3:0` since 24.11, the raw status of wait(2) (`768`) up to 22.05."""
    if text in {"", "N/A", "(null)"}:
        return None
    status, colon, signal = text.partition(":")
    if colon:
        return ExitCode(int(status), int(signal))
    return ExitCode(int(status) >> 8 & 0xFF, int(status) & 0x7F)


def parse_tasks(tasks: str) -> frozenset[int] | None:
    """Parse `2,5-9:2%1` to {2, 5, 7, 9}; return None if unknown (truncated with `...`).

    sacct prints long sets as a bit mask, `0x7FC`.
    """
    body = tasks.partition("%")[0]
    try:
        if body.lower().startswith("0x"):
            mask = int(body, 16)
            return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
        return frozenset(ArrayExpression.parse(body).indices())
    except (UsageError, ValueError):
        return None


def count_tasks(tasks: str) -> int:
    """Return the number of tasks of a record; 1 for a single job or an unknown number."""
    indices = parse_tasks(tasks) if tasks else None
    return len(indices) if indices else 1


def concerns(job: Job, job_id: JobId) -> bool | None:
    """Return whether a record is about a job: the job, a task of the array, the raw id of a task, or a set with the
    task.

    None if unknown, because the record's set of tasks was truncated.
    """
    if job_id.task is None:
        return job_id.array in {job.id.array, job.raw_id}
    if job.id.array != job_id.array:
        return False
    if not job.tasks:
        return job.id.task == job_id.task
    indices = parse_tasks(job.tasks)
    return None if indices is None else job_id.task in indices


def known(text: str) -> str:
    """Return the value, or an empty text for SLURM's placeholders for missing values."""
    return "" if text in {"(null)", "N/A"} else text
