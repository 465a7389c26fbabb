"""Submits the jobs of slots: exactly one job per slot, from any number of schedulers and retries.

The token of a job is derived from the state directory, the entry and the slot. A scheduler that takes over from a
killed tick, or retries after a timeout, asks for the same token, and finds the job if it was queued.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.jobs import QueuedJob, follow, prune, record_of, remember
from resilience.cron.records import RUN_NAME, Entry, Outcome, RunRecord
from resilience.errors import ResilError, SchedulerUnavailable
from resilience.job import JobId
from resilience.submission import Submission, Submitted
from resilience.system.files import explain_os_error, make_directory

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.slots import Claim

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
        options["output"] = str(cron.state.path / "output" / _escaped(entry.key) / "%j.out")
    if entry.options.takes_cron_sbatch:
        options |= _options_of_cron(cron.settings.sbatch, in_script, environ)
    return Submission(
        token=token_of(cron, entry.key, slot),
        run=RUN_NAME,
        script=str(script),
        script_args=tuple(entry.argv[1:]),
        options=options,
        directory=str(cron.project.loaded.project),
        environment=cron.environment(entry, slot),
    )


def _options_of_cron(
    given: Mapping[str, str], in_script: Collection[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the options of `[cron] sbatch` that neither the script nor the environment sets, which sbatch would
    prefer."""
    names = {key.lstrip("-").replace("_", "-"): str(value) for key, value in given.items() if str(value)}
    return {
        name: value
        for name, value in names.items()
        if name not in in_script and name not in _OF_THE_SCHEDULER and f"SBATCH_{name.upper()}" not in environ
    }


def _escaped(text: str) -> str:
    """Escape text for a file name pattern of sbatch, where `%` starts a replacement symbol (sbatch(1), FILENAME
    PATTERN)."""
    return text.replace("%", "%%")


def submit_slot(cron: CronProject, entry: Entry, slot: int) -> RunRecord:
    """Submit the job of a slot, or find it if it is queued: SUBMITTED or REFUSED. Does not write the history.

    Raise SchedulerUnavailable if it was not sent or the result is unknown: the next tick tries again.
    """
    system = cron.project.system
    scheduler = cron.project.scheduler()
    try:
        submission = submission_of(cron, entry, slot)
        output = submission.options.get("output")
        if output is not None:
            make_directory(cron.state.path / "output" / entry.key, mode=cron.state.directory_mode)
        submitted = scheduler.submit(submission)
    except SchedulerUnavailable:
        raise
    except ResilError as error:
        summary = f"{error.message}; try: {error.hint}" if error.hint else error.message
        return record_of(cron, entry.name, slot, Outcome.REFUSED, summary=summary)
    return replace(
        _submitted(cron, entry.name, slot, scheduler.name, submitted.id, submitted),
        started=system.clock.now(),
        output=f"{submitted.id}.out" if output is not None else "",
    )


def settle_submits(cron: CronProject, claims: Sequence[Claim], entries: Collection[Entry]) -> Iterator[RunRecord]:
    """Submit the claimed slots, and query earlier jobs; yield records that are already in the history.

    Each claim is seized first, so no other process has it. Slots whose job state is unknown stay claimed for the next
    tick. Raise SchedulerUnavailable then, at the end.
    """
    from resilience.cron.table.history import add, shorten

    state, now = cron.state, cron.project.system.clock.now
    by_key = {entry.key: entry for entry in entries}
    mine = [seized for claim in claims if (seized := state.slots.seize(claim, now())) is not None]
    alive: dict[str, list[QueuedJob]] = {}
    problem: SchedulerUnavailable | None = None
    try:
        for job, ended in follow(cron, by_key):
            if ended is None:
                alive.setdefault(job.key, []).append(job)
            else:
                yield ended
    except SchedulerUnavailable as error:
        problem = error
    newest = {claim.key: claim.slot for claim in sorted(mine)}
    for claim in sorted(mine):
        if problem is not None:
            break  # each query of a hung scheduler takes a minute
        entry = by_key.get(claim.key)
        if state.slots.is_won(claim) is False:
            state.slots.close(claim)
            continue
        try:
            is_old = claim.slot < newest[claim.key] and (entry is None or entry.options.catch_up <= 1)
            if entry is None or is_old:
                record = _find_only(cron, claim, entry)
            else:
                record = _submit(cron, entry, claim.slot, alive.get(claim.key, []))
        except SchedulerUnavailable as error:
            problem = error
            break
        if record.outcome is Outcome.SUBMITTED:
            alive.setdefault(claim.key, []).append(remember(cron, claim.key, record))
        add(state, claim.key, record)
        state.slots.close(claim)
        shorten(state, claim.key)
        prune(cron, claim.key, {job.job_id.array for job in alive.get(claim.key, ())})
        yield record
    if problem is not None:
        raise problem


def _submit(cron: CronProject, entry: Entry, slot: int, alive: Sequence[QueuedJob]) -> RunRecord:
    from resilience.cron.records import Overlap

    earlier = [job for job in alive if job.slot != slot]
    if earlier and entry.options.overlap is Overlap.SKIP:
        jobs = ", ".join(str(job.job_id) for job in earlier)
        summary = f"job {jobs} of an earlier slot has not ended" if len(earlier) == 1 else f"jobs {jobs} have not ended"
        return record_of(cron, entry.name, slot, Outcome.SKIPPED, summary=summary)
    if refused := cron.refuse(entry):
        summary = f"{refused.reason}; try: {refused.hint}" if refused.hint else refused.reason
        return record_of(cron, entry.name, slot, Outcome.REFUSED, summary=summary)
    if earlier and entry.options.overlap is Overlap.REPLACE:
        cron.project.scheduler().cancel([job.job_id for job in earlier])
    return submit_slot(cron, entry, slot)


def _find_only(cron: CronProject, claim: Claim, entry: Entry | None) -> RunRecord:
    """Return the result of a submission that is obsolete: a newer slot is due, or the entry was removed."""
    name = entry.name if entry is not None else claim.key.replace("+", "/")
    found = cron.project.scheduler().find(token_of(cron, claim.key, claim.slot))
    if found:
        job_id = found[0].id.whole
        return _submitted(
            cron, name, claim.slot, cron.project.scheduler().name, job_id, Submitted(job_id, recovered=True)
        )
    why = "a newer slot was due before it could be submitted" if entry is not None else "its entry was removed"
    return record_of(cron, name, claim.slot, Outcome.MISSED, summary=why)


def _submitted(
    cron: CronProject, name: str, slot: int, scheduler: str, job_id: JobId, submitted: Submitted
) -> RunRecord:
    found = " (found by its token)" if submitted.recovered else ""
    notes = "; ".join(("", *submitted.notes))
    record = record_of(cron, name, slot, Outcome.SUBMITTED, summary=f"job {job_id} of {scheduler}{found}{notes}")
    return replace(record, job_id=str(job_id))
