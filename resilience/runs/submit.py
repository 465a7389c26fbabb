"""`resil submit`: queues a run exactly once, and only if the run is not live, finished or killed."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from resilience import layout
from resilience.errors import (
    ResilError,
    SchedulerUnavailable,
    StateDirectoryError,
    SubmissionUncertain,
    UsageError,
)
from resilience.job import JobId
from resilience.quantities import format_duration
from resilience.runs import queue_cache, settle
from resilience.runs.breaker_file import read_breaker
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.runs.run_jobs import live_jobs, refuse_if_live
from resilience.runs.settle import IN_FLIGHT_S
from resilience.runs.submissions import (
    GAVE_WAY,
    Intent,
    Outcome,
    new_token,
    newest_intent,
    read_intents,
    read_journal,
    record_intent,
    record_result,
)
from resilience.runs.submit_plan import (
    SubmitPlan,
    SubmitRequest,
    checkpoints_variables,
    guard_variables,
    lint_facts,
    output_pattern,
    owner_policy,
    passed_options,
    plan_submit,
    read_own_script,
    render_script,
)
from resilience.runs.switches import policy_of, read_switch
from resilience.runs.templates.lint import LintFinding, Severity, lint
from resilience.schedulers import Scheduler
from resilience.settings.show import to_toml
from resilience.submission import Submission, Submitted, check_run_name
from resilience.switch import describe_age
from resilience.system.files import read_regular, write_atomic


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run directory before a submit, restored if the submit queues nothing.

    Attributes:
        run_file: content of its run.toml, None when it was never submitted from here.
        missing: the run directory and its parents that did not exist, the deepest first.
    """

    run_file: bytes | None
    missing: tuple[Path, ...]


def take_snapshot(directory: RunDirectory) -> Snapshot:
    """Return the state of a run directory. Raise StateDirectoryError if it cannot be read."""
    if not directory.exists():
        paths = (directory.path, *directory.path.parents)
        return Snapshot(None, tuple(path for path in paths if not os.path.lexists(path)))
    found = read_regular(directory.path / layout.RUN_FILE, limit_bytes=2**20)
    return Snapshot(found[0] if found is not None else b"", ())


def rollback(directory: RunDirectory, snapshot: Snapshot, tokens: Collection[str]) -> None:
    """Restore a run directory to its state before a submit that queued nothing.

    Only files of this submit are removed: the directory may hold a user's own files, and another submit may have
    begun to use it meanwhile.
    """
    with suppress(ResilError, OSError):
        if any(intent.token not in tokens for intent in read_intents(directory)):
            return  # another submit uses the directory now
        if snapshot.run_file is not None:
            write_atomic(directory.path / layout.RUN_FILE, snapshot.run_file, mode=directory.file_mode)
            return
        if directory.path in snapshot.missing:
            shutil.rmtree(directory.path, ignore_errors=True)
        else:
            for name in (layout.SUBMISSIONS, layout.RUN_FILE):
                (directory.path / name).unlink(missing_ok=True)
            for name in layout.FOLDERS:
                with suppress(OSError):
                    (directory.path / name).rmdir()
        for parent in snapshot.missing[1:]:
            parent.rmdir()


def refuse_if_another_was_first(directory: RunDirectory, token: str, known: Collection[str], now: float) -> None:
    """Yield to another submit of the run that journalled its intent before ours and that we did not know of.

    Two users may submit at once: each queries, sees no job, and journals. The journal's lines are ordered, so exactly
    one submit was first. Raise SchedulerUnavailable after journalling that ours was not sent.
    """
    for intent in read_intents(directory):
        if intent.token == token:
            return
        is_in_flight = intent.outcome is Outcome.OPEN and now - intent.time < IN_FLIGHT_S
        if intent.token not in known and (is_in_flight or intent.outcome is Outcome.SUBMITTED):
            record_result(directory, token, Outcome.REFUSED, now, why=GAVE_WAY + intent.token)
            raise SchedulerUnavailable(
                f"another submit of run {directory.run}{f' by {intent.by}' if intent.by else ''} was first",
                hint=f"see what it queued: resil status {directory.run} --fresh; queue behind it: --after auto",
            )


def reconcile_intents(
    project: Project, directory: RunDirectory, scheduler: Scheduler, progress: Callable[[str], None]
) -> Iterator[JobId]:
    """Look up every submission without a known outcome, journal its outcome, and yield the jobs found.

    Dead accounting does not block a submit: the queue, queried twice, has no job of the earlier submission that is
    alive. Its outcome stays unknown. Raise SchedulerUnavailable if the queue cannot be queried, or a submission is so
    young that another submit may still be sending it.
    """
    clock = project.system.clock
    now = clock.now()
    for intent in read_intents(directory):
        if intent.outcome not in (Outcome.OPEN, Outcome.UNCERTAIN) or intent.scheduler != scheduler.name:
            continue
        age_s = now - intent.time
        try:
            job_id = settle.look_up(intent, scheduler, clock)
        except settle.AccountingUnavailable as error:
            progress(
                f"the outcome of an earlier submission{describe_age(age_s)} is not known: {error.message}; if it queued"
                " a job, this job has ended: the queue does not show it"
            )
            continue
        if job_id is not None:
            settle.record(directory, intent, job_id, now)
            progress(f"an earlier submit without a recorded result did queue job {job_id}")
            yield job_id
        elif intent.outcome is Outcome.OPEN and age_s < -IN_FLIGHT_S:
            raise SchedulerUnavailable(
                f"another submit of run {directory.run} is dated {format_duration(-age_s)} in the future",
                hint="compare `date` on your login nodes; it may still be running",
            )
        elif intent.outcome is Outcome.OPEN and age_s < IN_FLIGHT_S:
            raise SchedulerUnavailable(
                f"another submit of run {directory.run} began {max(0.0, age_s):.0f} s ago and has not ended",
                hint=f"wait for it; if it was interrupted, try again in {IN_FLIGHT_S - age_s:.0f} s",
            )
        else:
            settle.record(directory, intent, None, now)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A submit that is ready to be performed.

    Attributes:
        script: the text of the script.
        submissions: one, or those of a chain, yet without their dependencies.
        findings: warnings of the lint.
    """

    request: SubmitRequest
    directory: RunDirectory
    plan: SubmitPlan
    script: str
    submissions: tuple[Submission, ...]
    findings: tuple[LintFinding, ...]


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The jobs that were queued.

    Attributes:
        ids: the jobs, in their order.
        notes: further messages of the scheduler.
        recovered: whether a job was found by its token after the call had failed.
    """

    run: str
    directory: Path
    ids: tuple[JobId, ...]
    notes: tuple[str, ...]
    recovered: bool


def prepare(project: Project, request: SubmitRequest) -> Prepared:
    """Plan, render and lint a submit; write nothing.

    Raise UsageError, SettingsError or TemplateError if the request is invalid; the message gives the lint's reason.
    """
    check_run_name(request.run)
    directory = project.directory(request.run)
    directory.exists()  # raises for a private run of another user, before any of its files is read
    settings = project.loaded.settings
    plan = plan_submit(request, settings, str(directory.path / layout.LOGS))
    tokens = [new_token() for _ in range(plan.jobs)]
    environment = {"RESIL_RUN": request.run, "RESIL_RUN_DIR": str(directory.path)}
    if request.script is None:
        script = render_script(project, request, plan, directory)
        paths = [str(directory.path / layout.SCRIPTS / f"{token}.sbatch") for token in tokens]
    else:
        is_rendered = request.script.parent == directory.path / layout.SCRIPTS  # of an earlier submit
        own = request.script if is_rendered else (project.system.cwd / request.script).resolve()
        script = read_own_script(own)
        paths = [str(own)] * plan.jobs
        if not is_rendered:  # a rendered script exports these itself
            environment |= guard_variables(project.loaded) | checkpoints_variables(project.loaded, request.run)
    submissions = tuple(
        Submission(
            token=token,
            run=request.run,
            script=path,
            script_args=request.script_args,
            options=plan.options,
            extra_args=request.extra_args,
            directory=str(project.system.cwd if request.script is not None else project.loaded.project),
            environment=environment,
            fresh=True,
        )
        for token, path in zip(tokens, paths, strict=True)
    )
    options = {**plan.options, **passed_options(request.extra_args)}
    findings = lint(script, options, lint_facts(project, request, plan, directory, script))
    refused = [finding for finding in findings if finding.severity is Severity.REFUSE]
    if refused:
        others = "".join(f"\n       also: {finding.message}" for finding in refused[1:])
        raise UsageError(refused[0].message + others, hint=refused[0].hint)
    return Prepared(request, directory, plan, script, submissions, tuple(findings))


def command_lines(project: Project, prepared: Prepared) -> tuple[str, ...]:
    """Return the exact commands of `perform`, for display."""
    scheduler = project.scheduler()
    first, *others = prepared.submissions
    behind = (shlex.join(scheduler.command_line(_behind(submission, JobId(1)))) for submission in others)
    return (
        shlex.join(scheduler.command_line(first)),
        *(text.replace("afterany:1 ", "afterany:<job before> ") for text in behind),
    )


def test_only(project: Project, prepared: Prepared) -> str:
    """Return the scheduler's estimate of the start time. Nothing is queued, and no file stays."""
    scheduler = project.scheduler()
    submission = prepared.submissions[0]
    if prepared.request.script is not None:
        return scheduler.test(submission)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="resil-test-") as directory:
        path = Path(directory) / "script.sbatch"
        write_atomic(path, prepared.script)
        return scheduler.test(replace(submission, script=str(path)))


def perform(
    project: Project,
    prepared: Prepared,
    progress: Callable[[str], None] = lambda _: None,
    *,
    seen: Collection[str] | None = None,
) -> SubmitResult:
    """Queue a prepared submit: one job per intent, even if the controller fails meanwhile.

    `seen`: the tokens of the run's intents when the caller found that a job is needed; None: all until now. A submit
    that came since has met the need, and this one yields to it with SchedulerUnavailable.

    Raise RunAlive if the run is live and neither `--after` nor `--force` was given, SchedulerUnavailable if that is
    unknown, SchedulerError if the scheduler refused (then nothing is left behind), SubmissionUncertain if it is unknown
    whether the job was queued: the next submit looks the job up first.
    """
    request, directory, scheduler = prepared.request, prepared.directory, project.scheduler()
    # Keep this order: this submit yields to one that comes between the two lines, because its token is unknown.
    known = {intent.token for intent in read_intents(directory)} if seen is None else set(seen)
    known |= {submission.token for submission in prepared.submissions}
    snapshot = take_snapshot(directory)
    if snapshot.run_file is not None:
        _check_run(project, prepared, scheduler, progress)
    ids: list[JobId] = []
    notes: list[str] = []
    recovered = False
    try:
        directory.create(to_toml(project.loaded, request.run))
        for number, submission in enumerate(prepared.submissions):
            current = _behind(submission, ids[-1]) if number else submission
            first = None if number or request.force else known
            submitted = _submit_one(project, prepared, scheduler, current, first)
            ids.append(submitted.id)
            notes += [note for note in submitted.notes if note not in notes]
            recovered = recovered or submitted.recovered
            if len(prepared.submissions) > 1:
                progress(f"queued {number + 1} of {len(prepared.submissions)}: job {submitted.id}")
    except ResilError as error:
        if ids:
            queued = ", ".join(map(str, ids))
            hint = f"already queued: {queued}; to remove them: resil cancel {request.run}; {error.hint}"
            error.hint = hint.rstrip("; ")
        elif not isinstance(error, SubmissionUncertain):
            rollback(directory, snapshot, known)
        raise
    finally:
        queue_cache.invalidate(project.system, scheduler.name)
    return SubmitResult(request.run, directory.path, tuple(ids), tuple(notes), recovered)


def _check_run(project: Project, prepared: Prepared, scheduler: Scheduler, progress: Callable[[str], None]) -> None:
    """Raise if the run must not be queued now."""
    request, directory = prepared.request, prepared.directory
    others = {i.scheduler for i in read_intents(directory) if i.outcome is not Outcome.REFUSED} - {scheduler.name, ""}
    clients = [scheduler, *(project.scheduler(name) for name in sorted(others) if not request.force)]
    found = [job_id for client in clients for job_id in reconcile_intents(project, directory, client, progress)]
    _drop_copied_attempts(directory, progress)
    _check_kill_switch(project, request, directory, progress)
    owner, user = directory.owner(), project.system.host.user
    if owner != user:
        progress(f"run {request.run} belongs to {owner}; its new jobs belong to {user}, and {owner} cannot cancel them")
    if request.force:
        return
    if directory.is_finished():
        raise UsageError(
            f"run {request.run} is finished: its jobs would end at once",
            hint=f"use another name: --run NAME; or continue training: resil clear {request.run} --finished",
        )
    breaker = read_breaker(directory)
    if breaker is not None and breaker.acting:
        raise UsageError(
            f"the breaker of run {request.run} is open, its jobs would end at once: {breaker.why}",
            hint=f"see why: resil why {request.run}; then: resil breaker close {request.run}; or queue anyway: --force",
        )
    if request.after is None:
        me = project.system.host.user
        live = [job for client in clients for job in live_jobs(client, directory, me)]
        if found and not live:
            progress("that job has already ended; queueing a new one")
        refuse_if_live(request.run, live, me)


def _drop_copied_attempts(directory: RunDirectory, progress: Callable[[str], None]) -> None:
    """At the first submit in a copied run directory, remove the attempts without an end.

    They belong to the original, where they may still run: a job of the copy would wait for their end and give up.
    """
    journal = read_journal(directory)
    if not journal.copied_from or newest_intent(journal.intents) is not None:
        return
    for attempt in read_attempts(directory):
        if attempt.end is None:
            progress(f"attempt {attempt.number} was copied from {journal.copied_from} without an end; removed here")
            for name in (layout.attempt_beat_file(attempt.number), layout.attempt_file(attempt.number)):
                with suppress(OSError):
                    (directory.path / layout.ATTEMPTS / name).unlink(missing_ok=True)


def _check_kill_switch(
    project: Project, request: SubmitRequest, directory: RunDirectory, progress: Callable[[str], None]
) -> None:
    """Report a kill switch and its age, which may be days. Raise UsageError unless forced."""
    try:
        policy = policy_of(directory, owner_policy(project.loaded.settings.run))
        kill = read_switch(directory, layout.KILL_SWITCH, policy)
    except StateDirectoryError:
        if not request.force:
            raise
        return
    if kill is None:
        return
    if not kill.honoured:
        progress(f"run {request.run} has a kill switch that is not accepted: {kill.refusal}")
        return
    ago = describe_age(project.system.clock.now() - kill.when)
    why = f" ({kill.why})" if kill.why else ""
    switch = f"run {request.run} has a kill switch, set by {kill.who}{ago}{why}"
    if not request.force:
        raise UsageError(
            f"{switch}: its jobs would end at once",
            hint=f"clear it: resil clear {request.run}; or queue anyway: --force",
        )
    progress(f"{switch}: its jobs end at once until it is cleared: resil clear {request.run}")


def _behind(submission: Submission, previous: JobId) -> Submission:
    """Return a submission that is queued behind the previous one. Only the first keeps the user's dependency."""
    return replace(submission, options={**submission.options, "dependency": f"afterany:{previous.whole}"})


def _submit_one(
    project: Project, prepared: Prepared, scheduler: Scheduler, submission: Submission, known: Collection[str] | None
) -> Submitted:
    """Journal the intent, submit, journal the result.

    `known`: tokens that were checked, or belong to this submit; a submit with another token was first. None: do not
    yield to other submits.
    """
    clock, directory = project.system.clock, prepared.directory
    written = Path(submission.script) if prepared.request.script is None else None
    try:
        if written is not None:
            # SLURM keeps a copy: only the intent must survive a power cut.
            write_atomic(written, prepared.script, mode=directory.directory_mode & 0o777, durable=False)
        argv = scheduler.command_line(submission)
        intent = Intent(
            token=submission.token,
            scheduler=scheduler.name,
            script=submission.script,
            argv=argv,
            time=clock.now(),
            by=project.system.host.user,
            output=_recorded_output(project, prepared, submission),
            avoid=prepared.request.avoid,
        )
        record_intent(directory, intent)
        if known is not None:
            refuse_if_another_was_first(directory, submission.token, known, clock.now())
    except ResilError:  # not journalled, so not sent
        _drop(written)
        raise
    try:
        submitted = scheduler.submit(submission)
    except SubmissionUncertain as error:  # the next submit looks up the job first
        with suppress(StateDirectoryError):
            record_result(directory, submission.token, Outcome.UNCERTAIN, clock.now(), why=error.message)
        raise
    except ResilError as error:
        with suppress(StateDirectoryError):  # the next submit looks up the job; report the refusal
            record_result(directory, submission.token, Outcome.REFUSED, clock.now(), why=error.message)
        _drop(written)
        raise
    try:
        record_result(directory, submission.token, Outcome.SUBMITTED, clock.now(), job_id=submitted.id)
    except StateDirectoryError as error:
        note = f"job {submitted.id} is queued, but {error.message}; the next submit finds it by its token"
        return submitted._replace(notes=(*submitted.notes, note))
    return submitted


def output_of(project: Project, prepared: Prepared, submission: Submission) -> str:
    """Return where the output of a job goes: an absolute path with the fields of sbatch(1), "filename pattern"."""
    options = {**submission.options, **passed_options(submission.extra_args)}
    environ = {} if project.scheduler_name() == "local" else project.system.environ
    return output_pattern(prepared.script, options, environ, submission.directory, Path(submission.script).name)


def _recorded_output(project: Project, prepared: Prepared, submission: Submission) -> str:
    """Return the same for the journal; empty for the directory of logs, where every command looks first."""
    pattern = output_of(project, prepared, submission)
    logs = str(prepared.directory.path / layout.LOGS)
    return "" if Path(pattern.replace("%%", "%")).parent == Path(logs) else pattern


def _drop(script: Path | None) -> None:
    if script is not None:
        with suppress(OSError):
            script.unlink(missing_ok=True)
