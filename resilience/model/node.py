"""A node of the cluster, as the scheduler sees it. Pure words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        name: as SLURM names it (not the host name: one host may carry several).
        state: base state in SLURM's capitals: IDLE, MIXED, ALLOCATED, DOWN, UNKNOWN ...
        flags: DRAIN, NOT_RESPONDING, MAINTENANCE ...
        reason: why an administrator or SLURM took it out, or empty.
        partitions: the partitions it belongs to.
    """

    name: str
    state: str
    flags: tuple[str, ...] = ()
    reason: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether new work can start there."""
        bad = {"DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "POWERED_DOWN", "REBOOT_ISSUED"}
        return self.state in {"IDLE", "MIXED", "ALLOCATED"} and not bad.intersection(self.flags)
