"""What a supervisor keeps in the run directory, in a thread of its own: a dead file system never reaches the command.

The attempt with its heartbeat and journal, the heartbeat of the training with the step that its output names, the
newest output, and the switches, which are read here too. A full disk costs records, nothing else: each write is tried
again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.base.files import replace_file
from resilience.base.processes import is_stopped
from resilience.errors import EX_TEMPFAIL
from resilience.guard.heartbeat.beat import LEFT, RUNNING, Progress, RankBeat, file_name
from resilience.guard.heartbeat.run_directory import RunDirectoryWriter, file_mode, subfolder
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.switch_directory import FoundSwitch, SwitchDirectory
from resilience.supervisor.attempt import AttemptRecord, claim_attempt, find_attempt
from resilience.supervisor.command import say
from resilience.supervisor.tee import Newest

if TYPE_CHECKING:
    from resilience.runs.attempts import AttemptEnd
    from resilience.watch.checks._log.reading import LogState

FLUSH_S = 1.0
FIND_S = 5.0
"""How long a rank waits for the number that rank 0 takes."""
TRACES = "traces"
"""`traces/<jobid>.<restart>/rank_<n>`: the dumps of torch's flight recorder."""
KEPT_BYTES = 2**20
"""The end of the output in the run directory; the file may grow to twice this before it is cut."""
STEP_BYTES = 65536
"""The newest output between two heartbeats that is searched for steps."""
MOST_EVENTS = 1000
MOST_AT_ONCE = 64
"""Ranks that read the switches every `poll_s`; more of them read less often."""


@dataclass(frozen=True, slots=True)
class Role:
    """What this process writes. At most one process of a launch writes a file.

    Attributes:
        owns_attempt: the attempt, its journal and its output: rank 0, unless a batch shell of a template does.
        writes_beats: the heartbeat of the node: its first rank, unless a guard in the command does.
        label: displayed id of the job; empty without one.
        is_attended: whether a batch shell of a template enforces switches and time limit.
    """

    owns_attempt: bool
    writes_beats: bool
    label: str
    is_attended: bool


class Records:
    """The thread that uses the run directory.

    Attributes:
        attempt: number of the attempt; 0 while there is none.
        record: the attempt, if this process writes it.
        started: set once the attempt is claimed, or cannot be.
        refusal: exit code and reason if the command must not start; None if it may.
        trouble: why the run directory cannot be used; empty if it can.
        switches: accepted switches by kind, as last read. Replaced, never changed in place.
        is_guarded: whether a guard in the command follows the switches by itself.
        step: the newest step that the output named; None while there is none.
    """

    def __init__(
        self, place: RankInfo, role: Role, newest: Newest, settings: GuardSettings, pid: Callable[[], int]
    ) -> None:
        """`pid` returns that of the command, 0 before its start."""
        self.attempt = place.attempt if role.is_attended else 0
        self.record: AttemptRecord | None = None
        self.started = threading.Event()
        self.refusal: tuple[int, str] | None = None
        self.trouble = ""
        self.switches: Mapping[str, FoundSwitch] = {}
        self.is_guarded = False
        self.step: int | None = None
        self._place, self._role, self._newest, self._settings, self._pid = place, role, newest, settings, pid
        self._began = time.time()
        self._directory = SwitchDirectory(place, settings, Recorder(place, say if place.is_first else _say_nothing))
        self._events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MOST_EVENTS)
        self._followed: set[tuple[int, int, int]] = set()
        self._wake, self._finished = threading.Event(), threading.Event()
        self._end: tuple[AttemptEnd, int, str, bool, int | None] | None = None
        self._state: LogState | None = None
        self._rest = self._unsearched = b""
        self._seen_bytes = self._count = 0
        self._progress = Progress(self._began)
        self._beats: tuple[int, int] | None = None  # inode and mtime of the heartbeat that was written last
        self._writer: RunDirectoryWriter | None = None

    def start(self) -> None:
        """Start the thread. The attempt is claimed before anything else."""
        threading.Thread(target=self._run, name="resil-records", daemon=True).start()

    def add_event(self, name: str, **fields: Any) -> None:
        """Queue an event for the journal."""
        self._events.append((name, fields))
        self._wake.set()

    def remove(self, found: FoundSwitch) -> None:
        """Remove a switch that was followed."""
        self._followed.add(found.identity)

    def finish(
        self,
        end: AttemptEnd,
        code: int,
        why: str,
        wait_s: float,
        *,
        launched: bool = True,
        oom_kills: int | None = None,
    ) -> None:
        """Write the end of the attempt and everything that is queued, but wait for that no longer than `wait_s`."""
        self._end = (end, code, why, launched, oom_kills)
        self._wake.set()
        self._finished.wait(wait_s)

    def _run(self) -> None:
        beat_s = self._settings.beat_s
        beat_due = look_due = 0.0
        try:
            self._begin()
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.trouble = f"cannot use the run directory {self._place.run_dir}: {reason}"
        self.started.set()
        place = self._place
        self._writer = RunDirectoryWriter(place.run_dir, place.job_id, self.attempt, place.host, most_lines=MOST_EVENTS)
        while self._end is None:
            now = time.monotonic()
            _try(self._flush)
            if now >= look_due:
                look_due = now + look_interval_s(self._place, self._settings)
                _try(self._look)
            if now >= beat_due and self._pid():
                beat_due = now + beat_s
                _try(self._beat)
            self._wake.wait(min(FLUSH_S, beat_s, self._settings.poll_s))
            self._wake.clear()
        for work in (self._flush, self._beat, self._finish):
            _try(work)
        self._finished.set()

    def _begin(self) -> None:
        place, role = self._place, self._role
        self._look()
        if not role.is_attended:
            self.refusal = self._find_refusal()
        if self.refusal is not None:
            return
        traces = os.path.basename(traces_directory(place))
        subfolder(subfolder(place.run_dir, TRACES), traces)
        if role.owns_attempt:
            self.record = claim_attempt(place, role.label)
            self.attempt = self.record.number
            self.record.beat(0)
            nodes = os.environ.get("SLURM_JOB_NODELIST") or place.host
            self.record.journal("attempt_start", nodes=nodes)
        elif not role.is_attended and place.job_id != "0":
            self.attempt = find_attempt(place, FIND_S)

    def _find_refusal(self) -> tuple[int, str] | None:
        """Return why the command must not start, as the batch shell of a template would say."""
        run_dir = self._place.run_dir
        if os.path.exists(os.path.join(run_dir, layout.FINISHED)):
            return 0, f"the run {self._place.run} is finished; nothing was started"
        kill = self.switches.get(layout.KILL_SWITCH)
        if kill is not None:
            return EX_TEMPFAIL, f"{describe_kill(kill)}; to continue the run: resil clear {self._place.run}"
        if os.path.exists(os.path.join(run_dir, layout.ATTEMPTS, layout.BREAKER)):
            from pathlib import Path

            from resilience.runs.breaker_file import read_breaker
            from resilience.runs.run_directory import RunDirectory

            breaker = read_breaker(RunDirectory(Path(run_dir)))
            if breaker is not None and breaker.acting and not 0 < breaker.retry_at <= time.time():
                close = f"resil breaker close {self._place.run}"
                return EX_TEMPFAIL, f"the breaker is open: {breaker.why}; to continue the run: {close}"
        return None

    # ---- at intervals -----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        left_out, chunk = self._newest.take()
        self._seen_bytes += left_out + len(chunk)
        self._unsearched = (self._unsearched + chunk)[-STEP_BYTES:]
        if self.record is None:
            return
        try:
            while self._events:
                name, fields = self._events[0]
                self.record.journal(name, **fields)
                self._events.popleft()
        finally:
            if chunk:
                _append_output(self._place, self.record.label, left_out, chunk)

    def _look(self) -> None:
        kinds = (layout.KILL_SWITCH, layout.SAVE_SWITCH, layout.STOP_PREFIX + self._place.job_id)
        found = {kind: self._directory.read(kind, accept_own=kind.startswith(layout.STOP_PREFIX)) for kind in kinds}
        self.switches = {kind: one for kind, one in found.items() if one is not None}
        if self.switches and not self.is_guarded:
            name = f"{self._place.job_id}.{self._place.rank}.jsonl"
            with suppress(OSError):
                journal = os.stat(os.path.join(self._place.run_dir, layout.JOURNAL, name))
                self.is_guarded = journal.st_mtime >= self._began
        for one in self.switches.values():
            if one.identity in self._followed:
                self._directory.remove(one)

    def _beat(self) -> None:
        if not self._pid() or not (self._role.owns_attempt or self._role.writes_beats):
            return
        now = time.time()
        self._search(now)
        if self.record is not None:
            self._count += 1
            with suppress(OSError):
                self.record.beat(self._count)
        if not self._role.writes_beats or self.is_guarded or self._writer is None:
            return
        place = self._place
        path = os.path.join(subfolder(place.run_dir, layout.BEATS), file_name(place.job_id, place.host))
        if self._is_of_a_guard(path):
            self.is_guarded = True  # the guard in the command knows more, and writes this file from now on
            return
        state = self._state
        polls = self._seen_bytes if state is None or not state.kind else 0
        phase = "stopped" if is_stopped(self._pid()) else state.phase if state is not None and state.kind else ""
        self._progress.update((self.step or 0, polls, phase), now)
        end = RUNNING if self._end is None else LEFT
        self._writer.write({self._place.rank: RankBeat(self._pid(), self._progress, end)})
        with suppress(OSError):
            info = os.stat(path)
            self._beats = info.st_ino, info.st_mtime_ns

    def _is_of_a_guard(self, path: str) -> bool:
        """Return whether another process has written the heartbeat since this one did."""
        try:
            info = os.stat(path)
        except OSError:
            return False
        return self._beats is not None and (info.st_ino, info.st_mtime_ns) != self._beats

    def _search(self, now: float) -> None:
        """Find the step in the newest output, as `resil watch log` does in a log."""
        chunk, self._unsearched = self._unsearched, b""
        if not chunk:
            return
        from resilience.watch.checks._log.digest import digest  # imported late: a command may print nothing
        from resilience.watch.checks._log.reading import LogState

        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        lines, self._rest = self._rest + chunk[:cut], chunk[cut:][-4096:] if cut else (self._rest + chunk)[-4096:]
        if cut:
            self._state = digest(self._state or LogState(), lines, written=now)
            if self._state.step is not None:
                self.step = max(0, int(self._state.step))

    def _finish(self) -> None:
        if self.record is not None and self._end is not None:
            end, code, why, launched, oom_kills = self._end
            self.record.finish(end, code, why, launched=launched, oom_kills=oom_kills)


def _append_output(place: RankInfo, label: str, left_out: int, chunk: bytes) -> None:
    """Append to the end of the output in `logs/`, named like the log of a job, and cut it when it is too long."""
    path = os.path.join(subfolder(place.run_dir, layout.LOGS), f"{place.run or 'run'}-{label}.out")
    mode = file_mode(place.run_dir)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        note = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        os.write(descriptor, note + chunk)
        size = os.fstat(descriptor).st_size
        if size <= 2 * KEPT_BYTES:
            return
        end = os.pread(descriptor, KEPT_BYTES, size - KEPT_BYTES)
    finally:
        os.close(descriptor)
    replace_file(path, b"... the beginning is left out ...\n" + end[end.find(b"\n") + 1 :], mode=mode)


def _try(work: Callable[[], None]) -> None:
    """Do a piece of work; it is tried again next time. The command matters more than its records."""
    with suppress(Exception):
        work()


def _say_nothing(text: str) -> None:
    """Stand for `say` on other ranks than the first."""


def look_interval_s(place: RankInfo, settings: GuardSettings) -> float:
    """Return how often a rank reads the switches: a launch of thousands must not keep the file server busy. Pure."""
    return settings.poll_s * max(1.0, place.world / MOST_AT_ONCE)


def describe_kill(found: FoundSwitch) -> str:
    """Return a sentence about an accepted kill switch."""
    why = f": {found.switch.why}" if found.switch.why else ""
    return f"the kill switch was set by {found.switch.who}{why}"


def traces_directory(place: RankInfo) -> str:
    """Return the directory of the flight recorder's dumps of this start of the job."""
    return os.path.join(place.run_dir, TRACES, f"{place.job_id}.{place.restart}")
