"""`resil status`: each run with a row per job or array, the next job, and lost work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.errors import EX_TEMPFAIL, StateDirectoryError, UsageError
from resilience.job import Job, JobId, JobState
from resilience.messages import plural
from resilience.pending_reason import explain_reason
from resilience.runs.attempts import Attempt, AttemptEnd, KillStage, LastSave, kill_stage, waits_for
from resilience.runs.breaker_file import OpenBreaker, read_breaker, read_held
from resilience.runs.project import Project
from resilience.runs.queue_cache import QueueAnswer
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import SIGN_OF_LIFE_S, last_beat, last_events, newest_save, read_attempts
from resilience.runs.run_jobs import Queues, newest
from resilience.runs.run_logs import last_step, logs_for_step
from resilience.runs.settle import can_settle, settle, unsettled
from resilience.runs.submissions import (
    Intent,
    Intervention,
    Journal,
    describe_relocation,
    newest_intent,
    own_script_of,
    read_journal,
)
from resilience.runs.switches import policy_of_run, read_switch
from resilience.switch import Switch

if TYPE_CHECKING:  # not needed without [checkpoints]
    from resilience.checkpoints.summary import StoreSummary

CANNOT_OPEN_OUTPUT = 53
"""SLURM's signal (0:53) of a job that failed before its start, mostly because of --output."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, or one array folded.

    Attributes:
        job: the displayed id; the array's id for a folded array.
        state: of the running task, else of a waiting one, else of the last to end.
        counts: tasks per state; a plain job counts 1.
        words: why it waits, or how it ended.
        advice: the remedy, or empty.
        time_left_s: of the running task; None if unlimited or unknown.
        nodes: hostlist.
        is_alive: whether a task may run now or later.
    """

    job: str
    state: JobState
    counts: Mapping[str, int]
    words: str
    advice: str
    time_left_s: float | None
    nodes: str
    is_alive: bool


def _injected(directory: RunDirectory) -> tuple[str, ...]:
    """Return the injected faults that are on. Without any, one system call."""
    if not (directory.path / layout.INJECTIONS).exists():
        return ()
    from resilience.runs.injections import describe_injection, read_injections

    return tuple(f"{one.id}: {describe_injection(one)}" for one in read_injections(directory) if one.is_on)


def fold(jobs: Sequence[Job], now: float) -> tuple[JobRow, ...]:
    """Return one row per job or array of a run: running ones first, then waiting ones, then ended ones."""
    arrays: dict[int, list[Job]] = {}
    for job in jobs:
        arrays.setdefault(job.id.array, []).append(job)
    rows = [_row(array, records, now) for array, records in arrays.items()]
    return tuple(sorted(rows, key=lambda row: (_rank(row.state), int(row.job.split("_")[0]))))


def _row(array: int, records: list[Job], now: float) -> JobRow:
    counts: Counter[str] = Counter()
    for job in records:
        counts[job.state.value] += job.task_count
    leading = min(records, key=lambda job: (_rank(job.state), -(job.start_time or 0.0)))
    words, advice = _explain(leading)
    left = leading.end_time - now if leading.state.may_have_processes and leading.end_time is not None else None
    return JobRow(
        job=str(leading.id if len(records) == 1 and not leading.is_array_record else array),
        state=leading.state,
        counts=dict(counts),
        words=words,
        advice=advice,
        time_left_s=None if left is None else max(0.0, left),
        nodes=leading.nodes,
        is_alive=any(job.state.is_alive for job in records),
    )


def _rank(state: JobState) -> int:
    if state is JobState.RUNNING:
        return 0
    if state.may_have_processes:
        return 1
    return 2 if state.is_waiting else 3


def _explain(job: Job) -> tuple[str, str]:
    if job.state.is_waiting:
        reason = explain_reason(job.reason, str(job.id))
        return reason.words, reason.advice
    if job.state is JobState.COMPLETING:
        return "its processes are ending", ""
    if job.state is JobState.NODE_FAIL:  # since 24.11 with srun's exit code 1, which is no failure of the training
        return "lost with its node", ""
    if job.state.is_final and job.exit_code is not None and (job.exit_code.status or job.exit_code.signal):
        if job.exit_code.signal == CANNOT_OPEN_OUTPUT:
            return "SLURM could not open its output file, or could not start it", "check --output and sinfo -R"
        if job.exit_code.signal:
            return f"ended by signal {job.exit_code.signal}", ""
        if job.exit_code.status == EX_TEMPFAIL:
            return f"stopped deliberately, to continue in the next job (exit code {EX_TEMPFAIL})", ""
        return f"exit code {job.exit_code.status}", ""
    return "", ""


LOST_ATTEMPTS_SHOWN = 2
"""Only these newest attempts are reported as lost."""

ATTEMPTS_AT_ONCE = 3
"""Of these newest attempts one may train or be ending, while the next waits for its end."""

LOST_SLACK_S = 5.0
"""An attempt younger than this, by another machine's clock, may have started after the query."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of one run.

    Attributes:
        rows: its jobs, running ones first.
        next_in_line: the next job, or empty.
        step: the last step seen, or None.
        attempts: every attempt so far, oldest first.
        finished: whether the training has finished.
        switches: the switches that are set, accepted or rejected.
        save: the saves that the guard journalled, or None.
        kill: the stage of a running attempt that is being ended by its kill switch or by stop_after, or None.
        lost: messages about jobs lost to a dead node or a reboot.
        waits: a sentence while the newest attempt waits for the end of an earlier one, or empty.
        intervention: what a person did to the run since the last submission, or None.
        relocation: a sentence about a run directory that was copied or moved, or empty.
        breaker: the run's breaker if it is open, or None.
        checkpoints: what its directory of checkpoints holds, or None without one.
        injected: the faults that people have injected on purpose and that are still on, as sentences.
        headline: `running`, `queued`, `finished`, `not queued`, `unknown`, `unreadable`.
        trouble: why the scheduler did not answer; the rows are then its answer of `age_s` seconds ago.
        unreadable: why the run's own files could not be read, or empty.
    """

    run: str
    path: str
    scheduler: str = ""
    rows: tuple[JobRow, ...] = ()
    next_in_line: str = ""
    step: int | None = None
    attempts: tuple[Attempt, ...] = ()
    finished: bool = False
    switches: tuple[Switch, ...] = ()
    lost: tuple[str, ...] = ()
    headline: str = ""
    save: LastSave | None = None
    kill: KillStage | None = None
    trouble: str = ""
    age_s: float = 0.0
    unreadable: str = ""
    waits: str = ""
    intervention: Intervention | None = None
    relocation: str = ""
    breaker: OpenBreaker | None = None
    checkpoints: StoreSummary | None = None
    injected: tuple[str, ...] = ()


def run_statuses(
    project: Project, directories: Sequence[RunDirectory], *, fresh: bool = False
) -> tuple[RunStatus, ...]:
    """Return the states of runs. Each scheduler is queried once for all of them, or not at all while its answer is
    recent.

    A run whose files cannot be read is shown as `unreadable` beside the others. Raise StateDirectoryError if it is the
    only one requested.
    """
    queues = Queues(project.system, project.scheduler, project.scheduler_name(), fresh=fresh)
    stores = _stores(project, [directory.run for directory in directories])
    statuses = []
    for directory in directories:
        try:
            journal = _settled_journal(project, directory)
            scheduler, jobs, answer = queues.jobs_of(directory, journal.intents)
            if not answer.trouble and not any(job.state.is_alive for job in jobs):
                answer = answer._replace(trouble=unsettled(journal.intents, project.system.clock.now()))
            logs = _logs(queues, directory, journal.intents, scheduler, jobs)
            is_copy = bool(journal.copied_from) and newest_intent(journal.intents) is None
            status = _status(project, directory, scheduler, jobs, answer, logs, is_copy=is_copy)
            relocation = describe_relocation(journal, directory)
            status = replace(status, intervention=journal.done, relocation=relocation)
            statuses.append(replace(status, checkpoints=stores.get(directory.run)))
        except StateDirectoryError as error:
            if len(directories) == 1:
                raise
            row = RunStatus(directory.run, str(directory.path), headline="unreadable", unreadable=error.message)
            statuses.append(row)
    return tuple(statuses)


def _stores(project: Project, runs: Sequence[str]) -> dict[str, StoreSummary]:
    """Return what the directories of checkpoints hold, by run; a child reads them, for their disk may hang."""
    paths = {run: str(path) for run in runs if (path := project.loaded.store_path(run)) is not None}
    if not paths:
        return {}
    from resilience.checkpoints.summary import StoreSummary, read_summary
    from resilience.records import from_record, to_record
    from resilience.runs.open_project import in_child

    def read() -> list[dict[str, Any]]:
        return [to_record(found) for path in set(paths.values()) if (found := read_summary(path)) is not None]

    place = f"checkpoints {min(paths.values())}"
    answer = in_child(project.system, place, read, project.loaded.settings.watch.state_deadline_s)
    if answer.error is not None:
        return {run: StoreSummary(path=path, trouble=answer.error.message) for run, path in paths.items()}
    found = {one.path: one for one in (from_record(StoreSummary, record) for record in answer.value)}
    return {run: found[path] for run, path in paths.items() if path in found and found[path].run in ("", run)}


def _held_by_the_breaker(rows: Sequence[JobRow], jobs: Sequence[Job], directory: RunDirectory) -> tuple[JobRow, ...]:
    held = set(read_held(directory))
    ours = {job.id.array for job in jobs if {job.id, job.id.whole, JobId(job.raw_id)} & held}
    by_user = {explain_reason(reason).words for reason in ("JobHeldUser", "job requeued in held state")}
    by_admin = explain_reason("JobHeldAdmin").words  # that of root or an operator
    return tuple(
        replace(row, words="held by the breaker", advice="")
        if row.words in by_user or (row.words == by_admin and int(row.job.split("_")[0]) in ours)
        else row
        for row in rows
    )


def _status(
    project: Project,
    directory: RunDirectory,
    scheduler: str,
    jobs: tuple[Job, ...],
    answer: QueueAnswer,
    logs: Sequence[Path],
    *,
    is_copy: bool,
) -> RunStatus:
    now = project.system.clock.now()
    rows, finished = fold(jobs, now), directory.is_finished()
    if any("scontrol" in row.advice for row in rows):  # the embedded scheduler's own is not on the user's PATH
        scontrol = getattr(project.scheduler(scheduler), "scontrol", "scontrol")
        rows = tuple(replace(row, advice=row.advice.replace("scontrol", scontrol)) for row in rows)
    breaker = None if finished else read_breaker(directory)
    if breaker is not None and breaker.acting:  # released past the breaker, a job would end at its start
        rows = _held_by_the_breaker(rows, jobs, directory)
    attempts = read_attempts(directory)
    if is_copy:  # those without an end are the original's
        attempts = tuple(attempt for attempt in attempts if attempt.end is not None)
    if not answer.trouble and not any(row.is_alive for row in rows) and _shows_life(directory, attempts, jobs, now):
        trouble = f"the queue shows no job, but attempt {attempts[-1].number} sent a heartbeat just now"
        answer = answer._replace(trouble=trouble)
    attempts = mark_lost(attempts, jobs, answer, now)
    save = newest_save(directory, [attempt.job_id for attempt in attempts])
    return RunStatus(
        run=directory.run,
        path=str(directory.path),
        scheduler=scheduler,
        rows=rows,
        next_in_line=_next_in_line(jobs),
        step=_newest_step(last_step(directory, logs), save, attempts),
        attempts=attempts,
        finished=finished,
        switches=_switches(directory),
        lost=_lost(jobs, attempts),
        injected=_injected(directory),
        waits=_waits(directory, attempts),
        headline=_headline(rows, finished, answer),
        save=save,
        kill=kill_under_way(directory, attempts),
        breaker=breaker,
        trouble=answer.trouble,
        age_s=answer.age_s,
    )


def _settled_journal(project: Project, directory: RunDirectory) -> Journal:
    """Return the journal of a run, after looking up a newest submission whose outcome is unknown."""
    journal, clock = read_journal(directory), project.system.clock
    if not journal.intents or not can_settle(journal.intents[-1], clock.now()):
        return journal
    with suppress(UsageError):  # an unknown scheduler
        client = project.scheduler(journal.intents[-1].scheduler)
        return read_journal(directory) if settle(directory, journal.intents, client, clock) else journal
    return journal


def _logs(
    queues: Queues, directory: RunDirectory, intents: Sequence[Intent], scheduler: str, jobs: Sequence[Job]
) -> list[Path]:
    """Return the logs of a run, the newest first; of a user's own script also where only the scheduler knows them."""
    found = logs_for_step(directory, intents)
    running = newest([job for job in jobs if job.state.may_have_processes])
    if not found and running is not None and own_script_of(directory, intents):
        log = queues.stdout_of(scheduler, running)
        return [] if log is None else [log]
    return found


def _shows_life(directory: RunDirectory, attempts: Sequence[Attempt], jobs: Sequence[Job], now: float) -> bool:
    """Return whether the newest attempt has no recorded end, has a recent heartbeat, and is not in the queue."""
    if not attempts or attempts[-1].end is not None or any(job.raw_id == attempts[-1].job_id for job in jobs):
        return False
    beat = last_beat(directory, attempts[-1])
    return beat is not None and abs(now - beat) < SIGN_OF_LIFE_S


def mark_lost(attempts: Sequence[Attempt], jobs: Sequence[Job], answer: QueueAnswer, now: float) -> tuple[Attempt, ...]:
    """Return the attempts, those without a recorded end marked LOST if their job has no processes. Pure.

    This needs an answer of the scheduler, and applies only to attempts that started before it.
    """
    if answer.trouble or not answer.is_known:
        return tuple(attempts)
    alive = {job.raw_id for job in jobs if job.state.may_have_processes}
    seen_at = now - answer.age_s - LOST_SLACK_S
    return tuple(
        replace(attempt, end=AttemptEnd.LOST)
        if attempt.end is None and attempt.job_id not in alive and attempt.start_time < seen_at
        else attempt
        for attempt in attempts
    )


def _headline(rows: Sequence[JobRow], finished: bool, answer: QueueAnswer) -> str:
    if finished:
        return "finished"
    if answer.trouble or not answer.is_known:
        return "unknown"  # the earlier answer is shown, but proves nothing now
    if any(row.state.may_have_processes for row in rows):
        return "running"
    if any(row.is_alive for row in rows):
        return "queued"
    return "not queued"


def _next_in_line(jobs: Sequence[Job]) -> str:
    waiting = sorted((job for job in jobs if job.state.is_waiting), key=lambda job: (job.id.array, job.id.task or 0))
    if not waiting:
        return ""
    first = waiting[0]
    total = sum(job.task_count for job in waiting)
    label = f"{first.id.array}_[{first.tasks}]" if first.is_array_record else str(first.id)
    return f"{label} ({plural(total, 'job')} waiting)"


def _lost(jobs: Sequence[Job], attempts: Sequence[Attempt]) -> tuple[str, ...]:
    sentences = []
    for job in jobs:
        if job.state is JobState.NODE_FAIL or (job.state.is_waiting and job.reason == "NodeDown"):
            sentences.append(f"job {job.id} was lost with its node{f' {job.nodes}' if job.nodes else ''}")
    for attempt in attempts[-LOST_ATTEMPTS_SHOWN:]:
        if attempt.end is AttemptEnd.LOST:
            host = f" on {attempt.host}" if attempt.host else ""
            how = f"was lost: {attempt.why}" if attempt.why else "wrote no end"
            sentences.append(f"attempt {attempt.number} (job {attempt.label}{host}) {how}")
    return tuple(sentences)


def _waits(directory: RunDirectory, attempts: Sequence[Attempt]) -> str:
    if not attempts or attempts[-1].end is not None:
        return ""
    newest = attempts[-1]
    before = [one for one in attempts if one.number in waits_for(last_events(directory, newest.job_id), newest.number)]
    if not before:
        return ""
    names = " and ".join(f"{one.number} (job {one.label}{f' on {one.host}' if one.host else ''})" for one in before)
    return f"attempt {newest.number} waits for the end of attempt {names}"


def _newest_step(seen: int | None, save: LastSave | None, attempts: Sequence[Attempt]) -> int | None:
    """Return the last step: `seen` in a heartbeat or log, or that of a newer save of this attempt.

    An attempt that has just started is at step 0 until it resumes: then the step of the last save is shown.
    """
    if not seen and save is not None and save.step:
        return save.step
    is_of_this = save is not None and attempts and save.attempt == attempts[-1].number
    steps = (seen, save.step if save is not None and is_of_this else None)
    return max((step for step in steps if step is not None), default=None)


def kill_under_way(directory: RunDirectory, attempts: Sequence[Attempt]) -> KillStage | None:
    """Return the stage of the newest attempt that is being ended; an attempt that waits for it may be newer."""
    running = (attempt for attempt in reversed(attempts[-ATTEMPTS_AT_ONCE:]) if attempt.end is None)
    stages = (kill_stage(last_events(directory, attempt.job_id), attempt.number) for attempt in running)
    return next((stage for stage in stages if stage is not None), None)


def _switches(directory: RunDirectory) -> tuple[Switch, ...]:
    try:
        policy = policy_of_run(directory)
        found = (read_switch(directory, kind, policy) for kind in (layout.KILL_SWITCH, layout.SAVE_SWITCH))
        return tuple(switch for switch in found if switch is not None)
    except StateDirectoryError:
        return ()
