"""What a supervisor keeps in the run directory, in a process of its own (records_process.py).

The attempt with its heartbeat and journal, the heartbeat of the training with the step that its output names, the
newest output, and the switches, which are read here too. A full disk costs records, nothing else: events are tried
again.
"""

from __future__ import annotations

import marshal
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
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
from resilience.runs.attempts import AttemptEnd
from resilience.supervisor.asking import create_file, remove_file
from resilience.supervisor.attempt import (
    AttemptRecord,
    claim_attempt,
    end_of,
    find_attempt,
    first_failure,
    note_failure,
)
from resilience.supervisor.records_process import LONGEST_BYTES, SeenSwitch

if TYPE_CHECKING:
    from resilience.guard.switch_directory import Identity
    from resilience.runs.run_directory import RunDirectory
    from resilience.watch.output_step import OutputStep

AGAIN_S = 1.0
"""Until events that could not be written are tried again."""
FIND_S = 5.0
"""How long a rank waits for the number that rank 0 takes."""
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
    """Works in a process of its own, until the supervisor tells the end or is gone.

    Messages of the supervisor are methods, `_on_*`.

    Attributes:
        attempt: number of the attempt; 0 while there is none.
        record: the attempt, if this process writes it.
        switches: accepted switches by kind, as last read.
        is_guarded: whether a guard in the command follows the switches by itself.
        step: the newest step that the output named; None while there is none.
    """

    def __init__(self, place: RankInfo, role: Role, settings: GuardSettings, peer: socket.socket) -> None:
        """`peer`: the connection to the supervisor."""
        self.attempt = place.attempt if role.is_attended else 0
        self.record: AttemptRecord | None = None
        self.switches: dict[str, FoundSwitch] = {}
        self.is_guarded = False
        self.step: int | None = None
        self._place, self._role, self._settings, self._peer = place, role, settings, peer
        self._pid = 0  # of the command
        self._began = time.time()
        self._reported: tuple[Any, ...] = ()
        self._refusal: tuple[int, str] | None = None
        self._trouble = ""
        self._directory = SwitchDirectory(place, settings, Recorder(place, self._say))
        self._events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MOST_EVENTS)
        self._followed: set[Identity] = set()
        self._created: dict[str, Identity] = {}
        self._end: tuple[int, bool, str, int, str, str] | None = None
        self._told: OutputStep | None = None
        self._rest = self._unsearched = self._last = b""
        self._seen_bytes = self._count = 0
        self._progress = Progress(self._began)
        self._beats: tuple[int, int] | None = None  # inode and mtime of the heartbeat that was written last
        self._writer: RunDirectoryWriter | None = None

    def run(self) -> None:
        """Claim the attempt, and keep the records."""
        place, settings = self._place, self._settings
        try:
            if place.run_dir:
                self._begin()
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._trouble = f"cannot use the run directory {place.run_dir}: {reason}"
        self._report()
        if self._refusal is not None:
            _try(self._tend_breaker)
            return
        self._writer = RunDirectoryWriter(place.run_dir, place.job_id, self.attempt, place.host, most_lines=MOST_EVENTS)
        beat_due = look_due = 0.0
        while self._end is None:
            if not self._receive(min(AGAIN_S, settings.beat_s, settings.poll_s)):
                return
            now = time.monotonic()
            if place.run_dir:
                _try(self._flush)
                if now >= look_due:
                    look_due = now + look_interval_s(place, settings)
                    _try(self._look)
                if now >= beat_due and self._pid:
                    beat_due = now + settings.beat_s
                    _try(self._beat)
                self._report()
        for path, created in self._created.items():
            remove_file(path, created)
        if place.run_dir:
            for work in (self._flush, self._beat, self._finish):
                _try(work)

    # ---- the supervisor ---------------------------------------------------------------------------------------

    def _receive(self, timeout_s: float) -> bool:
        """Wait for a message, and follow all that are there; return False if the supervisor is gone."""
        poll = select.poll()
        poll.register(self._peer, select.POLLIN)
        while self._end is None and poll.poll(1000 * timeout_s):
            try:
                raw = self._peer.recv(LONGEST_BYTES)
            except ConnectionResetError:  # once, if the supervisor has ended without reading all
                continue
            if not raw:
                return False
            what, *values = marshal.loads(raw)
            with suppress(Exception):
                getattr(self, f"_on_{what}")(*values)
            timeout_s = 0.0
        return True

    def _report(self) -> None:
        """Send what has changed, as the fields of `State`."""
        seen = {kind: (one.identity, one.switch.who, one.switch.why) for kind, one in self.switches.items()}
        state = True, self.attempt, self._refusal, self._trouble, seen, self.is_guarded
        if state != self._reported:
            self._reported = state
            self._send("state", *state)

    def _say(self, text: str) -> None:
        if self._place.is_first:
            self._send("say", text)

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # the supervisor is gone; its last messages are still to be read
            self._peer.send(marshal.dumps(message))

    def _on_launched(self, pid: int) -> None:
        self._pid = pid

    def _on_event(self, name: str, fields: dict[str, Any]) -> None:
        self._events.append((name, fields))

    def _on_output(self, left_out: int, chunk: bytes) -> None:
        self._seen_bytes += left_out + len(chunk)
        self._unsearched = (self._unsearched + chunk)[-STEP_BYTES:]
        if self.record is not None:
            _append_output(self._place, self.record.label, left_out, chunk)
        else:
            self._last = (self._last + chunk)[-STEP_BYTES:]

    def _on_followed(self, identity: Identity) -> None:
        """Remove a switch that was followed."""
        self._followed.add(identity)

    def _on_create(self, path: str, why: str) -> None:
        created = create_file(path, why)
        if created is not None:
            self._created[path] = created

    def _on_end(self, *values: Any) -> None:
        self._end = values

    # ---- the start --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        place, role = self._place, self._role
        self._look()
        if not role.is_attended:
            self._refusal = self._find_refusal()
        if self._refusal is not None:
            return
        traces = os.path.basename(traces_directory(place))
        subfolder(subfolder(place.run_dir, layout.TRACES), traces)
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
        run_dir, run = self._place.run_dir, self._place.run
        if os.path.exists(os.path.join(run_dir, layout.FINISHED)):
            return 0, f"the run {run} is finished; nothing was started"
        kill = self.switches.get(layout.KILL_SWITCH)
        if kill is not None:
            said = SeenSwitch(kill.identity, kill.switch.who, kill.switch.why).as_kill
            return EX_TEMPFAIL, f"{said}; to continue the run: resil clear {run}"
        if os.path.exists(os.path.join(run_dir, layout.ATTEMPTS, layout.BREAKER)):
            from resilience.runs.breaker_file import read_breaker
            from resilience.runs.run_files import read_attempts

            breaker = read_breaker(_directory(run_dir))
            if breaker is None or not breaker.acting:
                return None
            newer = [one for one in read_attempts(_directory(run_dir), newest=5) if one.number > breaker.attempt]
            has_failed = any(one.end is AttemptEnd.EXITED and one.exit_code for one in newer)
            if has_failed or not 0 < breaker.retry_at <= time.time():
                return EX_TEMPFAIL, (
                    f"the breaker is open: {breaker.why}; nothing was started; see why: resil why {run}; "
                    f"to continue the run: resil breaker close {run}"
                )
        return None

    # ---- at intervals -----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        while self._events and self.record is not None:
            name, fields = self._events[0]
            self.record.journal(name, **fields)
            self._events.popleft()

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
        if not self._pid or not (self._role.owns_attempt or self._role.writes_beats):
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
        counted = self._told if self._told is not None and self._told.is_counted else None
        polls = self._seen_bytes if counted is None else 0
        phase = "stopped" if is_stopped(self._pid) else counted.phase if counted is not None else ""
        self._progress.update((self.step or 0, polls, phase), now)
        end = RUNNING if self._end is None else LEFT
        self._writer.write({self._place.rank: RankBeat(self._pid, self._progress, end)})
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
        from resilience.watch.output_step import OutputStep  # imported late: a command may print nothing

        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        lines, self._rest = self._rest + chunk[:cut], chunk[cut:][-4096:] if cut else (self._rest + chunk)[-4096:]
        if cut:
            self._told = self._told or OutputStep()
            self._told.read(lines, now)
            self.step = self.step if self._told.step is None else self._told.step

    # ---- the end ----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        assert self._end is not None
        place = self._place
        code, launched, asked, asked_signal, received, more = self._end
        is_finished = os.path.exists(os.path.join(place.run_dir, layout.FINISHED))
        end, why = end_of(code, is_finished=is_finished, asked=asked, asked_signal=asked_signal, received=received)
        why = "; ".join(part for part in (why, more) if part)
        if self.record is None:
            has_failed = end is AttemptEnd.EXITED and code != 0
            if has_failed and self.attempt and not self._role.is_attended and not first_failure(place, self.attempt):
                note_failure(place, self.attempt, code, why)
                _append_output(place, f"{self._role.label}.rank{place.rank}", 0, self._last)
            return
        if end is AttemptEnd.TERMINATED and not asked and (first := first_failure(place, self.attempt)):
            end, (code, why) = AttemptEnd.EXITED, first  # the launcher has ended this rank because of that one
        self.record.finish(end, code, why, launched=launched)
        if code or os.path.exists(os.path.join(place.run_dir, layout.ATTEMPTS, layout.BREAKER)):
            self._tend_breaker()

    def _tend_breaker(self) -> None:
        """Count this attempt, open or close the breaker, and hold or release the queued jobs, as `resil watch job`
        does at each tick: a crash loop is faster than that."""
        from pathlib import Path

        from resilience.attempts.acting import act
        from resilience.attempts.breaker import decide, looked_at
        from resilience.attempts.ledger import read_ledger
        from resilience.runs.breaker_file import last_closed, write_counts
        from resilience.runs.project import Project
        from resilience.settings.load import load
        from resilience.system.ports import System

        system = System(cwd=Path("/"))
        project = Project(system, load(system, named=Path(self._place.run_dir, layout.RUN_FILE)))
        settings = project.loaded.settings
        directory = _directory(self._place.run_dir, settings.run.group)
        if self.record is not None:
            rows = read_ledger(directory, newest=looked_at(settings.act))
            counts = decide(rows, settings.act, time.time(), closed_after=last_closed(directory))
            write_counts(directory, self.attempt, counts.burnt, counts.outside)
        said = act(project, directory)
        if said:
            self._say(said)


def _directory(run_dir: str, group: str = "") -> RunDirectory:
    from pathlib import Path

    from resilience.runs.run_directory import RunDirectory

    return RunDirectory(Path(run_dir), group)


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


def look_interval_s(place: RankInfo, settings: GuardSettings) -> float:
    """Return how often a rank reads the switches: a launch of thousands must not keep the file server busy. Pure."""
    return settings.poll_s * max(1.0, place.world / MOST_AT_ONCE)


def traces_directory(place: RankInfo) -> str:
    """Return the directory of the flight recorder's dumps of this start of the job."""
    return os.path.join(place.run_dir, layout.TRACES, f"{place.job_id}.{place.restart}")
