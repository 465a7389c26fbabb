"""`resil logs`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, RunArgument, SchedulerOption, open_project
from resilience.runs import read_logs

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="Examples: resil logs; resil logs gpt -f; resil logs gpt --lines 200; less $(resil logs gpt --path)"
)
def command(
    run: RunArgument = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, through the next attempts too.")] = False,
    lines: Annotated[int, typer.Option("--lines", metavar="N", help="How many lines of the end.", min=0)] = 40,
    path_only: Annotated[bool, typer.Option("--path", help="Write the path of the log, nothing else.")] = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show the end of a run's newest log, and follow it."""
    project = open_project(config, scheduler)
    directory = project.existing(run)
    path = read_logs.find_log(project, directory)
    if path_only:
        print(path)
        return
    print(f"==> {path} <==", file=sys.stderr)
    text, position = read_logs.last_lines(path, lines)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    if not follow:
        return
    for current, chunk in read_logs.follow(project, directory, path, position):
        if current != path:
            print(f"==> {current} <==", file=sys.stderr)
            path = current
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
