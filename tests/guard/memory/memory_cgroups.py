"""Memory cgroups for tests: a pretended /proc and /sys, and real ones where this machine lets us make them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from resilience.guard.memory.cgroup import find_directories

RECORDED = Path(__file__).parents[2] / "recorded" / "memory"
MIB = 2**20
NO_LIMIT_V1 = "9223372036854771712\n"
MEMINFO = "MemTotal:       24684096 kB\nMemFree:        23544596 kB\nMemAvailable:   {available} kB\nBuffers: 8 kB\n"


@dataclass
class Machine:
    """A directory that looks like `/`, as far as memory goes."""

    root: Path

    def proc(self, cgroup: str, mountinfo: str, *, meminfo: str | None = None) -> Machine:
        """What /proc says; texts as the kernel gives them."""
        own = self.root / "proc" / "self"
        own.mkdir(parents=True, exist_ok=True)
        (own / "cgroup").write_text(cgroup)
        (own / "mountinfo").write_text(mountinfo)
        (self.root / "proc" / "meminfo").write_text(
            MEMINFO.format(available=20_000_000) if meminfo is None else meminfo
        )
        return self

    def cgroup(self, directory: str, *, version: int, used: int, limit: int | None, **more: str) -> Path:
        """A cgroup below the mount's directory; `more` are further files, with `__` for the dot."""
        path = self.root / directory.lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        stat = "total_inactive_file 0\n" if version == 1 else "inactive_file 0\n"
        files = {"cgroup.procs": "", "memory.stat": stat}
        if version == 1:
            files["memory.usage_in_bytes"] = f"{used}\n"
            files["memory.limit_in_bytes"] = NO_LIMIT_V1 if limit is None else f"{limit}\n"
        else:
            files |= {"memory.current": f"{used}\n", "memory.high": "max\n"}
            files["memory.max"] = "max\n" if limit is None else f"{limit}\n"
        for name, text in (files | {name.replace("__", "."): text for name, text in more.items()}).items():
            (path / name).write_text(text)
        return path

    def slurm(self, version: int, *, used: int, limits: Mapping[str, int | None], stat: str = "") -> Path:
        """The cgroups of job 12 as SLURM makes them; `limits` by `job_12`, `step_0`, `task_0`. Return the job's."""
        if version == 1:
            top, names = "/sys/fs/cgroup/memory/slurm", ["uid_1000", "job_12", "step_0", "task_0"]
        else:
            top, names = "/sys/fs/cgroup/system.slice/slurmstepd.scope", ["job_12", "step_0", "user", "task_0"]
        self.proc(
            (RECORDED / f"v{version}_cgroup.txt").read_text(), (RECORDED / f"v{version}_mountinfo.txt").read_text()
        )
        more = {"memory__stat": stat} if stat else {}
        self.cgroup(top, version=version, used=used, limit=None, **more)
        for depth, name in enumerate(names):
            path = "/".join([top, *names[: depth + 1]])
            self.cgroup(path, version=version, used=used, limit=limits.get(name), **more)
        return next((self.root / "sys").rglob("job_12"))


@dataclass
class RealCgroup:
    """A version 1 memory cgroup `job_12` with a limit, and `step_0/task_0` in it without one."""

    job: Path

    @property
    def task(self) -> Path:
        return self.job / "step_0" / "task_0"

    def kills(self) -> int:
        """How many processes of the job the kernel has killed for want of memory."""
        text = "".join(
            (directory / "memory.oom_control").read_text() for directory in (self.job, self.task.parent, self.task)
        )
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def used_bytes(self) -> int:
        """As the kernel counts: with file cache."""
        return int((self.job / "memory.usage_in_bytes").read_text())


def make_real_cgroup(limit_bytes: int) -> RealCgroup:
    """Make one below the hierarchy's root, or skip with the reason."""
    directories = find_directories()
    if not directories or directories[-1].version != 1:
        pytest.skip("needs the memory controller in cgroup version 1: here it is in version 2, or nowhere")
    top = Path(directories[-1].directory) / f"resil-test-{os.getpid()}-{time.monotonic_ns()}"
    found = RealCgroup(top / "job_12")
    try:
        found.task.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"memory cgroups are not writable here ({error.strerror}): needs root (sudo make test)")
    (found.job / "memory.limit_in_bytes").write_text(str(limit_bytes))
    return found


def remove_real_cgroup(cgroup: RealCgroup) -> None:
    """Remove it; whatever is left in it is killed, by number."""
    end = time.monotonic() + 20
    for directory in (cgroup.task, cgroup.task.parent, cgroup.job, cgroup.job.parent):
        while True:
            for pid in (directory / "cgroup.procs").read_text().split():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    continue
            try:
                directory.rmdir()
                break
            except OSError:  # a killed process takes a moment to go
                assert time.monotonic() < end, f"{directory} stays busy"
                time.sleep(0.02)


@contextmanager
def a_real_cgroup(limit_bytes: int) -> Iterator[RealCgroup]:
    """The cgroup of a job with this limit, for as long as it is needed."""
    cgroup = make_real_cgroup(limit_bytes)
    try:
        yield cgroup
    finally:
        remove_real_cgroup(cgroup)
