"""`resil ranks`: how fast each rank of a running training is, and which one makes the others wait."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, open_project, single_command
from resilience.cli.output import LiveView, clean, folded, paint, plain, print_json, print_table

if TYPE_CHECKING:
    from resilience.ranks.stragglers import Pace, RankPace

EVERY_S = 10.0
"""The interval of heartbeats."""


@single_command("Examples: resil ranks; resil ranks gpt --watch; resil ranks gpt --svg gpt.svg")
def ranks(
    run: RunArgument = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every 10 seconds, until Ctrl-C.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also write a heat map of ranks and windows as SVG.")
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show how fast each rank of a running training is, how much it waits for the others, and who makes them wait.

    The slow ranks come first. Nothing is asked of the training: its heartbeats tell.
    """
    from resilience.ranks.collect import running_beats
    from resilience.ranks.stragglers import judge, newest_attempt

    project = open_project(config)
    directory = project.existing(run)
    view = LiveView() if watch else None
    while True:
        beats = newest_attempt(running_beats(directory, project.system.clock.now()))
        pace = judge(beats)
        title = f"{directory.run}, attempt {beats[0].attempt} (job {beats[0].job_id})"
        if svg is not None:
            from resilience.ranks.heat_map import render
            from resilience.system.files import write_atomic

            write_atomic(svg, render(title, pace), mode=0o644, durable=False)
        if as_json:
            found = {"run": directory.run, "attempt": beats[0].attempt, "job_id": beats[0].job_id}
            print_json("ranks", found | plain(pace))
        elif view is not None:
            view.show(partial(_show, title, pace))
        else:
            _show(title, pace)
        if not watch:
            break
        sys.stdout.flush()
        project.system.clock.sleep(EVERY_S)


def _show(title: str, pace: Pace) -> None:
    from resilience.ranks.stragglers import describe

    speed = "" if pace.step_s is None else f", {pace.step_s:.3g} s per step"
    print(f"{paint(clean(title), 'bold')}: {len(pace.ranks)} ranks{speed}")
    if said := describe(pace.stragglers):
        print("\n".join(paint(line, "red") for line in folded(clean(said), 2)))
    else:
        print("\n".join(folded(clean(pace.nothing) or "no rank makes the others wait", 2)))
    slow = {rank for one in pace.stragglers for rank in one.ranks}
    rows = sorted(pace.ranks, key=lambda one: (one.rank not in slow, -one.late if one.late > 1 else 0, one.rank))
    headers = ("RANK", "HOST", "STEP", "PHASE", "S/STEP", "WAITS", "FACTOR", "LATE", "REMARK")
    print_table(headers, [_cells(one, is_slow=one.rank in slow) for one in rows])


def _cells(one: RankPace, *, is_slow: bool) -> tuple[str, ...]:
    return (
        str(one.rank),
        one.host,
        str(one.step),
        one.phase,
        "" if one.step_s is None else f"{one.step_s:.3g}",
        "" if one.waits is None else f"{one.waits:.0%}",
        "" if one.factor is None else f"{one.factor:.2f}",
        "" if one.factor is None else f"{one.late}/10",
        "makes the others wait" if is_slow else "",
    )
