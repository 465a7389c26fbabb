"""`resil stacks`: where each rank of a running training is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, open_project, single_command
from resilience.cli.output import clean, patience, plain, print_json
from resilience.errors import UsageError


@single_command("Examples: resil stacks; resil stacks gpt --html gpt.html; resil stacks gpt --json")
def stacks(
    run: RunArgument = "",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with the stack of each rank.")
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show where each rank of a running training is: its Python stacks, the same ones together, and the odd ranks.

    The training goes on. The ranks are asked with the next heartbeat, also those that hang. Exits with 1 if no rank
    answers.
    """
    from resilience.ranks.collect import collect
    from resilience.ranks.page import render_html, render_text
    from resilience.system.files import write_atomic

    project = open_project(config)
    directory = project.existing(run)
    if html is not None and (html.is_dir() or not os.access(html.absolute().parent, os.W_OK)):
        raise UsageError(f"no page can be written as {html}", hint="name a file in a directory: --html gpt.html")
    with patience("asking the ranks with their next heartbeat", after_s=1.0):
        found = collect(project, directory)
    if html is not None:
        write_atomic(html, render_html(found), mode=0o644, durable=False)
    if as_json:
        jobs = [plain(one) | plain(one.groups) for one in found]
        for rank in (rank for job in jobs for rank in job["ranks"]):
            del rank["text"]  # megabytes; they are in the journal and on the page
        print_json("stacks", {"run": directory.run, "jobs": jobs})
    else:
        for number, one in enumerate(found):
            print("\n" * (number > 0) + "\n".join(map(clean, render_text(one))))
    if not any(one.groups.groups for one in found):
        raise typer.Exit(1)
