"""Runs watchdogs on every node of a job: one task per node, started by srun beside the training, prints its findings.

Nothing is remembered between ticks, so there are no trends.

`python -m resilience.watch.on_nodes NAMES [CONFIG]` is such a task.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from resilience.errors import ProbeError
from resilience.finding import Finding, Verdict
from resilience.nodes.check import START_S, own_host
from resilience.records import from_record
from resilience.runs.open_project import open_in_child
from resilience.runs.run_jobs import srun_command
from resilience.system.answers import answer_lines, parse_answers
from resilience.system.child import run_in_child
from resilience.system.ports import System
from resilience.system.process import Conversation
from resilience.watch.watch import findings_of, pack, probe_and_judge, watchdogs_of
from resilience.watch.watchdogs import context_of

LOOK_S = 40.0
"""For all nodes of all jobs together: the start of the tasks, and a watchdog with its deadline."""


class Looks(NamedTuple):
    """What the nodes answered: findings as plain data by node, and the error of those without an answer."""

    found: Mapping[str, tuple[Mapping[str, Any], ...]]
    error: str = ""


def look(job: str, hosts: Sequence[str], names: Sequence[str], config: str, timeout_s: float) -> Looks:
    """Run these watchdogs on these nodes of a job, and return what answers in time."""
    command = [*srun_command(job, hosts), sys.executable, "-m", "resilience.watch.on_nodes", ",".join(names), config]
    found: dict[str, tuple[Mapping[str, Any], ...]] = {}
    try:
        with Conversation(command, timeout_s=START_S) as tasks:
            for message in parse_answers(tasks.hear(timeout_s)):
                with suppress(KeyError, TypeError):
                    found[message["host"]] = tuple(message["findings"])
                if len(found) == len(hosts):
                    break
            said = tasks.errors[-300:]
    except ProbeError as error:
        said = error.message
    return Looks(found, "" if len(found) == len(hosts) else said or f"no answer within {timeout_s:.0f} s")


def findings_on(node: str, packed: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the findings of a node, each about `node:subject`; none that is OK beside a fault of its subject. Pure."""
    found = [from_record(Finding, one) for one in packed]
    bad = {one.subject for one in found if one.verdict is not Verdict.OK}
    return [
        replace(one, subject=f"{node}:{one.subject}", looked=(*one.looked, f"looked on {node}, by srun"))
        for one in found
        if one.verdict is not Verdict.OK or one.subject not in bad
    ]


def main(names: str, config: str = "") -> int:
    """Print the findings of this node."""
    project = open_in_child(System(), path=Path(config) if config else None)
    watchdogs, broken = watchdogs_of(project, names.split(","))
    found = [finding for report in broken for finding in report.findings]
    works, targets, context = {}, {}, context_of(project)
    for watchdog in watchdogs:
        if watchdog.kind == "nodes":
            continue  # it is what runs this
        for target in watchdog.check.targets(watchdog.settings, context):
            deadline_s = min(target.deadline_s or LOOK_S, project.loaded.settings.watch.deadline_s)
            key = (watchdog.name, target.name)
            targets[key] = (watchdog, target)
            work = partial(probe_and_judge, watchdog, target._replace(deadline_s=deadline_s), context, {}, {})
            works[key] = (work, deadline_s)
    for key, answer in run_in_child(works):
        found += findings_of(*targets[key], answer)
    host, name = own_host(project.system.environ), project.system.host.name
    for number, one in enumerate(found):
        one = replace(one, subject=one.subject.removeprefix(f"{name}:"))
        if one.verdict is Verdict.OK:  # of a thousand nodes nobody reads more
            one = Finding(subject=one.subject, verdict=one.verdict, summary=one.summary)
        found[number] = one
    sys.stdout.write(answer_lines({"host": host, "findings": [pack(one) for one in found]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
