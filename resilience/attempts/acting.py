"""Acts on the decision of the breaker: holds the queued jobs of a run, and releases them.

The batch shell does the same without Python when an attempt ends (slurm_templates/_attempt.bash). Of all that decide at
once, the first to create `attempts/breaker` opens it; everything else may be repeated without harm. Each hold is
journalled before, so that a release does not release what a user held.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resilience import layout
from resilience.attempts.breaker import (
    Breaker,
    State,
    Treatment,
    decide,
    looked_at,
    nodes_of,
    treatment_of,
    treatment_of_class,
    with_progress,
)
from resilience.attempts.classify import ASKED_FOR, sign_of_bad_node
from resilience.attempts.elsewhere import (
    go_elsewhere,
    has_exclusions,
    note_proofs,
    read_excluded,
    read_standings,
    still_excluded,
    unproven,
)
from resilience.attempts.ledger import LedgerRow, read_end, read_ledger
from resilience.attempts.never_dry import keep_queued
from resilience.attempts.reconcile import reconcile
from resilience.attempts.witness import evidence_of
from resilience.errors import ResilError, SchedulerError, SchedulerUnavailable, StateDirectoryError, UsageError
from resilience.guard.earlier_stops import add_unreadable
from resilience.job import Job, JobId
from resilience.messages import cut
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from resilience.nodes.standing import Standing
from resilience.nodes.standing import State as NodeState
from resilience.runs import queue_cache
from resilience.runs.attempts import AttemptEnd
from resilience.runs.breaker_file import (
    BY_USER,
    OpenBreaker,
    create_breaker,
    last_closed,
    plain,
    read_breaker,
    read_held,
    remove_breaker,
    write_breaker,
    write_closed,
    write_counts,
    write_held,
)
from resilience.runs.run_files import attempt_numbers, read_attempts
from resilience.runs.run_jobs import handle_of, jobs_of_run, scheduler_of
from resilience.runs.run_logs import logs_of, start_of_attempt
from resilience.runs.submissions import read_intents
from resilience.runs.switches import write_switch
from resilience.submission import ArrayExpression
from resilience.switch import Switch
from resilience.system.files import explain_os_error

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.schedulers import Scheduler
    from resilience.settings.sections import ActSettings

_HOLDS = ("JobHeld", "held")
"""In SLURM's reason of a held job: `JobHeldUser`, `JobHeldAdmin`, `job requeued in held state`."""
RUNNING_BYTES, MOST_LOGS = 2**16, 8
"""Of the logs of a running attempt the ends of so many are read each time."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done.

    Attributes:
        jobs: jobs and arrays that were held or released.
        error: why others were not; empty if all were.
        changed: which hosts jobs may use again; may be empty.
    """

    jobs: tuple[JobId, ...] = ()
    error: str = ""
    changed: str = ""


# ---- the tick ------------------------------------------------------------------------------------------------------


def tend_runs(project: Project) -> list[str]:
    """Of each run: add what the scheduler says to its ledger, decide, and do it.

    Return a sentence for each that changed or could not be read.
    """
    said, known = [], _try_standings(project)
    for directory in project.runs():
        try:
            with suppress(SchedulerError):  # the accounting may be down alone; the next tick asks again
                reconcile(project, directory)
            said += [act(project, directory, known), keep_queued(project, directory), save_and_stop(project, directory)]
        except ResilError as error:
            said.append(f"run {directory.run}: {error.message}; the next tick tries again")
    return [text for text in said if text]


def act(project: Project, directory: RunDirectory, known: tuple[Sequence[Standing], bool] | None = None) -> str:
    """Decide about a run as its ledger shows it, and do it. Return a sentence if anything changed, else an empty text.

    `known`: of _try_standings, of this tick.

    Raise StateDirectoryError if the run cannot be read, SchedulerUnavailable if the scheduler does not answer; then
    the next tick completes the work.
    """
    state, has_failed, may_open = read_breaker(directory), *_failed(directory)
    standings, unread = known or _try_standings(project)
    excluded = [one for one in standings if one.state is NodeState.EXCLUDED]
    if state is None and not has_failed and not excluded and not has_exclusions(directory):
        return ""
    now, settings = project.system.clock.now(), project.loaded.settings.act
    is_over = directory.is_finished()
    if (is_over and not unproven(directory, now)) or (state is not None and state.is_by_hand):
        return ""
    rows = read_ledger(directory, newest=looked_at(settings))
    with suppress(StateDirectoryError):  # the next tick does it
        note_proofs(project, directory, [(row, nodes_of(row)) for row in rows])
    if is_over:
        return ""
    if not rows:  # none yet, or their files were removed: nothing is known
        return go_elsewhere(project, directory, still_excluded(directory, standings), excluded)
    standings = _with_evidence(project, directory, rows, standings)
    decision = decide(rows, settings, now, closed_after=last_closed(directory))
    said = []
    if may_open and settings.enabled:
        said.append(_offer_to_fall_back(directory, rows, settings))
    hosts = {host: why for host, why in decision.elsewhere.items() if not _is_allowed(host, rows, standings)}
    if unread:  # not known is not allowed
        hosts = still_excluded(directory, ()) | hosts
    if state is not None or may_open:
        said += _open_or_close(project, directory, state, rows, replace(decision, elsewhere=hosts), standings)
    else:
        said.append(go_elsewhere(project, directory, hosts, standings))
    return "; ".join(text for text in said if text)


def _try_standings(project: Project) -> tuple[Sequence[Standing], bool]:
    """Return what is known of the nodes, and whether it cannot be read: the breaker works without it."""
    try:
        return read_standings(project), False
    except StateDirectoryError:
        return (), True


def _with_evidence(
    project: Project, directory: RunDirectory, rows: Sequence[LedgerRow], known: Sequence[Standing]
) -> Sequence[Standing]:
    """Keep what these attempts say about nodes, and return what is known then. Full disks do not stop the breaker."""
    user, settings = project.system.host.user, project.loaded.settings.act
    evidence = evidence_of(rows, settings, directory.run, str(directory.path), user)
    with suppress(StateDirectoryError):
        if evidence and evidence_folder(project).add(evidence, project.system.clock.now()):
            return read_standings(project)
    return known


def _is_allowed(host: str, rows: Sequence[LedgerRow], standings: Sequence[Standing]) -> bool:
    """Return whether a person has allowed a host after the last attempt there."""
    last = max((row.end_time or row.start_time for row in rows if host in nodes_of(row)), default=0.0)
    return any(one.node == host and one.allowed > last for one in standings)


def _open_or_close(
    project: Project,
    directory: RunDirectory,
    state: OpenBreaker | None,
    rows: Sequence[LedgerRow],
    decision: Breaker,
    standings: Sequence[Standing],
) -> list[str]:
    """The file comes first, because the scheduler may not answer; and hosts are excluded before a job may try."""
    now, settings = project.system.clock.now(), project.loaded.settings.act
    if decision.state is State.CLOSED:
        if state is None or rows[-1].attempt < state.attempt:  # an older view than that of its opener
            return [go_elsewhere(project, directory, decision.elsewhere, standings)]
        ended = [one.attempt for one in rows if one.failure is not None]
        write_counts(directory, ended[-1] if ended else 0, decision.burnt, decision.outside)
        did = _named(close(project, directory), "released")
        said = f"the breaker of {directory.run} is closed: {decision.reason}{did}"
        return [said, go_elsewhere(project, directory, decision.elsewhere, standings)]
    found = OpenBreaker(
        opened=state.opened if state is not None else round(now),
        attempt=rows[-1].attempt if rows[-1].failure is not None else rows[-1].attempt - 1,
        burnt=decision.burnt,
        acting=settings.enabled or (state is not None and state.acting),
        by=state.by if state is not None else f"watchdog on {project.system.host.name}",
        retry_at=round(decision.retry_at or 0.0),
        why=plain(decision.reason),
    )
    is_new = state is None and create_breaker(directory, found)
    if state is not None and found != state:
        write_breaker(directory, found)
    said = f"the breaker of {directory.run} opens: {decision.reason}" if is_new else ""
    changed = go_elsewhere(project, directory, decision.elsewhere, standings)
    if not found.acting:
        return [f"{said}; it would hold the queued jobs if [act] were enabled" if said else "", changed]
    done = _let_one_try(project, directory) if decision.state is State.HALF_OPEN else hold(project, directory)
    did = _named(done, "released" if decision.state is State.HALF_OPEN else "held")
    if did and not said:
        said = f"the breaker of {directory.run} is {decision.state}"
    return [said + did, changed]


def _offer_to_fall_back(directory: RunDirectory, rows: Sequence[LedgerRow], settings: ActSettings) -> str:
    """Tell the next training by `guard.resumed_after` what its guard could not know: the last attempt failed for its
    newest checkpoint. Of a loss that is NaN the guard has told it. Return a sentence if that is new."""
    last, step = rows[-1], max((one.durable_step or 0 for one in rows), default=0)
    if last.failure is None or step == 0 or treatment_of(last, settings) is not Treatment.FALL_BACK:
        return ""
    why = f"{last.failure.failure.text}: {last.failure.reason}"
    with suppress(OSError, ValueError):  # a full disk, or written by another version of resil
        if last.failure.step is None and add_unreadable(str(directory.path), last.attempt, step, why):
            return f"the next attempt of {directory.run} is offered to fall back from the checkpoint of step {step}"
    return ""


def save_and_stop(project: Project, directory: RunDirectory) -> str:
    """Ask a running attempt to save and stop if its log shows a fault for which that is set: a GPU that will not
    recover. Once for each attempt. Return a sentence if it was asked."""
    settings, newest = project.loaded.settings.act, read_attempts(directory, newest=1)
    if not newest or newest[-1].end is not None or directory.is_finished():
        return ""
    attempt, kind = newest[-1], f"{layout.STOP_PREFIX}{newest[-1].job_id}"
    if (directory.path / layout.SWITCHES / kind).exists():
        return ""
    text = ""
    for log in logs_of(directory, start_of_attempt(attempt), read_intents(directory))[:MOST_LOGS]:
        with suppress(StateDirectoryError):  # the next tick reads it
            end = read_end(log, RUNNING_BYTES, looks_back=False)
            text += end.rpartition(f"resil: START attempt {attempt.number} of ")[2]
    sign = sign_of_bad_node(text)
    if sign is None or treatment_of_class(sign[0], settings) is not Treatment.SAVE_AND_STOP:
        return ""
    said = f"its log says: {cut(sign[1], 200)}"
    if not settings.enabled:
        return f"it would ask job {attempt.label} to save and stop if [act] were enabled: {said}"
    why = f"{ASKED_FOR}{sign[0]}: {said}"
    write_switch(directory, Switch(kind, project.system.host.user, project.system.clock.now(), plain(why)))
    return f"asked job {attempt.label} of {directory.run} to save and stop: {said}"


def _failed(directory: RunDirectory) -> tuple[bool, bool]:
    """Return whether one of the two newest attempts has failed, and whether the newest has: while one trains, nothing
    is held, and it may make progress. But of attempts that are lost one after another, the next one trains before
    anything is known of the last."""
    quiet = {None, AttemptEnd.FINISHED, AttemptEnd.STOPPED}
    newest = read_attempts(directory, newest=2)
    failed = [attempt.end not in quiet or ASKED_FOR in attempt.why for attempt in newest]
    return any(failed), any(failed[-1:]) or [one.end for one in newest] == [AttemptEnd.LOST, None]


def _named(done: Done, verb: str) -> str:
    jobs = f"; {verb} job {', '.join(map(str, done.jobs))}" if done.jobs else ""
    return f"{jobs}; not {verb}: {done.error}" if done.error else jobs


def _let_one_try(project: Project, directory: RunDirectory) -> Done:
    """Release one job of those that are held, unless one can start by itself."""
    live = _live(project, directory)
    ours = _ours(live, directory)
    if not ours or any(not _is_held(job) for job in live):
        return Done()
    first = min(ours, key=lambda job: (job.id.array, job.id.task or 0))
    job_id = first.id
    if first.is_array_record:
        with suppress(UsageError):  # a list of tasks that SLURM has cut off
            job_id = JobId(first.id.array, min(ArrayExpression.parse(first.tasks).indices()))
    return _each(project, directory, [job_id], is_hold=False)


# ---- by hand -------------------------------------------------------------------------------------------------------


def open_by_hand(project: Project, directory: RunDirectory, why: str, by: str = "") -> Done:
    """Open the breaker of a run, or take over an open one, and hold the queued jobs. `by`: default: the user.

    Raise as `hold`; the breaker is open then nevertheless.
    """
    by, now = by or f"{BY_USER}{project.system.host.user}", project.system.clock.now()
    state = OpenBreaker(opened=now, attempt=_newest(directory), acting=True, by=by, why=plain(why) or f"opened by {by}")
    write_breaker(directory, state)
    return hold(project, directory)


def close_by_hand(project: Project, directory: RunDirectory) -> Done:
    """Close the breaker of a run: attempts up to now count no more, and the jobs that it holds are released.

    The nodes that it avoids are allowed, except those that people excluded, and those without which it has made
    progress since.

    Raise SchedulerUnavailable if they could not be; then it is closed, and another call releases them.
    """
    write_closed(directory, _newest(directory), project.system.clock.now(), project.system.host.user)
    done, now, who = close(project, directory), project.system.clock.now(), project.system.host.user
    by_hand = {one.node for one in read_standings(project) if one.state is NodeState.EXCLUDED and one.by_hand}
    rows = read_ledger(directory)
    fine = with_progress(rows)
    good = [row for row in rows if row.attempt in fine]
    kept = {
        one.host: one.why
        for one in read_excluded(directory)
        if one.host in by_hand or any(row.start_time >= one.since and one.host not in nodes_of(row) for row in good)
    }
    forgiven = [one.host for one in read_excluded(directory) if one.host not in kept]
    why = f"{who} closed the breaker of {directory.run}"
    evidence_folder(project).add(
        [Evidence(node=host, time=now, source=Source.ALLOWED, why=why, about=f"{directory.path} closed {now}", by=who)
         for host in forgiven], now)  # fmt: skip
    return replace(done, changed=go_elsewhere(project, directory, kept, read_standings(project)))


def close(project: Project, directory: RunDirectory) -> Done:
    """Remove the breaker, and release the jobs that it holds. Raise as `close_by_hand`."""
    remove_breaker(directory)
    done = Done()
    if read_held(directory):
        ours = {job.id for job in _ours(_live(project, directory), directory)}
        done = _each(project, directory, ours, is_hold=False)
    if not done.error:
        remove_breaker(directory, layout.BREAKER_HELD)
    return done


# ---- jobs ----------------------------------------------------------------------------------------------------------


def hold(project: Project, directory: RunDirectory) -> Done:
    """Hold the queued jobs of a run, except those that are held already.

    Raise SchedulerUnavailable if the scheduler does not answer, StateDirectoryError if that cannot be journalled.
    """
    intents = read_intents(directory)
    waiting = [job for job in _live(project, directory) if job.state.is_waiting and not _is_held(job)]
    queued = {handle_of(job, intents) for job in waiting}
    if not queued:
        return Done()
    write_held(directory, {*read_held(directory), *queued})
    return _each(project, directory, queued, is_hold=True)


def _ours(live: Collection[Job], directory: RunDirectory) -> list[Job]:
    """Return the jobs that are held because of the breaker. The batch shell knows them by their raw ids."""
    held = set(read_held(directory))
    return [job for job in live if _is_held(job) and {job.id, job.id.whole, JobId(job.raw_id)} & held]


def _each(project: Project, directory: RunDirectory, jobs: Collection[JobId], *, is_hold: bool) -> Done:
    """Hold or release jobs. SLURM reports an error for an array of which a task has ended, so the queue is asked."""
    scheduler, errors = _scheduler(project, directory), []
    for job_id in sorted(jobs):
        try:
            (scheduler.hold if is_hold else scheduler.release)(job_id)
        except SchedulerUnavailable:
            raise
        except SchedulerError as error:
            errors.append(error.message)
    queue_cache.invalidate(project.system, scheduler.name)
    if not errors:
        return Done(tuple(sorted(jobs)))
    wrong = {
        one
        for job in _live(project, directory)
        if job.state.is_waiting and _is_held(job) is not is_hold
        for one in (job.id, job.id.whole)
    }
    return Done(tuple(one for one in sorted(jobs) if one not in wrong), errors[0] if wrong & set(jobs) else "")


def _live(project: Project, directory: RunDirectory) -> list[Job]:
    """Return the live jobs of a run that belong to the current user: nobody may hold those of others."""
    jobs = _scheduler(project, directory).jobs()
    return [job for job in jobs_of_run(jobs, directory.run, read_intents(directory)) if job.state.is_alive]


def _scheduler(project: Project, directory: RunDirectory) -> Scheduler:
    return project.scheduler(scheduler_of(read_intents(directory)))


def _is_held(job: Job) -> bool:
    return any(word in job.reason for word in _HOLDS)


def _newest(directory: RunDirectory) -> int:
    try:
        return max(attempt_numbers(directory), default=0)
    except OSError as error:
        raise explain_os_error(error, "read", directory.path / layout.ATTEMPTS) from error
