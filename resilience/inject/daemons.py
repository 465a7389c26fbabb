"""The daemons of a real SLURM on this host, for administrators of test clusters: found, ended, started again."""

# ruff: noqa: PTH115, PTH116, PTH121

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from resilience.base.processes import descendants, is_same, start_ticks
from resilience.errors import ResilError
from resilience.inject.holding import send
from resilience.inject.processes import all_pids, environ_of, words_of

KEPT = ("SLURM_CONF", "PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TZ")
"""Variables of a daemon with which it is started again; others may hold secrets, and stay out of the record."""
END_S = 30.0


class Daemon(NamedTuple):
    """A process of slurmctld or slurmd.

    Attributes:
        argv: its command line, as it was started.
        environ: some of its environment.
    """

    pid: int
    ticks: int
    uid: int
    gid: int
    argv: tuple[str, ...]
    environ: dict[str, str]
    cwd: str

    @property
    def node(self) -> str:
        """Return the node that a slurmd was started for by -N; empty: the host's own name."""
        for place, word in enumerate(self.argv):
            if word == "-N" and place + 1 < len(self.argv):
                return self.argv[place + 1]
            if word.startswith("-N") and len(word) > 2:
                return word[2:]
        return ""


def find_daemons(name: str, conf: str = "") -> list[Daemon]:
    """Return the daemons of this name that this user may signal; those of this $SLURM_CONF."""
    found = []
    for pid in all_pids():
        with suppress(OSError):
            argv = words_of(pid)
            if argv[0].rpartition("/")[2] != name:
                continue
            os.kill(pid, 0)
            info = os.stat(f"/proc/{pid}")
            environ = {key: value for key, value in environ_of(pid).items() if key in KEPT}
            argv[0] = _program(pid, argv[0], environ.get("PATH"))
            one = Daemon(pid, start_ticks(pid) or 0, info.st_uid, info.st_gid, tuple(argv), environ,
                         os.readlink(f"/proc/{pid}/cwd"))  # fmt: skip
            if one.ticks and environ.get("SLURM_CONF", "") == conf:
                found.append(one)
    pids = {one.pid for one in found}
    return [one for one in found if not any(one.pid in descendants(other) for other in pids - {one.pid})]


def _program(pid: int, name: str, path: str | None) -> str:
    """Return the path of a process's program under the name that it was started by: it is found by that."""
    place, exe = shutil.which(name, path=path), f"/proc/{pid}/exe"
    return place if place is not None and os.path.samefile(place, exe) else os.readlink(exe)


def steps_of(node: str, conf: str) -> list[tuple[int, int]]:
    """Return the processes of all jobs of a node on this host: their environment names no other node or slurm.conf."""
    found = set[int]()
    for pid in all_pids():
        named = environ_of(pid)
        is_here = named.get("SLURMD_NODENAME", node) == node and named.get("SLURM_CONF", "") == conf
        if named and is_here and words_of(pid)[0].partition(" ")[0].rpartition("/")[2].startswith("slurmstepd"):
            found |= {pid, *descendants(pid)}
    return [(pid, start_ticks(pid) or 0) for pid in sorted(found)]


def end(pids: Sequence[Sequence[int]]) -> None:
    """End daemons, given by pid and start, by SIGTERM, as systemctl stop does. Raise ResilError if one does not end."""
    found = send(signal.SIGTERM, pids)
    if not found["sent"]:
        raise ResilError(f"no daemon got the signal: gone {found['gone']}, refused {found['refused']}")
    until = time.monotonic() + END_S
    while left := [pid for pid, ticks in pids if is_same(pid, ticks)]:
        if time.monotonic() > until:
            raise ResilError(f"process {left[0]} did not end within {END_S:g} s")
        time.sleep(0.05)


def start_again(record: Sequence[Any]) -> None:
    """Start a daemon again as it was started, unless one with the same command line runs."""
    pid, ticks, uid, gid, argv, environ, cwd = record
    one = Daemon(pid, ticks, uid, gid, tuple(argv), dict(environ), cwd)
    name = one.argv[0].rpartition("/")[2]
    if any(other.argv[1:] == one.argv[1:] for other in find_daemons(name, one.environ.get("SLURM_CONF", ""))):
        return
    account: dict[str, Any] = {"user": one.uid, "group": one.gid} if os.geteuid() == 0 and one.uid else {}
    subprocess.Popen(
        one.argv, env=one.environ, cwd=one.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, **account,
    )  # fmt: skip
