"""A watchdog in a process of its own, on a queue in files: `python -m tests.runs.templates.ticker DIRECTORY NAME`.

For each line of its input it decides twice about the run in DIRECTORY/run, and prints a line of JSON: what it said. The
queue is a directory of files named after their jobs; beside one that is held there is a file `.held`. The scripts below
show the same queue to a batch shell.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from resilience.attempts.acting import act
from resilience.job import Job, JobId, JobState
from resilience.runs.run_directory import RunDirectory
from resilience.schedulers import Keep
from tests.lab.fakes import FakeClock, FakeScheduler, a_job, make_project

COMMENT = "resil:demo:token"
SETTINGS = '[run]\nname = "demo"\ncommand = "true"\n[act]\nenabled = true\n'
SQUEUE = f"""#!/bin/bash
cd "$QUEUE" || exit
for job in [0-9]*; do
  [[ $job == *.held ]] && continue
  reason=Priority
  [ -e "$job.held" ] && reason=JobHeldUser
  printf '%s\\037%s\\037PENDING\\037%s\\037%s\\n' "$job" "$job" "$reason" {COMMENT}
done
"""
SCONTROL = """#!/bin/bash
cd "$QUEUE" || exit
verb=$1
shift
for job; do
  if [ "$verb" = hold ]; then : >"$job.held"; else rm -f "$job.held"; fi
done
"""


@dataclass
class FileQueue(FakeScheduler):
    """The Scheduler port over the directory."""

    directory: Path = Path()

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        names = {path.name for path in self.directory.iterdir()}
        self.records = [
            a_job(
                int(name), JobState.PENDING, name="demo", comment=COMMENT,
                reason="JobHeldUser" if f"{name}.held" in names else "Priority",
            )
            for name in sorted(names) if name.isdecimal()
        ]  # fmt: skip
        return super().jobs(users=users, finished=finished, keep=keep)

    def hold(self, job_id: JobId) -> None:
        (self.directory / f"{job_id}.held").touch()

    def release(self, job_id: JobId) -> None:
        (self.directory / f"{job_id}.held").unlink(missing_ok=True)


def main() -> None:
    """Tick at each line."""
    root, own = Path(sys.argv[1]), Path(sys.argv[1], sys.argv[2])
    own.mkdir()
    queue = FileQueue(directory=root / "queue")
    project = make_project(own, queue, SETTINGS, clock=FakeClock(time.time()))
    print(flush=True)
    for _ in sys.stdin:
        said = [act(project, RunDirectory(root / "run")) for _ in range(2)]
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
