"""`resil inject preload -- COMMAND`: starts a training so that its file operations can be made to fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from resilience.cli.output import say
from resilience.errors import ResilError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="Examples: resil inject preload -- python train.py, as the command below [run]",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def preload(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command to start, and its arguments.")],
) -> None:
    """Start a command with a library that can make its calls fail, for the faults of files and disks.

    It is for nodes where no file system can be mounted: the library is compiled there by cc, and kept in the run
    directory. Outside of a run that allows injection the command starts as it is, and so without a compiler.
    """
    try:
        environ = _environment(dict(os.environ))
    except (ResilError, OSError) as error:
        say(f"without the library for faults: {error}")
        environ = dict(os.environ)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        say(f"cannot run {command[0]}: {error.strerror}")
        sys.exit(126 if isinstance(error, PermissionError) else 127)


def _environment(environ: dict[str, str]) -> dict[str, str]:
    from resilience.inject.files import preload as library
    from resilience.inject.files.fault import control_file
    from resilience.runs.injections import allows_injection
    from resilience.runs.run_directory import RunDirectory

    run = environ.get("RESIL_RUN_DIR", "")
    if not run:
        raise ResilError("this is no job of a run")
    if not allows_injection(RunDirectory(Path(run))):
        raise ResilError("the run does not allow faults to be injected (allow_inject below [run])")
    control = control_file(Path(run))
    made = library.library(control.parent)
    (control.parent / f"attempt-{environ.get('RESIL_ATTEMPT', '0')}").touch()
    return library.environment(made, control, environ)
