"""Runs our own functions in child processes with deadlines that are real ones.

A thread that looks at a hung file system can neither be ended nor left behind: the process could not exit. A child can:
at its deadline it is killed with everything that it started, or, where it waits in the kernel, abandoned. The child is
forked, so nothing is imported again (about a millisecond), and what it was told to do needs no name.

A child that waits in the kernel (state D, proc_pid_stat(5)) is left as it is: killing it would do nothing on most file
systems, and where it did (a hard NFS mount), the next look would have to wait for the whole deadline again. As it is,
its end is the sign that the mount has come back; system/stuck.py remembers it.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import selectors
import signal
import struct
import sys
import time
from binascii import crc32
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from resilience.base.processes import descendants, is_alive, is_waiting_in_kernel, switches
from resilience.errors import ProbeError, ResilError
from resilience.system.child_life import BLOCKED, HEADER, KINDS, LIMIT_BYTES, MAGIC, live

GRACE_S = 0.2
"""How long a killed child may take to end, and a waiting one to go on, before it is abandoned."""

AT_ONCE = 32
"""So many children may begin within BEGINNING_S: ten thousand targets must not become ten thousand processes."""

BEGINNING_S = 0.25
"""A child older than this is taken to wait for something: it no longer keeps others from starting."""

MOST = 400
"""Never more children than this: there are 1024 file descriptors, and other people on this machine."""

_CHUNK_BYTES = 2**18
_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_leaving: set[int] = set()
"""Children that have answered, or were abandoned, and are not reaped yet."""

KeyT = TypeVar("KeyT", bound=Hashable)


class Answer(NamedTuple):
    """What became of one child.

    Attributes:
        value: what its function returned.
        error: what it raised instead, as a ResilError; None when all went well.
        took_s: how long it took.
        is_overdue: whether the deadline passed.
        abandoned: the processes that are still there: they hang in the kernel.
        said: what it wrote to standard output and standard error.
    """

    value: Any = None
    error: ResilError | None = None
    took_s: float = 0.0
    is_overdue: bool = False
    abandoned: tuple[int, ...] = ()
    said: str = ""


class _Child:
    """A child that is under way."""

    def __init__(self, key: Any, pid: int, pipe: int, started: float, deadline_s: float) -> None:
        self.key, self.pid, self.pipe = key, pid, pipe
        self.started, self.deadline_s, self.ends = started, deadline_s, started + deadline_s
        self.received = bytearray()
        self.waits: int | None = None  # how often it had been switched out, when it was seen to wait in the kernel
        self.killed: tuple[int, ...] = ()  # itself and what it had started
        self.is_closed = False


def run_apart(works: Mapping[KeyT, tuple[Callable[[], Any], float]]) -> Generator[tuple[KeyT, Answer], None, None]:
    """Run each function in a child of its own, side by side; yield (key, answer) as they end.

    `works` maps a key to the function and its deadline in seconds, which counts from the start of its child. A
    function's value must be plain data: texts, bytes, numbers, None, tuples, lists and dicts of them. A child that does
    not answer in time gives a ProbeError; so does one that dies, or cannot be started. Standard input and output of the
    child lead nowhere, and it inherits no descriptor: an abandoned child must not keep a pipe or a lock of ours open.

    Whoever stops asking (an exception, a closed generator) ends all children. A process that lives on calls `reap`.
    """
    waiting = deque((key, work, deadline_s) for key, (work, deadline_s) in works.items())
    longest_s = max((deadline_s for _, _, deadline_s in waiting), default=0.0)
    children: dict[int, _Child] = {}
    crowded: float | None = None
    grace_s = 0.0  # who has answered ends at once; whoever looks next, or `reap`, takes note
    reap()
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or children:
                while waiting and _has_room(children):
                    key, work, deadline_s = waiting[0]
                    try:
                        child = _start(key, work, deadline_s, children)
                    except OSError as problem:
                        if problem.errno in _NO_ROOM and children:
                            break  # when one of them has ended there may be room again
                        waiting.popleft()
                        yield key, _not_started(problem)
                        continue
                    waiting.popleft()
                    selector.register(child.pipe, selectors.EVENT_READ, child)
                for ready, _ in selector.select(_pause(children, bool(waiting))):
                    child = ready.data
                    if _receive(child):
                        continue
                    selector.unregister(child.pipe)
                    os.close(child.pipe)
                    child.is_closed = True
                    if not child.killed:
                        del children[child.pid]
                        crowded = None
                        yield child.key, _answer_of(child)
                now = time.monotonic()
                for child in [child for child in children.values() if child.ends <= now or child.is_closed]:
                    answer = _overdue(child, now)
                    if answer is not None:
                        grace_s = GRACE_S
                        if not child.is_closed:
                            selector.unregister(child.pipe)
                            os.close(child.pipe)
                        del children[child.pid]
                        yield child.key, answer
                if waiting and len(children) >= MOST:
                    crowded = crowded or now
                if crowded is not None and now - crowded > longest_s:  # and nobody has answered since
                    while waiting:
                        error = ProbeError("not looked at: too many other looks hang", transient=True)
                        yield waiting.popleft()[0], Answer(error=error)
        finally:
            _end_all(children.values())
    reap(grace_s)


def _has_room(children: dict[int, _Child]) -> bool:
    if len(children) >= MOST:
        return False
    now, young = time.monotonic(), 0
    for child in reversed(children.values()):
        if now - child.started > BEGINNING_S:
            break
        young += 1
    return young < AT_ONCE


def _pause(children: dict[int, _Child], more: bool) -> float:
    """How long to wait for an answer before something else must be done."""
    if not children:
        return 0.0
    pause = min(child.ends for child in children.values()) - time.monotonic()
    if more:
        pause = min(pause, BEGINNING_S)
    if any(child.is_closed for child in children.values()):
        pause = min(pause, 0.01)  # it is dead, and what it had started may be dying
    return min(max(0.0, pause), 3600.0)  # epoll_wait counts milliseconds in 31 bits


def _start(key: Any, work: Callable[[], Any], deadline_s: float, children: dict[int, _Child]) -> _Child:
    """Start a child and enter it into `children`, before a signal can end us: whoever ends us must find it there."""
    if len(_leaving) >= AT_ONCE:
        reap(GRACE_S)  # on a busy machine who has answered may not have ended yet, and is a process all the same
    reading, writing = os.pipe2(os.O_CLOEXEC)
    # No handler of ours may run in the child before it has its own: it would believe itself the parent.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        now = time.monotonic()
        pid = _fork()
        if pid == 0:
            live(work, writing, deadline_s)
        children[pid] = child = _Child(key, pid, reading, now, deadline_s)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


def _fork() -> int:
    if tuple(sys.version_info) < (3, 12):
        return os.fork()
    # Python warns of forks beside threads: a lock may be held. The one thread that we start (system/process.py) holds
    # none that a child takes, and the interpreter renews its own.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _receive(child: _Child) -> bool:
    """Take what has come; return whether more is to come."""
    chunk = os.read(child.pipe, _CHUNK_BYTES)
    child.received += chunk
    if not chunk or len(child.received) > LIMIT_BYTES + HEADER.size:
        return False
    if len(child.received) < HEADER.size:
        return True
    # Not only the end of the pipe: something that the look has forked may hold it open.
    return len(child.received) < HEADER.size + int(HEADER.unpack_from(child.received)[1])


def _answer_of(child: _Child) -> Answer:
    """What a child that has ended, or has said everything, had to say."""
    took_s = time.monotonic() - child.started
    _leaving.add(child.pid)
    raw = bytes(child.received[HEADER.size :])
    try:
        magic, length, checksum = HEADER.unpack_from(child.received)
        if (magic, length, checksum) != (MAGIC, len(raw), crc32(raw)):
            raise ValueError
        kind, value, said = marshal.loads(raw)
    except (struct.error, ValueError, EOFError, TypeError):
        return Answer(error=ProbeError(f"the look ended without an answer: {_end_of(child)}"), took_s=took_s)
    error: ResilError | None = None
    if kind == "error":
        name, message, hint, transient = value
        owner = next((owner for owner in KINDS if owner.__name__ == name), ProbeError)
        error, value = owner(message, hint=hint, transient=transient), None
    elif kind == "fault":
        error, value = ProbeError(f"the look failed: {value[0]}", hint=value[1] or "this is a bug of the look"), None
    return Answer(value, error, took_s, said=said)


def _end_of(child: _Child) -> str:
    """How a child ended that had no time to say why."""
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child.pid, os.WNOHANG)
        if done:
            _leaving.discard(child.pid)
            code = os.waitstatus_to_exitcode(status)
            return f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"
        time.sleep(0.001)
    return "it hangs"


def _not_started(error: OSError) -> Answer:
    return Answer(
        error=ProbeError(
            f"no process could be started for the look: {error.strerror}",
            hint="see `ulimit -u`, `ulimit -n` and the memory of this machine",
            transient=True,
        )
    )


def _overdue(child: _Child, now: float) -> Answer | None:
    """Do the next thing about a child whose time is up; return what became of it once that is settled."""
    took_s = now - child.started
    error = ProbeError(f"no answer within {child.deadline_s:g} s", transient=True)
    if child.killed:
        alive = tuple(pid for pid in child.killed if is_alive(pid))
        if alive and child.ends > now:
            return None
        _leaving.add(child.pid)
        return Answer(error=error, took_s=took_s, is_overdue=True, abandoned=alive)
    if is_waiting_in_kernel(child.pid):
        if child.waits is None:
            child.waits = switches(child.pid)
            child.ends = now + GRACE_S
            return None
        if child.waits == switches(child.pid):  # one and the same wait
            _leaving.add(child.pid)
            return Answer(error=error, took_s=took_s, is_overdue=True, abandoned=(child.pid,))
    child.killed = _kill(child.pid)
    child.ends = now + GRACE_S
    return None


def _kill(pid: int) -> tuple[int, ...]:
    """Kill a child and all that it has started, groups of their own included; return who that was."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing while we look what it has started
    everybody = (pid, *descendants(pid))
    for victim in everybody:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(victim) == victim:
                os.killpg(victim, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)
    return everybody


def _end_all(children: Collection[_Child]) -> None:
    """Whoever asked has gone away."""
    for child in children:
        if not child.killed:
            _kill(child.pid)
        _leaving.add(child.pid)
        if not child.is_closed:
            os.close(child.pipe)
    if children:
        reap(GRACE_S)


def reap(grace_s: float = 0.0) -> None:
    """Take note of the ends of children, so that none stays as a zombie: for a process that lives on."""
    end, pause = time.monotonic() + grace_s, 0.0001
    while True:
        for pid in list(_leaving):
            try:
                done, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done = pid
            if done:
                _leaving.discard(pid)
        if time.monotonic() >= end or all(is_waiting_in_kernel(pid) for pid in _leaving):
            return
        time.sleep(pause)
        pause = min(0.01, pause * 2)
