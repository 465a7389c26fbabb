"""Who lives on this machine, and how to end exactly those who belong to a test cluster. Standard library only.

A process id alone names nobody for long, so a process is always a pid with its start time (proc(5), field 22).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.waiting import pause_after

CGROUPS = Path("/sys/fs/cgroup")
HIERARCHIES = ("freezer", "memory")
CGROUP_PARENT = "resil-slurm"

PATIENCE_S = 240.0
"""So long every wait for SLURM lasts at most. slurmctld looks at time limits, silent nodes and, where nothing changes,
the queue only every 30 s, and misses some of these looks on a busy machine."""


@dataclass(frozen=True)
class Process:
    """One life of a process id."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now, or None when there is none (a zombie is none)."""
        fields = _stat(pid)
        if fields is None or fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    @property
    def stopped(self) -> bool:
        fields = _stat(self.pid)
        return fields is not None and fields[0] == "T"

    def send(self, number: signal.Signals) -> None:
        """Signal this process and no other; a process that is gone is no error."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self) -> None:
        until(lambda: not self.alive, f"process {self.pid} to end")


def until(true: Callable[[], object], what: str, *, every_s: float = 0.02) -> None:
    """Wait until something is true; raise TimeoutError, saying what was waited for, after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        began = time.monotonic()
        if true():
            return
        if began > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:g} s for {what}")
        pause_after(began, every_s)


@contextlib.contextmanager
def later(delay_s: float, action: Callable[[], None]) -> Iterator[threading.Timer]:
    """Do something in a while, beside the block: at its end it is done, or it never will be.

    `join()` in the block waits for it. A timer that outlives its test would keep pytest from ending.
    """
    timer = threading.Timer(delay_s, action)
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()
        timer.join()


def connections(port: int, spared: int = 0) -> int:
    """Return how many clients a server on this port has not done with, those it has not yet accepted included.

    A client that gave up stays in the count until the server has read what it said and closed (tcp(7), CLOSE_WAIT).
    The process `spared` is not counted as a client.
    """
    established, close_wait = "01", "08"
    rows: list[list[str]] = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            rows += [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    held = sockets(spared)
    theirs = {_port(row[1]) for row in rows if f"socket:[{row[9]}]" in held}
    clients = [_port(row[2]) for row in rows if _port(row[1]) == port and row[3] in (established, close_wait)]
    return len([client for client in clients if client not in theirs])


def _port(address: str) -> int:
    """The port of an address in /proc/net/tcp, `0100007F:5208` (proc(5))."""
    return int(address.rpartition(":")[2], 16)


def sockets(pid: int) -> set[str]:
    """Return the names of the sockets that a process has open, `socket:[INODE]` (proc(5)); none when it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.fspath(descriptor.readlink()))
    return found


def text_of(path: Path, what: str = "\n") -> str:
    """Wait until another process has written `what` (by default a whole line) into a file; return the file's text."""
    seen = ""

    def there() -> bool:
        nonlocal seen
        with contextlib.suppress(FileNotFoundError):
            seen = path.read_text()
        return what in seen

    until(there, f"{what!r} in {path}")
    return seen


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: [0] state, [1] parent, [19] start time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def pids() -> set[int]:
    """Return every process id of this machine, in a fraction of a millisecond."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - names only


def descendants(roots: Collection[int]) -> set[int]:
    """Return the living children of these pids, their children, and so on; without the roots."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found - set(roots)


def ancestors(pid: int) -> Iterator[int]:
    """Yield this pid, its parent's, and so on up to the first process."""
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0


def environ(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty when it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in raw.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def program(pid: int) -> str:
    """Return the name of the program that a process runs (/proc/PID/comm, proc(5)); empty when it is gone.

    slurmstepd writes over its command line and its environment; this name stays.
    """
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""


def argv(pid: int) -> list[str]:
    """Return the command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def belonging(root: Path) -> set[int]:
    """Return the pids in this cluster's cgroups, and those that name its directory.

    They name it by their command line, their working directory or SLURM_CONF in their environment. The caller and its
    ancestors are left out: a test may have changed into the directory itself.
    """
    needle = os.fsencode(f"{root}")
    spared = set(ancestors(os.getpid()))
    found = cgroup_members(root.name) - spared
    for pid in pids():
        if pid in spared or Process.of(pid) is None:
            continue
        with contextlib.suppress(OSError):
            if (
                needle in Path(f"/proc/{pid}/cmdline").read_bytes()
                or os.fsencode(Path(f"/proc/{pid}/cwd").readlink()).startswith(needle)
                or b"\0SLURM_CONF=" + needle in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            ):
                found.add(pid)
    return found


def kill_all(find: Callable[[], Collection[int]], timeout_s: float = 30.0) -> set[int]:
    """Kill what `find` finds, again and again until it finds nothing; return what is left at the deadline.

    One pass is not enough: a process may fork between the look and the kill. Only the kernel's own delay
    (a process in uninterruptible sleep) is waited for.
    """
    deadline = time.monotonic() + timeout_s
    while found := find():
        if time.monotonic() > deadline:
            return set(found)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all at once: none may tell of the end of another
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.01)
    return set()


def cgroups(name: str) -> list[Path]:
    """Return the cgroup (version 1) directories that exist for this cluster, one per hierarchy."""
    return [path for h in HIERARCHIES if (path := CGROUPS / h / CGROUP_PARENT / name).is_dir()]


def _directories(top: Path) -> Iterator[Path]:
    """Yield `top` and all directories below it, deepest first; one that vanishes is no error, unlike in rglob."""
    for directory, _, _ in os.walk(top, topdown=False):
        yield Path(directory)


def cgroup_members(name: str) -> set[int]:
    """Return who was started as a job of this cluster, wherever its environment, session and parent went since."""
    found: set[int] = set()
    for top in cgroups(name):
        for directory in _directories(top):
            with contextlib.suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return {pid for pid in found if Process.of(pid)}


def thaw(name: str) -> None:
    """Let frozen processes of this cluster run: the kernel delivers not even SIGKILL to them before."""
    for top in cgroups(name):
        for directory in _directories(top):
            with contextlib.suppress(OSError):  # nor is there one in other hierarchies, and none can be made
                (directory / "freezer.state").write_text("THAWED")


def remove_cgroups(name: str) -> None:
    """Remove this cluster's cgroups, deepest first; those still busy stay (rmdir(2) refuses)."""
    for top in cgroups(name):
        for directory in _directories(top):
            with contextlib.suppress(OSError):
                directory.rmdir()
