"""`resil kill`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.actions.steer import throw
from resilience.cli.options import ConfigOption, RunArgument, open_project
from resilience.model import layout
from resilience.model.switch import Scope

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog='Examples: resil kill gpt --why "loss is NaN"; resil kill gpt --scope all; resil kill /shared/runs/gpt'
)
def command(
    run: RunArgument = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="For those who find it stopped.")] = "",
    scope: Annotated[
        Scope, typer.Option("--scope", help="job: queued jobs end as they start. all: they are cancelled as well.")
    ] = Scope.JOB,
    config: ConfigOption = None,
) -> None:
    """Stop a run after a save, by its kill switch. It stays stopped until `resil clear`.

    A file is thrown that the run sees; it works for colleagues who may write in the run's directory.
    """
    project = open_project(config)
    directory = project.existing(run)
    thrown = throw(project, directory, layout.KILL_SWITCH, why=why, scope=scope)
    print(f"kill switch thrown: {thrown.path}")
    if thrown.warning:
        print(f"  warning: {thrown.warning}")
    others = "are cancelled by the first that starts" if scope is Scope.ALL else "end in seconds as they start"
    print(f"  the running attempt saves and stops at its next look; queued jobs {others}")
    print(f"  take it back: resil clear {directory.run}; end it at once: resil cancel {directory.run}")
