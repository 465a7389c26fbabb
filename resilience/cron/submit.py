"""Submits the jobs of slots, exactly one per slot, and hears how they end, in a child that a hung controller may block.

The token of a job is derived from the state directory, the entry and the slot. A scheduler that takes over from a
killed tick, or retries after a timeout, asks for the same token, and finds the job if it was queued.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.book import AGAIN, SKEW_S, Run, State
from resilience.cron.records import RUN_NAME, Entry, Outcome, Overlap, RunRecord
from resilience.errors import ResilError, SchedulerUnavailable
from resilience.job import Job, JobId, JobState, Liveness
from resilience.submission import Submission, Submitted
from resilience.system.files import explain_os_error, make_directory, parse_lines

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

LONGEST_S = 900.0
"""A child that runs longer is hung on a disk: it is killed, and the next one is started."""

MOST_SCRIPT_BYTES = 4 * 2**20
"""Maximum script size of sbatch (max_script_size, slurm.conf(5))."""

_OF_THE_SCHEDULER = {
    "job-name",
    "comment",
    "dependency",
    "begin",
    "array",
    "output",
    "error",
    "time",
    "signal",
    "export",
}
"""Options in `[cron] sbatch` that apply only to the scheduler's own jobs."""


class JobSubmitter:
    """Runs one child at a time, and queues claims for the next one. A child may outlive the scheduler: it holds its
    claims under its own process id."""

    def __init__(self, cron: CronProject) -> None:
        self._cron = cron
        self.waiting: list[Run] = []
        self._pipe, self._ends, self._received = -1, 0.0, b""

    @property
    def is_busy(self) -> bool:
        """Return whether a child is running."""
        return self._pipe >= 0

    def hand(self, claims: Sequence[Run], entries: Sequence[Entry]) -> None:
        """Start a child that submits these slots and queries earlier jobs; return at once.

        While an earlier child is running, the claims are queued for the next call. Raise OSError if fork fails.
        """
        from resilience.system.child import start_detached

        known = {claim.id for claim in self.waiting}
        self.waiting += [claim for claim in claims if claim.id not in known]
        if self.is_busy and time.monotonic() < self._ends:
            return
        self.close()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            start_detached(lambda: self._work(entries, writing), LONGEST_S, keep=writing).forget()
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._pipe, self._ends, self._received, self.waiting = reading, time.monotonic() + LONGEST_S, b"", []

    def poll(self, timeout_s: float = 0.0) -> tuple[tuple[RunRecord, ...], str] | None:
        """Return the ends and submissions of the child, recorded already, and why one failed; None if no child has
        ended. Waits up to `timeout_s`."""
        if not self.is_busy:
            return None
        until = time.monotonic() + timeout_s
        watch = select.poll()  # select(2) knows no descriptor beyond 1023
        watch.register(self._pipe, select.POLLIN)
        while watch.poll(1000 * max(0.0, until - time.monotonic())):
            chunk = os.read(self._pipe, 65536)
            self._received += chunk
            if not chunk:
                self.close()
                found = list(parse_lines(self._received.splitlines()))
                problem = "the process that submits cron jobs was killed; the next tick checks its jobs"
                if found and "problem" in found[-1]:
                    problem = found.pop()["problem"]
                return tuple(map(RunRecord.from_json, found)), problem
        return None

    def close(self) -> None:
        """Stop waiting. A running child continues on its own."""
        if self.is_busy:
            os.close(self._pipe)
            self._pipe = -1

    def _work(self, entries: Sequence[Entry], writing: int) -> None:
        def report(line: Mapping[str, object]) -> None:
            with suppress(OSError):  # the scheduler may have ended
                os.write(writing, json.dumps(line).encode() + b"\n")

        problem = ""
        try:
            cron = self._cron.with_entry_environment()
            for record in chain(settle_ended_jobs(cron), settle_submits(cron, self.waiting, entries)):
                report(record.to_json())
        except ResilError as error:
            problem = f"{error.message}; the next tick tries again"
        except Exception as error:
            problem = f"submitting cron jobs failed: {type(error).__name__}: {error}"
        report({"problem": problem})


# ---- in the child ---------------------------------------------------------------------------------------------------


def settle_ended_jobs(cron: CronProject) -> Iterator[RunRecord]:
    """Settle the runs of other hosts whose scheduler was a job that has ended, for instance with its node; yield their
    records. Without the job's end, a run there counts as active until its time limit."""
    book, now = cron.state.book, cron.project.system.clock.now()
    for run in book.active():
        job = str(book.about(run).get("job") or "")
        if not job or not run.is_doubtful(now) or book.liveness(run, now)[0] is not Liveness.UNKNOWN:
            continue
        found = cron.project.scheduler().presence(JobId.parse(job), mine=True)
        began = found.job.start_time if found.job is not None else None
        # scrontab has one job id for all its jobs: a later one shows that this one has ended.
        is_later = found.job is not None and (found.job.state.is_waiting or (began or 0.0) > run.time + SKEW_S)
        if found.liveness is Liveness.GONE or is_later:
            record = book.settle(run, now, f"its scheduler ended: job {job}", cron.project.system.host.name)
            if record is not None:
                yield record


def settle_submits(cron: CronProject, claims: Sequence[Run], entries: Collection[Entry]) -> Iterator[RunRecord]:
    """Submit the claimed slots, and query earlier jobs; yield records that are already in the history.

    Each claim is taken first, so no other process has it. Slots whose job state is unknown stay claimed for the next
    tick. Raise SchedulerUnavailable then, at the end.
    """
    book, now = cron.state.book, cron.project.system.clock.now
    by_key = {entry.key: entry for entry in entries}
    mine = sorted(taken for claim in claims if (taken := book.take(claim, State.CLAIMED, now())) is not None)
    alive: dict[str, list[Run]] = {}
    problem: SchedulerUnavailable | None = None
    try:
        for run, record in follow(cron, by_key):
            if record is None:
                alive.setdefault(run.entry_key, []).append(run)
            elif book.end(run, record):
                yield record
    except SchedulerUnavailable as error:
        problem = error
    newest = {claim.entry_key: claim.slot for claim in mine if AGAIN not in claim.key}
    for claim in mine:
        if problem is not None:
            break  # each query of a hung scheduler takes a minute
        if book.has_slot(claim) is False:
            book.drop(claim)
            continue
        key, entry = claim.entry_key, by_key.get(claim.entry_key)
        earlier = alive.setdefault(key, [])
        try:
            is_old = claim.slot < newest.get(key, 0) and (entry is None or entry.options.catch_up <= 1)
            if entry is None or (is_old and AGAIN not in claim.key):
                record = _find_only(cron, claim, entry)
            else:
                record = _submit(cron, entry, claim.slot, earlier)
        except SchedulerUnavailable as error:
            problem = error
            break
        if record.outcome is Outcome.SUBMITTED:
            earlier.append(book.queue(claim, record, cron.project.scheduler().name))
        else:
            book.end(claim, record)
        _prune(cron, key, {run.job[1].partition("_")[0] for run in earlier})
        yield record
    if problem is not None:
        raise problem


def follow(cron: CronProject, entries: Mapping[str, Entry]) -> Iterator[tuple[Run, RunRecord | None]]:
    """Query the queued jobs, with one query for all of a scheduler; yield each with its end, or None if it has none.

    Raise SchedulerUnavailable if the queue does not answer. A job unknown to the scheduler counts as not ended until it
    is certainly gone.
    """
    queued = [run for run in cron.state.book.active() if run.state is State.QUEUED]
    for name in dict.fromkeys(run.job[0] for run in queued):
        scheduler, ids = cron.project.scheduler(name), {}
        for run in (run for run in queued if run.job[0] == name):
            with suppress(ResilError):
                ids[run] = JobId.parse(run.job[1])
        wanted = {job_id.array for job_id in ids.values()}
        rows = scheduler.jobs(finished=True, keep=lambda number, *_, wanted=wanted: number in wanted)
        for run, job_id in ids.items():
            found = [row for row in rows if row.id.array == job_id.array]
            if not found:  # ended before the queue's MinJobAge, or the controller lost its state
                presence = scheduler.presence(job_id, mine=True)
                is_over = presence.liveness is Liveness.GONE
                found = [presence.job] if presence.job is not None else []
            else:
                is_over = not any(row.state.is_alive for row in found)
            yield run, _ending(cron, run, found, entries.get(run.entry_key)) if is_over else None


def _ending(cron: CronProject, run: Run, rows: Sequence[Job], entry: Entry | None) -> RunRecord:
    name, job_id = entry.name if entry is not None else cron.state.book.name_of(run), run.job[1]
    if not rows:
        summary = f"job {job_id} has ended; the scheduler no longer knows its result"
        return replace(record_of(cron, name, run.slot, Outcome.SUBMITTED, summary=summary), job_id=job_id)
    ok = entry.options.ok if entry is not None else (0,)
    worst = max(rows, key=lambda row: (_outcome(row, ok).is_failure, row.id))
    code = worst.exit_code
    how = "" if code is None or (code.status, code.signal) == (0, 0) else f", exit code {code.status}"
    how = f", signal {code.signal}" if code is not None and code.signal else how
    output = cron.state.path / "output" / run.entry_key / f"{job_id}.out"
    return replace(
        record_of(cron, name, run.slot, _outcome(worst, ok), summary=f"job {worst.id} ended: {worst.state}{how}"),
        started=worst.start_time,
        exit_code=_exit_code(worst),
        job_id=job_id,
        host=worst.nodes,
        time=worst.end_time or cron.project.system.clock.now(),
        output=output.name if output.is_file() else "",
    )


def _outcome(job: Job, ok: Collection[int]) -> Outcome:
    if job.state is JobState.COMPLETED or (job.state is JobState.FAILED and _exit_code(job) in ok):
        return Outcome.DONE
    return Outcome.TIMEOUT if job.state is JobState.TIMEOUT else Outcome.FAILED


def _exit_code(job: Job) -> int | None:
    if job.exit_code is None:
        return None
    return 128 + job.exit_code.signal if job.exit_code.signal else job.exit_code.status


def _submit(cron: CronProject, entry: Entry, slot: int, alive: Sequence[Run]) -> RunRecord:
    """Submit the job of a slot, or find it if it is queued: SUBMITTED, SKIPPED or REFUSED.

    Raise SchedulerUnavailable if it was not sent or the result is unknown: the next tick tries again.
    """
    earlier = [run.job[1] for run in alive if run.slot != slot]
    if earlier and entry.options.overlap is Overlap.SKIP:
        jobs = ", ".join(earlier)
        summary = f"job {jobs} of an earlier slot has not ended" if len(earlier) == 1 else f"jobs {jobs} have not ended"
        return record_of(cron, entry.name, slot, Outcome.SKIPPED, summary=summary)
    if refused := cron.refuse(entry):
        return record_of(cron, entry.name, slot, Outcome.REFUSED, summary=_with_hint(refused.reason, refused.hint))
    scheduler = cron.project.scheduler()
    if earlier and entry.options.overlap is Overlap.REPLACE:
        scheduler.cancel(list(map(JobId.parse, earlier)))
    try:
        submission = submission_of(cron, entry, slot)
        output = submission.options.get("output")
        if output is not None:
            make_directory(cron.state.path / "output" / entry.key, mode=cron.state.directory_mode)
        submitted = scheduler.submit(submission)
    except SchedulerUnavailable:
        raise
    except ResilError as error:
        summary = _with_hint(error.message, error.hint)
        return record_of(cron, entry.name, slot, Outcome.REFUSED, summary=summary)
    return replace(
        _submitted(cron, entry.name, slot, submitted),
        started=cron.project.system.clock.now(),
        output=f"{submitted.id}.out" if output is not None else "",
    )


def _find_only(cron: CronProject, claim: Run, entry: Entry | None) -> RunRecord:
    """Return the result of a submission that is obsolete: a newer slot is due, or the entry was removed."""
    name = entry.name if entry is not None else cron.state.book.name_of(claim)
    found = cron.project.scheduler().find(token_of(cron, claim.entry_key, claim.slot))
    if found:
        return _submitted(cron, name, claim.slot, Submitted(found[0].id.whole, recovered=True))
    why = "a newer slot was due before it could be submitted" if entry is not None else "its entry was removed"
    return record_of(cron, name, claim.slot, Outcome.MISSED, summary=why)


def _submitted(cron: CronProject, name: str, slot: int, submitted: Submitted) -> RunRecord:
    found = " (found by its token)" if submitted.recovered else ""
    summary = f"job {submitted.id} of {cron.project.scheduler().name}{found}{'; '.join(('', *submitted.notes))}"
    return replace(record_of(cron, name, slot, Outcome.SUBMITTED, summary=summary), job_id=str(submitted.id))


def token_of(cron: CronProject, key: str, slot: int) -> str:
    """Return the token that identifies a slot's job, the same on every host and for every retry."""
    import hashlib

    raw = "\0".join((os.fspath(cron.state.path), key, str(slot)))
    return hashlib.sha256(raw.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def submission_of(cron: CronProject, entry: Entry, slot: int) -> Submission:
    """Return the submission of a slot. Raise StateDirectoryError if the script cannot be read."""
    from resilience.runs.templates.directives import parse_directives

    script = Path(entry.path or entry.argv[0])
    try:
        with script.open("rb") as file:
            text = file.read(MOST_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise explain_os_error(error, "read", script) from error
    in_script = {name for name, _ in parse_directives(text).options}
    environ = cron.project.system.environ
    options: dict[str, str | None] = {}
    if "job-name" not in in_script and "SBATCH_JOB_NAME" not in environ:
        options["job-name"] = script.stem
    if "output" not in in_script and "SBATCH_OUTPUT" not in environ:
        # `%` starts a replacement symbol (sbatch(1), FILENAME PATTERN)
        options["output"] = str(cron.state.path / "output" / entry.key.replace("%", "%%") / "%j.out")
    if entry.options.takes_cron_sbatch:  # sbatch would prefer the script to the environment, and that to nothing
        for key, value in cron.settings.sbatch.items():
            name = key.lstrip("-").replace("_", "-")
            is_set = name in in_script or f"SBATCH_{name.upper()}" in environ
            if str(value) and name not in _OF_THE_SCHEDULER and not is_set:
                options[name] = str(value)
    return Submission(
        token=token_of(cron, entry.key, slot),
        run=RUN_NAME,
        script=str(script),
        script_args=tuple(entry.argv[1:]),
        options=options,
        directory=str(cron.project.loaded.project),
        environment=cron.environment(entry, slot),
    )


def record_of(cron: CronProject, name: str, slot: int, outcome: Outcome, *, summary: str) -> RunRecord:
    """Return a history record; the summary is one line without secrets."""
    from resilience.system.redaction import redact

    system, line = cron.project.system, redact(" ".join(summary.split()))[:500]
    return RunRecord(
        name=name, slot=slot, outcome=outcome, time=system.clock.now(), host=system.host.name, summary=line
    )  # fmt: skip


def _with_hint(message: str, hint: str) -> str:
    return f"{message}; try: {hint}" if hint else message


def _prune(cron: CronProject, key: str, alive: Collection[str]) -> None:
    """Delete the outputs of an entry's jobs except the newest ones and those of running jobs."""
    directory = cron.state.path / "output" / key
    with suppress(OSError):
        names = os.listdir(directory)  # noqa: PTH208 - names only
        numbers = sorted(int(n.removesuffix(".out")) for n in names if n.endswith(".out") and n[:-4].isdecimal())
        for number in numbers[: -cron.settings.keep_runs or None]:
            if str(number) not in alive:
                with suppress(OSError):
                    (directory / f"{number}.out").unlink()
