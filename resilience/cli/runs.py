"""The commands about runs: status, logs, kill, save, clear, cancel; init and templates. See also submit.py.

Each command imports its modules when it runs: `resil logs` does not load the templates of `resil submit`.
"""

from __future__ import annotations

import errno
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilience import layout
from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    RunArgument,
    RunOrAllArgument,
    SchedulerOption,
    complete_templates,
    duration_s,
    open_project,
    single_command,
)
from resilience.cli.output import chosen, clean, patience, print_json, print_table
from resilience.errors import ResilError, StateDirectoryError, UsageError
from resilience.switch import Scope

if TYPE_CHECKING:
    from resilience.runs.run_directory import RunDirectory

STATUS_EVERY_S = 10.0


# ---- status and logs ------------------------------------------------------------------------------------------


@single_command("Examples: resil status; resil status gpt --watch; resil status --json; resil status --prom resil.prom")
def status(
    run: RunOrAllArgument = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every few seconds, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="With --watch: how often.", min=1.0)
    ] = STATUS_EVERY_S,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Query the scheduler now instead of using its cached answer.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show ended jobs and every attempt as well.")] = False,
    prom: Annotated[
        Path | None,
        typer.Option(
            "--prom", metavar="FILE", help="Write metrics for the node exporter's textfile collector instead."
        ),
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show every run, or one: state, reason, time left, last step, next job."""
    from resilience.cli.show_status import show_status

    if prom is not None:
        from resilience.cli.prom import write_prom

        if watch or as_json or everything:
            raise UsageError("--prom cannot be given together with --watch, --all or --json", hint="omit one of them")
        write_prom(open_project(config, scheduler), prom, run)
        return
    every_s = duration_s("--interval", str(interval), least_s=1.0, most_s=86400, is_plain=True)  # NaN has no minimum
    project, watch_s = open_project(config, scheduler), every_s if watch else None
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


def _warn_of_relocation(directory: RunDirectory) -> bool:
    """Say that the jobs of a run that was copied or moved do not see its switches. Return whether it was moved."""
    from resilience.runs.submissions import describe_relocation, read_journal

    with suppress(ResilError):  # the switch is set even if the journal cannot be read
        journal = read_journal(directory)
        if sentence := describe_relocation(journal, directory):
            print(f"  warning: {clean(sentence)}")
        return bool(journal.moved_from)
    return False


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
    is_moved = _warn_of_relocation(directory)
    if switch.warning:
        print(f"  warning: {switch.warning}")
    if switch.is_empty:
        print("  warning: the disk is full, so the switch is an empty file: reason and scope could not be written")
        scope = Scope.JOB
    name = shlex.quote(run or directory.run)
    if is_moved:
        print(f"  to clear it: resil clear {name}")
        return
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
    from resilience.runs.kill_outlook import read_outlook
    from resilience.runs.switches import set_switch

    project = open_project(config)
    directory = project.existing(run)
    switch = set_switch(project, directory, layout.SAVE_SWITCH, why=why, scope=Scope.JOB, label=label)
    print(f"save switch set: {switch.path}")
    is_moved = _warn_of_relocation(directory)
    if switch.warning:
        print(f"  warning: {switch.warning}")
    if is_moved:
        print(f"  to remove the switch: resil clear {shlex.quote(run or directory.run)}")
        return
    adopted: tuple[str, ...] = ()
    with suppress(ResilError), patience("the switch is set; querying the scheduler for running jobs"):
        adopted = read_outlook(project, directory).adopted
    if adopted:
        print(f"  warning: job {', '.join(adopted)} was adopted: queued without resil, it does not see the switch")
        print(f"  to remove the switch: resil clear {shlex.quote(run or directory.run)}")
        return
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
        name = shlex.quote(run or directory.run)
        print(f"  the run is still marked as finished; to continue: resil clear {name} --finished")


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
        name = shlex.quote(run or directory.run)
        print(f"  still ending: {', '.join(map(str, done.still_ending))}; see: resil status {name} --fresh")


# ---- init and templates ---------------------------------------------------------------------------------------


@single_command("Examples: resil init; resil init --from old.sbatch; resil init ~/runs/gpt")
def init(
    directory: Annotated[
        str, typer.Argument(metavar="[DIRECTORY]", help="Default: the current directory.", show_default=False)
    ] = "",
    source: Annotated[
        str, typer.Option("--from", metavar="SCRIPT", help="Import a batch script: its header and launch.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing resil.toml.")] = False,
) -> None:
    """Write a commented resil.toml and the cron directory. Keeps existing files.

    --from takes over the #SBATCH lines, and guesses template and command from the line that starts the training.
    """
    from resilience.messages import plural
    from resilience.runs import init as runs_init
    from resilience.runs.open_project import check_path
    from resilience.settings.load import FILE_NAME
    from resilience.system.ports import System

    system = System()
    here = system.cwd  # existing settings are not read: they may be broken
    for typed in (source, directory or "."):
        if typed:
            check_path(system, here / typed)
    script = (here / source).resolve() if source else None
    target = (here / directory).resolve()
    try:
        done = runs_init.init(directory=target, source=script, force=force)
    except StateDirectoryError as error:
        if getattr(error.__cause__, "errno", None) not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        hint = "name a directory that you may write: resil init DIRECTORY"
        raise StateDirectoryError(error.message, hint=hint) from error
    in_cron = [path for path in done.written if path.name != FILE_NAME]
    settings = f"wrote {target / FILE_NAME}" if len(in_cron) < len(done.written) else f"kept {target / FILE_NAME}"
    cron = f"wrote {plural(len(in_cron), 'file')} in" if in_cron else "kept"
    print(f"{settings}; {cron} {target / 'cron'}")
    for note in done.notes:
        print(f"note: {clean(note)}")
    enter = f"cd {shlex.quote(str(target))}; " if target != here else ""
    print(f"next: {enter}set `command` in resil.toml, then: resil submit --array 10 --dry-run")
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
