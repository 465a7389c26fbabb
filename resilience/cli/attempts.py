"""`resil why` and `resil attempts`: why attempts ended, and the ledger of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    RunArgument,
    open_project,
    single_command,
)
from resilience.cli.output import clean, paint, print_json, print_table
from resilience.errors import UsageError

if TYPE_CHECKING:
    from resilience.attempts.ledger import Cause, LedgerRow
    from resilience.attempts.why import Why
    from resilience.runs.run_directory import RunDirectory

LOG_SUFFIXES = (".out", ".err", ".log", ".txt")
SHOWN = 20
"""Attempts of the table, without --all."""


@single_command("Examples: resil why; resil why gpt; resil why 4242_3; resil why logs/slurm-4242.out --json")
def why(
    what: Annotated[
        str, typer.Argument(metavar="[RUN|JOB|FILE]", help="A run (default: the project's), a job, or any log.")
    ] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show why the last attempt ended: class, cause, evidence, what was decided, and what to try."""
    from resilience.attempts.why import why_of_log, why_of_run
    from resilience.job import JobId

    path = Path(what)
    if what and path.is_file():
        found = why_of_log(path, time.time())
    else:
        project = open_project(config)
        is_path = what and (path.suffix in LOG_SUFFIXES or "/" in what or path.exists())
        if is_path and not project.directory(what).exists():
            raise UsageError(f"{what} is neither a file nor a run", hint="the logs of a run: resil logs RUN --path")
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
        number = f"{quote.line:>7}" if found.is_whole else "      |"
        print(paint(f"  {number}  {clean(quote.text)}", "dim"))
    if found.decided:
        print(f"  decided: {found.decided}")
    if failure.advice:
        print(f"  try: {clean(failure.advice)}")
    for note in found.notes:
        print(f"  note: {clean(note)}")


@single_command("Examples: resil attempts; resil attempts gpt --all; resil attempts gpt --svg gpt.svg")
def attempts(
    run: RunArgument = "",
    everything: Annotated[bool, typer.Option("--all", help=f"All attempts, not only the last {SHOWN}.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also write a timeline of all attempts as SVG.")
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show each attempt of a run: job, nodes, wait, duration, steps, how it ended, why, and what was decided."""
    from resilience.attempts.breaker import decide, looked_at, with_decisions
    from resilience.attempts.elsewhere import describe_exclusion, read_excluded
    from resilience.attempts.ledger import causes_of, read_ledger, totals_of
    from resilience.messages import quoted
    from resilience.quantities import format_duration
    from resilience.runs.breaker_file import closings

    project = open_project(config)
    directory = project.existing(run)
    now, policy, closed = project.system.clock.now(), project.loaded.settings.act, closings(directory)
    newest = None if everything or as_json or svg is not None else SHOWN + looked_at(policy)
    rows = read_ledger(directory, newest=newest)
    rows = with_decisions(rows, policy, now, closings=closed)
    decision = decide(rows[-looked_at(policy) :], policy, now, closed_after=max(closed, default=0))
    if svg is not None:
        from resilience.cli.report import write_picture
        from resilience.runs.injections import journalled

        write_picture(svg, directory.run, rows, now, journalled(directory))
    if as_json:
        found = {"run": directory.run, "attempts": rows, "causes": causes_of(rows), "breaker": decision}
        print_json("attempts", found | {"totals": totals_of(rows, now)})
        return
    if not rows:
        print(f"run {clean(directory.run)} has no attempt yet")
        return
    shown = rows if everything else rows[-SHOWN:]
    headers = ("ATTEMPT", "JOB", "NODE", "BEGAN", "WAITED", "RAN", "STEPS", "SAVED", "END", "DECIDED", "CAUSE")
    print_table(headers, [_cells(row, now) for row in shown])
    totals = totals_of(shown, now)
    sums = map(format_duration, (totals.trained_s, totals.waited_s, totals.total_s))
    since = "" if shown[0].attempt == 1 else f" since attempt {shown[0].attempt}; of all attempts: --all"
    print("  trained {}, waited {}, in total {}".format(*sums) + since)
    if rows[-1].failure is None and (silence := _silence(directory, now)):
        print(f"  attempt {rows[-1].attempt} has no end, and its batch shell has written nothing for {silence}: "
              f"resil status {quoted(directory.run)}")  # fmt: skip
    print(f"  {clean(decision.reason)}")
    if causes := ", ".join(map(_counted, causes_of(shown))):
        print(f"  causes: {clean(causes)}")
    excluded = read_excluded(directory)
    for one in excluded:
        print(f"  {clean(describe_exclusion(one))}")
    host = clean(decision.culprit)
    if host and not any(one.jobs for one in excluded if one.host == decision.culprit):
        print(f"  {host} seems to be the cause; to go on elsewhere: resil submit --exclude {host}")


def _silence(directory: RunDirectory, now: float) -> str:
    """Return how long the batch shell of the last attempt has written no heartbeat; empty if it may be well."""
    from resilience.quantities import format_duration
    from resilience.runs.run_files import SIGN_OF_LIFE_S, last_beat, read_attempts

    beat = last_beat(directory, read_attempts(directory, newest=1)[-1])
    return format_duration(now - beat) if beat is not None and now - beat > 10 * SIGN_OF_LIFE_S else ""


def _counted(cause: Cause) -> str:
    hosts = ", ".join(f"{number} on {host}" for host, number in cause.hosts.items())
    return f"{cause.failure.text} {cause.attempts}" + (f" ({hosts})" if hosts else "")


def _cells(row: LedgerRow, now: float) -> tuple[str, ...]:
    from resilience.quantities import format_duration
    from resilience.system.ports import iso_time

    failure = row.failure
    steps = "" if row.last_step is None else f"{'?' if row.first_step is None else row.first_step} to {row.last_step}"
    return (
        str(row.attempt),
        row.job,
        row.nodes or row.host,
        iso_time(row.start_time)[:16].replace("T", " "),
        "" if row.queue_s is None else format_duration(row.queue_s),
        format_duration(row.seconds if row.seconds is not None else max(0.0, now - row.start_time)),
        steps,
        "" if row.durable_step is None else str(row.durable_step),
        "running" if failure is None else failure.failure.text,
        row.decided,
        "" if failure is None else failure.reason,
    )
