"""The journal of submissions: the intent before, the result after each sbatch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from resilience import layout
from resilience.errors import UsageError
from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.system.files import append_line, read_lines
from resilience.system.world import iso_time

TOKEN_BYTES = 8


class Outcome(StrEnum):
    """What became of an intent."""

    OPEN = "open"
    """Journalled and perhaps sent. It must be looked up by its token before anything is submitted."""
    UNCERTAIN = "uncertain"
    """As OPEN, but whoever sent it has given up waiting: no submit is at it any more."""
    SUBMITTED = "submitted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Intent:
    """One line of thought of `resil submit`, folded from its lines in the journal.

    Attributes:
        token: what the job carries in its comment.
        scheduler: which scheduler it went to.
        script: path of the script that was handed over.
        argv: the exact command, for people.
        time: seconds since the epoch.
        outcome: what became of it.
        job_id: the one job, when there is one.
        by: login name of who submitted it; empty when not known.
    """

    token: str
    scheduler: str
    script: str
    argv: tuple[str, ...]
    time: float
    outcome: Outcome = Outcome.OPEN
    job_id: JobId | None = None
    by: str = ""


def new_token() -> str:
    """A random word for one intent."""
    return os.urandom(TOKEN_BYTES).hex()


def record_intent(directory: RunDirectory, intent: Intent) -> None:
    """Journal that a submission is about to be sent. Raise StateDirectoryError if it cannot be: then do not send."""
    _append(
        directory,
        {
            "event": "intent",
            "token": intent.token,
            "at": iso_time(intent.time),
            "time": intent.time,
            "by": intent.by,
            "scheduler": intent.scheduler,
            "script": intent.script,
            "argv": list(intent.argv),
        },
    )


def record_result(
    directory: RunDirectory, token: str, outcome: Outcome, now: float, *, job_id: JobId | None = None, why: str = ""
) -> None:
    """Journal what became of an intent."""
    record: dict[str, object] = {"event": outcome.value, "token": token, "at": iso_time(now), "time": now}
    if job_id is not None:
        record["job_id"] = str(job_id)
    if why:
        record["why"] = why
    # Should a power cut take this line, the intent is open, and is looked up.
    append_line(directory.path / layout.SUBMISSIONS, record, mode=directory.file_mode, sync=False)


def read_intents(directory: RunDirectory) -> tuple[Intent, ...]:
    """The intents of a run, oldest first, each with what became of it."""
    intents: dict[str, Intent] = {}
    for record in read_lines(directory.path / layout.SUBMISSIONS):
        token = str(record.get("token", ""))
        if not token:
            continue
        if record.get("event") == "intent":
            if token in intents:
                continue
            argv = record.get("argv")
            intents[token] = Intent(
                token=token,
                scheduler=str(record.get("scheduler", "")),
                script=str(record.get("script", "")),
                argv=tuple(str(word) for word in argv) if isinstance(argv, list) else (),
                time=_seconds(record.get("time")),
                by=str(record.get("by", "")),
            )
        elif token in intents:
            intents[token] = _settle(intents[token], str(record.get("event", "")), record.get("job_id"))
    return tuple(intents.values())


def submitted_ids(intents: Sequence[Intent]) -> tuple[JobId, ...]:
    """The jobs that came of these intents, oldest first."""
    return tuple(intent.job_id for intent in intents if intent.job_id is not None)


def _settle(intent: Intent, event: str, job_id: object) -> Intent:
    """Add a result. A job that once came of an intent is never forgotten; one without a readable id stays OPEN."""
    if event not in (Outcome.UNCERTAIN, Outcome.SUBMITTED, Outcome.REFUSED) or intent.outcome is Outcome.SUBMITTED:
        return intent
    try:
        parsed = JobId.parse(str(job_id)) if job_id else None
    except UsageError:
        parsed = None
    if event == Outcome.SUBMITTED and parsed is None:
        return intent
    return replace(intent, outcome=Outcome(event), job_id=parsed)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _append(directory: RunDirectory, record: dict[str, object]) -> None:
    append_line(directory.path / layout.SUBMISSIONS, record, mode=directory.file_mode)
