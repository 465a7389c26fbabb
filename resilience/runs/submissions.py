"""The journal of submissions: an intent before and a result after each sbatch, and what people did to the run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from resilience import layout
from resilience.errors import UsageError
from resilience.hostlist import expand, fold
from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.switch import describe_age, printable
from resilience.system.files import append_line, read_lines
from resilience.system.ports import iso_time

TOKEN_BYTES = 8
ADOPTED = "adopted"
"""The event of a job that was queued without resil: intent and result in one line."""


class Outcome(StrEnum):
    """The outcome of an intent."""

    OPEN = "open"
    """Journalled and perhaps sent. The next submit first looks up the job by its token."""
    UNCERTAIN = "uncertain"
    """As OPEN, but its submit has ended without an answer."""
    SUBMITTED = "submitted"
    REFUSED = "refused"


GAVE_WAY = "gave way to "
"""Why an intent was refused that was not sent, then the token of the one that was first."""


@dataclass(frozen=True, slots=True)
class Intent:
    """One submission by `resil submit`, folded from its lines in the journal.

    Attributes:
        token: in the job's comment.
        scheduler: the scheduler of the job.
        script: path of the submitted script.
        argv: the exact command, for display.
        time: seconds since the epoch.
        outcome: as journalled.
        job_id: the job, or None.
        by: login name of the submitter; empty when unknown.
        adopted: whether `resil adopt` recorded a job that was queued without resil. Its script and environment do not
            know the run directory; its id identifies the job, because the job has no token.
        output: where the job's output goes: an absolute path with the fields of sbatch(1), "filename pattern"; empty
            when unknown.
        avoid: the nodes that resil excluded from the job, a hostlist expression: for as long as they are bad.
        gave_way: whether it was not sent because another submit of the run was first; its outcome is REFUSED.
    """

    token: str
    scheduler: str
    script: str
    argv: tuple[str, ...]
    time: float
    outcome: Outcome = Outcome.OPEN
    job_id: JobId | None = None
    by: str = ""
    adopted: bool = False
    output: str = ""
    avoid: str = ""
    gave_way: bool = False


class Deed(StrEnum):
    """A person's deed that explains why a run has no job."""

    CANCELLED = "cancelled"
    """`resil cancel`."""
    CANCELLED_PENDING = "cancelled-pending"
    """`resil cancel --pending`: the running job was to be the last one."""
    NOT_CANCELLED = "not-cancelled"
    """The scheduler refused the cancel before it."""
    CLEARED = "cleared"
    """`resil clear`: a new submit is expected."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """The newest deed of a person, if nothing was submitted since.

    Attributes:
        by: login name.
        time: seconds since the epoch.
        jobs: the jobs and arrays that were cancelled.
    """

    deed: Deed
    by: str
    time: float
    jobs: tuple[int, ...] = ()


def describe_intervention(done: Intervention, now: float) -> str:
    """Return the deed as words: `cancelled on purpose by ada 5 min ago`. Pure."""
    who, ago = done.by or "a user", describe_age(now - done.time) or " just now"
    match done.deed:
        case Deed.CANCELLED_PENDING:
            return f"ended on purpose: {who} cancelled its queued jobs{ago}"
        case Deed.CLEARED:
            return f"stopped on purpose: {who} cleared its switch{ago}, and nothing was submitted since"
        case _:
            return f"cancelled on purpose by {who}{ago}"


def new_token() -> str:
    """Return a random token for one intent."""
    return os.urandom(TOKEN_BYTES).hex()


def record_intent(directory: RunDirectory, intent: Intent) -> None:
    """Journal that a submission is about to be sent. Raise StateDirectoryError on failure: then do not send."""
    append_line(directory.path / layout.SUBMISSIONS, _to_record(directory, "intent", intent), mode=directory.file_mode)


def record_adoption(directory: RunDirectory, intent: Intent, adopter: str) -> None:
    """Journal a job that was queued without resil, in one line. Raise StateDirectoryError on failure."""
    record = _to_record(directory, ADOPTED, intent) | {"job_id": str(intent.job_id), "adopter": adopter}
    append_line(directory.path / layout.SUBMISSIONS, record, mode=directory.file_mode)


def _to_record(directory: RunDirectory, event: str, intent: Intent) -> dict[str, object]:
    return {
        "event": event,
        "token": intent.token,
        "at": iso_time(intent.time),
        "time": intent.time,
        "by": intent.by,
        "scheduler": intent.scheduler,
        "script": intent.script,
        "argv": list(intent.argv),
        "output": intent.output,
        "directory": str(directory.path),
    } | ({"avoid": intent.avoid} if intent.avoid else {})


def record_result(
    directory: RunDirectory, token: str, outcome: Outcome, now: float, *, job_id: JobId | None = None, why: str = ""
) -> None:
    """Journal the outcome of an intent."""
    record: dict[str, object] = {"event": outcome.value, "token": token, "at": iso_time(now), "time": now}
    if job_id is not None:
        record["job_id"] = str(job_id)
    if why:
        record["why"] = why
    # If a power cut loses this line, the intent stays open, and the next submit looks it up.
    append_line(directory.path / layout.SUBMISSIONS, record, mode=directory.file_mode, sync=False)


def record_intervention(directory: RunDirectory, done: Intervention) -> None:
    """Journal a person's deed, so that watchdogs do not report its effect. Raise StateDirectoryError on failure."""
    record = {"event": done.deed.value, "at": iso_time(done.time), "time": done.time, "by": done.by}
    append_line(directory.path / layout.SUBMISSIONS, record | {"jobs": list(done.jobs)}, mode=directory.file_mode)


def read_intents(directory: RunDirectory) -> tuple[Intent, ...]:
    """Return the intents of a run, oldest first, each with its outcome."""
    return read_journal(directory).intents


class Journal(NamedTuple):
    """The journal of a run.

    Attributes:
        intents: oldest first, each with its outcome.
        done: the newest intervention after the last intent that was not refused, or None. The order of the lines
            counts, not their times: clocks of login nodes differ.
        cancelled: the jobs and arrays that people ever cancelled.
        stopped: how many intents are older than the newest intervention.
        copied_from: the run directory that this one is a copy of; empty if it is no copy. The intents of that run count
            as refused: its jobs do not belong to this run.
        moved_from: the former path of the run directory, if the newest intent was recorded there and that path is gone.
    """

    intents: tuple[Intent, ...]
    done: Intervention | None
    cancelled: frozenset[int]
    stopped: int
    copied_from: str = ""
    moved_from: str = ""


def describe_relocation(journal: Journal, directory: RunDirectory) -> str:
    """Return a sentence about a run directory that was copied or moved, with advice; else an empty text. Pure."""
    here = shlex.quote(str(directory.path))
    if journal.copied_from:
        return (
            f"this run directory is a copy of {journal.copied_from}: the jobs queued there are not this run's;"
            f" to begin without its attempts and logs: rm -r {here}"
        )
    if journal.moved_from:
        return (
            f"its jobs were queued from {journal.moved_from}, which is gone: they see no switch that is set here, and"
            f" write to the old path; to queue them anew: resil cancel {directory.run}, then resil submit"
        )
    return ""


def _is_copy_of(origin: str, directory: RunDirectory) -> bool:
    """Return whether another run directory with this journal exists at `origin`. Paths differ by mount and by link."""
    try:
        own = (directory.path / layout.SUBMISSIONS).stat()
        return not os.path.samestat((Path(origin) / layout.SUBMISSIONS).stat(), own)
    except OSError:
        return False


def _origin_of(record: Mapping[str, object]) -> str:
    """Return the run directory in which an intent was recorded; of older journals, that of the rendered script."""
    script = Path(str(record.get("script", "")))
    known = script.is_absolute() and script.parent.name == layout.SCRIPTS
    return str(record.get("directory", "")) or (str(script.parent.parent) if known else "")


def read_journal(directory: RunDirectory) -> Journal:
    """Return the journal of a run. Raise StateDirectoryError if it cannot be read."""
    intents: dict[str, Intent] = {}
    cancelled: set[int] = set()
    stopped = 0
    done: Intervention | None = None
    before: dict[str, Intervention | None] = {}
    here, copied_from, newest_origin = str(directory.path), "", ""
    copies: dict[str, bool] = {}
    for record in read_lines(directory.path / layout.SUBMISSIONS):
        token = str(record.get("token", ""))
        if not token:
            if record.get("event") in set(Deed):
                done = _intervention(record)
                stopped = len(intents)
                cancelled |= set(done.jobs if done.deed is Deed.CANCELLED else ())
            continue
        event = record.get("event")
        if event in ("intent", ADOPTED):
            if token in intents:
                continue
            origin = _origin_of(record)
            if origin not in ("", here):
                if origin not in copies:
                    copies[origin] = _is_copy_of(origin, directory)
                if copies[origin]:
                    copied_from = origin
                    # Without any intent, a job with the run's name would count as the run's. `token` stays unknown.
                    theirs = f"{token} of {origin}"
                    intents[theirs] = Intent(theirs, "", "", (), _seconds(record.get("time")), Outcome.REFUSED)
                    continue
            newest_origin = origin
            before[token], done = done, None
            argv = record.get("argv")
            intents[token] = Intent(
                token=token,
                scheduler=str(record.get("scheduler", "")),
                script=_moved_script(str(record.get("script", "")), origin, here),
                argv=tuple(str(word) for word in argv) if isinstance(argv, list) else (),
                time=_seconds(record.get("time")),
                by=str(record.get("by", "")),
                adopted=event == ADOPTED,
                output=str(record.get("output", "")),
                avoid=str(record.get("avoid", "")),
            )
            if event == ADOPTED:
                intents[token] = _with_result(intents[token], Outcome.SUBMITTED, record.get("job_id"))
        elif token in intents:
            intents[token] = _with_result(intents[token], str(event), record.get("job_id"))
            if str(record.get("why", "")).startswith(GAVE_WAY):
                intents[token] = replace(intents[token], gave_way=True)
            if intents[token].outcome is Outcome.REFUSED and token == next(reversed(intents)):
                done = done or before[token]  # nothing was submitted
    is_undone = done is not None and done.deed is Deed.NOT_CANCELLED
    moved_from = newest_origin if newest_origin not in ("", here) and not os.path.exists(newest_origin) else ""  # noqa: PTH110
    return Journal(
        tuple(intents.values()), None if is_undone else done, frozenset(cancelled), stopped, copied_from, moved_from
    )


def _moved_script(script: str, origin: str, here: str) -> str:
    """Return the path of a submitted script; a rendered one lies in the run directory and moves with it. Pure."""
    if origin and Path(script).parent == Path(origin) / layout.SCRIPTS:
        return str(Path(here) / layout.SCRIPTS / Path(script).name)
    return script


def submitted_ids(intents: Sequence[Intent]) -> tuple[JobId, ...]:
    """Return the jobs of these intents, oldest first."""
    return tuple(intent.job_id for intent in intents if intent.job_id is not None)


def adopted_ids(intents: Sequence[Intent]) -> frozenset[int]:
    """Return the ids of the adopted jobs and arrays of a run."""
    return frozenset(one.job_id.array for one in intents if one.adopted and one.job_id is not None)


def newest_intent(intents: Sequence[Intent]) -> Intent | None:
    """Return the newest intent that was not refused, or None."""
    return next((intent for intent in reversed(intents) if intent.outcome is not Outcome.REFUSED), None)


def option_of(intent: Intent, name: str) -> str:
    """Return an option of sbatch that a job was queued with; empty without it. Pure."""
    words = intent.argv[: intent.argv.index(intent.script)] if intent.script in intent.argv else ()
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), "")


def excluded_by_user(intent: Intent) -> str:
    """Return the nodes that a job was queued without, besides resil's own choice. Pure.

    Raise HostlistError for what is no list.
    """
    exclude = option_of(intent, "exclude")
    return fold({*expand(exclude)} - {*expand(intent.avoid)}) if intent.avoid else exclude


def own_script_of(directory: RunDirectory, intents: Sequence[Intent]) -> str:
    """Return the user's own script that the run was last queued with; empty for a rendered template. Pure.

    Only a rendered script reads the switches itself. The script of an adopted job may be unknown.
    """
    last = newest_intent(intents)
    if last is None or not (last.adopted or last.script):
        return ""
    is_rendered = not last.adopted and Path(last.script).parent == directory.path / layout.SCRIPTS
    return "" if is_rendered else last.script or "(unknown)"


def _with_result(intent: Intent, event: str, job_id: object) -> Intent:
    """Return the intent with a result. A known job is never lost; a result without a readable id leaves the intent
    OPEN."""
    if event not in (Outcome.UNCERTAIN, Outcome.SUBMITTED, Outcome.REFUSED) or intent.outcome is Outcome.SUBMITTED:
        return intent
    try:
        parsed = JobId.parse(str(job_id)) if job_id else None
    except UsageError:
        parsed = None
    if event == Outcome.SUBMITTED and parsed is None:
        return intent
    return replace(intent, outcome=Outcome(event), job_id=parsed)


def _intervention(record: Mapping[str, object]) -> Intervention:
    jobs = record.get("jobs")
    numbers = tuple(job for job in jobs if isinstance(job, int)) if isinstance(jobs, list) else ()
    by = printable(str(record.get("by", "")))
    return Intervention(Deed(str(record["event"])), by, _seconds(record.get("time")), numbers)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
