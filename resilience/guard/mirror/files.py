"""The thread of the mirror process that touches the run directory: beats, journals, the address of rank 0.

It may hang in a dead file system. Nobody waits for it but for a moment at the end.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from resilience import layout
from resilience.base.files import read_own, replace_file
from resilience.guard.agreement.stale import remove_own
from resilience.guard.mirror.beats_file import GONE, RankBeat, compose, file_name
from resilience.guard.mirror.journal import append
from resilience.guard.mirror.run_folder import (
    append_stacks,
    file_mode,
    read_learned,
    remove_remains,
    stacks_asked,
    subfolder,
    write_learned,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from resilience.guard.mirror.run_folder import Asked

    class Asker(Protocol):
        """A rank that asks for the text of a file."""

        rank: int

        def say(self, message: dict[str, Any]) -> None:
            """Send it a packet."""


MOST_LINES = 1_000
"""Journal lines kept per rank while the run directory cannot be written."""
SOON_S = 0.1
LOOK_AGAIN_S = 1.0


class Files:
    """The thread that touches the run directory.

    Attributes:
        beats: the ranks that have come, by number; replaced, never changed in place.
        trouble: why the last write failed; empty when all is well.
        wants_stacks: somebody asks for the stacks of all ranks; taken back by whoever sees to it.
        busy_since: when it began what it is in, on the monotonic clock; None while it waits.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.beats: dict[int, RankBeat] = {}
        self.trouble = ""
        self.wants_stacks = False
        self.busy_since: float | None = None
        self._order = order
        self._lock = threading.Lock()
        self._lines: dict[int, list[bytes]] = {}
        self._learned: dict[int, str] = {}
        self._stacks: list[tuple[int, str, bytes]] = []
        self._stacks_asked: Asked | None = None
        self._askers: list[tuple[Asker, str]] = []
        self._due = 0.0
        self._has_tidied = False
        self._looked_again = time.monotonic()
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def admit(self, rank: int, beat: RankBeat) -> None:
        """Show this rank from now on."""
        self.beats = {**self.beats, rank: beat}
        self.hurry()

    def hurry(self) -> None:
        """Something has changed that people want to know soon; ranks come and go together."""
        self._due = min(self._due, time.monotonic() + SOON_S)
        self._wake.set()

    def add_line(self, rank: int, line: bytes) -> None:
        """Keep a journal line until it is written."""
        with self._lock:
            lines = self._lines.setdefault(rank, [])
            lines.append(line)
            del lines[:-MOST_LINES]
        self._wake.set()

    def keep_learned(self, rank: int, text: str) -> None:
        """Write what a rank has learned."""
        with self._lock:
            self._learned[rank] = text
        self._wake.set()

    def add_stacks(self, rank: int, pid: int, stacks: bytes) -> None:
        """Write down where all threads of a rank are; nothing was written by one that does not run."""
        head = f"{int(time.time())} {self._order['host']} pid {pid}: where it hangs, by the batch shell's wish"
        with self._lock:
            self._stacks.append((rank, head, stacks or b"it did not answer: the process is stopped, or in the kernel"))
        self._wake.set()

    def ask(self, guest: Asker, what: str) -> None:
        """Tell this rank where rank 0 listens (`address`), or what it had learned in another job (`learned`)."""
        with self._lock:
            if (guest, what) not in self._askers:
                self._askers.append((guest, what))
        self._wake.set()

    def finish(self, wait_s: float) -> None:
        """Write the last words."""
        self._over = True
        self._wake.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            over = self._over
            self.busy_since = time.monotonic()
            self._answer()
            self._try(self._write_lines)
            self._try(self._write_learned)
            self._try(self._write_stacks)
            if self.beats and (over or time.monotonic() >= self._due):
                self._due = time.monotonic() + float(self._order["beat_s"])
                self._try(self._write_beats)
                self._try(self._look_for_stacks)
            self.busy_since = None
            if over:
                self._try(self._remove_address)
                return
            self._wake.wait(max(0.01, self._due - time.monotonic()) if self.beats else None)
            self._wake.clear()

    def _try(self, write: Callable[[], bool]) -> None:
        try:
            if write():
                self.trouble = ""
        except OSError as error:
            self.trouble = f"{error.strerror or error} ({error.filename or self._order['run_dir']})"

    def _answer(self) -> None:
        with self._lock:
            askers, self._askers = self._askers, []
        address: str | None = None
        if any(what == "address" for _, what in askers):
            address = self._read_address()
        for guest, what in askers:
            text = address if what == "address" else read_learned(self._order["run_dir"], guest.rank)
            guest.say({what: text})

    def _read_address(self) -> str | None:
        text = read_own(self._order["address"])
        if text is None and time.monotonic() > self._looked_again + LOOK_AGAIN_S:
            self._looked_again = time.monotonic()
            look_again(self._order["address"])
            text = read_own(self._order["address"])
        return text

    def _write_lines(self) -> bool:
        wrote = False
        for rank in list(self._lines):
            with self._lock:
                lines = list(self._lines[rank])
            if lines:
                append(self._order["run_dir"], self._order["job_id"], rank, lines)
                wrote, written = True, set(map(id, lines))
                with self._lock:
                    self._lines[rank][:] = [line for line in self._lines[rank] if id(line) not in written]
        return wrote

    def _write_learned(self) -> bool:
        with self._lock:
            learned, self._learned = self._learned, {}
        for rank, text in learned.items():
            write_learned(self._order["run_dir"], rank, text)
        return bool(learned)

    def _look_for_stacks(self) -> bool:
        asked = stacks_asked(self._order["run_dir"], self._order["job_id"])
        if asked is not None and asked != self._stacks_asked:
            self._stacks_asked, self.wants_stacks = asked, True
        return False

    def _write_stacks(self) -> bool:
        while self._stacks:
            rank, head, stacks = self._stacks[0]
            append_stacks(self._order["run_dir"], self._order["job_id"], rank, head.encode() + b"\n" + stacks + b"\n")
            with self._lock:
                del self._stacks[0]
        return False

    def _write_beats(self) -> bool:
        order = self._order
        folder = subfolder(order["run_dir"], layout.BEATS)
        if not self._has_tidied:
            self._has_tidied = True
            remove_remains(folder, time.time())
        text = compose(order["attempt"], order["host"], self.beats, time.time())
        path = os.path.join(folder, file_name(order["job_id"], order["host"]))
        replace_file(path, text, mode=file_mode(order["run_dir"]))
        return True

    def _remove_address(self) -> bool:
        """Rank 0 of this node was killed, and its address file is still there: nobody listens there any more."""
        first = self.beats.get(0)
        if first is not None and first.end == GONE:
            remove_own(self._order["address"], self._order["host"], first.pid)
        return True


def look_again(path: str) -> None:
    """Make an NFS client forget that a file was not there: it believes that for up to a minute (nfs(5), acdirmax).

    It asks the server again about a folder in which it has written itself.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o700)
    with contextlib.suppress(OSError):
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.unlink(beside)
