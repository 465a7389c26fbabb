"""The commands that queue a run or take a queued job into one: submit and adopt."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    SchedulerOption,
    complete_templates,
    completion,
    open_project,
    single_command,
)
from resilience.cli.output import chosen, clean, patience, print_json, print_warnings, say
from resilience.errors import ResilError, UsageError
from resilience.messages import plural

if TYPE_CHECKING:
    from resilience.runs.adopt import Adoption
    from resilience.runs.project import Project
    from resilience.runs.submit import Prepared, SubmitResult
    from resilience.runs.submit_plan import SubmitRequest

# ---- submit ---------------------------------------------------------------------------------------------------

_SUBMIT_EPILOG = """Examples:

resil submit --array 10: ten jobs of this project's run, one after another.

resil submit train.sbatch --array 10 -- --qos=high: your own script, unchanged, with another sbatch flag.

resil submit train.sbatch -- -- --lr 0.1: arguments of your script that look like options.

resil submit --array 5 --after auto: five more behind the queued ones.

resil submit --array 10 -n: show the header, the launch and the command, and do nothing."""

_SBATCH_ARGS = "resil.sbatch_args"
_SCRIPT_ARGS = "resil.script_args"


class _SubmitCommand(TyperCommand):
    """Collects the arguments after `--` for sbatch, and those after a second `--` for the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        position = args.index("--") if "--" in args else len(args)
        _reject_empty(args[:position])
        rest = args[position + 1 :]
        second = rest.index("--") if "--" in rest else len(rest)
        ctx.meta[_SBATCH_ARGS] = tuple(rest[:second])
        ctx.meta[_SCRIPT_ARGS] = tuple(rest[second + 1 :])
        return super().parse_args(ctx, args[:position])


@single_command(_SUBMIT_EPILOG, cls=_SubmitCommand)
def submit(
    context: typer.Context,
    script: Annotated[
        str,
        typer.Argument(
            metavar="[SCRIPT]", help="Your own batch script. Default: the run's template.", show_default=False
        ),
    ] = "",
    script_args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of your script.", show_default=False)
    ] = None,
    array: Annotated[
        str, typer.Option("--array", "-a", metavar="N|EXPR", help="10: ten jobs, one after another. Or 1-10%2, 0-20:5.")
    ] = "",
    chain: Annotated[
        int | None, typer.Option("--chain", metavar="N", help="N single jobs, each behind the previous one.")
    ] = None,
    after: Annotated[
        str, typer.Option("--after", metavar="JOB|auto", help="Queue behind a live job; auto: the run's newest.")
    ] = "",
    dependency: Annotated[
        str,
        typer.Option("--dependency", "-d", metavar="EXPR", help="Dependency, as sbatch; a bare id means afterany:ID."),
    ] = "",
    exclude: Annotated[str, typer.Option("--exclude", "-x", metavar="NODES", help="Nodes never to use.")] = "",
    signal: Annotated[
        str, typer.Option("--signal", metavar="B:SIG@SEC", help="Send this signal before the time limit, as sbatch.")
    ] = "",
    time: Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="Time limit of each job, as sbatch.")] = "",
    begin: Annotated[str, typer.Option("--begin", "-b", metavar="TIME", help="The earliest start, as sbatch.")] = "",
    hold: Annotated[bool, typer.Option("--hold", "-H", help="Queue the jobs held, as sbatch.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A variable of the template. Repeatable.")
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            metavar="NAME",
            help="Use this template: one of resil templates.",
            autocompletion=complete_templates,
        ),
    ] = "",
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="Name of the run.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show header, launch and the exact command; do nothing.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="With --dry-run: show the whole script.")] = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Ask the scheduler when it would start; queue nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Queue although the run is alive, killed or finished.")
    ] = False,
    parsable: Annotated[bool, typer.Option("--parsable", help="Write only the job ids.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Queue the run as a chain of jobs.

    Flags for sbatch go after --, arguments of your own script that look like options after a second --.
    """
    from resilience.runs.open_project import check_path
    from resilience.runs.run_jobs import adopted_to_follow, resolve_after
    from resilience.runs.submit_plan import SubmitRequest, script_of_run
    from resilience.submission import check_run_name

    if parsable and as_json:
        raise UsageError("--parsable and --json cannot be given together", hint="use one of them")
    if full and not dry_run:
        raise UsageError("--full needs --dry-run", hint="resil submit --dry-run --full")
    project = open_project(config, scheduler)
    if project.loaded.settings.act.treatments:
        from resilience.attempts.breaker import check_treatments

        check_treatments(project.loaded.settings.act.treatments)
    own = Path(script) if script else None
    if own is not None:
        check_path(project.system, project.system.cwd / own)
    name = check_run_name(run or project.default_run(own))
    arguments = (*(script_args or ()), *context.meta.get(_SCRIPT_ARGS, ()))
    if own is None and not template and not set_ and (run or not project.loaded.settings.run.command.strip()):
        again = script_of_run(project.directory(name))
        if again is not None:
            own, arguments = again[0], arguments or again[1]
            words = shlex.join((str(own), *arguments))
            say(f"run {name} has its own script: queueing it again: {words} (a template instead: --template NAME)")
    request = SubmitRequest(
        run=name,
        script=own,
        script_args=arguments,
        array=array,
        chain=_chain(chain),
        after=None,
        dependency=dependency,
        exclude=exclude,
        signal=signal,
        time=time,
        begin=begin,
        hold=hold,
        template=template,
        variables=_variables(set_ or []),
        extra_args=context.meta.get(_SBATCH_ARGS, ()),
        force=force,
    )
    if after:
        request = replace(request, after=resolve_after(project, name, after))
    elif not force:
        request = replace(request, after=adopted_to_follow(project, name))
    form = "plan" if dry_run else "test" if test_only else "ids" if parsable else ""
    _queue(project, request, form=form, as_json=as_json, full=full)


def _queue(
    project: Project, request: SubmitRequest, *, form: str = "", as_json: bool = False, full: bool = False
) -> None:
    """Queue a request and print the jobs.

    `form`: `plan` prints the plan and `test` the start time, without queueing; `ids` prints only the ids.
    """
    from resilience.attempts.elsewhere import note_submitted
    from resilience.attempts.reconcile import reconcile
    from resilience.attempts.without import without_bad_nodes
    from resilience.cron.late import late_notice
    from resilience.runs.submit import perform, prepare
    from resilience.runs.submit import test_only as start_estimate

    request, avoided, notes = without_bad_nodes(project, request)
    for note in notes:
        say(note)
    prepared = prepare(project, request)
    print_warnings(prepared.findings)
    if late := late_notice(project):
        say(f"warning: {late}")
    if form == "plan":
        _show_plan(project, prepared, as_json=as_json, full=full)
        return
    if form == "test":
        print(start_estimate(project, prepared))
        return
    with patience("the scheduler is slow to respond; still trying. Nothing is queued twice"):
        result = perform(project, prepared, progress=say)
        with suppress(ResilError):  # else it is not taken back when the nodes are good again
            note_submitted(prepared.directory, result.ids, avoided, project.system.clock.now())
        with suppress(ResilError):  # else the next tick does
            reconcile(project, prepared.directory)
    if form == "ids":
        print("\n".join(map(str, result.ids)))
    elif as_json:
        from resilience.runs.submit_outlook import read_submit_outlook

        ids = [str(job_id) for job_id in result.ids]
        more = {"run_dir": result.directory, "scheduler": project.scheduler_name(), "job_ids": ids}
        outlook = chosen(read_submit_outlook(project, prepared), "guard", "log")
        print_json("submit", chosen(result, "run", "notes", "recovered") | more | outlook)
    else:
        _show_queued(project, prepared, result)


_VALUE_OPTIONS = frozenset(
    ("--array", "--after", "--dependency", "--exclude", "--signal", "--time", "--begin", "--run", "--template")
) | {"-a", "-d", "-x", "-t", "-b"}
"""Options that need a value."""


def _reject_empty(args: list[str]) -> None:
    """Reject empty values: `--after "$JOB"` with an unset variable must not drop the dependency."""
    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.partition("=")
        option = before if word == "" else name if equals and not value else ""
        if option in _VALUE_OPTIONS:
            raise UsageError(
                f"{option} has an empty value", hint="is a shell variable unset? To use the default, omit the option"
            )


def _chain(chain: int | None) -> int:
    if chain is not None and chain < 1:
        raise UsageError(f"--chain {chain} would queue nothing", hint="--chain 5 queues five jobs")
    return chain or 0


def _variables(pairs: list[str]) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip().isidentifier():
            raise UsageError(f"--set {pair!r} is not KEY=VALUE", hint="for instance --set lr=1e-4")
        variables[key.strip()] = value
    return variables


_COMMANDS_SHOWN = 2
"""Of a chain, the commands of the first jobs; those of the others differ in the token only."""


def _show_plan(project: Project, prepared: Prepared, *, as_json: bool, full: bool) -> None:
    from resilience.runs.submit import command_lines
    from resilience.runs.templates.script import outline

    if as_json:
        argv = [list(project.scheduler().command_line(submission)) for submission in prepared.submissions]
        content = {"run": prepared.directory.run, "script": prepared.script, "argv": argv}
        print_json("submit-plan", content)
        return
    whole = prepared.script.rstrip("\n")
    print(whole if full else "\n".join(outline(whole)))
    print()
    commands = command_lines(project, prepared)
    for line in commands if full else commands[:_COMMANDS_SHOWN]:
        print(f"# would run: {line}")
    if full:
        return
    if len(commands) > _COMMANDS_SHOWN:
        print(f"# and {plural(len(commands) - _COMMANDS_SHOWN, 'job')} more, each behind the one before")
    print(f"# all {len(whole.splitlines())} lines of the script: add --full")


def _show_queued(project: Project, prepared: Prepared, result: SubmitResult) -> None:
    """Print the queued jobs, the next commands, and what resil can do for this run."""
    from resilience.runs.submit_outlook import describe_submit_outlook, read_submit_outlook

    array = prepared.plan.options.get("array")
    ids = ", ".join(map(str, result.ids))
    if array:
        from resilience.submission import ArrayExpression

        expression = ArrayExpression.parse(array)
        how = ", one after another" if expression.throttle == 1 and expression.count > 1 else ""
        print(f"queued run {result.run}: array {ids} of {plural(expression.count, 'job')}{how}")
    elif len(result.ids) > 1:
        print(f"queued run {result.run}: {len(result.ids)} jobs, each behind the previous one: {ids}")
    else:
        print(f"queued run {result.run}: job {ids}")
    if result.recovered:
        print("  the scheduler did not respond at first; the job was found by its token and is queued once")
    for note in result.notes:
        print(f"  note: {clean(note)}")
    if "dependency" in prepared.plan.options:
        print(f"  starts  {prepared.plan.options['dependency']}")
    print(f"  state   {result.directory}")
    print(f"  watch   resil status {result.run}; resil logs {result.run} -f")
    only = result.ids[0] if len(result.ids) == 1 else None
    for line in describe_submit_outlook(read_submit_outlook(project, prepared, only)):
        print(f"  {clean(line)}")


# ---- adopt ----------------------------------------------------------------------------------------------------

_ADOPT_EPILOG = """Examples:

resil adopt 8123456: watch a job that runs or waits, as a run with the job's name.

resil adopt 8123456 --run gpt: watch it under the name gpt.

resil submit train.sbatch --run gpt: queue the next job behind it.

resil adopt train.sbatch: queue an unchanged script as a run, like resil submit train.sbatch."""

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_COMPLETION_DEADLINE_S = "3"
"""A shell's prompt does not wait longer for the scheduler."""


@completion
def complete_own_jobs() -> Iterable[str]:
    """Return the ids of the user's own jobs that resil did not queue."""
    from resilience.runs.project import Project
    from resilience.settings.load import load
    from resilience.submission import split_comment
    from resilience.system.ports import System

    system = System()
    project = Project(system, load(system, overrides={"scheduler.deadline_s": _COMPLETION_DEADLINE_S}))
    jobs = project.scheduler().jobs()
    return dict.fromkeys(str(job.id.whole) for job in jobs if split_comment(job.comment) is None)


@single_command(_ADOPT_EPILOG)
def adopt(
    target: Annotated[
        str,
        typer.Argument(
            metavar="JOBID|SCRIPT",
            help="A job that runs or waits, or a batch script to queue.",
            autocompletion=complete_own_jobs,
        ),
    ],
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="Name of the run. Default: the job's name.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show what would be adopted or queued; do nothing.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Watch a job that was queued with plain sbatch, by anybody, as a run. The job itself is not changed.

    A SCRIPT is queued unchanged, as by resil submit SCRIPT.
    """
    project = open_project(config, scheduler)
    if _JOB_ID.fullmatch(target):
        from resilience.job import JobId
        from resilience.runs.adopt import adopt as adopt_job

        with patience("the scheduler is slow to respond; still trying"):
            adoption = adopt_job(project, JobId.parse(target), run=run, dry_run=dry_run)
        _show_adopted(project, adoption, dry_run=dry_run, as_json=as_json)
        return
    from resilience.runs.open_project import check_path
    from resilience.runs.project import run_name_from
    from resilience.runs.submit_plan import SubmitRequest, read_own_script
    from resilience.runs.templates.directives import parse_directives

    script = Path(target)
    check_path(project.system, project.system.cwd / script)
    if not target or not os.path.lexists(project.system.cwd / script):
        raise UsageError(f"{target!r} is neither a job id nor a script", hint="for instance: resil adopt 8123456")
    job_name = dict(parse_directives(read_own_script(project.system.cwd / script)).options).get("job-name")
    request = SubmitRequest(run=run or run_name_from(job_name or script.stem), script=script)
    _queue(project, request, form="plan" if dry_run else "", as_json=as_json)


def _show_adopted(project: Project, adoption: Adoption, *, dry_run: bool, as_json: bool) -> None:
    job, run = adoption.job, adoption.run
    if as_json:
        content = {
            "run": run,
            "run_dir": adoption.directory,
            "scheduler": adoption.scheduler,
            "job_id": str(adoption.job_id),
            "user": job.user,
            "state": job.state,
            "log": job.stdout,
            "is_new": adoption.is_new,
            "dry_run": dry_run,
            "notes": adoption.notes,
        }
        print_json("adopt", content)
        return
    if not adoption.is_new:
        print(f"job {adoption.job_id} already belongs to run {run}; nothing was changed")
    else:
        where = f" on {clean(job.nodes)}" if job.nodes else ""
        state = ", ".join(f"{count} {name}" for name, count in sorted(adoption.tasks.items())) or job.state
        print(f"{'would adopt' if dry_run else 'adopted'} job {adoption.job_id} ({state}{where}) as run {run}")
    for note in adoption.notes:
        print(f"  note: {clean(note)}")
    print(f"  log     {clean(job.stdout) or 'not known'}")
    print(f"  state   {adoption.directory}")
    print(f"  watch   resil status {run}; resil logs {run} -f; resil watch --all")
    print(f"  next    {_next_submit(adoption)}")
    if job.user in ("", project.system.host.user):
        ends = f"resil cancel {run} (at once)"
    else:
        ends = f"only {clean(job.user)} can: scancel {adoption.job_id}"
    reach = "" if adoption.by_resil else "; no guard: `resil kill` and `resil save` do not reach this job"
    print(f"  stop    {ends}{reach}")


def _next_submit(adoption: Adoption) -> str:
    """Return the command that queues the next job behind an adopted one."""
    from resilience.runs.adopt import split_command

    if not adoption.is_followed:  # resil queued the newest job of this run
        return f"resil submit --run {adoption.run} --after auto (queues behind it)"
    script, arguments = split_command(adoption.job.command)
    if not script or not Path(script).is_file():
        return f"resil submit SCRIPT --run {adoption.run} (queues behind it)"
    more = f" -- -- {shlex.join(arguments)}" if arguments else ""
    return f"resil submit {shlex.quote(script)} --run {adoption.run}{more} (queues behind it)"
