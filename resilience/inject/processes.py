"""The processes of a job on one node: found by the job's id in their environment, and signalled.

On another node of a SLURM job a task beside the training runs this module: `python -m resilience.inject.processes
ORDER`. A process is only signalled if it is this user's, of this job, and began when it was seen.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from resilience.base.processes import is_alive, parent_of, start_ticks
from resilience.inject.holding import send
from resilience.inject.hosts import serve
from resilience.messages import cut

_OWN = re.compile(
    r"^(?:\S+ )?(?:\S*/)?resil(?: |$)"
    r"|^\S+(?: -\S+)*? -m resilience\.(?:inject|guard|supervisor|cli)\b"
    r"|resil-mirror|resilience\.guard\.heartbeat"
)
"""Command lines of helpers beside a training, which are no ranks."""
_PLACE = ("SLURM_CONF", "SLURMD_NODENAME")
"""Variables that all processes of a job on a node share: test clusters have several slurmds on one host."""
_NO_STEP = 2**32 - 16
"""SLURM's numbers of the batch script and of interactive steps are above it."""


class Process(NamedTuple):
    """A process of a job.

    Attributes:
        ticks: its start, in clock ticks since the boot: with the pid it names one process.
        rank: as its environment tells; -1 without one.
        step: number of the job's step; -1 outside of steps.
        is_launched: whether the attempt's batch shell launched it, by the environment.
        name: its command line, cut.
    """

    pid: int
    ticks: int
    parent: int
    rank: int
    step: int
    is_launched: bool
    name: str


def of_job(job: str) -> list[Process]:
    """Return the processes of a job on this node that this user may signal, without this one and its children."""
    found, workers = [], set[int]()
    for pid in all_pids():
        environ = environ_of(pid)
        if environ.get("SLURM_JOB_ID") == job and not is_elsewhere(environ, os.environ) and is_own(pid):
            found.append(_process(pid, environ))
            if "LOCAL_RANK" in environ:
                workers.add(pid)
    if workers:  # of a launcher such as torchrun, which has the number of its own task
        found = [one if one.pid in workers else one._replace(rank=-1) for one in found]
    own = {os.getpid()}
    return [one for one in found if one.ticks and is_alive(one.pid) and not _is_below(one, own)]


def is_elsewhere(environ: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether a process is of another cluster or node, whose slurmd is on this host as well. Pure."""
    return any(own.get(name, here) != here for name in _PLACE if (here := environ.get(name)))


def _is_below(one: Process, own: set[int]) -> bool:
    if one.pid in own or one.parent in own:
        own.add(one.pid)
        return True
    return False


def all_pids() -> list[int]:
    """Return the processes of this host."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def is_own(pid: int) -> bool:
    """Return whether a process is this user's."""
    with suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116
    return False


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it is not this user's to see."""
    return {name: value for name, _, value in (word.partition("=") for word in _words(pid, "environ")) if name}


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; an empty word if there is none."""
    return _words(pid, "cmdline")


def _words(pid: int, name: str) -> list[str]:
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read().decode("utf-8", "replace").rstrip("\0").split("\0")
    return [""]


def _process(pid: int, environ: Mapping[str, str]) -> Process:
    step = _number(environ.get("SLURM_STEP_ID", ""))
    step = -1 if step >= _NO_STEP else step
    rank = _number(environ.get("RANK", "")) if "LOCAL_RANK" in environ else -1
    if rank < 0 <= step:
        rank = _number(environ.get("SLURM_PROCID", ""))
    name, is_launched = cut(" ".join(words_of(pid)), 120), "RESIL_ATTEMPT" in environ
    return Process(pid, start_ticks(pid) or 0, parent_of(pid), rank, step, is_launched, name)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 12 else -1


def ranks_in(processes: Sequence[Process]) -> dict[int, Process]:
    """Return the process of each rank: the topmost that has its number. Pure.

    A program that the batch shell launched itself, without srun and torchrun, is rank 0.
    """
    by_pid = {one.pid: one for one in processes if not is_helper(one)}
    roots: dict[int, Process] = {}
    for one in sorted(by_pid.values(), key=lambda each: (each.step, -each.ticks)):  # the newest step, its first process
        parent = by_pid.get(one.parent)
        if one.rank >= 0 and (parent is None or parent.rank != one.rank or parent.step != one.step):
            roots[one.rank] = one
    launched = [one for one in by_pid.values() if one.is_launched]
    pids = {one.pid for one in launched}
    if not roots and (tops := [one for one in launched if one.parent not in pids and not _is_shell(one)]):
        roots[0] = min(tops, key=lambda one: one.ticks)
    elif not roots and (below := [one for one in launched if not _is_shell(one)]):
        roots[0] = min(below, key=lambda one: one.ticks)
    return roots


def is_helper(one: Process) -> bool:
    """Return whether a process is one of resil's, beside the training. Pure."""
    return bool(_OWN.search(one.name))


def _is_shell(one: Process) -> bool:
    """Return whether this is the shell that the batch shell launches the training in: `bash -o pipefail -c ...`."""
    return one.name.partition(" ")[0].rpartition("/")[2] in ("bash", "sh") and " -c " in one.name


def tree_of(one: Process, processes: Sequence[Process]) -> list[Process]:
    """Return a process and its descendants in a job, parents first, without helpers. Pure."""
    found = [one]
    for other in sorted(processes, key=lambda each: each.ticks):
        if other.parent in {each.pid for each in found} and other not in found and not is_helper(other):
            found.append(other)
    return found


def answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do what an order says on this node: find the processes of a job, or signal some."""
    if "signal" in order:
        return send(int(order["signal"]), order["pids"])
    return {"processes": [list(one) for one in of_job(str(order["job"]))]}


def main() -> int:
    """Answer for this node."""
    order = serve(
        lambda own: answer({**own, "signal": 0} if "signal" in own else own)
    )  # 0: only whether it can be sent
    if "signal" in order:  # after the answer: this task may end with the job that it hits
        answer(order)
    return 0


if __name__ == "__main__":
    sys.exit(main())
