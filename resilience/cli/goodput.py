"""`resil goodput`: where the time of a run went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, duration_s, open_project, single_command
from resilience.cli.output import clean, paint, print_json, print_table
from resilience.errors import UsageError

if TYPE_CHECKING:
    from resilience.report.goodput import AttemptTime, Goodput

SHOWN = 20
"""Attempts of the table; --json has all."""


@single_command("Examples: resil goodput; resil goodput gpt --since 7d; resil goodput gpt --since 2026-11-20 --json")
def goodput(
    run: RunArgument = "",
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="DURATION|DATE", help="Leave out earlier time: 7d, 12h, 2026-11-20, 2026-11-20T18:00."
        ),
    ] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show where the time of a run went: productive, redone, saves, queue, hangs; and what the field calls goodput."""
    from resilience.messages import plural
    from resilience.report.reading import read_goodput

    project = open_project(config)
    directory = project.existing(run)
    found = read_goodput(project, directory, since=_moment(since, project.system.clock.now()))
    if as_json:
        print_json("goodput", {"goodput": found})
    elif not found.wall_ms and found.by_attempt:
        print(
            f"run {clean(directory.run)} has {plural(len(found.by_attempt), 'attempt')}, which took less than a second"
        )
    elif not found.wall_ms:
        when = f" since {since}" if since and found.end_ms else ""
        print(f"run {clean(directory.run)} has no attempt{when or ' yet'}: there is no time to show")
    else:
        _show(found)


def _moment(since: str, now: float) -> float | None:
    """Return the moment of --since in seconds since the epoch; None without it. Raise UsageError."""
    from datetime import datetime

    if not since:
        return None
    try:
        return datetime.fromisoformat(since).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return now - duration_s("--since", since)
    except UsageError:
        hint = "--since 2026-11-20 or --since 7d"
        raise UsageError(f"--since {since} is neither a date nor a duration", hint=hint) from None


def _show(found: Goodput) -> None:
    from resilience.messages import plural
    from resilience.report.goodput import Category
    from resilience.system.ports import iso_time

    begin, end = (iso_time(one / 1000)[:16].replace("T", " ") for one in (found.start_ms, found.end_ms))
    state = ", running" if found.is_running else ""
    count = plural(len(found.by_attempt), "attempt")
    print(f"{clean(found.run)}: {_duration(found.wall_ms)}, from {begin} to {end}, {count}{state}")
    print()
    rows = [
        (one.text, _duration(ms), _percent(ms / found.wall_ms), one.definition)
        for one in Category
        if (ms := found.ms[one]) or one is Category.UNKNOWN
    ]
    colours = ["green" if row[0] == Category.PRODUCTIVE else "" for row in rows]
    print_table(("TIME", "SPENT", "SHARE", "WHICH IS"), rows, colours)
    print()
    _show_figures(found)
    print()
    shown = found.by_attempt[-SHOWN:]
    print_table(("ATTEMPT", "ENDED", "RAN", "KEPT", "STEPS", "REDONE", "MOST OF THE REST"), [*map(_attempt, shown)])
    if len(found.by_attempt) > len(shown):
        print(paint(f"  the newest {SHOWN} of {len(found.by_attempt)} attempts; all: --json", "dim"))
    print()
    classes = []
    for kind in found.by_class:
        ran, kept = sum(kind.ms.values()), kind.ms.get(Category.PRODUCTIVE, 0)
        classes.append((_words(kind.ended), str(kind.attempts), *map(_duration, (ran, kept, kind.lost_ms))))
    print_table(("ENDED", "ATTEMPTS", "RAN", "KEPT", "REDONE, HANG AND TAIL"), classes)
    for note in found.notes:
        print(f"  note: {clean(note)}")
    for one in found.injected:
        print(f"  injected on purpose: {clean(one)}")


def _show_figures(found: Goodput) -> None:
    from resilience.report.goodput import FOOTNOTES

    shares = {
        "ETTR": ("ettr", found.ettr),
        "without queue": ("ettr_without_queue", found.ettr_without_queue),
        "effective time": ("effective_time", found.effective_time),
    }
    for name, (key, share) in shares.items():
        print(f"{name:14} {'unknown' if share is None else _percent(share):>7}  {paint(FOOTNOTES[key], 'dim')}")
    hours = found.gpu_hours
    if hours is not None:
        left_out = f"; of {hours.unknown_attempts} attempts unknown" if hours.unknown_attempts else ""
        print(f"{'GPU hours':14} {hours.allocated:>7,.1f}  {paint(FOOTNOTES['gpu_hours'] + left_out, 'dim')}")
        print(f"{'':14} {hours.productive:>7,.1f}  {paint('of them productive', 'dim')}")


def _attempt(one: AttemptTime) -> tuple[str, ...]:
    from resilience.report.goodput import Category

    kept, redone = one.ms.get(Category.PRODUCTIVE, 0), one.ms.get(Category.REDONE, 0)
    others = {kind: ms for kind, ms in one.ms.items() if kind not in (Category.PRODUCTIVE, Category.REDONE)}
    largest = max(others, key=others.__getitem__, default=None)
    return (
        str(one.attempt),
        _words(one.ended),
        _duration(one.end_ms - one.start_ms),
        _duration(kept) if kept else "-",
        f"{one.steps:,}" if one.steps else "-",
        _duration(redone) if redone else "-",
        "" if largest is None else f"{largest.text} {_duration(others[largest])}",
    )


def _words(ended: str) -> str:
    return ended.replace("_", " ")


def _duration(ms: int) -> str:
    from resilience.quantities import format_duration

    return format_duration(ms / 1000)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
