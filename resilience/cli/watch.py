"""`resil watch`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, SchedulerOption, open_project

EPILOG = "Examples: resil watch fs; resil watch --all; resil watch --list"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=EPILOG)
def command(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which watchdog.", show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every watchdog.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="What was looked at, how, and why the verdict.")] = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Look once for trouble and say what was found; exit as a Nagios plugin does."""
    from resilience.actions.watch import watch, watchdog, watchdog_names
    from resilience.cli.show_watch import show_reports

    project = open_project(config, scheduler)
    names = watchdog_names(project) if everything else (name,)
    raise typer.Exit(show_reports(list(watch(project, [watchdog(project, n) for n in names])), explain=explain))
