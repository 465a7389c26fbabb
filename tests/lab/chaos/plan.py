"""Which faults a night has, at which steps and on what. Pure: a night is a function of its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.lab.chaos.training import WORLD

SAVE_EVERY = 10
SIZES = (2, 4, 5, 5)
"""How many faults four nights have, in any order; one of the four ends with a fault that no restart heals."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        says: for the table.
        classes: what `resil attempts` may call an attempt that it ends; none: it ends no attempt.
        holds: the class that the breaker names as it holds the run, after one attempt or several; empty: it does not.
        corrupts: it is silent corruption, which the guard has to find: its verdict.
        may_hold: as `holds`, if nothing beyond the newest checkpoint was saved since the fault before.
        lingers: the next attempt may meet it as well.
        preload: its means is the library that the training has to be started with.
        as_root: only root can make it: the whole night is root's.
        lasts: no restart heals it, and no person comes.
        first_rank: the fault is one of rank 0, or of what is outside.
    """

    says: str
    classes: frozenset[str] = frozenset()
    holds: str = ""
    may_hold: str = ""
    lasts: bool = False
    corrupts: str = ""
    lingers: bool = False
    preload: bool = False
    as_root: bool = False
    first_rank: bool = True


def _kind(says: str, classes: str = "", **more: bool | str) -> Kind:
    return Kind(says, frozenset(classes.split()), **more)  # type: ignore[arg-type]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # What a rank does to itself.
        "exception": _kind("an exception of the program, once", "exception", first_rank=False),
        "gpu_oom": _kind("CUDA out of memory", "gpu_oom", first_rank=False),
        "nan": _kind("the loss is NaN, once", "nan_loss"),
        "hang": _kind("a rank hangs in a library that holds the GIL", "collective_timeout", first_rank=False),
        "gradient": _kind("a gradient is 1e30 times too large, silently", corrupts="transient", first_rank=False),
        "weight": _kind("a weight becomes 1e30 on one rank, silently", corrupts="transient", first_rank=False),
        "unstable": _kind("the same, and another value in the replay", "unknown", corrupts="unstable",
                          first_rank=False),
        "repeated": _kind("the same, and the same value in the replay", "nan_loss", corrupts="repeated",
                          first_rank=False),
        "replica": _kind("a weight changes a little on one rank, silently", "unknown", corrupts="replica",
                         first_rank=False),
        # What `resil inject` does.
        "exit": _kind("a rank exits with 3 and says nothing", "unknown network exception", first_rank=False),
        # (srun may tell of a peer, which ends in the same moment, before it tells of the rank that was killed.)
        "kill": _kind("a rank is killed (SIGKILL)", "killed network", first_rank=False),
        "kill_node": _kind("all processes of the job on a node are killed", "killed network node_failure unknown"),
        "segfault": _kind("a rank ends by SIGSEGV", "segfault", first_rank=False),
        "memory": _kind("a rank takes all memory of the job's cgroup", "host_oom", first_rank=False),
        "memory_error": _kind("a rank raises MemoryError", "host_oom", first_rank=False),
        "stop": _kind("a rank is stopped (SIGSTOP)", "collective_timeout", first_rank=False),
        "stop_orphaned": _kind("a rank is stopped, and the injector killed at once", first_rank=False),
        "stop_batch": _kind("the batch shell is stopped for 4 s"),
        "slow": _kind("a rank is slow for 4 s", first_rank=False),
        "pause": _kind("a rank hangs for 5 s", first_rank=False),
        "leak": _kind("a rank leaks 64 MiB", first_rank=False),
        "disk_full_once": _kind("the disk is full until the job has ended", "disk_full", may_hold="disk_full"),
        "quota": _kind("a quota is used up until the job has ended", "quota", may_hold="quota", lingers=True,
                       preload=True),
        "read_only_once": _kind("the disk is read-only until the job has ended", "read_only", may_hold="read_only",
                                lingers=True, preload=True),
        "eio": _kind("the disk fails with EIO until the job has ended", "io_error", lingers=True, preload=True),
        "eio_mounted": _kind("the same, by a file system that is mounted on the nodes", "io_error", as_root=True),
        "stale": _kind("ESTALE for everything until the job has ended", "stale_handle", lingers=True, preload=True),
        "stale_mounted": _kind("the same, by a file system that is mounted on the nodes", "stale_handle",
                               as_root=True),
        "slow_disk": _kind("the disk is slow for 8 s: each operation takes 0.1 s", preload=True),
        "clock_forward": _kind("the watchdogs' clock is 2 h ahead for 8 s"),
        "clock_back": _kind("the watchdogs' clock is 2 h behind for 8 s"),
        "answers_hang": _kind("SLURM's commands hang for 8 s where the watchdogs are"),
        "answers_down": _kind("SLURM's commands fail for 8 s where the watchdogs are"),
        "answers_garbage": _kind("SLURM's commands write garbage there for 8 s"),
        "answers_lag": _kind("SLURM's commands answer there as 10 s ago, for 8 s"),
        "batch_shell": _kind("the batch shell is killed (SIGKILL)", "killed node_failure cancelled unknown"),
        "controller_stops": _kind("slurmctld is stopped by its administrator while a job ends", "exception",
                                  as_root=True),
        "altered": _kind("the newest checkpoint is altered, then an exception", "exception"),
        "altered_undone": _kind("the same, and the alteration undone before the exception", "exception"),
        # What is done from outside, while the training waits at that step.
        # (Without accounting, SLURM tells of a lost node only until the job has been started again.)
        "node": _kind("the node dies: slurmd and the job are killed", "node_failure unknown", as_root=True),
        "slurmd": _kind("slurmd is killed, and comes back while the job runs"),
        "controller_hangs": _kind("slurmctld hangs while a job ends", "exception"),
        "controller_ends": _kind("slurmctld ends, and is started again after the job has ended", "exception",
                                 as_root=True),
        "requeue": _kind("`scontrol requeue`, as preemption does", "stopped preempted cancelled"),
        "cancel": _kind("`scancel` of the job", "cancelled stopped"),
        "walltime": _kind("the time limit", "stopped walltime"),
        "cut": _kind("the newest checkpoint is cut in half, then an exception", "exception"),
        "disk_full": _kind("the disk is full until a person frees it", "disk_full", holds="disk_full"),
        "read_only": _kind("the disk is read-only until a person mends it", "read_only", holds="read_only"),
        # What no restart heals.
        "bug": _kind("an exception at the same step each time", "exception", holds="exception", lasts=True),
        "all_cut": _kind("each checkpoint is cut in half", "exception checkpoint", holds="checkpoint", lasts=True),
        "disk_stays_full": _kind("the disk stays full", "disk_full", holds="disk_full", lasts=True),
    }
)  # fmt: skip
DAMAGES = ("altered", "cut", "unstable", "repeated")
"""They leave no first checkpoint that may be used."""
HEALED = tuple(name for name, kind in KINDS.items() if not kind.lasts)
LASTING = tuple(name for name, kind in KINDS.items() if kind.lasts)


@dataclass(frozen=True)
class Fault:
    """One fault: its number in the night, its kind, and the step and rank that meet it, once the checkpoint of step
    `saved` is durable, the first one after the fault before: later ones may be cut off."""

    number: int
    kind: str
    step: int
    rank: int
    saved: int

    @property
    def of(self) -> Kind:
        return KINDS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} at {self.step}" + ("" if self.of.first_rank else f" on rank {self.rank}")


@dataclass(frozen=True)
class Night:
    """All of a night: what its seed says, and nothing else."""

    seed: int
    faults: tuple[Fault, ...]
    steps: int

    @property
    def lasting(self) -> Fault | None:
        """The fault that no restart heals."""
        return next((fault for fault in self.faults if fault.of.lasts), None)

    @property
    def is_roots(self) -> bool:
        return any(fault.of.as_root for fault in self.faults)

    @property
    def is_preloaded(self) -> bool:
        return any(fault.of.preload for fault in self.faults)

    def __str__(self) -> str:
        return f"seed {self.seed}: {', '.join(map(str, self.faults))}; {self.steps} steps"


def plan(seed: int, kinds: tuple[str, ...] = tuple(KINDS)) -> Night:
    """Draw a night. Two faults are further apart than two saves: each attempt but the last makes progress, so that
    whatever holds the run is a fault that must."""
    dice = random.Random(seed)
    names = _deal(seed, [name for name in kinds if name in HEALED], [name for name in kinds if name in LASTING])
    faults, step = [], 0
    for number, name in enumerate(names):
        if not step and name in DAMAGES:
            step = SAVE_EVERY + 1  # so that there is another checkpoint
        saved = max(SAVE_EVERY, -(-step // SAVE_EVERY) * SAVE_EVERY)
        step += dice.randint(SAVE_EVERY + 1, 2 * SAVE_EVERY)
        rank = dice.randrange(WORLD)
        faults.append(Fault(number, name, step, 0 if KINDS[name].first_rank else rank, saved))
    return Night(seed, tuple(faults), step + dice.randint(SAVE_EVERY + 1, 2 * SAVE_EVERY))


def _deal(seed: int, healed: list[str], lasting: list[str]) -> list[str]:
    """Return the kinds of a night. They are dealt like cards, from one shuffled pack after the other, so that each kind
    occurs equally often; every four nights have as many cards."""
    four, place = divmod(seed - 1, len(SIZES))
    dice = random.Random(f"four {four}")
    held = dice.randrange(len(SIZES))
    sizes = [size - (number == held) for number, size in enumerate(dice.sample(SIZES, len(SIZES)))]
    first = four * (sum(SIZES) - 1) + sum(sizes[:place])
    names = []
    for card in range(first, first + sizes[place]):
        pack, at = divmod(card, len(healed))
        names.append(random.Random(f"pack {pack}").sample(healed, len(healed))[at])
    return [*names, lasting[four % len(lasting)]] if place == held and lasting else names
