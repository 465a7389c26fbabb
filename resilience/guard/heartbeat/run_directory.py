"""Writes the guard's files in the run directory: journals, heartbeats, stacks, and the measurements of ranks.

Files get the modes of the run directory and are written atomically. Every function may hang on a dead file system:
they are called from threads that can be abandoned.

`journal/<jobid>.<rank>.jsonl` has one JSON line per event. One process writes a rank's file at a time. A line truncated
by a crash is terminated before the next one, so that it corrupts no other; a line truncated by a full disk is removed
immediately.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time

from resilience import layout
from resilience.base.files import append, open_directory, read_regular, remove_stale, replace_file
from resilience.base.processes import state_of
from resilience.guard.heartbeat.beat import compose, file_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from resilience.guard.heartbeat.beat import RankBeat

    Asked = tuple[int, int]

GROUP_FOLDER = stat.S_ISGID | stat.S_IWGRP
"""Mode bits of a run directory that a group may operate: 2770, docs/reference/run-directory.md."""

SILENT = "it did not answer: its process is in state "
"""Instead of the stacks of a rank; the letter of proc_pid_stat(5) follows."""
AT_ONCE = 200
"""Journal lines per write."""
LONGEST_LINE = 32_768
PROGRESS_S = 60.0
"""Between two lines of progress."""
LONGEST_TEXT = 4_000
"""Characters of one text: an error message may carry a whole tensor."""


class RunDirectoryWriter:
    """Writes the heartbeat, journals, stacks and measurements of ranks, and queues them, within bounds, while writing
    fails. Any thread may add; one thread at a time writes, and may hang.

    Attributes:
        error: why the last write failed; empty after a successful one.
        lost: how many journal lines were dropped because the queue was full.
    """

    def __init__(self, run_dir: str, job_id: str, attempt: int, host: str, *, most_lines: int) -> None:
        """Queue at most `most_lines` of each rank's journal: the newest."""
        self.error = ""
        self.lost = 0
        self._run_dir, self._job_id, self._attempt, self._host = run_dir, job_id, attempt, host
        self._most_lines = most_lines
        self._lock = threading.Lock()
        self._lines: dict[int, list[bytes]] = {}
        self._learned: dict[int, str] = {}
        self._stacks: list[tuple[int, bytes]] = []
        self._has_tidied = False
        self._progress_due = 0.0
        self._step_written = 0

    def add_lines(self, rank: int, lines: Iterable[bytes]) -> None:
        """Queue journal lines."""
        with self._lock:
            kept = self._lines.setdefault(rank, [])
            kept += lines
            self.lost += max(0, len(kept) - self._most_lines)
            del kept[: -self._most_lines]

    def add_learned(self, rank: int, text: str) -> None:
        """Queue the measurements of a rank."""
        with self._lock:
            self._learned[rank] = text

    def add_stacks(self, rank: int, pid: int, stacks: bytes, outside: bytes = b"") -> None:
        """Queue the stacks of a rank, or of a rank that wrote none (b"") the state of its process, and below it what
        py-spy read from `outside`."""
        if not stacks:
            state, function = state_of(pid)
            stacks = f"{SILENT}{state or '?'}{f' in {function}' if function else ''}\n".encode() + outside
        head = f"{int(time.time())} {self._host} pid {pid}: stacks, as requested\n"
        with self._lock:
            self._stacks.append((rank, head.encode("utf-8", "replace") + stacks + b"\n"))

    def write(self, beats: Mapping[int, RankBeat] | None = None) -> str:
        """Write all queued data, and the heartbeat of these ranks. Return the error as text; empty on success.

        Never raises. After a failed write the others are still tried.
        """
        error, has_written = "", False
        for write in (self._write_lines, self._write_learned, self._write_stacks, lambda: self._write_beats(beats)):
            try:
                has_written |= write()
            except OSError as failed:
                error = error or f"{failed.strerror or failed} ({failed.filename or self._run_dir})"
        if error or has_written:
            self.error = error
        return error

    def _write_lines(self) -> bool:
        has_written = False
        for rank in list(self._lines):
            while True:
                with self._lock:
                    lines = self._lines[rank][:AT_ONCE]
                if not lines:
                    break
                append_journal(self._run_dir, self._job_id, rank, lines)
                has_written, written = True, set(map(id, lines))
                with self._lock:
                    self._lines[rank][:] = [line for line in self._lines[rank] if id(line) not in written]
        return has_written

    def _write_learned(self) -> bool:
        learned = dict(self._learned)
        for rank, text in learned.items():
            path = os.path.join(subfolder(self._run_dir, layout.LEARNED), f"{rank}.json")
            replace_file(path, text, mode=file_mode(self._run_dir))
            with self._lock:
                if self._learned[rank] is text:
                    del self._learned[rank]
        return bool(learned)

    def _write_stacks(self) -> bool:
        while self._stacks:
            rank, text = self._stacks[0]
            append_stacks(self._run_dir, self._job_id, rank, text)
            with self._lock:
                del self._stacks[0]
        return False

    def _write_beats(self, beats: Mapping[int, RankBeat] | None) -> bool:
        if beats is None:
            return False
        directory = subfolder(self._run_dir, layout.BEATS)
        if not self._has_tidied:
            self._has_tidied = True
            remove_stale(directory, time.time())
        text = compose(self._attempt, self._host, beats, time.time())
        replace_file(os.path.join(directory, file_name(self._job_id, self._host)), text, mode=file_mode(self._run_dir))
        self._write_progress(beats)
        return True

    def _write_progress(self, beats: Mapping[int, RankBeat]) -> None:
        """Add a line to `journal/<jobid>.progress.jsonl` each minute in which rank 0 has done steps."""
        first = beats.get(0)
        if first is None or first.progress.steps == self._step_written or time.monotonic() < self._progress_due:
            return
        step = first.progress.steps
        line = as_line({"event": "progress", "time": round(time.time(), 3), "attempt": self._attempt, "step": step})
        append_journal(self._run_dir, self._job_id, "progress", [line])
        self._step_written, self._progress_due = step, time.monotonic() + PROGRESS_S


def is_for_group(directory: str) -> bool:
    """Return whether a directory is open to a group. Raise OSError if it cannot be read."""
    return os.stat(directory).st_mode & GROUP_FOLDER == GROUP_FOLDER


def file_mode(directory: str) -> int:
    """Return the mode of files in a run directory: 0660 if a group operates it, else 0600. Raise OSError."""
    return 0o660 if is_for_group(directory) else 0o600


def subfolder(run_dir: str, name: str) -> str:
    """Return a subdirectory, created if missing; never create the run directory itself. Raise OSError."""
    path = os.path.join(run_dir, name)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return path
    if is_for_group(run_dir):
        os.chmod(path, 0o2770)
    return path


def read_learned(run_dir: str, rank: int) -> str | None:
    """Return the text of `learned/<rank>.json`; None if missing or unreadable."""
    try:
        found = read_regular(os.path.join(run_dir, layout.LEARNED, f"{rank}.json"))
    except OSError:
        return None
    return None if found is None else found[0].decode("utf-8", "replace")


def stacks_requested(run_dir: str, job_id: str) -> Asked | None:
    """Return the identity (inode and time) of the request for stacks; None if there is none. Raise OSError."""
    directory = open_directory(os.path.join(run_dir, layout.SWITCHES))
    try:
        info = os.stat(layout.STACKS_PREFIX + job_id, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(directory)
    return info.st_ino, info.st_mtime_ns


def append_stacks(run_dir: str, job_id: str, rank: int, text: bytes) -> None:
    """Add to `journal/<jobid>.<rank>.stacks`. Raise OSError."""
    path = os.path.join(subfolder(run_dir, layout.JOURNAL), f"{job_id}.{rank}.stacks")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, file_mode(run_dir))
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


def as_line(record: Mapping[str, Any]) -> bytes:
    """Given an event, return its line. Never fails: other types than JSON's are written as text.

    NaN and infinities are not JSON (RFC 8259, section 6): they become the texts `nan`, `inf` and `-inf`.
    """
    try:
        line = json.dumps(_plain(record, depth=6), separators=(",", ":"), allow_nan=False).encode()
        if len(line) <= LONGEST_LINE:
            return line + b"\n"
    except (ValueError, TypeError, RecursionError):
        pass
    kept = {name: _plain(record.get(name), depth=0) for name in ("event", "time", "attempt", "rank", "host")}
    return json.dumps({**kept, "cut": True}, separators=(",", ":")).encode() + b"\n"


def append_journal(run_dir: str, job_id: str, whose: int | str, lines: Iterable[bytes]) -> None:
    """Append lines to the journal of a rank, or of the `progress`, all or none, and wait until they are durable.

    Raise OSError.

    The file is opened each time, because the run directory may have disappeared and returned. A link, a FIFO or a
    directory of that name is rejected.
    """
    path = os.path.join(subfolder(run_dir, layout.JOURNAL), f"{job_id}.{whose}.jsonl")
    append(path, b"".join(lines), mode=file_mode(run_dir), is_only_writer=True)


def _plain(value: Any, depth: int) -> Any:
    """Return the value in JSON types. Never reads from a device: a tensor is written as its type."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "..."
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth and isinstance(value, dict):
        return {str(name): _plain(inner, depth - 1) for name, inner in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner, depth - 1) for inner in value]
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return _plain(value.item(), 0)
    return f"<{type(value).__name__}>"
