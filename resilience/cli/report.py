"""`resil report` and `resil timeline`: where the time of a run went, what broke, what to change; and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, open_project, single_command
from resilience.cli.output import clean, columns, plain, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resilience.attempts.ledger import LedgerRow
    from resilience.runs.injections import Injection
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

WEEK_S = 7 * 86400.0


@single_command("Examples: resil report; resil report gpt -o gpt.html; resil report gpt --json; resil report --send")
def report(
    run: RunArgument = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page. Default: RUN-report.html here.")
    ] = None,
    send: Annotated[
        bool,
        typer.Option(
            "--send", help="Send it to the channels in [alert]. Without RUN: of each run that lived this week."
        ),
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Write a page about a run: steps, attempts, where the time went, incidents, checkpoints, nodes, what to change.

    The page is one file that needs nothing from elsewhere: mail it, or open it from a disk.
    """
    from resilience.report.page import render
    from resilience.report.sources import read_report
    from resilience.system.files import write_atomic

    project = open_project(config)
    if send:
        _send(project, [project.existing(run)] if run else project.runs(), since_s=0.0 if run else WEEK_S)
        return
    directory = project.existing(run)
    found = read_report(project, directory)
    document = plain(found)
    if as_json:
        print_json("report", document)
        return
    path = output if output is not None else Path(f"{directory.run}-report.html")
    write_atomic(path, render(found, document), mode=0o644, durable=False)
    print(f"{clean(found.run)}: {clean(found.headline)}")
    for one in found.advice:
        print(f"  {clean(one.say)} {clean(one.how)}")
    print(f"  {clean(str(path))}")


def _send(project: Project, directories: Sequence[RunDirectory], since_s: float) -> None:
    from resilience.errors import StateDirectoryError
    from resilience.report.digest import lived, send_report
    from resilience.report.page import render
    from resilience.report.sources import read_report

    if not project.loaded.settings.alert.channels:
        print("no channel is configured, so no report is sent: [alert] channels")
        return
    since = project.system.clock.now() - since_s if since_s else 0.0
    errors = list[StateDirectoryError]()
    for directory in directories:
        try:
            found = read_report(project, directory)
            if lived(found, since):
                print(clean(send_report(project, directory, found, render(found, plain(found))).title))
        except StateDirectoryError as error:  # the others are sent
            errors.append(error)
    if errors:
        raise StateDirectoryError("; ".join(error.message for error in errors), hint=errors[0].hint)


@single_command("Examples: resil timeline; resil timeline gpt --svg gpt.svg")
def timeline(
    run: RunArgument = "",
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write the picture as SVG, for a README.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Show when each attempt of a run ran, how it ended, and the time in between."""
    from resilience.attempts.breaker import with_decisions
    from resilience.attempts.ledger import read_ledger
    from resilience.attempts.timeline import render_text
    from resilience.runs.breaker_file import closings
    from resilience.runs.injections import journalled

    project = open_project(config)
    directory = project.existing(run)
    now, policy = project.system.clock.now(), project.loaded.settings.act
    rows = with_decisions(read_ledger(directory), policy, now, closings=closings(directory))
    if svg is not None:
        write_picture(svg, directory.run, rows, now, journalled(directory))
    else:
        lines = render_text(directory.run, rows, now, columns() or 100, journalled(directory))
        print("\n".join(map(clean, lines)))


def write_picture(
    path: Path, run: str, rows: Sequence[LedgerRow], now: float, injections: Sequence[Injection] = ()
) -> None:
    """Write the attempts of a run as SVG. Raise StateDirectoryError if that fails."""
    from resilience.attempts.timeline import render
    from resilience.system.files import write_atomic

    write_atomic(path, render(run, rows, now, injections), mode=0o644, durable=False)
