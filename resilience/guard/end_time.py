"""The end time of the job: set at its launch, and queried again at intervals, because time limits change.

`scontrol update TimeLimit=` and `EndTime=` change the end of a running job, and a suspended job ends later; the job's
environment variables stay unchanged. So the guard queries squeue (`%e`, in epoch seconds with SLURM_TIME_FORMAT=%s;
verified for 20.11 to 26.05), or reads the record of the embedded scheduler. It does not query TimeLimit and `%L`,
because SLURM rounds them to minutes after `EndTime=` was set.

A failed query changes nothing: an answer that is not a time (`N/A`, `Unknown`), no answer, a controller that is down, a
program that hangs. squeue prints `NONE` for a job without a limit. OverTimeLimit (slurm.conf) lets a job exceed its
limit; the guard ignores this, because an administrator may remove it.

A query never blocks the caller: it runs in a daemon thread with a hard deadline. A program that exceeds the deadline is
killed, or abandoned if that fails (a hung file system).
"""

from __future__ import annotations

import contextlib
import math
import os
import time

from resilience.base.background import BackgroundCall
from resilience.base.files import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from resilience.guard.rank_info import RankInfo

NO_LIMIT = math.inf
"""The end of a job without a time limit."""
DEADLINE_S = 20.0
"""How long squeue may take. A dead controller was measured to be reported after 9 s, a hung one after 10 s."""
GRACE_S = 2.0
"""The caller abandons a query this long after its deadline."""
LOCAL_EVERY_S = 2.0
"""How often the record of the embedded scheduler is read, which is one small file."""
_KILL_GRACE_S = 0.5
_POLL_S = 0.02
_EARLIEST, _LATEST = 10**9, 10**11
"""Plausible end times in seconds since the epoch: from 2001 on. SLURM's zero means unknown."""
_NOT_INSTALLED = (126, 127)
"""The shell's exit codes for a program that is missing or not executable (POSIX, Shell Command Language, 2.8.2)."""

_left_behind: list[subprocess.Popen[bytes]] = []
"""Children that could not be killed. Kept, so that they are reaped when they end."""


class QueryUnavailable(Exception):
    """The end time cannot be queried on this machine."""


class EndTime:
    """The end of the job in seconds since the epoch, as far as known. Never blocks.

    Attributes:
        end: when the job ends; NO_LIMIT for a job without a limit; None if unknown. Never later than the cap.
        cap: when `stop_after` ends the attempt, regardless of the scheduler; NO_LIMIT without `stop_after`.
        every_s: how often `refresh` queries; 0 for never.
        checked_at: when the last query ended or was abandoned, in monotonic seconds; None before the first.
    """

    def __init__(
        self, end: float | None, query: Callable[[], float | None] | None, every_s: float, cap: float = NO_LIMIT
    ) -> None:
        """`query` returns the end, or None if unknown, and may block. After QueryUnavailable it is not called again."""
        self.cap = cap
        self.update(end)
        self.every_s = every_s if query is not None else 0.0
        self.checked_at: float | None = None
        self._query = query
        self._running: BackgroundCall[float | None] | None = None
        self._begun_at: float | None = None

    @property
    def can_query(self) -> bool:
        """Return whether the end can be queried."""
        return self.every_s > 0

    def update(self, end: float | None) -> None:
        """Set the job's end, limited by the cap."""
        self.end = end if self.cap == NO_LIMIT else min(self.cap, NO_LIMIT if end is None else end)

    def refresh(self, now: float) -> None:
        """Read the result of the last query, and query again if due. `now` is in monotonic seconds."""
        self._collect(now)
        if self.can_query and (self._begun_at is None or now - self._begun_at >= self.every_s):
            self.query(now)

    def query(self, now: float) -> None:
        """Start a query, unless one is running. A later `refresh` reads the result."""
        self._collect(now)
        if self.can_query and self._running is None and self._query is not None:
            self._begun_at = now
            try:
                self._running = BackgroundCall(self._query, "resil-end-time").start()
            except RuntimeError:  # no more threads: the end stays as known
                self.checked_at = now

    def _collect(self, now: float) -> None:
        running = self._running
        if running is None:
            return
        if running.is_over:
            self._running, self.checked_at = None, now
            try:
                end = running.result()
            except QueryUnavailable:
                self.every_s = 0.0
            except Exception:  # any error means no answer
                return
            else:
                if end is not None:
                    self.update(end)
        elif self._begun_at is not None and now - self._begun_at > DEADLINE_S + GRACE_S:
            # Abandoned; no second thread is started beside one that hangs.
            self.checked_at = now


def find_stop_time(place: RankInfo, environ: Mapping[str, str], stop_after_s: float, now: float) -> float:
    """Given [guard] `stop_after`, return when it ends the attempt, in seconds since the epoch. 0: NO_LIMIT.

    In a job of a template the batch shell sets the time (RESIL_STOP_AT), counted from its own start, and ends the
    attempt then. Without a template the guard counts from now. A value left over from another job is ignored.
    """
    text = environ.get("RESIL_STOP_AT", "")
    is_ours = environ.get("SLURM_JOB_ID", place.job_id) == environ.get("RESIL_JOB_ID")
    if stop_after_s and place.attempt and is_ours and text.isascii() and text.isdigit() and len(text) < 19:
        return float(text)
    return now + stop_after_s if stop_after_s else NO_LIMIT


def find_end_time(place: RankInfo, environ: Mapping[str, str], every_s: float, cap: float = NO_LIMIT) -> EndTime:
    """Return the end of the job, limited by `cap` (`stop_after`), with the query that updates it.

    No query for a job that this process is not part of: a test's environment may name another job.
    """
    environ = dict(environ)  # a copy: the training may change its environment while another thread reads it
    job_id = place.job_id
    is_ours = job_id != "0" and job_id in (environ.get("RESIL_JOB_ID"), environ.get("SLURM_JOB_ID"))
    if not is_ours or not every_s:
        return EndTime(place.end_time, None, 0.0, cap)
    if environ.get("RESIL_SCHEDULER") == "local":
        spool = environ.get("RESIL_LOCAL_SPOOL", "")
        if not os.path.isabs(spool):
            return EndTime(place.end_time, None, 0.0, cap)
        return EndTime(place.end_time, lambda: read_local_end(spool, job_id), min(every_s, LOCAL_EVERY_S), cap)
    if not job_id.isdigit():
        return EndTime(place.end_time, None, 0.0, cap)
    return EndTime(place.end_time, lambda: query_slurm(job_id, environ), every_s, cap)


def read_local_end(spool: str, job_id: str) -> float | None:
    """Return the end of a job of the embedded scheduler from its record: `start` + `time_limit_s`, null for no limit.

    None if the record cannot be read.
    """
    import json

    try:
        found = read_regular(os.path.join(spool, "jobs", job_id, "task.json"))
        record = json.loads(found[0]) if found is not None else None
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or "time_limit_s" not in record:
        return None
    start, limit = record.get("start"), record["time_limit_s"]
    if not isinstance(start, int | float):
        return None
    if limit is None:
        return NO_LIMIT
    return _plausible(start + limit) if isinstance(limit, int | float) else None


def query_slurm(
    job_id: str, environ: Mapping[str, str], deadline_s: float = DEADLINE_S, program: str = "squeue"
) -> float | None:
    """Return the job's end as reported by squeue: NO_LIMIT without a limit, None without a valid answer.

    Blocks for `deadline_s` and a grace at most. Raise QueryUnavailable if squeue is not installed.
    """
    scrubbed = ("SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "LC_ALL", "LANG")
    clean = {name: text for name, text in environ.items() if name not in scrubbed and not name.startswith("SQUEUE_")}
    clean |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    # %A first: `-j` with an array's job id lists all its tasks, and one of them has the same id.
    code, output = _run([program, "-h", "-j", job_id, "-o", "%A %e"], clean, deadline_s)
    if code in _NOT_INSTALLED:
        raise QueryUnavailable
    return parse_end(output, job_id) if code == 0 else None


def parse_end(output: str, job_id: str) -> float | None:
    """Given squeue's lines of `%A %e`, return the end of the job. For instance, `12 1795000000` gives 1795000000.0.

    `NONE` gives NO_LIMIT; `N/A`, `Unknown`, no such line, or two different ends give None.
    """
    rows = {tuple(line.split()) for line in output.splitlines()}
    ends = [row[1] for row in rows if len(row) == 2 and row[0] == job_id]
    if len(ends) != 1:
        return None
    if ends[0] == "NONE":
        return NO_LIMIT
    return _plausible(int(ends[0])) if ends[0].isascii() and ends[0].isdigit() and len(ends[0]) < 19 else None


def _plausible(end: float) -> float | None:
    return float(end) if _EARLIEST <= end < _LATEST else None


def _run(argv: list[str], environ: Mapping[str, str], deadline_s: float) -> tuple[int | None, str]:
    """Run a program; return its exit code and the beginning of its output. The code is None after a timeout.

    Runs through /bin/sh: starting a program holds the interpreter's lock until the program's file is found and opened
    (vfork(2) suspends the caller until then), and squeue may be on a hung file system. /bin/sh is not, and only the
    shell hangs then. vfork is kept, because fork would copy the page tables of the whole training.
    """
    import subprocess

    _left_behind[:] = [child for child in _left_behind if child.poll() is None]
    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$0" "$@"', *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None, ""
    assert child.stdout is not None
    output = b""
    deadline = time.monotonic() + deadline_s
    try:
        os.set_blocking(child.stdout.fileno(), False)
        while True:
            is_over = child.poll() is not None  # before the read: all output of an ended program is in the pipe
            output = (output + _read(child.stdout.fileno()))[:65536]
            if is_over:
                return child.returncode, output.decode("ascii", "replace")
            if time.monotonic() >= deadline:
                return None, ""
            time.sleep(_POLL_S)
    finally:
        child.stdout.close()
        _end(child)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # nothing to read yet
        return b""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its process group; abandon a child that does not die, in uninterruptible sleep."""
    import signal

    if child.poll() is not None:
        return
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_GRACE_S
    while child.poll() is None:
        if time.monotonic() >= deadline:
            _left_behind.append(child)
            return
        time.sleep(_POLL_S)
