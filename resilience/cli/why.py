"""`resil why`: the cause of an attempt's end, with its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, SchedulerOption, open_project, single_command
from resilience.cli.output import clean, paint, print_json

if TYPE_CHECKING:
    from resilience.attempts.why import Why


@single_command("Examples: resil why; resil why gpt; resil why 4242_3; resil why logs/slurm-4242.out --json")
def why(
    what: Annotated[
        str, typer.Argument(metavar="[RUN|JOB|FILE]", help="A run (default: the project's), a job, or any log.")
    ] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Show why the last attempt ended: class, cause, evidence, and what to try."""
    from resilience.attempts.why import why_of_log, why_of_run
    from resilience.job import JobId

    path = Path(what) if what else None
    if path is not None and path.is_file():
        found = why_of_log(path)
    else:
        project = open_project(config, scheduler)
        job = JobId.parse(what) if what[:1].isdigit() else None
        found = why_of_run(project, project.existing("" if job is not None else what), job)
    if as_json:
        print_json("why", {"why": found})
    else:
        _show(found)


def _show(found: Why) -> None:
    failure = found.failure
    whose = f"attempt {found.attempt} of {found.run} (job {found.job})" if found.attempt is not None else found.logs[0]
    print(f"{clean(whose)}: {paint(str(failure.failure).replace('_', ' '), 'bold')} ({failure.confidence})")
    print(f"  {clean(failure.reason)}")
    if failure.rank is not None or failure.host:
        rank = f"rank {failure.rank}" if failure.rank is not None else ""
        print(f"  first: {clean(' on '.join(part for part in (rank, failure.host) if part))}")
    for quote in failure.quotes:
        print(paint(f"  {quote.line:>7}  {clean(quote.text)}", "dim"))
    if failure.advice:
        print(f"  try: {clean(failure.advice)}")
    for note in found.notes:
        print(f"  note: {clean(note)}")
