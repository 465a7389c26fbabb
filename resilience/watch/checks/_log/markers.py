r"""Lines that report a phase of the training or an error. Pure.

The table of errors is small on purpose, until a proper fault classifier replaces it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FATAL: dict[str, bytes] = {
    "killed for memory": rb"Detected \d+ oom[-_]kill|oom[-_]kill event|Out Of Memory|Out of memory: Killed process",
    "out of GPU memory": rb"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|HIP out of memory"
    rb"|RESOURCE_EXHAUSTED: Out of memory",
    "GPU": rb"CUDA error:|uncorrectable ECC|NVRM: Xid|Xid \(PCI|device-side assert triggered",
    "collective": rb"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError"
    rb"|Watchdog caught collective operation timeout|DistBackendError|Gloo connectFullMesh failed",
    "bus error": rb"\bBus error\b|SIGBUS",
    "crash": rb"Segmentation fault|SIGSEGV|\bcore dumped\b|Fatal Python error",
    "killed": rb"\bSIGKILL\b|is killed by signal: |exitcode\s*:\s*-9\b|^Killed$|signal 9\b",
    "disk": rb"No space left on device|Disk quota exceeded|Stale file handle",
    "launch": rb"srun: error: \S+ tasks? [^:]{1,200}:(?! Exited with exit code 75\b)|ChildFailedError"
    rb"|torch\.distributed\.elastic\.multiprocessing\.errors",
}
"""Errors that a training does not survive: display name -> pattern. Exit code 75 is that of a stop on purpose."""

ORDINARY: dict[str, bytes] = {
    "slurm": rb"srun: error:(?!.{1,200}: Exited with exit code 75\b)|slurmstepd: error:",
    "exception": rb"^(?:\[[^\]]{1,40}\]:?\s*|\s{0,6}\d{1,6}: )?(?:[A-Za-z_][\w.]{0,80}\.)?"
    rb"[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit)(?::|$)",
}
"""Errors that may be harmless: a WARNING, and CRITICAL only after some time without a step. slurmstepd reports cgroup
errors when healthy jobs start; the last line of a Python traceback may be that of an exception that was caught."""

_CANCELLED = rb"CANCELLED AT \S+ DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|CANCELLED AT"
_END = (
    rb"\[exiting program (?:after|at)|exiting program at iteration"  # Megatron-LM
    rb"|Training completed\b|Training complete\b|training finished|\[after training is done\]"
    rb"|'train_runtime'"  # Hugging Face
    rb"|`?Trainer\.fit`? stopped:"  # Lightning
    rb"|STEP \d+\.\d+ ON \S+ " + _CANCELLED + rb"|JOB \d+ ON \S+ " + _CANCELLED  # slurmstepd
)
_RESUME = (
    rb"[Ll]oad(?:ing|ed) (?:the )?(?:distributed )?checkpoint"
    rb"|Resuming (?:training )?from|Continuing training from|Restor(?:ed|ing) (?:all )?states from"
    rb"|successfully loaded checkpoint|Resume training from|resuming from checkpoint"
)
_SAVED = rb"successfully saved checkpoint|Finished saving the checkpoint|Saved checkpoint"
_SAVE = rb"saving (?:the )?(?:model )?checkpoint|Saving (?:the )?(?:model )?checkpoint|Saving model\b"
_EVAL = (
    rb"\*+ Running Evaluation|[Ee]valuating\b|[Rr]unning (?:validation|evaluation)|[Ss]tart(?:ing)? (?:validation|eval)"
    rb"|Validation DataLoader|Validating:|Sanity Checking"
)

_ALL = re.compile(
    b"|".join(
        [
            b"(?P<end>" + _END + b")",
            b"(?P<resume>" + _RESUME + b")",
            b"(?P<saved>" + _SAVED + b")",
            b"(?P<save>" + _SAVE + b")",
            b"(?P<eval>" + _EVAL + b")",
            *(b"(?P<f%d>" % number + pattern + b")" for number, pattern in enumerate(FATAL.values())),
            *(b"(?P<o%d>" % number + pattern + b")" for number, pattern in enumerate(ORDINARY.values())),
        ]
    )
)
_WORDS = (
    b"error", b"exception", b"interrupt", b"exit", b"kill", b"oom", b"of memory", b"xid", b"ecc", b"assert", b"nccl",
    b"gloo", b"watchdog", b"sig", b"fault", b"dump", b"fatal", b"quota", b"stale", b"left on", b"cancelled", b"train",
    b"load", b"resum", b"restor", b"continu", b"sav", b"eval", b"valid", b"sanity",
)  # fmt: skip
"""Every line that matches contains one of these in lower case. Searching for them takes a twentieth of the time of the
expression, and progress lines contain none."""
_FATAL_NAMES, _ORDINARY_NAMES = tuple(FATAL), tuple(ORDINARY)
_ENDS = re.compile(_END)
_CAUSES = tuple((name, re.compile(pattern)) for name, pattern in FATAL.items() if name != "launch")


class Marker(NamedTuple):
    """The event that a line reports: `end`, `resume`, `saved`, `save`, `eval`, `fatal` or `ordinary`."""

    kind: str
    word: str = ""


def words_of(chunk: bytes) -> tuple[bytes, ...]:
    """Return the words of the table in a chunk, usually none; without any, no line matches."""
    small = chunk.lower()
    return tuple([word for word in _WORDS if word in small])


def marker(line: bytes, words: tuple[bytes, ...] = _WORDS) -> Marker | None:
    """Return the event that a line reports, or None; `words` are those that occur in its chunk."""
    small = line.lower()
    if not any(word in small for word in words):
        return None
    match = _ALL.search(line)
    name = match.lastgroup if match is not None else None
    if name is None:
        return None
    if name[0] == "f" and name[1:].isdigit():
        word = _FATAL_NAMES[int(name[1:])]
        return Marker("fatal", _cause(line) or word if word == "launch" else word)
    if name[0] == "o" and name[1:].isdigit():
        # A general prefix, of srun, slurmstepd or an exception: the rest of the line is more specific.
        if _ENDS.search(line):
            return Marker("end")
        word = _cause(line)
        return Marker("fatal", word) if word else Marker("ordinary", _ORDINARY_NAMES[int(name[1:])])
    return Marker(name)


def _cause(line: bytes) -> str:
    """Return the name of the specific error in a line with a general prefix, or an empty string."""
    return next((cause for cause, pattern in _CAUSES if pattern.search(line)), "")
