"""What a test cluster's slurm.conf and cgroup.conf say. Pure: text from values.

Times are far shorter than a real site's, so that tests need not wait for what SLURM waits for (the defaults of
slurm.conf(5): KillWait 30, SlurmdTimeout 300, MessageTimeout 10, cred_expire 120 s). Time limits cannot be sped up:
slurmctld looks at them every 30 s (PERIODIC_TIMEOUT is compiled in).

bf_max_time is bf_interval unless given, and so one second: a busy machine would break a look at the queue off before it
has come to both halves of a heterogeneous job, and where nothing changes the next look comes after 30 s (backfill.c).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Where a cluster's files are. Short names: a UNIX socket's path holds 107 characters (unix(7))."""

    root: Path

    @property
    def conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.root / "munge" / "socket"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def homes(self) -> Path:
        return self.root / "home"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def private(self) -> tuple[Path, ...]:
        """Directories of the daemons."""
        return tuple(self.root / name for name in ("munge", "log", "state", "spool", "bin"))


@dataclass(frozen=True)
class Tuning:
    """What a test may want different; the units are seconds."""

    kill_wait_s: int = 5
    message_timeout_s: int = 5
    slurmd_timeout_s: int = 10
    cred_expire_s: int = 10
    extra: str = ""


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, count + 1))


def slurm_conf(
    layout: Layout, host: str, ports: range, nodes: int, proctrack: str, tuning: Tuning, accounting: str = ""
) -> str:
    """Return slurm.conf for a controller on the first port and one slurmd on each of the next.

    Several slurmd on one host need a build with --enable-multiple-slurmd, which Debian's is. config_overrides makes
    the nodes as large as we say: 8 CPUs and 64 GB each, so that no test waits for room by accident.
    """
    accounting = accounting or "AccountingStorageType=accounting_storage/none\n"
    task = "task/cgroup" if proctrack == "cgroup" else "task/none"
    return f"""\
ClusterName=resil
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket},cred_expire={tuning.cred_expire_s}
StateSaveLocation={layout.root}/state
SlurmctldPidFile={layout.root}/slurmctld.pid
SlurmctldLogFile={layout.logs}/slurmctld.log
SlurmctldDebug=info
SlurmdSpoolDir={layout.root}/spool/%n
SlurmdPidFile={layout.root}/slurmd-%n.pid
SlurmdLogFile={layout.logs}/%n.log
SlurmdDebug=info
SlurmdParameters=config_overrides
ProctrackType=proctrack/{proctrack}
TaskPlugin={task}
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
{accounting}JobCompType=jobcomp/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=8000
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_max_time=30,batch_sched_delay=0
PriorityType=priority/basic
KillWait={tuning.kill_wait_s}
MessageTimeout={tuning.message_timeout_s}
SlurmdTimeout={tuning.slurmd_timeout_s}
MinJobAge=300
InactiveLimit=0
Waittime=0
ReturnToService=2
JobRequeue=1
MaxArraySize=1001
{tuning.extra}
NodeName=DEFAULT CPUs=8 RealMemory=64000 State=UNKNOWN
{_node_lines(host, ports, nodes)}
PartitionName=main Nodes=ALL Default=YES DefaultTime=60 MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=10 State=UP
PartitionName=closed Nodes=ALL MaxTime=60 State=DOWN
"""


def _node_lines(host: str, ports: range, nodes: int) -> str:
    pairs = zip(node_names(nodes), ports[1:], strict=False)
    return "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}" for name, port in pairs)


CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
ConstrainCores=no
ConstrainDevices=no
"""


def cgroup_prelude(name: str, hierarchies: tuple[str, ...]) -> str:
    """Return the shell lines after which a slurmd sees a cgroup of this cluster as the top of each hierarchy.

    Every SLURM names its cgroups alike (slurm_n1/uid_1000/job_1), so two clusters on one host would meet. They run in
    a mount namespace of the slurmd's own, after `unshare --mount`, and end with it.
    """
    binds = (
        f"mkdir -p {top}/resil-slurm/{name} && mount --bind {top}/resil-slurm/{name} {top}"
        for top in (f"/sys/fs/cgroup/{hierarchy}" for hierarchy in hierarchies)
    )
    return " && ".join((*binds, 'exec "$@"'))
