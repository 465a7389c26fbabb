"""When the job ends: told at the launch, and asked again now and then, because time limits are changed.

`scontrol update TimeLimit=` and `EndTime=` change the end of a running job, and a suspended job ends later; the
variables that the job was launched with stay as they are. So squeue is asked (`%e`, in epoch seconds by
SLURM_TIME_FORMAT=%s: true of 20.11 to 26.05), or the record of the embedded scheduler is read. TimeLimit and `%L` are
not asked, because SLURM rounds them to minutes after `EndTime=` was set.

Unknown is not an end: an answer that is no time (`N/A`, `Unknown`), no answer, a controller that is down, a program
that hangs, all change nothing. `NONE` is squeue's word for a job without a limit. OverTimeLimit (slurm.conf) lets a
job live on beyond its limit; it is not counted on, as an administrator may take it away.

Asking never blocks the caller. It is done in a daemon thread of its own, with a deadline that is a real one: who does
not answer is killed, and left behind where that does not help (a hung file system).
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
"""How much later than its deadline a question is given up by who asked it."""
LOCAL_EVERY_S = 2.0
"""How often the record of the embedded scheduler is read: it is a small file and nobody else is asked."""
_KILL_GRACE_S = 0.5
_POLL_S = 0.02
_EARLIEST, _LATEST = 10**9, 10**11
"""What can be an end, in seconds since the epoch: from 2001 on. SLURM's zero stands for none known."""
_NOT_INSTALLED = (126, 127)
"""The shell's exit codes for a program that is not there, or cannot be run (POSIX, Shell Command Language, 2.8.2)."""

_left_behind: list[subprocess.Popen[bytes]] = []
"""Children that could not be killed. Kept, so that they are reaped when they end."""


class CannotAsk(Exception):
    """There is nobody to ask here, and there will not be."""


class EndTime:
    """The end of the job in seconds since the epoch, as far as it is known. Never blocks.

    Attributes:
        end: when the job ends; NO_LIMIT when it never does; None when nobody knows. Never later than the cap.
        cap: when `stop_after` ends the attempt, whatever the scheduler says; NO_LIMIT without one.
        every_s: how often `refresh` asks; 0 for never.
        checked_at: when the last question was answered or given up, in monotonic seconds; None before the first.
    """

    def __init__(
        self, end: float | None, ask: Callable[[], float | None] | None, every_s: float, cap: float = NO_LIMIT
    ) -> None:
        """`ask` returns the end, or None when that could not be learned; it may block. Raise CannotAsk: never again."""
        self.cap = cap
        self.learn(end)
        self.every_s = every_s if ask is not None else 0.0
        self.checked_at: float | None = None
        self._ask = ask
        self._question: BackgroundCall[float | None] | None = None
        self._begun_at: float | None = None

    @property
    def can_ask(self) -> bool:
        """Whether there is somebody to ask."""
        return self.every_s > 0

    def learn(self, end: float | None) -> None:
        """Take this for the job's end."""
        self.end = end if self.cap == NO_LIMIT else min(self.cap, NO_LIMIT if end is None else end)

    def refresh(self, now: float) -> None:
        """Take in what was answered, and ask again if it is time to. `now` is in monotonic seconds."""
        self._take_answer(now)
        if self.can_ask and (self._begun_at is None or now - self._begun_at >= self.every_s):
            self.ask(now)

    def ask(self, now: float) -> None:
        """Ask now, unless a question is under way. The answer is taken in by a later `refresh`."""
        self._take_answer(now)
        if self.can_ask and self._question is None and self._ask is not None:
            self._begun_at = now
            try:
                self._question = BackgroundCall(self._ask, "resil-end-time").start()
            except RuntimeError:  # no more threads: nothing is learned, and the training goes on
                self.checked_at = now

    def _take_answer(self, now: float) -> None:
        question = self._question
        if question is None:
            return
        if question.is_over:
            self._question, self.checked_at = None, now
            try:
                end = question.result()
            except CannotAsk:
                self.every_s = 0.0
            except Exception:  # whatever it is, it is no answer
                return
            else:
                if end is not None:
                    self.learn(end)
        elif self._begun_at is not None and now - self._begun_at > DEADLINE_S + GRACE_S:
            # Given up, for who waits; but no second thread is started beside one that hangs.
            self.checked_at = now


def find_stop_time(place: RankInfo, environ: Mapping[str, str], stop_after_s: float, now: float) -> float:
    """Given [guard] `stop_after`, return when the attempt ends by it, in seconds since the epoch. 0: NO_LIMIT.

    In a job of a template its batch shell says when (RESIL_STOP_AT), by its own start, and ends the attempt then. A
    guard that stands alone counts from now on. What another job has left in the environment is passed over.
    """
    told = environ.get("RESIL_STOP_AT", "")
    is_ours = environ.get("SLURM_JOB_ID", place.job_id) == environ.get("RESIL_JOB_ID")
    if stop_after_s and place.attempt and is_ours and told.isascii() and told.isdigit() and len(told) < 19:
        return float(told)
    return now + stop_after_s if stop_after_s else NO_LIMIT


def find_end_time(place: RankInfo, environ: Mapping[str, str], every_s: float, cap: float = NO_LIMIT) -> EndTime:
    """Given where we are, and when `stop_after` ends the attempt, return the end of the job, with whom to ask about it.

    Nobody is asked for a job that this process is not in: the environment of a test may tell of another one.
    """
    environ = dict(environ)  # as it is now: the training may change its own while another thread reads it
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
    return EndTime(place.end_time, lambda: ask_slurm(job_id, environ), every_s, cap)


def read_local_end(spool: str, job_id: str) -> float | None:
    """Read the end of a job of the embedded scheduler from its record: `start` + `time_limit_s`, null for no limit."""
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


def ask_slurm(
    job_id: str, environ: Mapping[str, str], deadline_s: float = DEADLINE_S, program: str = "squeue"
) -> float | None:
    """Ask squeue when the job ends. Return NO_LIMIT if it has no limit, None if there is no answer to believe.

    Blocks for `deadline_s` and a grace at most. Raise CannotAsk if there is no squeue.
    """
    scrubbed = ("SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "LC_ALL", "LANG")
    clean = {name: text for name, text in environ.items() if name not in scrubbed and not name.startswith("SQUEUE_")}
    clean |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    # %A first: `-j` of an array's own number shows all its tasks, and one of them has that number itself.
    code, output = _run([program, "-h", "-j", job_id, "-o", "%A %e"], clean, deadline_s)
    if code in _NOT_INSTALLED:
        raise CannotAsk
    return parse_end(output, job_id) if code == 0 else None


def parse_end(output: str, job_id: str) -> float | None:
    """Given squeue's lines of `%A %e`, return the end of the job. For instance, `12 1795000000` gives 1795000000.0.

    `NONE` gives NO_LIMIT; `N/A`, `Unknown`, no such line, or two that differ give None.
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
    """Run a program; return its exit code and the beginning of its output. The code is None if it gave no answer.

    The shell stands between because starting a program holds the interpreter's lock until the program's file is found
    and opened (vfork(2) suspends the caller until then), and squeue may lie on a file system that hangs: /bin/sh does
    not, and what it runs then hangs alone. vfork itself is kept: fork would copy the page tables of a whole training.
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
            is_over = child.poll() is not None  # asked first: whatever an ended program wrote lies in the pipe
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
    except OSError:  # nothing there now
        return b""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it with all that it started; leave it behind when it does not die: it waits in the kernel."""
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
