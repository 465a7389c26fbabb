"""`resil save`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience import layout
from resilience.cli.options import ConfigOption, RunArgument, open_project
from resilience.runs.switches import set_switch
from resilience.switch import Scope

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog='Examples: resil save gpt; resil save gpt --label before-lr-drop --why "trying a new schedule"')
def command(
    run: RunArgument = "",
    label: Annotated[str, typer.Option("--label", metavar="NAME", help="Name for the checkpoint.")] = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="For the journal.")] = "",
    config: ConfigOption = None,
) -> None:
    """Make a run save now and go on, by its save switch."""
    project = open_project(config)
    directory = project.existing(run)
    switch = set_switch(project, directory, layout.SAVE_SWITCH, why=why, scope=Scope.JOB, label=label)
    print(f"save switch set: {switch.path}")
    if switch.warning:
        print(f"  warning: {switch.warning}")
    print("  a training that looks at its switches saves, goes on, and removes it")
