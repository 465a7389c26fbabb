"""The Typer surface of `resil`: finds a command and imports its module only then."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from resilience import __version__
from resilience.cli.commands import COMMANDS

EPILOG = "A first look: resil demo. A first run: resil init, then resil submit --array 10."


class LazyGroup(TyperGroup):
    """Imports a command's module only when that command runs: `resil --help` imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command. An unknown name is None, and the caller suggests the nearest."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        from importlib import import_module

        command = typer.main.get_command(import_module(entry.module).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or fail with the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"there is no command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
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
    pretty_exceptions_enable=False,  # a traceback may show secrets, and tells a user nothing
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"resil {__version__}")
        raise typer.Exit


@app.callback()
def resil(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keep a long training alive on SLURM until it is finished."""
