"""A directory on one host, as a fault of files sees it; on the nodes of a SLURM job it is asked by a task beside the
training: `python -m resilience.inject.files.place ORDER`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from resilience.base.mounts import current_mounts, mount_of
from resilience.errors import ProbeError, ResilError
from resilience.inject.files import ballast, holder, mounting
from resilience.records import from_record
from resilience.runs.run_jobs import srun_command
from resilience.system.answers import answer_lines, parse_answers
from resilience.system.ports import System

SRUN_S = 45.0
"""For a task on every node: its start from a shared disk, and a holder that is slow to end."""
SHOWN = 3


class Facts(NamedTuple):
    """What matters of a directory on one host.

    Attributes:
        error: why it cannot be used; empty: it can.
        directory: without symbolic links.
        owner: the uid of its owner, and `uid` that of this process.
        fill, mountable: why its file system must not be filled, and why nothing can be mounted; empty: it can.
        is_faulty: whether a fault is mounted there already.
        opened: processes of this user with a file open below it, or working there: `python (4242)`.
        device: the number of its file system.
    """

    error: str = ""
    directory: str = ""
    owner: int = 0
    uid: int = 0
    fill: str = ""
    mountable: str = ""
    is_faulty: bool = False
    opened: tuple[str, ...] = ()
    device: int = 0


def look(path: str) -> Facts:
    """Return what matters of a directory on this host."""
    mounts = current_mounts()
    mount = mount_of(path, mounts)
    if mount is not None and mount.type == mounting.TYPE:
        return Facts(directory=path, is_faulty=True)
    try:
        directory = Path(path).resolve(strict=True)
        status, amounts = directory.stat(), os.statvfs(directory)
        mount = mount_of(directory, mounts)
        top = os.stat(mount.point).st_uid if mount is not None else -1  # noqa: PTH116 - the point is a text
    except OSError as error:
        return Facts(error=f"{path}: {error.strerror}")
    why = "" if directory.is_dir() else f"{path} is not a directory"
    if not why and not os.access(directory, os.W_OK):
        why = f"you cannot write to {path}"
    fill = ballast.why_not(
        mount, owner=top, uid=os.geteuid(), size=amounts.f_blocks * amounts.f_frsize,
        free=amounts.f_bavail * amounts.f_frsize, memory_free=_memory_free(),
    )  # fmt: skip
    return Facts(
        why, str(directory), status.st_uid, os.geteuid(), fill, mounting.why_not(),
        mount is not None and mount.type == mounting.TYPE, tuple(_opened(directory)), status.st_dev,
    )  # fmt: skip


def _memory_free() -> int:
    with suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _opened(directory: Path) -> list[str]:
    """Return this user's processes that a mount over the directory does not reach, as far as they can be seen."""
    found, inside = [], f"{directory}/"
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if not process.name.isdigit() or process.stat().st_uid != os.geteuid():
                continue
            links = [process / "cwd", *(process / "fd").iterdir()]
            if int(process.name) != os.getpid() and any(_below(link, inside) for link in links):
                found.append(f"{(process / 'comm').read_text().strip()} ({process.name})")
    return found[:SHOWN] + ([f"{len(found) - SHOWN} more"] if len(found) > SHOWN else [])


def _below(link: Path, inside: str) -> bool:
    with suppress(OSError):
        return f"{os.readlink(link)}/".startswith(inside)  # noqa: PTH115 - sockets have texts that are no paths
    return False


class Hosts:
    """Looks at a directory and ends faults on the hosts where a training runs, or on this one."""

    def __init__(self, system: System, job: str, hosts: Sequence[str]) -> None:
        """`hosts`: of the SLURM job `job`; none: this host, directly."""
        self._system, self._job, self._hosts = system, job, tuple(hosts)

    @property
    def command(self) -> list[str]:
        """Return what starts a program there: nothing, or an srun."""
        return srun_command(self._job, self._hosts) if self._hosts else []

    def look(self, path: str) -> dict[str, Facts]:
        """Return the facts by host. Raise ProbeError if a node does not answer."""
        if not self._hosts:
            return {self._system.host.name: look(path)}
        return {host: from_record(Facts, one) for host, one in self._ask({"look": path}).items()}

    def stop(self, state: Mapping[str, Any], name: str) -> None:
        """End a fault. Raise ResilError if it remains somewhere."""
        order = {"stop": [name, state["how"], state["directory"], state["control"]]}
        found = self._ask(order) if self._hosts else {self._system.host.name: answer(order)}
        errors = [f"{host}: {one['error']}" for host, one in found.items() if one["error"]]
        if errors:
            raise ResilError("; ".join(errors))

    def _ask(self, order: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        argv = [*self.command, sys.executable, "-m", __name__, json.dumps(order)]
        answers = parse_answers(self._system.runner.stream(argv, timeout_s=SRUN_S))
        found = {str(one["host"]): one["found"] for one in answers}
        if missing := sorted(set(self._hosts) - set(found)):
            raise ProbeError(f"{', '.join(missing)} did not answer", hint="see: squeue, sinfo")
        return found


def answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do what an order says on this host."""
    if "look" in order:
        return look(order["look"])._asdict()
    name, how, directory, control = order["stop"]
    try:
        holder.stop(name, how, Path(directory), Path(control) if control else None)
    except (ResilError, OSError) as error:
        return {"error": str(error)}
    return {"error": ""}


def main(order: str) -> int:
    """Answer for this node."""
    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    sys.stdout.write(answer_lines({"host": host, "found": answer(json.loads(order))}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
