"""Which `SBATCH_*` variables stand for which option of sbatch. Pure. Source: sbatch(1) of 22.05, INPUT ENVIRONMENT.

They win over the directives of a script, and the command line wins over them.
"""

from __future__ import annotations

_OTHER_NAMES = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
}

# fmt: off
_SAME_NAMES = frozenset({
    "account", "acctg-freq", "batch", "clusters", "constraint", "container", "core-spec", "cpus-per-gpu",
    "delay-boot", "distribution", "error", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus",
    "gpus-per-node", "gpus-per-task", "gres", "gres-flags", "hint", "ignore-pbs", "input", "job-name", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "network", "no-kill", "no-requeue", "open-mode", "output", "overcommit",
    "partition", "power", "profile", "qos", "requeue", "reservation", "signal", "spread-job", "thread-spec",
    "threads-per-core", "use-min-nodes", "wait", "wait-all-nodes", "wckey",
})
# fmt: on


def option_of(variable: str) -> str | None:
    """Given the name of a variable, return the long option it sets, or None. For instance, SBATCH_QOS gives qos."""
    name = variable.removeprefix("SBATCH_").lower().replace("_", "-")
    return _OTHER_NAMES.get(variable) or (name if variable.startswith("SBATCH_") and name in _SAME_NAMES else None)
