"""`resil kill`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.actions.steer import own_script, throw
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
    name = run or directory.run
    script = own_script(directory)
    if script:
        print(f"  this run was queued with a script of its own, {script}:")
        print("  its jobs stop only if their training looks at the switch")
    else:
        others = "are cancelled by the first that starts" if scope is Scope.ALL else "end in seconds as they start"
        print(f"  a training that looks at its switches saves and stops; queued jobs {others}")
    print(f"  take it back: resil clear {name}; the owner ends it at once by: resil cancel {name}")
