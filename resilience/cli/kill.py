"""`resil kill`."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience import layout
from resilience.cli.options import ConfigOption, RunArgument, open_project
from resilience.cli.output import clean, patience
from resilience.errors import ResilError
from resilience.runs.kill_outlook import read_outlook, sentences
from resilience.runs.switches import set_switch
from resilience.switch import Scope

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

    Creates a file that the run reads; colleagues who may write in the run's directory can do so too. The batch shell
    ends a training that hangs after a while; this command says when.
    """
    project = open_project(config)
    directory = project.existing(run)
    switch = set_switch(project, directory, layout.KILL_SWITCH, why=why, scope=scope)
    print(f"kill switch set: {switch.path}", flush=True)
    if switch.warning:
        print(f"  warning: {switch.warning}")
    if switch.is_empty:
        print("  warning: the disk is full, so the switch is an empty file: reason and scope could not be written")
        scope = Scope.JOB
    name = run or directory.run
    try:
        with patience("the switch is set; asking the scheduler what runs"):
            outlook = read_outlook(project, directory)
    except ResilError as error:  # the switch is set, whatever can be seen
        print(f"  what it does could not be looked up: {clean(error.message)}")
        print(f"  to clear it: resil clear {name}; its owner can end the run at once: resil cancel {name}")
        return
    for sentence in sentences(outlook, name, scope, project.world.clock.now()):
        print(f"  {clean(sentence)}")
