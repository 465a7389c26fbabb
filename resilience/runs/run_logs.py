"""Finds the logs of a run, for every command: `resil logs`, `resil status`, `resil watch log`.

A rendered script writes to `logs/` of the run directory. A user's own script writes where sbatch is told: `submit`
records that as one absolute pattern. Where the pattern finds no file (a site's submit filter changed it, or an older
resil recorded none), the scheduler's StdOut counts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import TAIL_BYTES, read_attempts, read_tail
from resilience.runs.submissions import Intent, own_script_of

if TYPE_CHECKING:
    from resilience.job import Job
    from resilience.runs.attempts import Attempt
    from resilience.schedulers import Scheduler

LOGS_READ = 8
"""The newest logs, and the newest submissions, that are searched for a step."""
BEATS_READ = 64
"""Newest heartbeats that are read; a run of a thousand nodes has as many."""
NO_TASK = 4294967294
"""SLURM's NO_VAL, which replaces %a in the log of a job that is not of an array."""
# At most 18 digits: int() refuses very long texts. No line ends: the number on the next line may be a date.
_BEAT_STEP = re.compile(rb"^step[ \t]*=[ \t]*([0-9]{1,18})", re.MULTILINE)
_LOG_STEP = re.compile(
    rb"\b(?:global[_ ]step|step|iteration|iter)\b[ \t:=#\[(\"']*([0-9]{1,3}(?:,[0-9]{3}){1,4}(?![0-9])|[0-9]{1,18})"
    rb"(?![0-9]|(?:\.[0-9]+)?[kMGB]\b)",  # not `4.20k`
    re.IGNORECASE,
)
_LOG_BATCH = re.compile(
    rb"\b(?:num_updates|updates?|batch(?:es)?)\b[ \t:=#\[(|\"']*([0-9]{1,18})(?![0-9])[ \t]{0,2}(?:/|of\b)",
    re.IGNORECASE,
)
"""Where no line names a step: `batch 3/30`. With a total, because a plain `batch: 32` is a size."""
_FIELD = re.compile(r"%(?P<width>[0-9]*)(?P<letter>[%AabJjNnstux])")
"""sbatch(1), "filename pattern"."""


_ID = re.compile(r"%[0-9]*[AjJ]")


class Start(NamedTuple):
    """One start of a job.

    Attributes:
        array: its id, or that of its array.
        task: None for a job that is not of an array.
        raw: its raw id; 0 if unknown: then any task of the array is meant.
    """

    array: int
    task: int | None = None
    raw: int = 0

    @property
    def label(self) -> str:
        """Return the displayed id, `12` or `12_3`."""
        return str(self.array) if self.task is None else f"{self.array}_{self.task}"


def start_of_job(job: Job) -> Start:
    """Return the start that a record of the scheduler describes."""
    return Start(job.id.array, job.id.task, 0 if job.is_array_record else job.raw_id)


def start_of_attempt(attempt: Attempt) -> Start:
    """Return the start that an attempt describes."""
    array, _, task = attempt.label.partition("_")
    number = int(array) if array.isdecimal() else attempt.job_id
    return Start(number, int(task) if task.isdecimal() else None, attempt.job_id)


# ---- logs -----------------------------------------------------------------------------------------------------------


def logs_by_age(directory: RunDirectory, intents: Sequence[Intent] = ()) -> list[Path]:
    """Return the logs of a run, oldest write first: those in its directory, and those of its newest submissions."""
    found = _files(directory.path / layout.LOGS)
    for intent in [intent for intent in intents if intent.job_id is not None and intent.output][-LOGS_READ:]:
        found |= {} if intent.job_id is None else _outputs(intent, Start(intent.job_id.array))
    return [Path(path) for path in sorted(found, key=lambda path: (found[path], path))]


def newest_log(directory: RunDirectory, intents: Sequence[Intent] = ()) -> Path | None:
    """Return the log of the last attempt, else the newest log, or None.

    A job that found the run finished or killed writes a log as well, which would hide the log of the training. Jobs of
    a user's own script are no attempts: if the run was last queued with one, its newest log counts.
    """
    logs = own = logs_by_age(directory, intents)
    if not own_script_of(directory, intents):
        with suppress(StateDirectoryError):
            for attempt in read_attempts(directory, newest=1):
                own = [path for path in logs if path.stem.endswith(f"-{attempt.label}")] or logs
    return own[-1] if own else None


def logs_of(directory: RunDirectory, start: Start, intents: Sequence[Intent] = ()) -> tuple[str, ...]:
    """Return the paths of the logs of one start: by the label in their names, or where its submission sends them."""
    # The label as a word: `gpt-1233_2.out`, `gpt-1233_2.rank7.out`.
    label = re.compile(rf"(?<![0-9_]){start.label}(?![0-9_])")
    own = {path for path in _files(directory.path / layout.LOGS) if label.search(path, path.rfind("/") + 1)}
    for intent in intents:
        if intent.job_id is not None and intent.job_id.array == start.array:
            own |= set(_outputs(intent, start))
    return tuple(sorted(own))


def stdout_of(scheduler: Scheduler, job: Job) -> Path | None:
    """Return the output file of a started job according to the scheduler; None if there is no such file.

    Raise ResilError if the scheduler does not answer.
    """
    import glob  # imported late: 2 ms

    named = job.stdout or scheduler.job(job.id).stdout
    # SLURM does not expand all fields there, for instance %N and %4j (scontrol 22.05).
    for pattern in (_escaped(named), *output_globs(named, start_of_job(job), job.user)) if named else ():
        for path in glob.iglob(pattern):  # noqa: PTH207
            if os.path.isfile(path):  # noqa: PTH113
                return Path(path)
    return None


def output_globs(pattern: str, start: Start, user: str = "") -> tuple[str, ...]:
    """Given a recorded output pattern, return glob(3) patterns for the files of one start. Pure.

    Unknown fields match anything. For instance, `/a/slurm-%A_%a.out` gives `/a/slurm-12_*.out` for any task of 12. The
    raw ids of tasks do not follow from the array's id, so `/a/%j.out` gives only the log of a job without an array, or
    of the last task.
    """
    if "\\" in pattern:  # sbatch(1): a backslash turns the fields off
        return (_escaped(pattern.replace("\\", "")),)
    if start.raw:
        return (_glob(pattern, start, user),)
    any_task = (_glob(pattern, start, user),) if "%A" in pattern or _ID.search(pattern) is None else ()
    return tuple(dict.fromkeys((*any_task, _glob(pattern, start._replace(raw=start.array), user))))


def array_glob(pattern: str, array: int, user: str = "") -> str:
    """Return the glob(3) pattern for the files of every task of an array, `/a/*.out` for `/a/%j.out`. Pure."""
    start = Start(array)
    return output_globs(pattern, start, user)[0] if "\\" in pattern else _glob(pattern, start, user)


def _glob(pattern: str, start: Start, user: str) -> str:
    task = start.task if start.task is not None or not start.raw else NO_TASK
    known: Mapping[str, int | str | None] = {
        "%": "%", "A": start.array, "a": task, "b": None if task is None else task % 10, "j": start.raw or None,
        "J": f"{start.raw}*" if start.raw else None, "u": _escaped(user) or None, "n": 0, "t": 0,
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        found = known.get(match["letter"])
        if isinstance(found, int):
            return f"{found:0{min(int(match['width'] or 0), 10)}d}"
        return "*" if found is None else found

    return _FIELD.sub(value, _escaped(pattern))


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _outputs(intent: Intent, start: Start) -> dict[str, float]:
    """Return the output files of a submission, with the times of their last write.

    Without a job id in its name, a file from before the submission is of another run.
    """
    import glob  # imported late: 2 ms

    found = {}
    for pattern in output_globs(intent.output, start, intent.by) if intent.output else ():
        for path in glob.iglob(pattern):  # noqa: PTH207
            with suppress(OSError):
                info = os.stat(path)  # noqa: PTH116
                if stat.S_ISREG(info.st_mode) and (_ID.search(intent.output) or info.st_mtime >= intent.time - 1):
                    found[path] = info.st_mtime
    return found


def _files(directory: Path) -> dict[str, float]:
    """Return the visible files of a directory, with the times of their last write."""
    found = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # Files are often renamed here: one that vanished must not hide the others.
            with suppress(OSError):
                if not entry.name.startswith(".") and entry.is_file():
                    found[entry.path] = entry.stat().st_mtime
    return found


# ---- steps ----------------------------------------------------------------------------------------------------------


def last_step(directory: RunDirectory, logs: Sequence[Path] | None = None) -> int | None:
    """Return the last step in a heartbeat, else in the first of these logs that names one; None if unknown.

    `logs`: by default those of the run directory. A heartbeat of step 0 is of a training that has just started: the
    step that an earlier one reached is shown until then.
    """
    files = _files(directory.path / layout.BEATS)
    beats = sorted(files, key=lambda path: (files[path], path), reverse=True)[:BEATS_READ]
    in_beats = list(_steps(beats, _BEAT_STEP, 0))  # the steps of single ranks come later in the file
    step = next((step for step in in_beats if step), None)
    if step is None:
        found = logs_for_step(directory) if logs is None else logs
        named = (_steps(found[:LOGS_READ], pattern, -1) for pattern in (_LOG_STEP, _LOG_BATCH))
        step = next(chain.from_iterable(named), None)
    return in_beats[0] if step is None and in_beats else step


def logs_for_step(directory: RunDirectory, intents: Sequence[Intent] = ()) -> list[Path]:
    """Return the newest log, then the others, newest first: a job that just started has written nothing yet."""
    newest = newest_log(directory, intents)
    older = [path for path in reversed(logs_by_age(directory, intents)) if path != newest]
    return older if newest is None else [newest, *older]


def _steps(paths: Iterable[Path | str], pattern: re.Pattern[bytes], which: int) -> Iterator[int]:
    """Yield the first or last step in the tail of each file that names one."""
    for path in paths:
        with suppress(OSError):
            if found := pattern.findall(read_tail(path, TAIL_BYTES)[0]):
                yield int(found[which].replace(b",", b""))
