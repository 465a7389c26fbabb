"""Prints what `resil cron history` and `resil cron logs` found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resilience.cli.output import clean, table
from resilience.cli.show_cron import outcome_text, sign
from resilience.cron.entries import lateness_s, took_s
from resilience.cron.logs import Log, find_logs, follow, read_text, without_escapes
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.words import slot_text
from resilience.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from resilience.cron.project import CronProject


def show_history(runs: Sequence[RunRecord], *, of_one: bool, now: float) -> None:
    """One line for each slot."""
    if not runs:
        print("it has not run yet" if of_one else "nothing has run yet")
        print("  when it will: resil cron list")
        return
    cells, colours = [], []
    for run in runs:
        late, took = lateness_s(run), took_s(run, now)
        cells.append((
            sign(run.outcome),
            slot_text(run.slot, now),
            "" if of_one else run.name,
            "" if late is None else _short(late),
            "" if took is None else _short(took) + (" so far" if run.outcome is Outcome.RUNNING else ""),
            "" if run.exit_code is None else str(run.exit_code),
            run.job_id,
            run.host,
            _result(run),
        ))  # fmt: skip
        colours.append("red" if run.outcome.is_failure else "dim" if sign(run.outcome) == "--" else "")
    headers = ("", "SLOT", "ENTRY", "LATE", "TOOK", "CODE", "JOB", "HOST", "RESULT")
    print("\n".join(table(headers, cells, colours)))


def _result(run: RunRecord) -> str:
    text = run.outcome.value
    if run.count > 1:
        text += f" {run.count} slots"
    if run.summary and run.summary != text:
        text += f": {clean(run.summary)}"
    return text


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def history_to_json(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """The runs as JSON's own types."""
    return {
        "runs": [
            {
                "name": run.name,
                "slot": run.slot,
                "outcome": run.outcome.value,
                "is_failure": run.outcome.is_failure,
                "time": run.time,
                "started": run.started,
                "late_s": lateness_s(run),
                "took_s": took_s(run),
                "exit_code": run.exit_code,
                "job": run.job_id or None,
                "host": run.host or None,
                "summary": run.summary,
                "output": run.output or None,
                "count": run.count,
            }
            for run in runs
        ]
    }


def show_logs(cron: CronProject, name: str, *, slot: str, last: int, follows: bool, path_only: bool) -> None:
    """Write the outputs, oldest first; say before each, on standard error, which it is."""
    found = find_logs(cron, name, slot=slot, last=last)
    now = cron.project.world.clock.now()
    for log in found:
        if path_only:
            _print_path(log)
        else:
            _show(cron, log, now, follows=follows and log is found[-1])


def _print_path(log: Log) -> None:
    from resilience.errors import UsageError

    if log.path is None:
        raise UsageError(f"there is no file: {log.reason}", hint=f"resil cron history {log.run.name}")
    print(log.path)


def _show(cron: CronProject, log: Log, now: float, *, follows: bool) -> None:
    run = log.run
    print(f"==> {clean(run.name)} {slot_text(run.slot, now)}: {outcome_text(run)} <==", file=sys.stderr, flush=True)
    if log.reason:
        print(f"  {log.reason}", file=sys.stderr, flush=True)
    position = 0
    if log.path is not None:
        text, position, left_out = read_text(log.path)
        if left_out:
            print(f"  the first {format_bytes(left_out)} are left out: less {log.path}", file=sys.stderr, flush=True)
        _write(text)
    if follows:
        for text in follow(cron, log, position):
            _write(text)


def _write(text: str) -> None:
    sys.stdout.write(without_escapes(text))
    if text and not text.endswith("\n") and sys.stdout.isatty():
        sys.stdout.write("\n")
    sys.stdout.flush()
