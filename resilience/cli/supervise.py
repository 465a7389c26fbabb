"""`resil run`: supervises a command that cannot be changed. `--help` and wrong options come here; see entry.py."""

from __future__ import annotations

from typing import Annotated

import typer

from resilience.cli.options import single_command


@single_command(
    "Examples: resil run -- python train.py; srun resil run --stop USR1 -- python train.py; "
    "resil run --run gpt --stop ./STOP --lead 10min -- bash train.sh",
    context_settings={"allow_interspersed_args": False},
)
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Record it in this run. Default: that of the job or project."),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(metavar="SIGNAL|FILE", help="How to ask it to stop: a signal, or a path with a slash to create."),
    ] = None,
    save: Annotated[
        str | None, typer.Option(metavar="SIGNAL|FILE", help="How to ask it to save, when the save switch is set.")
    ] = None,
    lead: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long before the time limit to ask it to stop. Default: 5min."),
    ] = None,
) -> None:
    """Run a command, forward signals and output to and from it, and keep its exit code.

    Its steps, memory and end are recorded in the run, as for a job of a template. With --stop it is asked to stop by
    `resil kill`, and before the time limit.
    """
    from resilience.supervisor.supervisor import RunOptions, run_command

    raise typer.Exit(run_command(RunOptions(tuple(command), run, stop, save, lead)))
