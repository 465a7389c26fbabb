"""The command `resil top`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, RunOrAllArgument, SchedulerOption, open_project, single_command
from resilience.errors import UsageError


@single_command("Examples: resil top; resil top gpt; resil top --once")
def top(
    run: RunOrAllArgument = "",
    once: Annotated[bool, typer.Option("--once", help="Print the screen once, as text, and end.")] = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show all runs, or one, on a live screen: rate, ranks, incidents, log. Keys save, kill and acknowledge.

    The scheduler is asked once in ten seconds at most. Press ? for the keys. With NO_COLOR there are no colours.
    """
    if not once:
        _check_terminal()
    project = open_project(config, scheduler)
    if run:
        project.existing(run)  # an unknown run is an error here, not on the screen
    if once:
        from resilience.cli.top.frame import LEAST_HEIGHT, View, compose
        from resilience.cli.top.look import Looker
        from resilience.cli.top.screen import is_utf8, text_of

        width, height = shutil.get_terminal_size()
        frame = Looker(project, run).look()
        view = View(message=" ")  # no keys here
        lines = text_of(compose(frame, width, max(LEAST_HEIGHT, height - 1), view, is_utf8=is_utf8()))
        print("\n".join(line.rstrip() for line in lines).rstrip())
        return
    from resilience.cli.top.screen import Screen
    from resilience.cli.top.worker import Worker
    from resilience.system.child import GRACE_S, reap

    reap(GRACE_S)  # the children that opened the project
    worker = Worker(project, run)
    try:
        code = Screen(worker).run()
    finally:
        worker.close()
    raise typer.Exit(code)


def _check_terminal() -> None:
    """Raise UsageError if there is no terminal whose cursor can be moved."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("standard input or output is no terminal", hint="resil top --once; resil status --watch")
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise UsageError(
            "this terminal cannot move its cursor (TERM is dumb or not set)", hint="resil top --once; resil status"
        )
