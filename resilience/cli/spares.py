"""`python -m resilience.cli.spares RUN [CONFIG]`: whether a launch failed because of a node, and which nodes are left.

The batch shell of a job with spares calls it after a launch that failed (slurm_templates/_spares.bash), prints the
output, and launches again on the nodes that the last line names if the exit code is 10 (a node is lost) or 11 (one is
bad).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.attempts.breaker import host_at_fault, node_of_host
from resilience.attempts.classify import classify
from resilience.attempts.elsewhere import read_standings, still_excluded
from resilience.attempts.ledger import evidence_of
from resilience.errors import ResilError, SchedulerError
from resilience.nodes.spares import EX_BAD, EX_LOST, lost_by_state, read_left, silent_nodes
from resilience.nodes.standing import State
from resilience.runs.open_project import open_in_child
from resilience.runs.run_files import read_attempts
from resilience.system.ports import System

if TYPE_CHECKING:
    from resilience.nodes.spares import Left
    from resilience.runs.project import Project


def main(run: str, config: str = "") -> int:
    """Print what is wrong with the nodes; return 10, 11, or 0 if no node of the launch is at fault, as far as known."""
    try:
        project = open_in_child(System(), path=Path(config) if config else None)
        left = read_left(project.system.environ)
        if left is None:
            print("this job has no spares")
            return 0
        lost = _lost(project, left)
        bad = lost | {host: why for host, why in _at_fault(project, run, left).items() if host not in lost}
        if reasons := [why for host, why in bad.items() if host in left.launch]:
            print(f"{left.without(bad)} {'; '.join(reasons)}")
            return EX_LOST if lost.keys() & {*left.launch} else EX_BAD
        print(f"nothing is known against {', '.join(host for host in left.hosts if host not in bad)}")
    except ResilError as error:
        print(f"the nodes were not looked at: {error.message}")
    return 0


def _lost(project: Project, left: Left) -> dict[str, str]:
    lost = {}
    try:
        lost = lost_by_state(left, project.scheduler().nodes())
    except SchedulerError as error:
        print(f"their states are unknown: {error.message}")
    return lost | silent_nodes(project.system, [host for host in left.hosts if host not in lost])


def _at_fault(project: Project, run: str, left: Left) -> dict[str, str]:
    """Return the nodes that this attempt names as its cause, or earlier ones did."""
    directory = project.existing(run)
    standings = read_standings(project)
    shared = {one.node: one.why for one in standings if one.state is State.EXCLUDED}
    found = {host: f"{host}: {why}" for host, why in (still_excluded(directory, standings) | shared).items()}
    number = project.system.environ.get("RESIL_ATTEMPT", "")
    for attempt in read_attempts(directory, newest=1):
        failure = classify(evidence_of(directory, attempt))
        if str(attempt.number) == number:
            at_fault = node_of_host(host_at_fault(failure, project.loaded.settings.act), left.hosts)
            found |= {host: f"{host}: {failure.reason}" for host in at_fault}
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
