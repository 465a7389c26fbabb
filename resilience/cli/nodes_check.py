"""`resil nodes check`: asks the nodes of a job, or this node, whether a training should start there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunArgument, SchedulerOption, open_project
from resilience.cli.output import patience, plain, print_json, print_table

if TYPE_CHECKING:
    from resilience.nodes.fleet import NodeReport

WithOption = Annotated[
    list[str], typer.Option("--with", metavar="GLOB", help="Only these checks, such as gpu or 'm*'; may be repeated.")
]
_COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "red"}


def check(
    run: RunArgument = "",
    only: WithOption = [],  # noqa: B006 - Typer copies it
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Check the nodes of a run's job, beside its training; without RUN, those of this allocation, or this node.

    GPUs, InfiniBand, memory, directories and their speed, clocks, versions and environment, computing, and exchanges
    between pairs of nodes: PASS, WARN or FAIL per node, in less than 30 s. Exits with 1 when a node fails.
    """
    from resilience.nodes.checking import check_nodes, find_target

    project = open_project(config, scheduler)
    target = find_target(project, run)
    with patience(f"checking {target.text}: up to 30 s"):
        reports = check_nodes(project, target, only)
    if as_json:
        print_json(
            "nodes-check", {"on": target.text, "nodes": [{"outcome": one.outcome} | plain(one) for one in reports]}
        )
    else:
        show(reports)
    if any(one.outcome.value == "FAIL" for one in reports):
        raise typer.Exit(1)


def show(reports: Sequence[NodeReport]) -> None:
    """Print the outcome of each node, and a line for each fault with its advice."""
    rows, colours, order = [], [], list(_COLOURS)
    for one in reports:
        faults = [(name, fault) for name, found in one.faults.items() for fault in found]
        if not faults:
            rows.append((one.outcome.value, one.host, "", f"{', '.join(one.faults)}: no fault"))
            colours.append(_COLOURS[one.outcome.value])
        for name, fault in sorted(faults, key=lambda pair: order.index(pair[1].outcome.value), reverse=True):
            rows.append((fault.outcome.value, one.host, name, fault.why))
            colours.append(_COLOURS[fault.outcome.value])
            if fault.advice:
                rows.append(("", "", "", f"-> {fault.advice}"))
                colours.append("dim")
    print_table(("RESULT", "NODE", "CHECK", "FINDING"), rows, colours)
