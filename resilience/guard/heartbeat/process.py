"""The writer process of a node: copies the beats of its ranks to the run directory, and ends with them.

A new interpreter with the standard library only, started by the node's first rank (`connection.py`) with the listening
socket as its standard input. Each rank connects and passes its shared memory (SCM_RIGHTS, unix(7)). From then on the
process needs neither the GIL nor the main thread of a rank. Ranks query it for the address of rank 0, so that only one
process per node reads the run directory.

One thread serves the ranks and never touches a file; the other one writes, and may hang in a dead file system. When no
rank is left, the process writes the last beat and ends, whatever the other thread does.

When the batch shell or `resil stacks` requests stacks (`switches/stacks.<jobid>`), the process signals each rank to
write them into a second memory file, in C, even while a library holds the GIL; from there they go to
`journal/<jobid>.<rank>.stacks`.

Packets, one JSON object each (SOCK_SEQPACKET). From a rank: `{"hello": rank, "pid": n, "stacks": signal}` with the
descriptors of its beat and of its stacks, `{"journal": rank, "line": text}`, `{"learned": rank, "text": text}`,
`{"ask": "address"}` or `{"ask": "learned"}`, `{"bye": rank}`. To a rank: `{"welcome": pid}`, `{"warn": text}`, and
`{"address": ...}`, `{"learned": ...}` with the text of the file, or null.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import threading
import time

from resilience.base.files import read_own
from resilience.base.processes import state_of, work_of
from resilience.guard.agreement.address_file import remove_own
from resilience.guard.heartbeat.beat import GONE, LEFT, RUNNING, SIZE, WORDS, Progress, RankBeat, read_phase
from resilience.guard.heartbeat.run_directory import RunDirectoryWriter, read_learned, stacks_requested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resilience.guard.heartbeat.run_directory import Asked

LARGEST_PACKET = 65536
MOST_RANKS = 1_024
FIRST_RANK_S = 60.0
"""The process ends if no rank connects within this time."""
LAST_WORDS_S = 2.0
HUNG_S = 30.0
STANDS_S = 5.0
"""A rank without a step for so long may hang."""
STACKS_S = 1.0
"""How long ranks have to write their stacks into memory: a stopped process writes none."""
MOST_STACKS = 2**20
MOST_LINES = 1_000
"""Journal lines kept per rank while the run directory cannot be written."""
SOON_S = 0.1
REFRESH_S = 1.0
PEER = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)."""
IGNORED_SIGNALS = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGALRM,
)
"""Signals that proctrack/linuxproc and terminals send to every descendant of a job step."""


class RankConnection:
    """A connected rank: its socket, its shared memory, its process."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.socket: socket.socket | None = sock
        self.since = time.monotonic()
        self.rank = -1
        self.memory: mmap.mmap | None = None
        self.stacks = -1
        self.stacks_signal = 0
        self.beat = RankBeat(pid, Progress(time.time()))
        self.process = -1
        if pid > 0:  # 0: in a pid namespace not visible here; then only its connection shows its end
            with contextlib.suppress(OSError):
                self.process = os.pidfd_open(pid)

    @property
    def is_alive(self) -> bool:
        """Return whether the rank may still send or step."""
        return self.beat.end == RUNNING and (self.process >= 0 or self.socket is not None)

    def sample(self, now: float) -> None:
        """Sample its shared memory."""
        if self.memory is not None:
            words = struct.unpack_from(f"={WORDS}Q", self.memory, 0)
            phase = read_phase(self.memory)
            self.beat.progress.update((words[0], words[1], phase), now)
            self.beat.signs.update(words[2:])
            self.beat.windows.update(words[0], words[3], words[4], phase, now)

    def send(self, message: dict[str, Any]) -> None:
        """Send a packet; drop it if the rank does not read."""
        with contextlib.suppress(OSError):
            if self.socket is not None:
                self.socket.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def close(self, end: str) -> None:
        """Close its socket and descriptors, and note how it ended."""
        if self.beat.end == RUNNING:
            self.beat.end = end
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        for descriptor in (self.process, self.stacks):
            if descriptor >= 0:
                os.close(descriptor)
        self.process = self.stacks = -1

    def request_stacks(self) -> int:
        """Signal the rank to write its stacks; return their offset in `stacks`, or -1 if it cannot."""
        if self.process < 0 or self.stacks < 0 or not self.stacks_signal:
            return -1
        begin = os.fstat(self.stacks).st_size
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.process, self.stacks_signal)
        return begin


class Files:
    """The thread that touches the run directory.

    Attributes:
        beats: the ranks that have connected, by number; replaced, never changed in place.
        writer: queues data to write.
        wants_stacks: the stacks of all ranks are requested; reset by the thread that collects them.
        busy_since: when the current round of work began, on the monotonic clock; None while the thread waits.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.beats: dict[int, RankBeat] = {}
        self.wants_stacks = False
        self.writer = RunDirectoryWriter(
            order["run_dir"], order["job_id"], order["attempt"], order["host"], most_lines=MOST_LINES
        )
        self.busy_since: float | None = None
        self._order = order
        self._lock = threading.Lock()
        self._stacks_requested: Asked | None = None
        self._queries: list[tuple[int, str, Callable[[dict[str, Any]], None]]] = []
        self._due = 0.0
        self._refreshed_at = time.monotonic()
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def admit(self, rank: int, beat: RankBeat) -> None:
        """Include this rank in the heartbeat from now on."""
        self.beats = {**self.beats, rank: beat}
        self.hurry()

    def hurry(self) -> None:
        """Write the heartbeat soon, but not immediately: ranks start and end together."""
        self._due = min(self._due, time.monotonic() + SOON_S)
        self._wake.set()

    def add_line(self, rank: int, line: bytes) -> None:
        """Queue a journal line."""
        self.writer.add_lines(rank, [line])
        self._wake.set()

    def keep_learned(self, rank: int, text: str) -> None:
        """Queue the measurements of a rank."""
        self.writer.add_learned(rank, text)
        self._wake.set()

    def add_stacks(self, rank: int, pid: int, stacks: bytes, outside: bytes = b"") -> None:
        """Queue the stacks of a rank; they are empty if its process does not run, or were read from `outside`."""
        self.writer.add_stacks(rank, pid, stacks, outside)
        self._wake.set()

    def query(self, rank: int, what: str, send: Callable[[dict[str, Any]], None]) -> None:
        """Answer a rank's query for the `address` of rank 0, or its measurements in an earlier job (`learned`)."""
        with self._lock:
            if (rank, what, send) not in self._queries:
                self._queries.append((rank, what, send))
        self._wake.set()

    def finish(self, wait_s: float) -> None:
        """Write all queued data and stop."""
        self._over = True
        self._wake.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            over = self._over
            self.busy_since = time.monotonic()
            self._answer()
            is_due = bool(self.beats) and (over or time.monotonic() >= self._due)
            if is_due:
                self._due = time.monotonic() + float(self._order["beat_s"])
                self._look_at_processes()
            self.writer.write(self.beats if is_due else None)
            if is_due:
                self._check_stacks_request()
            self.busy_since = None
            if over:
                self._remove_address()
                return
            self._wake.wait(max(0.01, self._due - time.monotonic()) if self.beats else None)
            self._wake.clear()

    def _look_at_processes(self) -> None:
        """Note the state of the ranks' processes, and of those without a step what else they do: 30 us per thread."""
        now = time.time()
        for beat in self.beats.values():
            if beat.end == RUNNING:
                beat.signs.state, beat.signs.wchan = state_of(beat.pid)
                if now - beat.progress.advanced > STANDS_S:
                    beat.signs.cpu_s, beat.signs.io_bytes = work_of(beat.pid)

    def _answer(self) -> None:
        with self._lock:
            queries, self._queries = self._queries, []
        address: str | None = None
        if any(what == "address" for _, what, _ in queries):
            address = self._read_address()
        for rank, what, send in queries:
            send({what: address if what == "address" else read_learned(self._order["run_dir"], rank)})

    def _read_address(self) -> str | None:
        text = read_own(self._order["address"])
        if text is None and time.monotonic() > self._refreshed_at + REFRESH_S:
            self._refreshed_at = time.monotonic()
            refresh_directory(self._order["address"])
            text = read_own(self._order["address"])
        return text

    def _check_stacks_request(self) -> None:
        with contextlib.suppress(OSError):
            asked = stacks_requested(self._order["run_dir"], self._order["job_id"])
            if asked is not None and asked != self._stacks_requested:
                self._stacks_requested, self.wants_stacks = asked, True

    def _remove_address(self) -> None:
        """Remove the address file of a killed rank 0 of this node."""
        first = self.beats.get(0)
        if first is not None and first.end == GONE:
            with contextlib.suppress(OSError):
                remove_own(self._order["address"], self._order["host"], first.pid)


def refresh_directory(path: str) -> None:
    """Make an NFS client drop a cached negative entry, which it may keep for a minute (nfs(5), acdirmax).

    The client revalidates a directory after it has written there itself.
    """
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
    with contextlib.suppress(OSError):
        os.mkdir(directory, 0o700)
    with contextlib.suppress(OSError):
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.unlink(beside)


class WriterProcess:
    """Serves the ranks of a node until none is left."""

    def __init__(self, listener: socket.socket, order: dict[str, Any]) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._sample_ms = int(1000 * max(0.02, min(1.0, float(order["beat_s"]) / 2)))
        self._early_s = float(order["beat_s"])
        self._files = Files(order)
        self._ranks: list[RankConnection] = []
        self._begun = time.monotonic()
        self._reported = ""
        self._asked: list[tuple[RankConnection, int]] = []  # for stacks, and where they begin
        self._asked_at = 0.0

    def serve(self) -> None:
        """Return when all ranks have ended, or none has connected; the last beat is written then."""
        while True:
            self._wait()
            now = time.time()
            for peer in self._ranks:
                peer.sample(now)
                if peer.beat.progress.is_news(now, self._early_s):
                    self._files.hurry()
            self._take_stacks()
            self._drop_silent()
            self._report_error()
            if self._is_over() and not self._accept():
                break
        self._listener.close()
        self._files.finish(LAST_WORDS_S)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        by_descriptor: dict[int, tuple[RankConnection, bool]] = {}
        for peer in self._ranks:
            if peer.socket is not None:
                by_descriptor[peer.socket.fileno()] = (peer, False)
            if peer.process >= 0:
                by_descriptor[peer.process] = (peer, True)
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(self._sample_ms):
            if descriptor == self._listener.fileno():
                self._accept()
                continue
            peer, is_process = by_descriptor[descriptor]
            if is_process and peer.process == descriptor:
                self._read(peer)  # packets sent before its end
                peer.sample(time.time())
                peer.close(GONE)
                self._files.hurry()
            elif not is_process and peer.socket is not None:
                self._read(peer)

    def _accept(self) -> bool:
        accepted = False
        while len(self._ranks) < MOST_RANKS:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                break
            pid, uid, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            if uid != os.geteuid():
                sock.close()
                continue
            sock.setblocking(False)
            peer = RankConnection(sock, pid)
            self._ranks.append(peer)
            peer.send({"welcome": os.getpid()})
            accepted = True
        return accepted

    def _read(self, peer: RankConnection) -> None:
        while peer.socket is not None:
            try:
                packet, descriptors, _, _ = socket.recv_fds(peer.socket, LARGEST_PACKET, 2)
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            try:
                if not packet:
                    peer.socket.close()
                    peer.socket = None
                    if peer.process < 0 or peer.rank < 0:
                        peer.close(GONE)
                    return
                self._handle(peer, packet, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _handle(self, peer: RankConnection, packet: bytes, descriptors: list[int]) -> None:
        try:
            message = json.loads(packet)
            if "hello" in message and descriptors:
                peer.memory = mmap.mmap(descriptors[0], SIZE, prot=mmap.PROT_READ)
                peer.rank = int(message["hello"])
                peer.beat.pid = int(message["pid"])
                if len(descriptors) > 1:
                    peer.stacks, peer.stacks_signal = os.dup(descriptors[1]), int(message["stacks"])
                peer.sample(time.time())
                self._files.admit(peer.rank, peer.beat)
                self._forget_former(peer)
            elif "journal" in message:
                self._files.add_line(int(message["journal"]), str(message["line"]).encode() + b"\n")
            elif "learned" in message:
                self._files.keep_learned(int(message["learned"]), str(message["text"]))
            elif "ask" in message:
                self._files.query(peer.rank, str(message["ask"]), peer.send)
            elif "bye" in message:
                peer.sample(time.time())
                peer.close(LEFT)
        except (ValueError, TypeError, KeyError, OSError, RecursionError):
            peer.close(GONE)  # not a rank of this launch

    def _forget_former(self, peer: RankConnection) -> None:
        """Drop earlier connections of a rank that has reconnected."""
        for former in self._ranks:
            if former is not peer and former.rank == peer.rank:
                former.close(GONE)
        self._ranks = [one for one in self._ranks if one is peer or one.rank != peer.rank]

    def _take_stacks(self) -> None:
        """Request the stacks of all ranks if they are wanted, and collect them a second later."""
        if self._asked and time.monotonic() >= self._asked_at + STACKS_S:
            silent = []
            for peer, begin in self._asked:
                if peer.stacks >= 0:
                    size = min(os.fstat(peer.stacks).st_size - begin, MOST_STACKS)
                    if stacks := os.pread(peer.stacks, size, begin):
                        self._files.add_stacks(peer.rank, peer.beat.pid, stacks)
                    else:
                        silent.append((peer.rank, peer.beat.pid))
            self._asked = []
            if silent:
                from resilience.guard.heartbeat.py_spy import read_outside

                threading.Thread(target=read_outside, args=(silent, self._files.add_stacks), daemon=True).start()
        elif self._files.wants_stacks and not self._asked:
            self._files.wants_stacks = False
            asked = [(peer, peer.request_stacks()) for peer in self._ranks if peer.is_alive]
            self._asked = [(peer, begin) for peer, begin in asked if begin >= 0]
            self._asked_at = time.monotonic()

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for peer in self._ranks:
            if peer.rank < 0 and peer.is_alive and now > peer.since + FIRST_RANK_S:
                peer.close(GONE)
        self._ranks = [peer for peer in self._ranks if peer.is_alive]

    def _is_over(self) -> bool:
        if any(peer.is_alive for peer in self._ranks):
            return False
        return bool(self._files.beats) or time.monotonic() > self._begun + FIRST_RANK_S

    def _report_error(self) -> None:
        """Send an error to one rank, which warns: this process has no stderr."""
        since, error = self._files.busy_since, self._files.writer.error
        if since is not None and time.monotonic() - since > HUNG_S:
            error = f"no answer for {HUNG_S:g} s"
        if error and not self._reported:
            peer = next((one for one in self._ranks if one.socket is not None and one.rank >= 0), None)
            if peer is not None:
                self._reported = error
                peer.send({"warn": f"the heartbeat cannot be written: {error}. The training continues"})


def ignore_signals() -> None:
    """Ignore signals meant for the training. Until here they were blocked."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_inherited() -> None:
    """Close descriptors inherited from the training: an open pipe would keep a `tee` waiting."""
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        descriptors = list(range(1024))
    for descriptor in descriptors:
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def main(order: str) -> None:
    """Serve with standard input as the listening socket; `order` is the JSON of `connection.order`."""
    ignore_signals()
    close_inherited()
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("resil-mirror")
    listener = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    WriterProcess(listener, json.loads(order)).serve()
    os._exit(0)  # the thread that writes may hang in a dead file system
