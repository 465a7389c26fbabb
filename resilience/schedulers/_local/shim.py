"""Stand-ins for SLURM's commands on the PATH of jobs: as much of each as batch scripts use."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the stand-in named by the first argument, and exit as the real command would."""
    name, *arguments = sys.argv[1:]
    if name == "srun":
        from resilience.schedulers._local import srun

        sys.exit(srun.main(arguments, dict(os.environ)))
    from resilience.schedulers._local import commands

    sys.exit(commands.main(name, arguments, dict(os.environ)))
