"""The process beside the ranks of a node: copies their beats to the run directory, and is gone when they are.

A fresh interpreter with the standard library only, started by the node's first rank (`line.py`) with the
listening socket as its standard input. Each rank connects and hands over its memory (SCM_RIGHTS, unix(7)). From then on
nothing of a rank is needed: not its GIL, not its main thread. Ranks ask here where rank 0 listens, so that only this
process of the node looks at the run directory.

One thread serves the ranks and never touches a file; the other one writes, and may hang in a dead file system. When no
rank is left, the last beat is written and the process ends, whatever the other thread does.

When the batch shell asks for stacks (`switches/stacks.<jobid>`), each rank gets a signal that makes it write them into
a second memory, in C, also while a library holds the GIL; from there they come to `journal/<jobid>.<rank>.stacks`.

Packets, one JSON table each (SOCK_SEQPACKET). From a rank: `{"hello": rank, "pid": n, "stacks": signal}` with the
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
from resilience.guard.agreement.address_file import remove_own
from resilience.guard.heartbeat.beat import GONE, LEFT, RUNNING, SIZE, Pulse, RankBeat, read_phase
from resilience.guard.heartbeat.run_directory import RunDirectoryWriter, read_learned, stacks_asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resilience.guard.heartbeat.run_directory import Asked

LARGEST_PACKET = 65536
MOST_RANKS = 1_024
FIRST_RANK_S = 60.0
"""The process ends if no rank comes in this time."""
LAST_WORDS_S = 2.0
HUNG_S = 30.0
STACKS_S = 1.0
"""How long ranks have to write their stacks, in memory: a process that does not run writes none."""
MOST_STACKS = 2**20
MOST_LINES = 1_000
"""Journal lines kept per rank while the run directory cannot be written."""
SOON_S = 0.1
LOOK_AGAIN_S = 1.0
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
"""What proctrack/linuxproc and terminals give to every descendant of a job step."""


class RankConnection:
    """A rank that has connected: its socket, its memory, its process."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.socket: socket.socket | None = sock
        self.since = time.monotonic()
        self.rank = -1
        self.memory: mmap.mmap | None = None
        self.stacks = -1
        self.stacks_signal = 0
        self.beat = RankBeat(pid, Pulse(time.time()))
        self.process = -1
        if pid > 0:  # 0: it lives in a pid namespace that we cannot see; then its connection tells
            with contextlib.suppress(OSError):
                self.process = os.pidfd_open(pid)

    @property
    def is_alive(self) -> bool:
        """Whether something may still come from it."""
        return self.beat.end == RUNNING and (self.process >= 0 or self.socket is not None)

    def look(self, now: float) -> None:
        """Sample its memory."""
        if self.memory is not None:
            words = struct.unpack_from("=2Q", self.memory, 0)
            self.beat.pulse.look((words[0], words[1], read_phase(self.memory)), now)

    def say(self, message: dict[str, Any]) -> None:
        """Send a packet, or let it be: a rank that does not read is not waited for."""
        with contextlib.suppress(OSError):
            if self.socket is not None:
                self.socket.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def close(self, end: str) -> None:
        """It is over."""
        if self.beat.end == RUNNING:
            self.beat.end = end
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        for descriptor in (self.process, self.stacks):
            if descriptor >= 0:
                os.close(descriptor)
        self.process = self.stacks = -1

    def ask_for_stacks(self) -> int:
        """Make it write its stacks; return where they will begin in `stacks`, -1 where it cannot."""
        if self.process < 0 or self.stacks < 0 or not self.stacks_signal:
            return -1
        begin = os.fstat(self.stacks).st_size
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.process, self.stacks_signal)
        return begin


class Files:
    """The thread that touches the run directory.

    Attributes:
        beats: the ranks that have come, by number; replaced, never changed in place.
        writer: keeps what is to be written.
        wants_stacks: the batch shell asks for the stacks of all ranks; reset by the thread that collects them.
        busy_since: when the present round of work began, on the monotonic clock; None while the thread waits.
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
        self._stacks_asked: Asked | None = None
        self._askers: list[tuple[int, str, Callable[[dict[str, Any]], None]]] = []
        self._due = 0.0
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
        self.writer.add_lines(rank, [line])
        self._wake.set()

    def keep_learned(self, rank: int, text: str) -> None:
        """Write what a rank has learned."""
        self.writer.add_learned(rank, text)
        self._wake.set()

    def add_stacks(self, rank: int, pid: int, stacks: bytes) -> None:
        """Write down where all threads of a rank are; nothing was written by one that does not run."""
        head = f"{int(time.time())} {self._order['host']} pid {pid}: where it hangs, by the batch shell's wish\n"
        stacks = stacks or b"it did not answer: the process is stopped, or in the kernel"
        self.writer.add_stacks(rank, head.encode() + stacks + b"\n")
        self._wake.set()

    def ask(self, rank: int, what: str, say: Callable[[dict[str, Any]], None]) -> None:
        """Answer a rank where rank 0 listens (`address`), or what it had learned in another job (`learned`)."""
        with self._lock:
            if (rank, what, say) not in self._askers:
                self._askers.append((rank, what, say))
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
            is_due = bool(self.beats) and (over or time.monotonic() >= self._due)
            if is_due:
                self._due = time.monotonic() + float(self._order["beat_s"])
            self.writer.write(self.beats if is_due else None)
            if is_due:
                self._look_for_stacks()
            self.busy_since = None
            if over:
                self._remove_address()
                return
            self._wake.wait(max(0.01, self._due - time.monotonic()) if self.beats else None)
            self._wake.clear()

    def _answer(self) -> None:
        with self._lock:
            askers, self._askers = self._askers, []
        address: str | None = None
        if any(what == "address" for _, what, _ in askers):
            address = self._read_address()
        for rank, what, say in askers:
            say({what: address if what == "address" else read_learned(self._order["run_dir"], rank)})

    def _read_address(self) -> str | None:
        text = read_own(self._order["address"])
        if text is None and time.monotonic() > self._looked_again + LOOK_AGAIN_S:
            self._looked_again = time.monotonic()
            look_again(self._order["address"])
            text = read_own(self._order["address"])
        return text

    def _look_for_stacks(self) -> None:
        with contextlib.suppress(OSError):
            asked = stacks_asked(self._order["run_dir"], self._order["job_id"])
            if asked is not None and asked != self._stacks_asked:
                self._stacks_asked, self.wants_stacks = asked, True

    def _remove_address(self) -> None:
        """Rank 0 of this node was killed, and its address file is still there: nobody listens there any more."""
        first = self.beats.get(0)
        if first is not None and first.end == GONE:
            with contextlib.suppress(OSError):
                remove_own(self._order["address"], self._order["host"], first.pid)


def look_again(path: str) -> None:
    """Make an NFS client forget that a file was not there: it believes that for up to a minute (nfs(5), acdirmax).

    It asks the server again about a directory in which it has written itself.
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
        self._files = Files(order)
        self._ranks: list[RankConnection] = []
        self._begun = time.monotonic()
        self._told = ""
        self._asked: list[tuple[RankConnection, int]] = []  # for stacks, and where they begin
        self._asked_at = 0.0

    def serve(self) -> None:
        """Return when all ranks are gone, or none ever came; the last beat is written then."""
        while True:
            self._wait()
            now = time.time()
            for peer in self._ranks:
                peer.look(now)
            self._take_stacks()
            self._drop_silent()
            self._tell_error()
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
                self._read(peer)  # its last words came before its end
                peer.look(time.time())
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
            peer.say({"welcome": os.getpid()})
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
                self._obey(peer, packet, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _obey(self, peer: RankConnection, packet: bytes, descriptors: list[int]) -> None:
        try:
            message = json.loads(packet)
            if "hello" in message and descriptors:
                peer.memory = mmap.mmap(descriptors[0], SIZE, prot=mmap.PROT_READ)
                peer.rank = int(message["hello"])
                peer.beat.pid = int(message["pid"])
                if len(descriptors) > 1:
                    peer.stacks, peer.stacks_signal = os.dup(descriptors[1]), int(message["stacks"])
                peer.look(time.time())
                self._files.admit(peer.rank, peer.beat)
                self._forget_former(peer)
            elif "journal" in message:
                self._files.add_line(int(message["journal"]), str(message["line"]).encode() + b"\n")
            elif "learned" in message:
                self._files.keep_learned(int(message["learned"]), str(message["text"]))
            elif "ask" in message:
                self._files.ask(peer.rank, str(message["ask"]), peer.say)
            elif "bye" in message:
                peer.look(time.time())
                peer.close(LEFT)
        except (ValueError, TypeError, KeyError, OSError, RecursionError):
            peer.close(GONE)  # not one of ours

    def _forget_former(self, peer: RankConnection) -> None:
        """A rank that has come again takes the place of what was known of it."""
        for former in self._ranks:
            if former is not peer and former.rank == peer.rank:
                former.close(GONE)
        self._ranks = [one for one in self._ranks if one is peer or one.rank != peer.rank]

    def _take_stacks(self) -> None:
        """Ask all ranks for their stacks when somebody wants them, and a second later collect what they wrote."""
        if self._asked and time.monotonic() >= self._asked_at + STACKS_S:
            for peer, begin in self._asked:
                if peer.stacks >= 0:
                    size = min(os.fstat(peer.stacks).st_size - begin, MOST_STACKS)
                    self._files.add_stacks(peer.rank, peer.beat.pid, os.pread(peer.stacks, size, begin))
            self._asked = []
        elif self._files.wants_stacks and not self._asked:
            self._files.wants_stacks = False
            asked = [(peer, peer.ask_for_stacks()) for peer in self._ranks if peer.is_alive]
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

    def _tell_error(self) -> None:
        """What cannot be written is told to one rank, which warns: this process has no stderr."""
        since, error = self._files.busy_since, self._files.writer.error
        if since is not None and time.monotonic() - since > HUNG_S:
            error = f"no answer for {HUNG_S:g} s"
        if error and not self._told:
            peer = next((one for one in self._ranks if one.socket is not None and one.rank >= 0), None)
            if peer is not None:
                self._told = error
                peer.say({"warn": f"the heartbeat cannot be written: {error}. The training goes on"})


def ignore_signals() -> None:
    """Ignore what is meant for the training. Until here these signals were blocked."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_inherited() -> None:
    """Close what a library of the training has left open for its children: a pipe held open is a `tee` that waits."""
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        descriptors = list(range(1024))
    for descriptor in descriptors:
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def main(order: str) -> None:
    """Serve with standard input as the listening socket; `order` is the JSON of `line.order`."""
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
