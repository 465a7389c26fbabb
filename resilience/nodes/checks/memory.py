"""Checks that a node has memory for a training: what an ended job left in /dev/shm counts against the next one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from resilience.nodes.checks import Check, Expected, Outcome, Reading


def probe(expected: Expected, environ: Mapping[str, str]) -> Reading:
    """Read /proc/meminfo (proc_meminfo(5)) and the file system of /dev/shm, which data loaders and NCCL need."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
    space = os.statvfs("/dev/shm")
    return {
        "memory": f"{round(kib['MemTotal'] / 2**20)} GiB",
        "available_percent": 100 * kib["MemAvailable"] / kib["MemTotal"],
        "shm_free_bytes": space.f_bavail * space.f_frsize,
    }


CHECK = Check(
    probe=probe, rules={"shm_free_bytes": "< 64MiB", "available_percent": "< 10"}, equal={"memory": Outcome.WARN}
)
