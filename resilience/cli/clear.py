"""`resil clear`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, RunArgument, open_project
from resilience.runs import queue_cache
from resilience.runs.switches import clear

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Examples: resil clear gpt; resil clear gpt --finished")
def command(
    run: RunArgument = "",
    finished: Annotated[bool, typer.Option("--finished", help="Also forget that the run is finished.")] = False,
    config: ConfigOption = None,
) -> None:
    """Take the switches of a run back, so that it may train again."""
    project = open_project(config)
    directory = project.existing(run)
    removed = clear(directory, finished=finished)
    queue_cache.invalidate(project.world, project.scheduler_name())
    print(f"cleared: {', '.join(removed)}" if removed else f"run {directory.run} has no switch set")
    if directory.is_finished():
        print(f"  it is still marked as finished; to train on: resil clear {run or directory.run} --finished")
