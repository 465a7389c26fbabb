"""`resil drill`: breaks a training on purpose, in a run of its own, and says what to change."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    SchedulerOption,
    completion,
    duration_s,
    open_project,
    single_command,
)
from resilience.cli.output import chosen, folded, handled, paint, print_json, print_table, say
from resilience.errors import EX_TEMPFAIL, UsageError
from resilience.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resilience.drills.rehearse import Result
    from resilience.drills.words import Facts, Seen
    from resilience.runs.project import Project

EPILOG = (
    "Examples: resil drill --plan; resil drill kill-rank; resil drill --all; resil drill --all --json; "
    "resil drill walltime --command 'python train.py --out $RESIL_DRILL_DIR'"
)
LIMIT, LEAST_S = "30m", 30.0
_COLOURS = {"PASS": "green", "FAIL": "red", "UNKNOWN": "yellow"}


@completion
def complete_drills() -> Iterable[str]:
    """Return the names of drills."""
    from resilience.drills.rehearse import names

    return names()


@single_command(EPILOG)
def drill(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Drills, such as kill-rank. Default: --plan.",
            show_default=False,
            autocompletion=complete_drills,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Make every drill, one after another.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would happen, by the settings.")] = False,
    command: Annotated[
        str, typer.Option(metavar="COMMAND", help="Train with this instead of command in [run].", show_default=False)
    ] = "",
    limit: Annotated[str, typer.Option(metavar="DURATION", help="The most time that one drill may take.")] = LIMIT,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Go on although files of the real run may be touched.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory of the drills, with logs.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Break your training on purpose, in a run of its own, and see whether it survives and who is told.

    Runs the command of resil.toml as jobs of your cluster, with checkpoints and a state of their own. Each drill says
    what should happen, injects one fault, measures, and cleans up. Exits with 0 if all pass, 1 if one fails, 75 if one
    could not be made and none fails.
    """
    from resilience.drills.facts import facts_of
    from resilience.drills.rehearse import find
    from resilience.drills.rehearse import names as all_names

    limit_s = duration_s("--limit", limit, least_s=LEAST_S)
    if every and names:
        raise UsageError("--all and names of drills cannot be given together", hint="use one of them")
    wanted = tuple(names or all_names())
    for name in wanted:
        find(name)
    project = open_project(config, scheduler)
    facts = facts_of(project)
    facts = replace(facts, command=command) if command else facts
    if plan or not (names or every):
        _show_plan(project, facts, wanted, as_json=as_json)
        return
    if not facts.command:
        raise UsageError(
            "there is no command to run: [run] command is not set",
            hint="set command in [run] of resil.toml, or: resil drill --command 'python train.py'",
        )
    _refuse_harm(project, facts, yes=yes)
    raise typer.Exit(_make(project, facts, wanted, limit_s, keep=keep, as_json=as_json))


def _show_plan(project: Project, facts: Facts, wanted: Sequence[str], *, as_json: bool) -> None:
    from resilience.drills.isolation import hazards
    from resilience.drills.rehearse import find

    found = [(name, find(name), find(name).outlook(facts)) for name in wanted]
    harm = hazards(facts, project.loaded.project, facts.command)
    if as_json:
        rows = [
            {"drill": name, "summary": one.summary, "expects": one.expects, "would": outlook.would,
             "missing": list(outlook.missing)}
            for name, one, outlook in found
        ]  # fmt: skip
        print_json("drill-plan", {"run": facts.run, "drills": rows, "hazards": list(harm)})
        return
    for name, one, outlook in found:
        print(f"{paint(name, 'bold')}: {one.summary}")
        for text in (f"should: {one.expects}", f"would:  {outlook.would}."):
            print(*folded(text, 2), sep="\n")
        for missing in outlook.missing:
            print(*(paint(line, "yellow") for line in folded(f"missing: {missing}", 2)), sep="\n")
    print()
    for hazard in harm:
        print(*(paint(line, "yellow") for line in folded(f"careful: {hazard}")), sep="\n")
    print(
        "Nothing was run. A drill queues five short jobs, one after another: resil drill kill-rank; "
        "all drills: resil drill --all"
    )


def _refuse_harm(project: Project, facts: Facts, *, yes: bool) -> None:
    """Raise UsageError if a drill may touch the real run, unless that was agreed to."""
    from resilience.drills.isolation import hazards
    from resilience.drills.rehearse import is_live

    found = list(hazards(facts, project.loaded.project, facts.command))
    if is_live(project, facts.run):
        found.append(f"run {facts.run} has jobs: what both write besides checkpoints, they write at the same time")
    if found and not yes:
        raise UsageError(
            "a drill may touch the real run: " + "; ".join(found),
            hint="set [checkpoints] path and save with Store.from_env(); or let it write to $RESIL_DRILL_DIR, which is "
            "set in drills only: --command 'python train.py --out $RESIL_DRILL_DIR'; or, if you know better: --yes",
        )
    for hazard in found:
        say(f"warning: {hazard}")


def _make(project: Project, facts: Facts, wanted: Sequence[str], limit_s: float, *, keep: bool, as_json: bool) -> int:
    from resilience.drills.rehearse import rehearse
    from resilience.drills.scratch import scratch_of
    from resilience.drills.words import Outcome

    clock = project.system.clock
    began = clock.monotonic()

    def tell(sentence: str) -> None:
        print(f"{clock.monotonic() - began:6.0f} s  {sentence}", file=sys.stderr if as_json else sys.stdout, flush=True)

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)  # what was begun is undone on the way out

    results: list[Result] = []
    is_over = False
    try:
        with handled(leave, signal.SIGTERM, signal.SIGHUP):
            for result in rehearse(project, facts, wanted, limit_s=limit_s, keep=keep, say=tell):
                results.append(result)
                tell(f"{result.name}: {result.judgement.outcome.value}: {result.judgement.reason}")
                for left in result.left:
                    say(f"warning: {left}")
        is_over = True
    finally:  # also after Ctrl-C or an error: what was done so far took minutes
        if as_json:
            print_json("drill", {"drills": [_record(result) for result in results], "interrupted": not is_over})
        elif is_over or results:
            print()
            _show(results)
    if keep and not as_json:
        print(f"kept: {scratch_of(project)}")
    outcomes = {result.judgement.outcome for result in results}
    left_out = len(results) < len(wanted)
    return 1 if Outcome.FAIL in outcomes else EX_TEMPFAIL if Outcome.UNKNOWN in outcomes or left_out else 0


def _record(result: Result) -> dict[str, Any]:
    return {
        "drill": result.name,
        **chosen(result.drill, "summary", "expects"),
        **chosen(result.judgement, "outcome", "reason", "advice"),
        **chosen(result, "seconds", "left"),
        "measured": {**asdict(result.seen), "redone": result.seen.redone},
    }


def _show(results: Sequence[Result]) -> None:
    headers = ("DRILL", "VERDICT", "TOLD IN", "STOPPED IN", "RESUMED AT", "AFTER", "REDONE", "LOST")
    verdicts = [result.judgement.outcome.value for result in results]
    rows = [(result.name, verdict, *_cells(result.seen)) for result, verdict in zip(results, verdicts, strict=True)]
    print_table(headers, rows, [_COLOURS[verdict] for verdict in verdicts])
    print()
    for result in results:
        print(*folded(f"{result.name}: {result.judgement.reason}"), sep="\n")
        if result.judgement.advice:
            print(*folded(f"change: {result.judgement.advice}", 2), sep="\n")


def _cells(seen: Seen) -> tuple[str, ...]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else format_duration(round(value))

    step = "-" if seen.resumed_at is None else f"step {seen.resumed_at}"
    redone = "-" if seen.redone is None else f"{seen.redone} steps"
    lost = format_bytes(seen.lost_bytes) if seen.lost_bytes else "-"
    return (seconds(seen.told_s), seconds(seen.stopped_s), step, seconds(seen.resumed_s), redone, lost)
