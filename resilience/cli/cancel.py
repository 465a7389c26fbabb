"""`resil cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, RunArgument, SchedulerOption, open_project
from resilience.runs.run_jobs import cancel

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Examples: resil cancel gpt; resil cancel gpt --pending")
def command(
    run: RunArgument = "",
    pending: Annotated[bool, typer.Option("--pending", help="Only what waits; let what runs go on.")] = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """End the jobs of a run through the scheduler: SIGTERM, then SIGKILL. To save first: resil kill."""
    project = open_project(config, scheduler)
    directory = project.existing(run)
    done = cancel(project, directory, pending_only=pending)
    print(f"cancelled {'the queued jobs of ' if pending else ''}run {directory.run}: {', '.join(map(str, done.ids))}")
    if done.still_ending and not pending:
        print(f"  still ending: {', '.join(map(str, done.still_ending))}; see: resil status {directory.run} --fresh")
