"""The commands about runs: submit, status, logs, kill, save, clear, cancel; init and templates.

Each command imports its modules when it runs: `resil logs` does not load the templates of `resil submit`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from resilience import layout
from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    RunArgument,
    RunOrAllArgument,
    SchedulerOption,
    completion,
    open_project,
    single_command,
)
from resilience.cli.output import chosen, clean, patience, print_json, print_table, say
from resilience.errors import ResilError, UsageError
from resilience.messages import plural
from resilience.switch import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resilience.runs.project import Project
    from resilience.runs.submit import Prepared, SubmitResult

STATUS_EVERY_S = 10.0


@completion
def complete_templates() -> Iterable[str]:
    """Return the names of templates."""
    from resilience.runs.templates.script import template_library

    return [info.name for info in template_library(open_project()).list()]


# ---- submit ---------------------------------------------------------------------------------------------------

_SUBMIT_EPILOG = """Examples:

resil submit --array 10: ten jobs of this project's run, one after another.

resil submit train.sbatch --array 10 -- --qos=high: your own script, unchanged, with another sbatch flag.

resil submit train.sbatch -- -- --lr 0.1: arguments of your script that look like options.

resil submit --array 5 --after auto: five more behind the queued ones.

resil submit --array 10 -n: show the script and the command, and do nothing."""

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
        str, typer.Option("--dependency", "-d", metavar="EXPR", help="As sbatch; a bare id is written afterany:ID.")
    ] = "",
    exclude: Annotated[str, typer.Option("--exclude", "-x", metavar="NODES", help="Nodes never to use.")] = "",
    signal: Annotated[
        str, typer.Option("--signal", metavar="B:SIG@SEC", help="Signal before the time limit, as sbatch.")
    ] = "",
    time: Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="Time limit of each job, as sbatch.")] = "",
    begin: Annotated[str, typer.Option("--begin", "-b", metavar="TIME", help="Not before this, as sbatch.")] = "",
    hold: Annotated[bool, typer.Option("--hold", "-H", help="Queue it held.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A variable of the template. Repeatable.")
    ] = None,
    template: Annotated[
        str, typer.Option("--template", metavar="NAME", help="See: resil templates.", autocompletion=complete_templates)
    ] = "",
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="Name of the run.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show the script and the exact command; do nothing.")
    ] = False,
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
    from resilience.cron.late import late_notice
    from resilience.runs.run_jobs import resolve_after
    from resilience.runs.submit import perform, prepare
    from resilience.runs.submit import test_only as start_estimate
    from resilience.runs.submit_plan import SubmitRequest

    if parsable and as_json:
        raise UsageError("--parsable and --json cannot be given together", hint="use one of them")
    project = open_project(config, scheduler)
    own = Path(script) if script else None
    name = run or project.default_run(own)
    request = SubmitRequest(
        run=name,
        script=own,
        script_args=(*(script_args or ()), *context.meta.get(_SCRIPT_ARGS, ())),
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
        from dataclasses import replace

        request = replace(request, after=resolve_after(project, name, after))
    prepared = prepare(project, request)
    for finding in prepared.findings:
        say(f"warning: {finding.message}" + (f"\n  try: {finding.hint}" if finding.hint else ""))
    if late := late_notice(project):
        say(f"warning: {late}")
    if dry_run:
        _show_plan(project, prepared, as_json=as_json)
        return
    if test_only:
        print(start_estimate(project, prepared))
        return
    with patience("the scheduler is slow to respond; still trying. Nothing is queued twice"):
        result = perform(project, prepared, progress=say)
    if parsable:
        print("\n".join(map(str, result.ids)))
    elif as_json:
        ids = [str(job_id) for job_id in result.ids]
        more = {"run_dir": result.directory, "scheduler": project.scheduler_name(), "job_ids": ids}
        print_json("submit", chosen(result, "run", "notes", "recovered") | more)
    else:
        _show_queued(prepared, result)


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


def _show_plan(project: Project, prepared: Prepared, *, as_json: bool) -> None:
    from resilience.runs.submit import command_lines

    if as_json:
        argv = [list(project.scheduler().command_line(submission)) for submission in prepared.submissions]
        content = {"run": prepared.directory.run, "script": prepared.script, "argv": argv}
        print_json("submit-plan", content)
        return
    print(prepared.script.rstrip("\n"))
    print()
    for line in command_lines(project, prepared):
        print(f"# would run: {line}")


def _show_queued(prepared: Prepared, result: SubmitResult) -> None:
    """Print the queued jobs, their directory, and the next commands."""
    from resilience.runs.submissions import own_script

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
    save_first = "" if own_script(prepared.directory) else f"resil kill {result.run} (saves first); "
    print(f"  stop    {save_first}resil cancel {result.run} (at once)")


# ---- status and logs ------------------------------------------------------------------------------------------


@single_command("Examples: resil status; resil status gpt --watch; resil status --json")
def status(
    run: RunOrAllArgument = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every few seconds, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="With --watch.", min=1.0)
    ] = STATUS_EVERY_S,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Query the scheduler now instead of using its cached answer.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show ended jobs and every attempt as well.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show every run, or one: state, reason, time left, last step, next job."""
    from resilience.cli.show_status import show_status

    project, watch_s = open_project(config, scheduler), interval if watch else None
    code = show_status(project, run, watch_s=watch_s, fresh=fresh, everything=everything, as_json=as_json)
    raise typer.Exit(code)


@single_command("Examples: resil logs; resil logs gpt -f; resil logs gpt --lines 200; less $(resil logs gpt --path)")
def logs(
    run: RunArgument = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep following, also through later attempts.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", metavar="N", help="Number of lines to show.", min=0)] = 40,
    path_only: Annotated[bool, typer.Option("--path", help="Print only the path of the log.")] = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show the end of a run's newest log, and follow it."""
    from resilience.runs import read_logs

    project = open_project(config, scheduler)
    directory = project.existing(run)
    path = read_logs.find_log(project, directory)
    if path_only:
        print(path)
        return
    text, position = read_logs.last_lines(path, lines)
    _write_log(text, header=path)
    for current, chunk in read_logs.follow(project, directory, path, position) if follow else ():
        _write_log(chunk, header=current if current != path else None)
        path = current


def _write_log(text: bytes, header: Path | None) -> None:
    if header is not None:
        print(f"==> {header} <==", file=sys.stderr)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


# ---- switches -------------------------------------------------------------------------------------------------


@single_command('Examples: resil kill gpt --why "loss is NaN"; resil kill gpt --scope all; resil kill /shared/runs/gpt')
def kill(
    run: RunArgument = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for other users.")] = "",
    scope: Annotated[
        Scope, typer.Option("--scope", help="job: queued jobs end when they start. all: they are cancelled as well.")
    ] = Scope.JOB,
    config: ConfigOption = None,
) -> None:
    """Stop a run after a save, by setting its kill switch. The run stays stopped until `resil clear`.

    Writes a file that the run reads; colleagues with write access to the run's directory can do so too. If the training
    hangs, the batch shell ends it later; this command prints when.
    """
    from resilience.runs.kill_outlook import describe_outlook, read_outlook
    from resilience.runs.switches import set_switch

    project = open_project(config)
    directory = project.existing(run)
    switch = set_switch(project, directory, layout.KILL_SWITCH, why=why, scope=scope)
    print(f"kill switch set: {switch.path}", flush=True)
    if switch.warning:
        print(f"  warning: {switch.warning}")
    if switch.is_empty:
        print("  warning: the disk is full, so the switch is an empty file: reason and scope could not be written")
        scope = Scope.JOB
    name = run or directory.run
    try:
        with patience("the switch is set; querying the scheduler for running jobs"):
            outlook = read_outlook(project, directory)
    except ResilError as error:  # the switch is set even if the scheduler does not respond
        print(f"  its effect could not be determined: {clean(error.message)}")
        print(f"  to clear it: resil clear {name}; its owner can end the run at once: resil cancel {name}")
        return
    for line in describe_outlook(outlook, name, scope, project.system.clock.now()):
        print(f"  {clean(line)}")


@single_command('Examples: resil save gpt; resil save gpt --label before-lr-drop --why "trying a new schedule"')
def save(
    run: RunArgument = "",
    label: Annotated[str, typer.Option("--label", metavar="NAME", help="Name for the checkpoint.")] = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for the journal.")] = "",
    config: ConfigOption = None,
) -> None:
    """Make a run save now and continue, by setting its save switch."""
    from resilience.runs.switches import set_switch

    project = open_project(config)
    directory = project.existing(run)
    switch = set_switch(project, directory, layout.SAVE_SWITCH, why=why, scope=Scope.JOB, label=label)
    print(f"save switch set: {switch.path}")
    if switch.warning:
        print(f"  warning: {switch.warning}")
    print("  a training that checks its switches saves, continues, and removes the switch")


@single_command("Examples: resil clear gpt; resil clear gpt --finished")
def clear(
    run: RunArgument = "",
    finished: Annotated[bool, typer.Option("--finished", help="Also clear the mark of a finished run.")] = False,
    config: ConfigOption = None,
) -> None:
    """Clear the switches of a run, so that it may train again."""
    from resilience.runs import queue_cache, switches

    project = open_project(config)
    directory = project.existing(run)
    removed = switches.clear(project, directory, finished=finished)
    queue_cache.invalidate(project.system, project.scheduler_name())
    print(f"cleared: {', '.join(removed)}" if removed else f"run {directory.run} has no switch set")
    if directory.is_finished():
        print(f"  the run is still marked as finished; to continue: resil clear {run or directory.run} --finished")


@single_command("Examples: resil cancel gpt; resil cancel gpt --pending")
def cancel(
    run: RunArgument = "",
    pending: Annotated[bool, typer.Option("--pending", help="Only queued jobs; running jobs continue.")] = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """End the jobs of a run through the scheduler: SIGTERM, then SIGKILL. To save first: resil kill."""
    from resilience.runs import run_jobs

    project = open_project(config, scheduler)
    directory = project.existing(run)
    done = run_jobs.cancel(project, directory, pending_only=pending)
    print(f"cancelled {'the queued jobs of ' if pending else ''}run {directory.run}: {', '.join(map(str, done.ids))}")
    if done.still_ending and not pending:
        print(f"  still ending: {', '.join(map(str, done.still_ending))}; see: resil status {directory.run} --fresh")


# ---- init and templates ---------------------------------------------------------------------------------------


@single_command("Examples: resil init; resil init --from old.sbatch; resil init ~/runs/gpt")
def init(
    directory: Annotated[
        str, typer.Argument(metavar="[DIRECTORY]", help="Default: the current directory.", show_default=False)
    ] = "",
    source: Annotated[
        str, typer.Option("--from", metavar="SCRIPT", help="Import the #SBATCH lines of a batch script.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing resil.toml.")] = False,
) -> None:
    """Write a commented resil.toml and the cron directory. Keeps existing files."""
    from resilience.runs import init as runs_init
    from resilience.system.ports import System

    here = System().cwd  # existing settings are not read: they may be broken
    script = (here / source).resolve() if source else None
    done = runs_init.init(directory=(here / directory).resolve(), source=script, force=force)
    for path in done.written:
        print(f"wrote {path}")
    for path in done.kept:
        print(f"kept  {path}")
    for note in done.notes:
        print(f"note: {note}")
    print("next: set `command` in resil.toml, then: resil submit --array 10 --dry-run")
    print("and:  resil cron install  # runs the watchdogs in cron/, which notify the channels of [alert]")


@single_command("Examples: resil templates; resil templates torchrun; resil templates torchrun --source > my.sbatch.j2")
def templates(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="Show only this template.", autocompletion=complete_templates, show_default=False
        ),
    ] = "",
    source: Annotated[bool, typer.Option("--source", help="Print the template's source.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List the sbatch templates and their paths, or show the purpose and the variables of one."""
    from resilience.runs.templates.script import template_library

    library = template_library(open_project(config))
    if name:
        text = library.source(name)  # raises for an unknown name
        if source:
            print(text, end="")
            return
    infos = [info for info in library.list() if not name or info.name == name]
    if as_json:
        keys = ("name", "origin", "path", "summary", "documentation", "shadowed")
        print_json("templates", {"templates": [chosen(info, *keys) for info in infos]})
    elif name:
        info = next(info for info in infos if not info.shadowed)
        print(f"{info.name} ({info.origin}: {info.path})")
        print("\n".join(info.documentation))
    else:
        cells = [
            (info.name, info.origin + (" (shadowed)" if info.shadowed else ""), info.summary, str(info.path))
            for info in infos
        ]
        print_table(("NAME", "ORIGIN", "PURPOSE", "PATH"), cells)
