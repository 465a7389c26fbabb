"""Which faults a night has, at which steps and on what. Pure: a night is a function of its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.lab.chaos.training import WORLD

SAVE_EVERY = 10
HELD_SHARE = 0.15
"""Of the nights that end with a fault which no restart heals."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        says: for the table.
        classes: what `resil attempts` may call an attempt that it ends; none: it ends no attempt.
        holds: the class that the breaker names as it holds the run, after one attempt or several; empty: it does not.
        corrupts: it is silent corruption, which the guard has to find.
        may_hold: the same, if nothing beyond the newest checkpoint was saved since the fault before.
        lasts: no restart heals it, and no person comes.
        first_rank: the fault is one of rank 0, or of what is outside.
    """

    says: str
    classes: frozenset[str] = frozenset()
    holds: str = ""
    may_hold: str = ""
    lasts: bool = False
    corrupts: bool = False
    first_rank: bool = True


def _kind(says: str, classes: str = "", **more: bool | str) -> Kind:
    return Kind(says, frozenset(classes.split()), **more)  # type: ignore[arg-type]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # What a rank does to itself.
        "exception": _kind("an exception of the program, once", "exception", first_rank=False),
        "gpu_oom": _kind("CUDA out of memory", "gpu_oom", first_rank=False),
        "io_error": _kind("reading data fails with EIO", "io_error", first_rank=False),
        "nan": _kind("the loss is NaN, once", "nan_loss"),
        "hang": _kind("a rank hangs in a library that holds the GIL", "collective_timeout", first_rank=False),
        "gradient": _kind("a gradient is 1e30 times too large, silently", corrupts=True, first_rank=False),
        "replica": _kind("a weight changes on one rank, silently", "nan_loss", corrupts=True, first_rank=False),
        # What `resil inject` does.
        "exit": _kind("a rank exits with 3 and says nothing", "unknown network exception", first_rank=False),
        # (srun may tell of a peer, which ends in the same moment, before it tells of the rank that was killed.)
        "kill": _kind("a rank is killed (SIGKILL)", "killed network", first_rank=False),
        "segfault": _kind("a rank ends by SIGSEGV", "segfault", first_rank=False),
        "memory": _kind("a rank takes all memory of the job's cgroup", "host_oom", first_rank=False),
        "stop": _kind("a rank is stopped (SIGSTOP)", "collective_timeout", first_rank=False),
        "stop_orphaned": _kind("a rank is stopped, and the injector killed at once", first_rank=False),
        "slow": _kind("a rank is slow for 4 s", first_rank=False),
        "pause": _kind("a rank hangs for 5 s", first_rank=False),
        "leak": _kind("a rank leaks 64 MiB", first_rank=False),
        "disk_full_once": _kind("the disk is full until the job has ended", "disk_full", may_hold="disk_full"),
        "clock_forward": _kind("the watchdogs' clock is 2 h ahead for 8 s"),
        "clock_back": _kind("the watchdogs' clock is 2 h behind for 8 s"),
        "answers_hang": _kind("SLURM's commands hang for 8 s where the watchdogs are"),
        "answers_garbage": _kind("SLURM's commands write garbage there for 8 s"),
        "answers_lag": _kind("SLURM's commands answer there as 10 s ago, for 8 s"),
        # Without accounting, SLURM tells of a lost node only until the job has been started again.
        # What is done from outside, while the training waits at that step.
        "node": _kind("the node dies: slurmd and the job are killed", "node_failure unknown"),
        "slurmd": _kind("slurmd is killed, and comes back while the job runs"),
        "batch_shell": _kind("the batch shell is killed (SIGKILL)", "killed node_failure cancelled unknown"),
        "controller_hangs": _kind("slurmctld hangs while a job ends", "exception"),
        "controller_ends": _kind("slurmctld ends, and is started again after the job has ended", "exception"),
        "requeue": _kind("`scontrol requeue`, as preemption does", "stopped preempted cancelled"),
        "cancel": _kind("`scancel` of the job", "cancelled stopped"),
        "walltime": _kind("the time limit", "stopped walltime"),
        "flip": _kind("a bit of the newest checkpoint flips, then an exception", "exception"),
        "cut": _kind("the newest checkpoint is cut in half, then an exception", "exception"),
        "disk_full": _kind("the disk is full until a person frees it", "disk_full", holds="disk_full"),
        "read_only": _kind("the disk is read-only until a person mends it", "read_only", holds="read_only"),
        # What no restart heals.
        "bug": _kind("an exception at the same step each time", "exception", holds="exception", lasts=True),
        "all_cut": _kind("each checkpoint is cut in half", "exception checkpoint", holds="checkpoint", lasts=True),
        "disk_stays_full": _kind("the disk stays full", "disk_full", holds="disk_full", lasts=True),
    }
)  # fmt: skip
DAMAGES = ("flip", "cut")
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

    def __str__(self) -> str:
        return f"seed {self.seed}: {', '.join(map(str, self.faults))}; {self.steps} steps"


def plan(seed: int, kinds: tuple[str, ...] = tuple(KINDS)) -> Night:
    """Draw a night. Two faults are further apart than two saves: each attempt but the last makes progress, so that
    whatever holds the run is a fault that must."""
    dice = random.Random(seed)
    lasts = dice.random() < HELD_SHARE
    names = dice.choices([name for name in HEALED if name in kinds], k=dice.randint(1 if lasts else 2, 5))
    if lasts:
        names[-1:] = [dice.choice([name for name in LASTING if name in kinds])]
    faults, step = [], 0
    for number, name in enumerate(names):
        if not step and name in DAMAGES:
            step = SAVE_EVERY + 1  # so that there is another checkpoint
        saved = max(SAVE_EVERY, -(-step // SAVE_EVERY) * SAVE_EVERY)
        step += dice.randint(SAVE_EVERY + 1, 2 * SAVE_EVERY)
        rank = dice.randrange(WORLD)
        faults.append(Fault(number, name, step, 0 if KINDS[name].first_rank else rank, saved))
    return Night(seed, tuple(faults), step + dice.randint(SAVE_EVERY + 1, 2 * SAVE_EVERY))
