"""Which nodes of a job are left for another launch, where the job has spares (`spares` under [nodes])."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from resilience.errors import UsageError
from resilience.runs.run_jobs import srun_command

if TYPE_CHECKING:
    from resilience.cluster import Node
    from resilience.system.ports import System

LEFT = "RESIL_LEFT"
"""The variable in which the batch shell says what it has: `2 n1 n2 n3`."""
EX_LOST = 10
"""Exit code of a command that has found a lost node in the launch; its last line is `n1,n3 WHY`, or `- WHY`."""
EX_BAD = 11
"""The same for a node that is there, and bad."""
ANSWER_S = 40.0
"""How long the nodes may take to run a task: srun 22.05 gave up a dead slurmd after 6 s; a silent host takes longer."""
_SILENT = re.compile(r"error: Task launch for \S+ failed on node ([^\s:]+): (.+)")


class Left(NamedTuple):
    """The nodes of a job that are not known to be bad.

    Attributes:
        needed: how many of them a launch has: the first ones.
        hosts: in the order of the job; more than `needed` are spares.
    """

    needed: int
    hosts: tuple[str, ...]

    @property
    def launch(self) -> tuple[str, ...]:
        return self.hosts[: self.needed]

    def without(self, bad: Collection[str]) -> str:
        """Return the other nodes as `n1,n3`; `-` if these are too few for a launch."""
        rest = [host for host in self.hosts if host not in bad]
        return ",".join(rest) if len(rest) >= self.needed else "-"


def read_left(environ: Mapping[str, str]) -> Left | None:
    """Return what the batch shell says; None if the job has no spares. Raise UsageError if it cannot be read."""
    if not (text := environ.get(LEFT, "")):
        return None
    needed, *hosts = text.split()
    if not needed.isdecimal():
        raise UsageError(f"{LEFT} is {text!r}, not a number and nodes", hint="it is set by the batch shell of a job")
    return Left(int(needed), tuple(hosts))


def lost_by_state(left: Left, nodes: Collection[Node]) -> dict[str, str]:
    """Return the nodes that SLURM has lost, each with the reason. Pure. A node that drains still runs its jobs."""
    found = {}
    for node in nodes:
        words = {node.state, *node.flags} & {"DOWN", "NOT_RESPONDING", "FAIL", "POWERED_DOWN"}
        if node.name in left.hosts and words:
            found[node.name] = f"SLURM says that {node.name} is {', '.join(sorted(words))}"
    return found


def parse_silent(errors: str) -> dict[str, str]:
    """Return the nodes that srun could not reach, each with the reason, from its standard error. Pure."""
    return {host: f"srun cannot reach {host}: {why}" for host, why in _SILENT.findall(errors)}


def silent_nodes(system: System, hosts: Collection[str]) -> dict[str, str]:
    """Start a task on each of these nodes of this job, and return those that srun could not reach, with the reason.

    SLURM itself says so only after SlurmdTimeout, 300 s by default. Raise ProbeError if srun does not end in time.
    """
    command = [*srun_command(system.environ["SLURM_JOB_ID"], tuple(hosts)), "true"]
    return parse_silent(system.runner.run(command, timeout_s=ANSWER_S).stderr)
