"""Reads squeue's rows, streamed, into jobs. Pure.

A row is the columns of `QUEUE_COLUMNS`, each ended by SEPARATOR, then ROW_END. Any other line - a banner of a wrapper,
a column missing, a row cut in the middle - makes the whole answer unusable: a row that is dropped in silence is a job
that reads as gone.
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
"""ASCII unit separator. `|`, blanks and quotes are all seen in names and comments."""
ROW_END = "\x1e"
"""ASCII record separator, printed after the last column: names may hold newlines, and a row without it was cut."""

QUEUE_COLUMNS = (
    # What predicates need comes first, what may hold anything comes last (see `scan_jobs`).
    *("JobArrayID", "JobID", "UserName", "State"),
    *("ArrayTaskID", "SubmitTime", "StartTime", "EndTime", "TimeLimit", "NumNodes", "Partition", "Account", "QOS"),
    *("RestartCnt", "exit_code", "NodeList", "Reason", "Dependency", "Command", "Comment", "Name"),
)
"""squeue -O's names, the same from 20.11 to 26.05. -O has the exit code and the restarts, which -o has not.
A field without `:SUFFIX` would be cut to 20 characters; with one it is not."""

HEAD = 4
"""How many columns a filter gets one by one: id, raw id, user, state. Splitting no more is what makes 100,000 rows
cheap."""
REST = HEAD
"""Where in a filter's columns the rest of the row is, as one text."""

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
    """Given squeue's lines without newlines, yield the accepted jobs, and build no object for the others.

    A row without `mark` in it is passed over; that is the quickest test. `accepts` gets [id, raw id, user, state, rest
    of the row] of each other row, as squeue wrote them. Every row is checked, accepted or not. A name that holds a
    newline spans several lines.
    Raise SchedulerUnavailable at the first line that squeue cannot have written, and at the end if the last row was
    cut. So no job that was yielded may be believed before the iteration has ended.
    """
    held = ""
    end, separator, count = _END, SEPARATOR, _COUNT  # local names are quicker, a hundred thousand times
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
    """The filter of `scan_jobs` that accepts jobs of these names (empty: any) for which `keep` returns True."""
    names = frozenset(names)

    def accepts(columns: Sequence[str]) -> bool:
        rest = columns[REST].split(SEPARATOR, _COUNT - HEAD - 1)
        comment, name = rest[-2], rest[-1].removesuffix(_END)
        if names and name not in names:
            return False
        return keep is None or keep(int(_number(columns[0])[0]), name, known(comment))  # type: ignore[index]

    return accepts


def _is_head(line: str) -> bool:
    """True if a row begins as squeue's do: an id as people write it, then the raw one."""
    shown, raw, _ = line.split(SEPARATOR, 2)
    return raw.isdecimal() and (shown.isdecimal() or _is_id(shown) is not None)


def unexpected(program: str, line: str) -> SchedulerUnavailable:
    """The error for a line that this program does not write."""
    shown = line.strip().replace(SEPARATOR, "|").replace(ROW_END, "")[:120]
    return SchedulerUnavailable(
        f"{program} wrote an unexpected line: {shown!r}",
        hint=f"nothing of that answer is believed; does a wrapper or a login script print through {program}?",
    )


def parse_row(line: str) -> Job:
    """Given one whole row, return its job. Raise SchedulerUnavailable if a column is not what it should be."""
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
    """Given `12`, `12_3`, `12_[2-10%1]` or `12+1`, return the id and the set of tasks it stands for, or "".

    A component of a heterogeneous job (`12+1`) has its leader's id. `task` is squeue's own column of it; it
    lists the tasks where the id hides them (`12_*`). Raise ValueError if it is no id.
    """
    match = _parts_of_id(shown)
    if match is None or int(match[1]) == 0:
        raise ValueError(shown)
    number, element, tasks = match.groups()
    if shown.endswith("_*"):
        tasks = task
    return JobId(int(number), None if element is None else int(element)), tasks or ""


def parse_state(text: str) -> JobState:
    """Given a state's long name, return it; a word from a newer SLURM is UNKNOWN. Raise ValueError if it is no word."""
    if _is_state(text) is None:
        raise ValueError(text)
    return JobState.parse(text)


def parse_time(text: str) -> float | None:
    """Given seconds since the epoch (SLURM_TIME_FORMAT=%s), return them; None if there is no time yet."""
    if text in _NO_TIME:
        return None
    seconds = int(text)
    return float(seconds) if seconds > 0 else None


def parse_limit(text: str) -> int | None:
    """Given a time limit as squeue or scontrol print it, return seconds, or None if there is none."""
    return None if text in _NO_LIMIT else parse_slurm_time_s(text)


def parse_count(text: str) -> int:
    """Given a number of nodes, return it. `2-4` is 2 (the least it asks for), `1K` is 1024."""
    number = text.partition("-")[0]
    factor = {"K": 1024, "k": 1024, "M": 1024**2}.get(number[-1:], 1)
    return int(float(number.rstrip("KkM")) * factor) if number else 0


def parse_wait_status(text: str) -> ExitCode | None:
    """Given squeue's exit_code, return it: `3:0` since 24.11, wait(2)'s raw status (`768`) up to 22.05."""
    if text in {"", "N/A", "(null)"}:
        return None
    status, colon, signal = text.partition(":")
    if colon:
        return ExitCode(int(status), int(signal))
    return ExitCode(int(status) >> 8 & 0xFF, int(status) & 0x7F)


def parse_tasks(tasks: str) -> frozenset[int] | None:
    """Given `2,5-9:2%1`, return {2, 5, 7, 9}; None if it cannot be known (cut with `...`).

    sacct writes long sets as a bit mask, `0x7FC`.
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
    """Given the tasks of a record, return how many; 1 for a record that stands for itself or cannot be counted."""
    indices = parse_tasks(tasks) if tasks else None
    return len(indices) if indices else 1


def concerns(job: Job, job_id: JobId) -> bool | None:
    """Say if a record is of this job: itself, a task of this array, the raw id of a task, the record that holds it.

    None if it cannot be known: the record's set of tasks was cut.
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
    """Given a value, return it, or an empty text for SLURM's words for none."""
    return "" if text in {"(null)", "N/A"} else text
