"""Words for the failure of an attempt: its class, the role of a line, and the classification. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """Why an attempt ended. The value is what JSON and settings contain."""

    FINISHED = "finished"
    """The training is complete."""
    STOPPED = "stopped"
    """On purpose: a kill switch, `stop_after`, or a limit of the guard."""
    WALLTIME = "walltime"
    """The time limit of the job."""
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    """By a person or a program outside of the job."""
    NODE_FAILURE = "node_failure"
    HOST_OOM = "host_oom"
    """The kernel killed a process for memory, confirmed by a second source."""
    GPU_OOM = "gpu_oom"
    """Allocation failed on a GPU, TPU or other accelerator."""
    GPU_FAULT = "gpu_fault"
    """The GPU or its driver: Xid of the hardware, ECC, off the bus, no device."""
    GPU_PROGRAM = "gpu_program"
    """An error that the program causes on the GPU: illegal address, device-side assert."""
    GPU_LINK = "gpu_link"
    """NVLink, NVSwitch or the fabric manager."""
    NETWORK = "network"
    """InfiniBand, RoCE, sockets between nodes."""
    COLLECTIVE_TIMEOUT = "collective_timeout"
    """A collective did not complete in time, and nothing shows which rank caused it."""
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    READ_ONLY = "read_only"
    STALE_HANDLE = "stale_handle"
    IO_ERROR = "io_error"
    SHARED_MEMORY = "shared_memory"
    """/dev/shm is full or too small."""
    MISSING_MODULE = "missing_module"
    MISSING_FILE = "missing_file"
    MISSING_LIBRARY = "missing_library"
    CHECKPOINT = "checkpoint"
    """A checkpoint is unreadable or incomplete."""
    NAN_LOSS = "nan_loss"
    """The loss is not finite, or has diverged."""
    RENDEZVOUS = "rendezvous"
    """The ranks did not find each other."""
    PORT_IN_USE = "port_in_use"
    LAUNCHER = "launcher"
    """srun, torchrun or the container could not start the program."""
    SEGFAULT = "segfault"
    EXCEPTION = "exception"
    """An exception of the user's own code."""
    KILLED = "killed"
    """By a signal whose sender is unknown."""
    UNKNOWN = "unknown"

    @property
    def text(self) -> str:
        """Return the class in words: `gpu oom`."""
        return self.value.replace("_", " ")


class Role(StrEnum):
    """The role of a line among all lines of a failure."""

    ROOT = "root"
    """May be the cause."""
    CASCADE = "cascade"
    """What other ranks print because one failed; a cause only where there is no other."""
    CONFIRMATION = "confirmation"
    """Confirms a class that another source suggests; no cause of its own."""
    DIAGNOSTIC = "diagnostic"
    """Advice and noise around a failure; never evidence."""


class Confidence(StrEnum):
    """How much a classification is worth."""

    CERTAIN = "certain"
    """The scheduler, the journal or the kernel says it."""
    LIKELY = "likely"
    """A line of the log says it, and nothing contradicts it."""
    GUESS = "guess"
    """Only echoes, an exit code, or a line long before the end."""


@dataclass(frozen=True, slots=True)
class RankError:
    """The exception of a rank, as torchelastic writes it into its error file.

    Attributes:
        text: its message and call stack; empty: there is none.
        time: seconds since the epoch; infinite if unknown.
        rank, host: None and empty if unknown.
    """

    text: str = ""
    time: float = float("inf")
    rank: int | None = None
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A line quoted as evidence.

    Attributes:
        line: its number in the part that was read, from 1.
        text: without control characters and secrets, at most 300 characters.
        rank: of the process that printed it; None: unknown.
        rule: `gpu.toml:12`; empty for a line that no rule matched.
    """

    line: int
    text: str
    rank: int | None = None
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt ended.

    Attributes:
        failure: the class.
        confidence: what that is worth.
        reason: one sentence: which evidence decided.
        advice: what to try; may be empty.
        fingerprint: the same for the same cause: class, exception and own code line, without numbers of this attempt.
        step: at which the guards found the state of the training ruined; None: the guards have not.
        rank, host: of the first failing process, where the evidence shows them; None and empty otherwise.
        quotes: the lines that support it, the deciding one first.
    """

    failure: FailureClass
    confidence: Confidence
    reason: str
    advice: str = ""
    fingerprint: str = ""
    step: int | None = None
    rank: int | None = None
    host: str = ""
    quotes: tuple[Quote, ...] = ()
