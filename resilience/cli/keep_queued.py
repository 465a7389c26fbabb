"""`python -m resilience.cli.keep_queued RUN [CONFIG]`: queues what is missing behind the job that calls it.

The batch shell of a job that starts calls it in the background, and logs the last line of the output
(slurm_templates/_attempt.bash). `resil watch job` does the same for all runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from resilience.attempts.never_dry import keep_queued
from resilience.errors import ResilError
from resilience.runs.open_project import open_in_child
from resilience.system.ports import System


def main(run: str, config: str = "") -> int:
    """Queue what is missing for a run; return 0, or the exit code of the error: 75 if a later try may succeed."""
    try:
        project = open_in_child(System(), path=Path(config) if config else None)
        print(keep_queued(project, project.existing(run)))
    except ResilError as error:
        print(f"the queue was not checked: {error.message}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
