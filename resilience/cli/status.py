"""`resil status`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, SchedulerOption, open_project
from resilience.cli.show_status import WATCH_S, show_status

EPILOG = "Examples: resil status; resil status gpt --watch; resil status --json"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=EPILOG)
def command(
    run: RunArgument = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every few seconds, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", help="With --watch.", min=1.0)] = WATCH_S,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ask the scheduler now, however young the last answer.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show ended jobs and every attempt as well.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show every run, or one: state, reason in words, time left, last step, what is next."""
    code = show_status(
        open_project(config, scheduler),
        run,
        watch_s=interval if watch else None,
        fresh=fresh,
        everything=everything,
        as_json=as_json,
    )
    raise typer.Exit(code)
