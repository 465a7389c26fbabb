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
import time

from resilience.guard.mirror.beat import SIZE, Pulse, read_phase
from resilience.guard.mirror.beats_file import GONE, LEFT, RUNNING, RankBeat
from resilience.guard.mirror.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST_PACKET = 65536
MOST_GUESTS = 1_024
FIRST_GUEST_S = 60.0
"""The process ends if no rank comes in this time."""
LAST_WORDS_S = 2.0
HUNG_S = 30.0
STACKS_S = 1.0
"""How long ranks have to write their stacks, in memory: a process that does not run writes none."""
MOST_STACKS = 2**20
PEER = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)."""
DEAF_TO = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM)
"""What proctrack/linuxproc and terminals give to every descendant of a job step."""


class Guest:
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


class MirrorProcess:
    """Serves the ranks of a node until none is left."""

    def __init__(self, listener: socket.socket, order: dict[str, Any]) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._sample_ms = int(1000 * max(0.02, min(1.0, float(order["beat_s"]) / 2)))
        self._files = Files(order)
        self._guests: list[Guest] = []
        self._begun = time.monotonic()
        self._told = ""
        self._asked: list[tuple[Guest, int]] = []  # for stacks, and where they begin
        self._asked_at = 0.0

    def serve(self) -> None:
        """Return when all ranks are gone, or none ever came; the last beat is written then."""
        while True:
            self._wait()
            now = time.time()
            for guest in self._guests:
                guest.look(now)
            self._take_stacks()
            self._drop_silent()
            self._tell_trouble()
            if self._is_over() and not self._accept():
                break
        self._listener.close()
        self._files.finish(LAST_WORDS_S)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        by_descriptor: dict[int, tuple[Guest, bool]] = {}
        for guest in self._guests:
            if guest.socket is not None:
                by_descriptor[guest.socket.fileno()] = (guest, False)
            if guest.process >= 0:
                by_descriptor[guest.process] = (guest, True)
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(self._sample_ms):
            if descriptor == self._listener.fileno():
                self._accept()
                continue
            guest, is_process = by_descriptor[descriptor]
            if is_process and guest.process == descriptor:
                self._read(guest)  # its last words came before its end
                guest.look(time.time())
                guest.close(GONE)
                self._files.hurry()
            elif not is_process and guest.socket is not None:
                self._read(guest)

    def _accept(self) -> bool:
        accepted = False
        while len(self._guests) < MOST_GUESTS:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                break
            pid, uid, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            if uid != os.geteuid():
                sock.close()
                continue
            sock.setblocking(False)
            guest = Guest(sock, pid)
            self._guests.append(guest)
            guest.say({"welcome": os.getpid()})
            accepted = True
        return accepted

    def _read(self, guest: Guest) -> None:
        while guest.socket is not None:
            try:
                packet, descriptors, _, _ = socket.recv_fds(guest.socket, LARGEST_PACKET, 2)
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            try:
                if not packet:
                    guest.socket.close()
                    guest.socket = None
                    if guest.process < 0 or guest.rank < 0:
                        guest.close(GONE)
                    return
                self._obey(guest, packet, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _obey(self, guest: Guest, packet: bytes, descriptors: list[int]) -> None:
        try:
            message = json.loads(packet)
            if "hello" in message and descriptors:
                guest.memory = mmap.mmap(descriptors[0], SIZE, prot=mmap.PROT_READ)
                guest.rank = int(message["hello"])
                guest.beat.pid = int(message["pid"])
                if len(descriptors) > 1:
                    guest.stacks, guest.stacks_signal = os.dup(descriptors[1]), int(message["stacks"])
                guest.look(time.time())
                self._files.admit(guest.rank, guest.beat)
                self._forget_former(guest)
            elif "journal" in message:
                self._files.add_line(int(message["journal"]), str(message["line"]).encode() + b"\n")
            elif "learned" in message:
                self._files.keep_learned(int(message["learned"]), str(message["text"]))
            elif "ask" in message:
                self._files.ask(guest, str(message["ask"]))
            elif "bye" in message:
                guest.look(time.time())
                guest.close(LEFT)
        except (ValueError, TypeError, KeyError, OSError, RecursionError):
            guest.close(GONE)  # not one of ours

    def _forget_former(self, guest: Guest) -> None:
        """A rank that has come again takes the place of what was known of it."""
        for former in self._guests:
            if former is not guest and former.rank == guest.rank:
                former.close(GONE)
        self._guests = [one for one in self._guests if one is guest or one.rank != guest.rank]

    def _take_stacks(self) -> None:
        """Ask all ranks for their stacks when somebody wants them, and a second later collect what they wrote."""
        if self._asked and time.monotonic() >= self._asked_at + STACKS_S:
            for guest, begin in self._asked:
                if guest.stacks >= 0:
                    size = min(os.fstat(guest.stacks).st_size - begin, MOST_STACKS)
                    self._files.add_stacks(guest.rank, guest.beat.pid, os.pread(guest.stacks, size, begin))
            self._asked = []
        elif self._files.wants_stacks and not self._asked:
            self._files.wants_stacks = False
            asked = [(guest, guest.ask_for_stacks()) for guest in self._guests if guest.is_alive]
            self._asked = [(guest, begin) for guest, begin in asked if begin >= 0]
            self._asked_at = time.monotonic()

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for guest in self._guests:
            if guest.rank < 0 and guest.is_alive and now > guest.since + FIRST_GUEST_S:
                guest.close(GONE)
        self._guests = [guest for guest in self._guests if guest.is_alive]

    def _is_over(self) -> bool:
        if any(guest.is_alive for guest in self._guests):
            return False
        return bool(self._files.beats) or time.monotonic() > self._begun + FIRST_GUEST_S

    def _tell_trouble(self) -> None:
        """What cannot be written is told to one rank, which warns: this process has no stderr."""
        since, trouble = self._files.busy_since, self._files.trouble
        if since is not None and time.monotonic() - since > HUNG_S:
            trouble = f"no answer for {HUNG_S:g} s"
        if trouble and not self._told:
            guest = next((one for one in self._guests if one.socket is not None and one.rank >= 0), None)
            if guest is not None:
                self._told = trouble
                guest.say({"warn": f"the heartbeat cannot be written: {trouble}. The training goes on"})


def be_deaf() -> None:
    """Ignore what is meant for the training. Until here these signals were blocked."""
    for number in DEAF_TO:
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
    be_deaf()
    close_inherited()
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("resil-mirror")
    listener = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    MirrorProcess(listener, json.loads(order)).serve()
    os._exit(0)  # the thread that writes may hang in a dead file system
