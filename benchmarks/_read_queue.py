"""Reads a queue in a process of its own and says what that took: `python -m benchmarks._read_queue HOW FILE RUN`.

Standard library and resil's reader only, imported when needed: whatever else is imported would count as memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def read_json(path: str, run: str) -> int:
    """`squeue --json` as people read it; return how many jobs of the run there are, counted outside the time taken."""
    import json

    def read() -> list[dict[str, object]]:
        with open(path, encoding="utf-8") as file:
            jobs: list[dict[str, object]] = json.load(file)["jobs"]
            return jobs

    jobs = _timed(read)
    return sum(str(job["comment"]).startswith(f"resil:{run}:") for job in jobs)


def read_run(path: str, run: str) -> int:
    """Our answer, streamed through a pipe as from squeue, keeping the run's rows; return how many."""
    from resilience.schedulers._slurm.queue import scan_jobs
    from resilience.system.process import ProcessRunner

    rows = ProcessRunner().stream(["cat", path], timeout_s=600)
    return len(_timed(lambda: tuple(scan_jobs(rows, mark=f"resil:{run}:"))))


def read_all(path: str, run: str) -> int:
    """Our answer, every row made a Job and kept; return how many are the run's."""
    from resilience.schedulers._slurm.queue import scan_jobs
    from resilience.system.process import ProcessRunner

    rows = ProcessRunner().stream(["cat", path], timeout_s=600)
    return sum(job.comment.startswith(f"resil:{run}:") for job in _timed(lambda: tuple(scan_jobs(rows))))


_took_s = 0.0


def _timed(work: Callable[[], T]) -> T:
    global _took_s
    began = time.perf_counter()
    result = work()
    _took_s = time.perf_counter() - began
    return result


def peak_bytes() -> int:
    """This process's largest resident memory so far, in bytes.

    From /proc, not from getrusage or wait4: those count what the process that started us held as well.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def main(how: str, path: str, run: str) -> None:
    """Print the run's rows, the seconds that reading took (without starting and importing) and the peak in bytes."""
    found = {"json": read_json, "run": read_run, "all": read_all}[how](path, run)
    print(found, _took_s, peak_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
