"""`python -m resilience.cli.preflight RUN [CONFIG]`: checks the nodes of the job that calls it.

The batch shell of a job that starts calls it before the launch (slurm_templates/_attempt.bash), prints the output, and
ends the job with the last line as the reason if the exit code is 75: the queued jobs of the run avoid the bad nodes.
With 11 it launches in this job, which has spares, on the nodes that the last line names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.attempts.classify import CHECK_FAILED
from resilience.attempts.elsewhere import avoid
from resilience.attempts.never_dry import keep_queued
from resilience.errors import EX_TEMPFAIL, ResilError
from resilience.hostlist import fold
from resilience.nodes.checking import check_nodes, find_target
from resilience.nodes.checks import Outcome
from resilience.nodes.spares import EX_BAD, read_left
from resilience.runs.open_project import open_in_child
from resilience.system.ports import System

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory


def main(run: str, config: str = "") -> int:
    """Check, and return 75 if the job should end here, 11 if a spare helps, else 0: it trains where it is."""
    bad: dict[str, str] = {}
    try:
        project = open_in_child(System(), path=Path(config) if config else None)
        directory = project.existing(run)
        target = find_target(project)._replace(directory=directory)
        reports = check_nodes(project, target)
        for one in reports:
            if one.outcome is not Outcome.PASS:
                print(f"{one.outcome.value} {one.host}: {one.why}")
        bad = {one.host: one.why for one in reports if one.outcome is Outcome.FAIL}
        left = read_left(project.system.environ)
        if not bad:
            print(f"{target.text}: checked, no node fails")
        elif 2 * len(bad) > len(reports) > 1:
            print("most nodes fail, so it is not the nodes: the job trains here")
        elif left is not None and (rest := left.without(bad)) != "-":
            print(f"{rest} these are left; the check failed: {_reasons(bad)}")
            return EX_BAD
        elif not project.loaded.settings.act.enabled:
            print(f"it would go on without {fold(bad)}; to let it: enabled = true under [act]")
        elif jobs := _without(project, directory, bad):
            print(f"{CHECK_FAILED}; job {', '.join(jobs)} will run without {fold(bad)}"
                  f" ({_reasons(bad)})")  # fmt: skip
            return EX_TEMPFAIL
        else:
            print(f"no queued job of the run can do without {fold(bad)}: the job trains here")
    except ResilError as error:
        print(f"{_unable(bad)}: {error.message}: the job trains here")
    return 0


def _without(project: Project, directory: RunDirectory, bad: Mapping[str, str]) -> tuple[str, ...]:
    """Return the queued jobs that run without these nodes; with `keep_queued`, the next one may not be queued yet."""
    if not (jobs := avoid(project, directory, bad)) and keep_queued(project, directory):
        jobs = avoid(project, directory, bad)
    return jobs


def _unable(bad: Mapping[str, str]) -> str:
    return f"{fold(bad)} cannot be excluded from the queued jobs now" if bad else "the nodes were not checked"


def _reasons(bad: Mapping[str, str]) -> str:
    return "; ".join(f"{host}: {why}" for host, why in bad.items())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
