"""The ledger of a run: what is known of each attempt, folded from the run directory.

Sources: the attempt's own files (batch shell), the journal of the batch shell (nodes) and of rank 0 (steps), the
heartbeats, and the classified end (why.py). A classified end is kept beside the attempt (`attempts/0003.why`), because
logs are deleted sooner than run directories. Nothing here queries the scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.attempts.classify import Evidence, classify
from resilience.attempts.failure import Failure
from resilience.errors import ResilError, StateDirectoryError
from resilience.records import from_record, to_record
from resilience.runs.attempts import Attempt, AttemptEnd
from resilience.runs.run_files import last_events, read_attempts, read_tail
from resilience.runs.run_logs import logs_of, start_of_attempt
from resilience.runs.submissions import read_intents
from resilience.system.files import explain_os_error, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.runs.run_directory import RunDirectory

TAIL_BYTES = 2**20
"""The end of a log that is read: a failure and its echoes from a thousand ranks fit."""
VERSION = 1
"""Of the kept classification; another version is classified anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One attempt.

    Attributes:
        attempt: its number, from 1.
        job: displayed id of the job: `12_3`.
        restart: how often SLURM had requeued the job.
        host: node of the batch shell.
        nodes: hostlist expression of the job's nodes; empty: unknown.
        start_time, end_time: seconds since the epoch; `end_time` is None while it runs, or if no end was recorded.
        end: what the batch shell recorded; None: nothing.
        exit_code: of the launch; None: unknown.
        first_step: the step it resumed from; None: unknown.
        last_step: the newest step seen of it; None: unknown. Of a training whose state was ruined, the step at which
            that was found: the ranks stop some steps later, not always after the same one.
        durable_step: the newest step whose checkpoint was durable; None: none is known.
        failure: why it ended; None while it runs.
    """

    attempt: int
    job: str
    restart: int = 0
    host: str = ""
    nodes: str = ""
    start_time: float
    end_time: float | None = None
    end: AttemptEnd | None = None
    exit_code: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    durable_step: int | None = None
    failure: Failure | None = None

    @property
    def seconds(self) -> float | None:
        """Return how long it ran; None while it runs, or if that is unknown."""
        return None if self.end_time is None else max(0.0, self.end_time - self.start_time)


def read_ledger(directory: RunDirectory, *, newest: int | None = None) -> tuple[LedgerRow, ...]:
    """Return the attempts of a run, oldest first; with `newest`, only that many of the last.

    An attempt without an end counts as running if it is the last one, else as lost. Raise StateDirectoryError for a
    transient read error.
    """
    attempts = read_attempts(directory, newest)
    rows = []
    for attempt in attempts:
        if attempt.end is None and attempt is not attempts[-1]:
            attempt = replace(attempt, end=AttemptEnd.LOST)
        rows.append(_row(directory, attempt))
    return tuple(rows)


def fold_steps(events: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None, int | None]:
    """Return the first, last and durable step in the journal of one attempt's rank 0. Pure."""
    first = last = durable = None
    for event in events:
        step = event.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        if event.get("event") == "resume":
            first = step if first is None else first
        elif event.get("event") == "save":
            durable = step if durable is None else max(durable, step)
        last = step if last is None else max(last, step)
    return first, last, durable


def ruin_of(events: Iterable[Mapping[str, Any]]) -> tuple[str, int | None]:
    """Return why and at which step the guards found the state ruined, from the journal of one attempt's rank 0.

    Empty and None if they did not, or if a later launch of the attempt has started. Pure.
    """
    found: tuple[str, int | None] = ("", None)
    for event in events:
        if event.get("event") == "start":
            found = ("", None)
        elif event.get("event") == "state_ruined" and isinstance(event.get("step"), int):
            found = (str(event.get("why") or "the state of the training is ruined"), event["step"])
    return found


def _journal(directory: RunDirectory, attempt: Attempt) -> list[Mapping[str, Any]]:
    """Return the newest events of an attempt's rank 0."""
    return [event for event in last_events(directory, attempt.job_id, "0") if event.get("attempt") == attempt.number]


def _row(directory: RunDirectory, attempt: Attempt) -> LedgerRow:
    first, last, durable = fold_steps(_journal(directory, attempt))
    failure = _failure(directory, attempt)
    starts = last_events(directory, attempt.job_id, words=(b'"attempt_start"',))
    nodes = next((str(one.get("nodes", "")) for one in starts if one.get("attempt") == attempt.number), "")
    return LedgerRow(
        attempt=attempt.number,
        job=attempt.label,
        restart=attempt.restart,
        host=attempt.host,
        nodes=nodes,
        start_time=attempt.start_time,
        end_time=attempt.end_time,
        end=attempt.end,
        exit_code=attempt.exit_code,
        first_step=first,
        last_step=last if failure is None or failure.step is None else failure.step,
        durable_step=durable,
        failure=failure,
    )


def _failure(directory: RunDirectory, attempt: Attempt) -> Failure | None:
    if attempt.end is None:
        return None
    path = directory.path / layout.ATTEMPTS / f"{layout.attempt_file(attempt.number)}.why"
    with suppress(StateDirectoryError, ValueError, TypeError, KeyError):
        found = read_regular(path)
        if found is not None:
            record = json.loads(found[0])
            if record["version"] == VERSION and record["end"] == str(attempt.end):
                return from_record(Failure, record["failure"])
    failure = classify(evidence_of(directory, attempt))
    with suppress(ResilError):  # of another user, or on a full disk: it is classified anew next time
        text = json.dumps({"version": VERSION, "end": str(attempt.end), "failure": to_record(failure)})
        write_atomic(path, text + "\n", mode=directory.file_mode, durable=False)
    return failure


def evidence_of(directory: RunDirectory, attempt: Attempt, notes: list[str] | None = None) -> Evidence:
    """Return the evidence in the run directory; logs that cannot be read are named in `notes`."""
    logs: Sequence[str] = logs_of(directory, start_of_attempt(attempt), read_intents(directory))
    texts = []
    for log in logs:
        try:
            texts.append(read_end(log))
        except ResilError as error:
            if notes is not None:
                notes.append(error.message)
    if not logs and notes is not None:
        notes.append("no log of this attempt was found")
    ruined_why, ruined_step = ruin_of(_journal(directory, attempt))
    return Evidence(
        ruined_why=ruined_why,
        ruined_step=ruined_step,
        end=attempt.end,
        exit_code=attempt.exit_code,
        stopped_why=attempt.why if attempt.end is AttemptEnd.STOPPED else "",
        log="\n".join(texts),
    )


def read_end(path: Path | str) -> str:
    """Return the end of a log, of whatever bytes. Raise StateDirectoryError if it cannot be read."""
    try:
        raw, _ = read_tail(path, TAIL_BYTES)
    except OSError as error:
        raise explain_os_error(error, "read", Path(path)) from error
    return raw.decode("utf-8", "replace")
