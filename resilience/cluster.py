"""A cluster and its nodes, as reported by a scheduler. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        name: SLURM's name of the node, which is not the host name: one host may run several nodes.
        state: base state in SLURM's capitals: IDLE, MIXED, ALLOCATED, DOWN, UNKNOWN ...
        flags: DRAIN, NOT_RESPONDING, MAINTENANCE ...
        reason: why an administrator or SLURM drained the node, or empty.
        partitions: the node's partitions.
    """

    name: str
    state: str
    flags: tuple[str, ...] = ()
    reason: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Return whether new jobs can start on the node."""
        bad = {"DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "POWERED_DOWN", "REBOOT_ISSUED"}
        return self.state in {"IDLE", "MIXED", "ALLOCATED"} and not bad.intersection(self.flags)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The settings of a cluster that affect how runs are submitted and stopped.

    None: unknown. Sources: slurm.conf(5) and `scontrol show config`.

    Attributes:
        scheduler: `slurm` or `local`.
        version: release, for instance `22.05.8`.
        cluster: ClusterName.
        accounting: whether sacct is available.
        scrontab: whether users may have a scrontab.
        job_requeue: JobRequeue, whether jobs are requeueable by default.
        kill_wait_s: KillWait, seconds between SIGTERM and SIGKILL.
        message_timeout_s: MessageTimeout, seconds until a client times out on a hung controller.
        over_time_limit_min: OverTimeLimit in minutes; None when unlimited or unknown.
        proctrack: ProctrackType without its `proctrack/`.
        max_array_size: MaxArraySize; the largest index is one less.
        preempt_type: PreemptType without its `preempt/`, `none` when there is no preemption.
        preempt_mode: PreemptMode.
        send_user_signal: whether `--signal` is also sent at preemption.
        partitions: names to their states in SLURM's terms, for instance `{"main": "UP"}`.
        default_partition: the partition of jobs that request none, or empty.
        whole_nodes: partitions that give each job whole nodes.
        raw: every `key = value` of `scontrol show config`.
    """

    scheduler: str
    version: str = ""
    cluster: str = ""
    accounting: bool | None = None
    scrontab: bool | None = None
    job_requeue: bool | None = None
    kill_wait_s: int | None = None
    message_timeout_s: int | None = None
    over_time_limit_min: int | None = None
    proctrack: str = ""
    max_array_size: int | None = None
    preempt_type: str = ""
    preempt_mode: str = ""
    send_user_signal: bool | None = None
    partitions: Mapping[str, str] = field(default_factory=dict)
    default_partition: str = ""
    whole_nodes: tuple[str, ...] = ()
    raw: Mapping[str, str] = field(default_factory=dict)
