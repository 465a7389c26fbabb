"""The ledger of a run: what is known of each attempt, folded from the run directory.

Sources: the attempt's own files (batch shell), the journal of the batch shell (nodes) and of rank 0 (steps), the line
of progress that its node writes each minute and its last heartbeat, torchelastic's error files, and the log. The
classified end is kept beside the attempt (`attempts/0003.why`), because logs are deleted sooner than run directories.
Nothing here queries the scheduler: reconcile.py adds what that says to the kept ends.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience import layout
from resilience.attempts.classify import CHECK_FAILED, Evidence, classify
from resilience.attempts.error_files import first_error
from resilience.attempts.failure import Failure, FailureClass
from resilience.errors import ResilError, StateDirectoryError
from resilience.guard.heartbeat.beat import file_name
from resilience.job import JobState
from resilience.records import from_record, to_record
from resilience.runs.attempts import Attempt, AttemptEnd
from resilience.runs.injections import Injection, describe_injection, journalled
from resilience.runs.run_files import last_events, read_attempts, read_tail
from resilience.runs.run_logs import logs_of, start_of_attempt
from resilience.runs.submissions import Intent, read_intents
from resilience.system.files import explain_os_error, read_lines, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.runs.run_directory import RunDirectory

TAIL_BYTES = 2**20
"""The end of a log that is read: a failure and its echoes from a thousand ranks fit."""
ECHO_S = 1800.0
"""So long after an injected fault an attempt may end because of it: timeouts of collectives are 10 to 30 min."""
LOOK_BACK_BYTES = 2**24
"""So far back the last traceback before that end is searched."""
AROUND_BYTES = 2**16
_TRACEBACK = b"Traceback (most recent call last)"
VERSION = 1
"""Of the kept classification; another version is classified anew."""
_MARK = re.compile(r"^resil: (START|END) attempt (\d{1,9}) of ", re.MULTILINE)
"""Lines of the batch shell: all starts of a requeued job write into one log."""


class Corruption(NamedTuple):
    """A node whose hardware computed wrong values, says the guard (`sdc` in the journal).

    Attributes:
        time: seconds since the epoch.
        node: its name.
        step, rank: at which step, and of which rank.
        why: in words.
        times: how many computations were wrong.
        among: of how many nodes or ranks it is one that may have been wrong.
    """

    time: float
    node: str
    step: int
    rank: int
    why: str
    times: int
    among: int


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
        launch_time: when the training was launched, after waiting and setup; None: it was not.
        queue_s: how long nothing of the run trained before it; None: unknown.
        end, why: what the batch shell recorded, and its reason; None and empty: nothing.
        state: final state of the job, by the scheduler; None: unknown.
        exit_code, signal: of the launch; None: unknown, or no signal.
        first_step: the step it resumed from, or began at if it made steps without; None: unknown.
        last_step: the newest step seen of it; None: unknown. Of a training whose state was ruined, the step at which
            that was found: the ranks stop some steps later, not always after the same one.
        durable_step: the newest step whose checkpoint was durable; None: none is known.
        failure: why it ended; None while it runs.
        decided: what follows from that, by breaker.py; empty: not asked for, or it runs.
        corruptions: what its guards found of silent data corruption, oldest first.
        injected: faults that people have injected on purpose and that may have ended it, as sentences.
    """

    attempt: int
    job: str
    restart: int = 0
    host: str = ""
    nodes: str = ""
    start_time: float
    launch_time: float | None = None
    end_time: float | None = None
    queue_s: float | None = None
    end: AttemptEnd | None = None
    why: str = ""
    state: JobState | None = None
    exit_code: int | None = None
    signal: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    durable_step: int | None = None
    failure: Failure | None = None
    decided: str = ""
    corruptions: tuple[Corruption, ...] = ()
    injected: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Return how long it ran; None while it runs, or if that is unknown."""
        return None if self.end_time is None else max(0.0, self.end_time - self.start_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """How often attempts ended for one cause, and how often on the same host.

    Attributes:
        failure: the class.
        attempts: how many.
        hosts: hosts that these name, and how many of them each.
    """

    failure: FailureClass
    attempts: int
    hosts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Seconds that attempts trained, that the run waited before each of them, as far as that is known, and from the
    first submit to the end of the last."""

    trained_s: float = 0.0
    waited_s: float = 0.0
    total_s: float = 0.0


class Siblings(NamedTuple):
    """What all attempts of a run are classified with, read once for many of them."""

    attempts: Sequence[Attempt]
    intents: Sequence[Intent]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEnd:
    """The end of an attempt as `attempts/0003.why` keeps it.

    Attributes:
        end: what the batch shell had recorded when it was classified.
        failure: why it ended.
        is_reconciled: whether the scheduler was queried, or has forgotten the job.
        state, end_time, exit_code, nodes: of the job, by the scheduler.
    """

    end: str
    failure: Failure
    is_reconciled: bool = False
    state: JobState | None = None
    end_time: float | None = None
    exit_code: int | None = None
    nodes: str = ""


def read_ledger(directory: RunDirectory, *, newest: int | None = None) -> tuple[LedgerRow, ...]:
    """Return the attempts of a run, oldest first; with `newest`, only that many of the last.

    An attempt without an end counts as running if it is the last one, else as lost. Raise StateDirectoryError for a
    transient read error.
    """
    siblings = Siblings(ended_attempts(directory, newest), read_intents(directory))
    submitted = {one.job_id.array: one.time for one in siblings.intents if one.job_id is not None}
    injections = journalled(directory)
    rows: list[LedgerRow] = []
    for attempt in siblings.attempts:
        previous = rows[-1].end_time if rows else None
        queued = submitted.get(start_of_attempt(attempt).array)
        since = max((one for one in (previous, queued) if one is not None), default=None)
        is_known = since is not None and (previous is not None or attempt.number == 1)
        queue_s = max(0.0, attempt.start_time - since) if is_known and since else None
        row = replace(_row(directory, attempt, siblings), queue_s=queue_s)
        rows.append(replace(row, injected=injected_into(row, injections)))
    return tuple(rows)


def ended_attempts(directory: RunDirectory, newest: int | None = None) -> list[Attempt]:
    """Return the attempts of a run, oldest first; one without an end counts as lost unless it is the last."""
    attempts = read_attempts(directory, newest)
    return [
        replace(one, end=AttemptEnd.LOST) if one.end is None and one is not attempts[-1] else one for one in attempts
    ]


def injected_into(row: LedgerRow, injections: Sequence[Injection]) -> tuple[str, ...]:
    """Return the injected faults that may have ended an attempt, as sentences, newest first: those that were on in
    it, at its end or not long before. A wrong clock, which only resil sees, ends none. Pure."""
    end = float("inf") if row.end_time is None else row.end_time
    return tuple(
        describe_injection(one)
        for one in reversed(injections)
        if one.fault != "clock"
        and (one.attempt == row.attempt or (one.begun <= end and (one.ended is None or one.ended >= row.start_time)))
        and (one.ended is None or row.end_time is None or row.end_time - one.ended <= ECHO_S)
    )


def causes_of(rows: Iterable[LedgerRow]) -> tuple[Cause, ...]:
    """Return the causes of attempts, the most frequent first. Pure."""
    by_class: dict[FailureClass, list[Failure]] = {}
    for row in rows:
        if row.failure is not None and row.failure.failure is not FailureClass.FINISHED:
            by_class.setdefault(row.failure.failure, []).append(row.failure)
    found = [
        Cause(failure=name, attempts=len(ends), hosts=Counter(end.host for end in ends if end.host))
        for name, ends in by_class.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.attempts))


def totals_of(rows: Sequence[LedgerRow], now: float) -> Totals:
    """Return the sums of attempts, oldest first. Until `now`, if the last one runs. Pure."""
    if not rows:
        return Totals()
    took = [
        (now - row.start_time if row.seconds is None and row.failure is None else row.seconds) or 0.0 for row in rows
    ]
    # One that was stopped before its launch has only waited: for an attempt that still ran, or at an open breaker.
    idle = [row.launch_time is None and row.end is AttemptEnd.STOPPED for row in rows]
    begin = rows[0].start_time - (rows[0].queue_s or 0.0)
    end = max(row.start_time + seconds for row, seconds in zip(rows, took, strict=True))
    trained = sum(seconds for seconds, is_idle in zip(took, idle, strict=True) if not is_idle)
    return Totals(trained_s=trained, waited_s=sum(row.queue_s or 0.0 for row in rows), total_s=max(0.0, end - begin))


def fold_steps(events: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None, int | None]:
    """Return the first, last and durable step in the journal of one attempt's rank 0. Pure."""
    first = last = durable = start = None
    for event in events:
        step = event.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        if event.get("event") == "resume":
            first = step if first is None else first
        elif event.get("event") == "start":
            start = step if start is None else start
        elif event.get("event") == "save":
            durable = step if durable is None else max(durable, step)
        last = step if last is None else max(last, step)
    if first is None and start is not None and last is not None and last > start:
        first = start  # nothing was resumed
    return first, last, durable


def ruin_of(events: Iterable[Mapping[str, Any]]) -> tuple[str, int | None, bool]:
    """Return why and at which step the guards found the state ruined, from the journal of one attempt's rank 0, and
    whether by the hardware: then no batch is suspect.

    Empty and None if they did not, or if a later launch of the attempt has started. Pure.
    """
    found: tuple[str, int | None, bool] = ("", None, False)
    for event in events:
        if event.get("event") == "start":
            found = ("", None, False)
        elif event.get("event") == "state_ruined" and isinstance(event.get("step"), int):
            why = str(event.get("why") or "the state of the training is ruined")
            found = (why, event["step"], event.get("world") == 0)
    return found


def corruptions_of(events: Iterable[Mapping[str, Any]]) -> tuple[Corruption, ...]:
    """Return the nodes that computed wrong values, from the journal of one attempt's rank 0. Pure."""
    found = []
    for event in events:
        if event.get("event") != "sdc":
            continue
        time, numbers = event.get("time"), [event.get(name) for name in ("step", "of_rank", "times", "among")]
        if isinstance(time, int | float) and all(type(number) is int and number >= 0 for number in numbers):
            step, rank, times, among = (int(str(number)) for number in numbers)
            if times and among:
                node, why = str(event.get("node")), str(event.get("why") or "")
                found.append(Corruption(float(time), node, step, rank, why, times, among))
    return tuple(found)


def _journal(directory: RunDirectory, attempt: Attempt) -> list[Mapping[str, Any]]:
    """Return the newest events of an attempt's rank 0."""
    return [event for event in last_events(directory, attempt.job_id, "0") if event.get("attempt") == attempt.number]


def _row(directory: RunDirectory, attempt: Attempt, siblings: Siblings) -> LedgerRow:
    journal = _journal(directory, attempt)
    first, last, durable = fold_steps(journal)
    seen = [*(step for _, step in progress_of(directory, attempt)), *([] if last is None else [last])]
    beat = last_position(directory, attempt.job_id, attempt.host)
    if beat is not None and beat.attempt == attempt.number:
        seen.append(beat.step)
    events = last_events(directory, attempt.job_id, words=(b'"attempt_start"', b'"launch"'))
    own = {one["event"]: one for one in events if one.get("attempt") == attempt.number and "event" in one}
    began, launched = own.get("attempt_start", {}), own.get("launch", {})
    nodes, launch = str(launched.get("nodes", began.get("nodes", ""))), launched.get("time")  # without the spares
    kept = None if attempt.end is None else end_of(directory, attempt, siblings)
    code = attempt.exit_code if attempt.exit_code is not None or kept is None else kept.exit_code
    failure = kept.failure if kept is not None else None
    ruined = failure.step if failure is not None else None
    return LedgerRow(
        attempt=attempt.number,
        job=attempt.label,
        restart=attempt.restart,
        host=attempt.host,
        nodes=nodes or (kept.nodes if kept is not None else ""),
        start_time=attempt.start_time,
        launch_time=(launch if isinstance(launch, int | float) else None) if own else attempt.start_time,
        end_time=attempt.end_time if attempt.end_time is not None or kept is None else kept.end_time,
        end=attempt.end,
        why=attempt.why,
        state=kept.state if kept is not None else None,
        exit_code=code,
        signal=code - 128 if code is not None and 128 < code <= 192 else None,
        first_step=first,
        last_step=max(seen, default=None) if ruined is None else ruined,
        durable_step=durable,
        corruptions=corruptions_of(journal),
        failure=failure,
    )


def progress_of(directory: RunDirectory, attempt: Attempt) -> list[tuple[float, int]]:
    """Return time and step of the newest lines of progress of an attempt, oldest first."""
    found = []
    for event in last_events(directory, attempt.job_id, "progress"):
        time, step = event.get("time"), event.get("step")
        if event.get("attempt") == attempt.number and isinstance(time, int | float) and isinstance(step, int):
            found.append((float(time), step))
    return found


class Position(NamedTuple):
    """Where rank 0 of an attempt was."""

    attempt: int
    time: float
    step: int


def last_position(directory: RunDirectory, job_id: int, host: str) -> Position | None:
    """Return the newest step of rank 0 in the last heartbeat of a node; newer than the last line of progress, which is
    written once a minute."""
    import tomllib  # imported late: 4 ms

    with suppress(ResilError, ValueError, TypeError, KeyError, RecursionError):
        found = read_regular(directory.path / layout.BEATS / file_name(str(job_id), host))
        if found is not None:
            beat = tomllib.loads(found[0].decode("utf-8", "replace"))
            rank = beat["rank"]["0"]
            return Position(int(beat["attempt"]), float(rank["advanced"]), int(rank["step"]))
    return None


def end_of(directory: RunDirectory, attempt: Attempt, siblings: Siblings | None = None) -> KeptEnd:
    """Return the classified end of an ended attempt: as kept, else classified now, and kept."""
    kept = kept_end(directory, attempt)
    if kept is None:
        kept = KeptEnd(end=str(attempt.end), failure=classify(evidence_of(directory, attempt, siblings=siblings)))
        keep_end(directory, attempt, kept)
    return kept


def kept_end(directory: RunDirectory, attempt: Attempt) -> KeptEnd | None:
    """Return the kept end; None if there is none, or it is damaged or of an earlier view of the end."""
    with suppress(StateDirectoryError, ValueError, TypeError, KeyError):
        found = read_regular(_path_of_end(directory, attempt))
        if found is not None:
            record = json.loads(found[0])
            if record["version"] == VERSION and record["end"] == str(attempt.end):
                return from_record(KeptEnd, record)
    return None


def keep_end(directory: RunDirectory, attempt: Attempt, kept: KeptEnd) -> None:
    """Write the end of an attempt. If that fails (other user, full disk), it is classified anew next time."""
    with suppress(ResilError):
        text = json.dumps({"version": VERSION, **to_record(kept)})
        write_atomic(_path_of_end(directory, attempt), text + "\n", mode=directory.file_mode, durable=False)


def _path_of_end(directory: RunDirectory, attempt: Attempt) -> Path:
    return directory.path / layout.ATTEMPTS / f"{layout.attempt_file(attempt.number)}.why"


def evidence_of(
    directory: RunDirectory, attempt: Attempt, notes: list[str] | None = None, siblings: Siblings | None = None
) -> Evidence:
    """Return the evidence in the run directory; logs that cannot be read are named in `notes`.

    All starts of a requeued job have one log. Where no line of the batch shell tells them apart (`resil run`), it is
    the last one's.
    """
    intents = read_intents(directory) if siblings is None else siblings.intents
    logs: Sequence[str] = logs_of(directory, start_of_attempt(attempt), intents)
    texts, said = [], [] if logs else ["no log of this attempt was found"]
    for log in logs:
        try:
            texts.append(read_end(log))
        except ResilError as error:
            said.append(error.message)
    is_unmarked = bool(texts) and not any(_MARK.search(text) for text in texts)
    is_restarted = (attempt.end is AttemptEnd.LOST or is_unmarked) and _is_restarted(
        attempt, read_attempts(directory) if siblings is None else siblings.attempts
    )
    if is_restarted and is_unmarked:
        texts = []
        said.append("its log is that of a later start of the job")
    if notes is not None:
        notes += said
    journal = _journal(directory, attempt)
    ruined_why, ruined_step, is_corrupted = ruin_of(journal)
    hang = _ended_hang(directory, attempt)
    return Evidence(
        hang_why=str(hang.get("why", "")),
        hang_rank=hang.get("rank"),
        hang_host=str(hang.get("host", "")),
        checked_why=attempt.why if attempt.end is AttemptEnd.EXITED and attempt.why.startswith(CHECK_FAILED) else "",
        ruined_why=ruined_why,
        ruined_step=ruined_step,
        is_corrupted=is_corrupted,
        end=attempt.end,
        exit_code=attempt.exit_code,
        oom_kills=attempt.oom_kills or 0,
        memory_why=_memory_why(attempt, journal),
        stopped_why=attempt.why if attempt.end is AttemptEnd.STOPPED else "",
        elastic=first_error(directory, attempt),
        is_restarted=is_restarted,
        log="\n".join(own_part(text, attempt.number) for text in texts),
    )


def _ended_hang(directory: RunDirectory, attempt: Attempt) -> Mapping[str, Any]:
    """Return what the watchdog recorded that ended an attempt because of a hang; empty if none did."""
    for path in sorted((directory.path / layout.HANGS).glob(f"{layout.attempt_file(attempt.number)}-*.acted")):
        for record in read_lines(path):
            if record.get("on_hang") in ("restart_step", "requeue") and "failed" not in str(record.get("did")):
                return record
    return {}


def _memory_why(attempt: Attempt, journal: Sequence[Mapping[str, Any]]) -> str:
    """Return what the guard, or `resil run` (supervisor/memory.py, explain_kill), said of the host's memory."""
    if "OOM killer" in attempt.why or "memory was at" in attempt.why:
        return attempt.why
    return next((str(one.get("why")) for one in reversed(journal) if one.get("trigger") == "host_memory"), "")


def own_part(log: str, number: int) -> str:
    """Return what an attempt wrote into a log that earlier and later starts of its job write into as well. Pure.

    Of the lines after its end all but SLURM's about the requeue: the attempt was over before that.
    """
    begin, end = 0, len(log)
    for mark in _MARK.finditer(log):
        other = int(mark[2])
        if other > number:
            end = mark.start()
            break
        if (mark[1] == "START") is (other == number):
            line_end = log.find("\n", mark.end())
            begin = end if line_end < 0 else line_end
    earlier = "\n" * log.count("\n", 0, begin)  # lines keep their numbers
    before, told, after = log[begin:end].partition(f"resil: END attempt {number} of ")
    return earlier + before + told + "\n".join(line for line in after.split("\n") if "DUE TO JOB REQUEUE" not in line)


def _is_restarted(attempt: Attempt, attempts: Iterable[Attempt]) -> bool:
    """Return whether SLURM has started the job of an attempt again."""
    later = (one for one in attempts if one.number > attempt.number)
    return any(one.job_id == attempt.job_id and one.restart > attempt.restart for one in later)


def read_end(path: Path | str, limit_bytes: int = TAIL_BYTES, *, looks_back: bool = True) -> str:
    """Return the end of a log, of whatever bytes, and before it the last earlier traceback if `looks_back`.

    Raise StateDirectoryError if it cannot be read.
    """
    try:
        raw, is_whole = read_tail(path, limit_bytes)
        if looks_back and not is_whole:
            raw = _earlier_traceback(read_tail(path, LOOK_BACK_BYTES)[0], len(raw)) + raw
    except OSError as error:
        raise explain_os_error(error, "read", Path(path)) from error
    if b"\0" not in raw:
        return raw.decode("utf-8", "replace")
    high, low = raw[1:4096:2].count(0), raw[:4096:2].count(0)  # of ASCII in UTF-16, as PowerShell writes, one is zero
    if abs(high - low) > len(raw[:4096]) // 16:
        return raw.decode("utf-16-le" if high > low else "utf-16-be", "replace").lstrip("\ufeff")
    return raw.replace(b"\0", b"").decode("latin-1")


def _earlier_traceback(raw: bytes, after: int) -> bytes:
    """Return the last traceback that is not in the last `after` bytes, with what is around it; empty: this start of
    the job wrote none. Other ranks may write megabytes before they notice that one has ended."""
    end = len(raw) - after
    at = raw.rfind(_TRACEBACK, max(0, raw.rfind(b"\nresil: START ")), end)
    return raw[raw.rfind(b"\n", 0, max(0, at - AROUND_BYTES)) + 1 : min(end, at + AROUND_BYTES)] if at >= 0 else b""
