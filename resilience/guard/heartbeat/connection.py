"""A rank's connection to the writer process of its node (`process.py`), and the start of that process.

The socket's name is abstract (unix(7)), so no file is left behind. The rank that starts the process binds the name
first; binding is atomic, so there is one process per node and launch. Both ends check the peer's credentials
(SO_PEERCRED). No method waits longer than about a second, and none raises.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time

from resilience.guard.agreement.address_file import Address
from resilience.guard.heartbeat.process import IGNORED_SIGNALS, LARGEST_PACKET, PEER
from resilience.guard.stacks import allow_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resilience.guard.heartbeat.beat import SharedProgress
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.stacks import StacksOnDemand

CONNECT_S = 30.0
"""How long a rank tries to connect to its node's writer process before it gives up."""
RETRY_S = 0.1
ANSWER_S = 0.5
MOST_STARTS = 3
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from resilience.guard.heartbeat.process import main; main(sys.argv[2])"
)
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_UNWANTED = ("LD_PRELOAD", "LD_AUDIT")
"""Not inherited: libraries preloaded into a training may start threads or take memory."""


def socket_name(place: RankInfo) -> bytes:
    """Return the abstract socket name for the ranks of one launch on one node: at most 107 bytes."""
    uid, whole = os.geteuid(), f"{place.run_dir}\0{place.host}\0{place.launch_id}\0{place.job_id}\0{place.attempt}"
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    shown = f"resil-mirror/{uid}/{place.host[:24]}/{place.launch_id[:24]}/{digest}"
    return b"\0" + shown.encode("ascii", "replace")


def order(place: RankInfo, beat_s: float, address_file: str) -> str:
    """Return the command line argument of the process."""
    return json.dumps(
        {
            "run_dir": place.run_dir,
            "job_id": place.job_id,
            "attempt": place.attempt,
            "host": place.host,
            "beat_s": beat_s,
            "address": address_file,
        }
    )


def start_process(listener: socket.socket, order: str) -> int:
    """Start the writer process of this node and return its pid. Raise OSError.

    posix_spawn(3) copies neither the page tables of a training of 100 GB nor locks held by threads. The signals that
    the process will ignore are blocked from its first instruction on. The environment is inherited: the batch shell
    identifies the processes of its attempt by it.
    """
    if not sys.executable:
        raise OSError(errno.ENOENT, "this interpreter does not know where its program is")
    environ = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", PROGRAM, _PACKAGES, order],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, listener.fileno(), 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsigmask=[*IGNORED_SIGNALS, *signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    )


class WriterConnection:
    """The connection of one rank. Safe from every thread.

    Attributes:
        given_up: whether this rank has stopped trying to reach the writer process.
        child: pid of the process if this rank has started it; else 0.
    """

    def __init__(
        self, place: RankInfo, slot: SharedProgress, order: str, warn: Callable[[str], None], stacks: StacksOnDemand
    ) -> None:
        self.given_up = False
        self.child = 0
        self._place = place
        self._slot = slot
        self._stacks = stacks
        self._order = order
        self._warn = warn
        self._may_start = place.local_rank <= 0
        self._starts = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_welcome = False
        self._retry_at = 0.0
        self._until = time.monotonic() + CONNECT_S
        self._why = "nothing listens"
        self._answers: dict[str, list[Any]] = {"address": [], "learned": []}

    def maintain(self) -> None:
        """Connect if due, and receive messages."""
        with self._lock:
            self._reap()
            self._maintain()

    def send_line(self, rank: int, line: bytes) -> bool:
        """Send a journal line; return False if that is impossible now."""
        with self._lock:
            return self._send({"journal": rank, "line": line.decode("utf-8", "replace").rstrip("\n")})

    def learn(self, rank: int, text: str) -> bool:
        """Send the measurements of a rank; return False if that is impossible now."""
        with self._lock:
            return self._send({"learned": rank, "text": text})

    def address(self) -> Address | None:
        """Return the address of rank 0; None if not known yet."""
        answer = self._ask("address")
        return _address(answer[0]) if answer else None

    def learned(self) -> str | None:
        """Return the measurements of this rank in an earlier job: empty if none, None without an answer yet."""
        answer = self._ask("learned")
        return str(answer[0] or "") if answer else None

    def _ask(self, what: str) -> list[Any]:
        with self._lock:
            self._maintain()
            if not self._is_welcome or not self._send({"ask": what}):
                return []
            answers = self._answers[what]
            answers.clear()
            until = time.monotonic() + ANSWER_S
            while self._socket is not None and not answers and time.monotonic() < until:
                self._receive(until - time.monotonic())
            return answers[-1:]

    def close(self, wait_s: float) -> None:
        """Send BYE, and wait for the end of the process if this rank started it and is the last."""
        with self._lock:
            self.given_up = True
            self._send({"bye": self._place.rank})
            self._drop()
        until = time.monotonic() + wait_s
        while self.child and time.monotonic() < until:
            self._reap()
            if self.child:
                time.sleep(0.005)

    def after_fork_in_child(self) -> None:
        """In a forked child: close the copy of the parent's connection without sending anything."""
        self.given_up = True
        self.child = 0
        self._drop()

    # ---- under the lock ---------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        if self._socket is not None:
            self._receive(0.0)
        if self._socket is not None or self.given_up or time.monotonic() < self._retry_at:
            if self._socket is not None and not self._is_welcome and time.monotonic() > self._until:
                self._why = "the process does not answer"
                self._give_up()
            return
        self._retry_at = time.monotonic() + RETRY_S
        try:
            self._connect()
        except ConnectionRefusedError:  # no process has bound the name
            if self._may_start:
                self._start()
        except (OSError, ValueError) as error:
            self._why = str(error)
        if self._socket is None and time.monotonic() > self._until:
            self._give_up()

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(1.0)
            sock.connect(socket_name(self._place))
            _, uid, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            if uid != os.geteuid():
                raise OSError(errno.EPERM, f"the socket belongs to user {uid}")
            hello = {"hello": self._place.rank, "pid": os.getpid(), "stacks": self._stacks.signal}
            descriptors = [self._slot.descriptor, *([self._stacks.descriptor] if self._stacks.signal else [])]
            socket.send_fds(sock, [json.dumps(hello).encode()], descriptors)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._receive(0.0)

    def _start(self) -> None:
        if self._starts >= MOST_STARTS:
            self._why = f"the process ended {self._starts} times"
            self._give_up()
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(socket_name(self._place))
                listener.listen(1024)
            except OSError:  # another rank was faster
                return
            try:
                self._starts += 1
                self._reap()
                self.child = start_process(listener, self._order)
            except (OSError, ValueError) as error:
                self._why = f"the process cannot be started: {error}"
                self._give_up()
                return
            # Before our copy of the listening socket is closed: from here on only the process can answer.
            with contextlib.suppress(OSError, ValueError):
                self._connect()

    def _receive(self, wait_s: float) -> None:
        """Receive all packets; wait at most `wait_s` for the first one."""
        while self._socket is not None:
            try:
                self._socket.settimeout(max(0.0, wait_s))
                packet = self._socket.recv(LARGEST_PACKET)
            except (BlockingIOError, TimeoutError):
                return
            except OSError:
                packet = b""
            wait_s = 0.0
            if not packet:
                self._lost()
                return
            try:
                message = json.loads(packet)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict):
                continue
            if "welcome" in message:
                self._is_welcome = True
                allow_reader(int(message["welcome"]))
            if "warn" in message:
                self._warn(str(message["warn"]))
            for what, answers in self._answers.items():
                if what in message:
                    answers.append(message[what])

    def _send(self, message: dict[str, Any]) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.settimeout(0.0)
            self._socket.send(json.dumps(message).encode())
            return True
        except BlockingIOError:
            return False
        except OSError:
            self._lost()
            return False

    def _lost(self) -> None:
        """Drop the lost connection; connect or start the process again later."""
        if self._is_welcome:
            self._until = time.monotonic() + CONNECT_S
        self._why = "the process ended"
        self._drop()

    def _drop(self) -> None:
        sock, self._socket = self._socket, None
        self._is_welcome = False
        if sock is not None:
            sock.close()

    def _give_up(self) -> None:
        self._drop()
        self.given_up = True
        instead = "this rank writes the heartbeat itself" if self._place.is_first else "its heartbeat is not written"
        self._warn(
            f"rank {self._place.rank} cannot use the mirror process on {self._place.host} ({self._why}): {instead}"
        )

    def _reap(self) -> None:
        if self.child:
            try:
                ended, _ = os.waitpid(self.child, os.WNOHANG)
            except ChildProcessError:  # reaped elsewhere
                ended = self.child
            if ended:
                self.child = 0


def _address(text: Any) -> Address | None:
    try:
        fields = json.loads(text)
        return Address(str(fields["host"]), int(fields["port"]), str(fields["token"]))
    except (ValueError, TypeError, KeyError):
        return None
