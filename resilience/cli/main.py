"""The Typer app of `resil`: the table of its commands, each imported when it is called."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from resilience import __version__

EPILOG = "Get started: resil demo. First run: resil init, then resil submit --array 10."


class CommandEntry(NamedTuple):
    """One command: its module and Typer app, its section in `--help`, and its summary there."""

    home: str
    section: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    name: CommandEntry(f"resilience.cli.{home}", section, summary)
    for name, home, section, summary in (
        ("demo", "demo:app", "Start", "See a training crash, resume and finish, in about a minute."),
        ("init", "runs:init", "Start", "Write a commented resil.toml and the cron directory."),
        ("doctor", "doctor:doctor", "Start", "Check this cluster and report likely problems."),
        ("submit", "submit:submit", "Run", "Queue the run as a chain of jobs."),
        ("run", "supervise:run", "Run", "Supervise a command whose code you cannot change."),
        ("adopt", "submit:adopt", "Run", "Watch a job that was queued with plain sbatch, as a run."),
        ("status", "runs:status", "Run", "Show every run: state, reason, time left, next job."),
        ("top", "top.command:top", "Run", "Show runs on a live screen, with keys to save and to stop."),
        ("logs", "runs:logs", "Run", "Show the end of a run's log, and follow it."),
        ("attempts", "attempts:attempts", "Run", "Show each attempt of a run, and how it ended."),
        ("goodput", "goodput:goodput", "Run", "Show where the time of a run went."),
        ("timeline", "report:timeline", "Run", "Show when each attempt ran, also as a picture."),
        ("why", "attempts:why", "Run", "Show why the last attempt ended, or what a log says."),
        ("report", "report:report", "Run", "Write a page about a run, and what to change."),
        ("ckpt", "ckpt:app", "Run", "List, verify, pin, prune and seal checkpoints."),
        ("simulate", "simulate:simulate", "Run", "Show what would have happened: ETTR and days to finish."),
        ("kill", "runs:kill", "Steer", "Stop a run after a save, by its kill switch."),
        ("save", "runs:save", "Steer", "Make a run save now and continue."),
        ("breaker", "breaker:app", "Steer", "Show or close the breaker that holds a failing run."),
        ("clear", "runs:clear", "Steer", "Clear the switches of a run."),
        ("cancel", "runs:cancel", "Steer", "End the jobs of a run through the scheduler."),
        ("stacks", "stacks:stacks", "Watch", "Show where each rank of a running training is."),
        ("ranks", "ranks:ranks", "Watch", "Show how fast each rank is, and which makes the others wait."),
        ("nodes", "nodes:app", "Watch", "Show, exclude and check nodes: which are bad, and why."),
        ("watch", "watch:app", "Watch", "Check for problems: full disks, dead queues, hung logs."),
        ("alert", "alert:app", "Watch", "See incidents, acknowledge, silence; test and flush alerts."),
        ("cron", "cron:app", "Watch", "Schedule commands where there is no cron."),
        ("drill", "drill:drill", "Try", "Break your training on purpose, and see what happens."),
        ("inject", "inject:app", "Try", "Break a run or a checkpoint on purpose, and undo that."),
        ("templates", "runs:templates", "Look up", "List the sbatch templates, or show one."),
        ("config", "doctor:config", "Look up", "Check the settings, or show where each comes from."),
    )
}
"""In the order of a typical workflow."""


class LazyGroup(TyperGroup):
    """Imports a command's module only when that command runs: `resil --help` imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        from resilience.cli.options import ascii_numbers

        module, _, app = COMMANDS[cmd_name].home.partition(":")
        command = ascii_numbers(typer.main.get_command(getattr(import_module(module), app)))
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command, or fail with the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from resilience.messages import nearest

            near = nearest(args[0], COMMANDS, cutoff=0.6)
            ctx.fail(f"there is no command {args[0]!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands by section, from the table alone."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
                )


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich costs as much as everything else of --help together
    pretty_exceptions_enable=False,  # a traceback may show secrets, and does not help users
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _show_version(requested: bool) -> None:
    if requested:
        print(f"resil {__version__}")
        raise typer.Exit


@app.callback()
def resil(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keep a long training alive on SLURM until it is finished."""
