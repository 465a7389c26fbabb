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
import gc
import io
import marshal
import os
import select
import selectors
import signal
import struct
import sys
import time
from binascii import crc32
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from resilience.base.files import write_all
from resilience.base.processes import descendants, is_alive, is_waiting_in_kernel, switches
from resilience.errors import NotSupported, ProbeError, ResilError, SchedulerUnavailable, SettingsError, UsageError

GRACE_S = 0.2
"""How long a killed child may take to end, and a waiting one to go on, before it is abandoned."""

AT_ONCE = 32
"""So many children may begin within BEGINNING_S: ten thousand targets must not become ten thousand processes."""

BEGINNING_S = 0.25
"""A child older than this is taken to wait for something: it no longer keeps others from starting."""

MOST = 400
"""Never more children than this: there are 1024 file descriptors, and other people on this machine."""

LIMIT_BYTES = 64 * 2**20
"""No answer is larger."""

HEADER = struct.Struct("<4sQI")
"""Before each answer: its magic number, its length in bytes, its CRC-32. Then come marshal's bytes."""

_MAGIC = b"rsl1"
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that must wait until the child has handlers of its own: ours would believe itself in the parent."""

_RESET = (*_BLOCKED, signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2)
_KINDS: tuple[type[ResilError], ...] = (SettingsError, UsageError, SchedulerUnavailable, NotSupported)
"""Errors that keep their class on the way to the parent; the others arrive as ProbeError."""

_CHUNK_BYTES = 2**18
_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_leaving: set[int] = set()
"""Children that have answered, or were abandoned, and are not reaped yet."""

KeyT = TypeVar("KeyT", bound=Hashable)


class Answer(NamedTuple):
    """The result of one child.

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
                        error = ProbeError("not probed: too many other probes hang", transient=True)
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        now = time.monotonic()
        pid = fork()
        if pid == 0:
            answer_and_exit(work, writing, deadline_s)
        children[pid] = child = _Child(key, pid, reading, now, deadline_s)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


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
    """The answer of a child that has ended, or has written all of its answer."""
    took_s = time.monotonic() - child.started
    _leaving.add(child.pid)
    raw = bytes(child.received[HEADER.size :])
    try:
        magic, length, checksum = HEADER.unpack_from(child.received)
        if (magic, length, checksum) != (_MAGIC, len(raw), crc32(raw)):
            raise ValueError
        kind, value, said = marshal.loads(raw)
    except (struct.error, ValueError, EOFError, TypeError):
        return Answer(error=ProbeError(f"the probe ended without an answer: {_end_of(child)}"), took_s=took_s)
    error: ResilError | None = None
    if kind == "error":
        name, message, hint, transient = value
        owner = next((owner for owner in _KINDS if owner.__name__ == name), ProbeError)
        error, value = owner(message, hint=hint, transient=transient), None
    elif kind == "fault":
        error, value = ProbeError(f"the probe failed: {value[0]}", hint=value[1] or "this is a bug of the probe"), None
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
            f"no process could be started for the probe: {error.strerror}",
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
    """End all children: the caller takes no more answers."""
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


# ---- in the child ---------------------------------------------------------------------------------------------------


def fork() -> int:
    """As os.fork. Python 3.12 warns of forks beside threads: a lock may be held.

    The one thread that we start (system/process.py) holds none that a child takes, and the interpreter renews its own.
    """
    if tuple(sys.version_info) < (3, 12):
        return os.fork()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def begin(*keep: int, keep_stderr: bool = False) -> io.StringIO:
    """The prelude of every forked child: a session of its own, the system's signal handlers, nothing of ours open.

    `keep`: descriptors that stay open. Standard streams lead nowhere, but for standard error where `keep_stderr` says
    so; what the child prints is caught in the text that is returned. The output that the parent has written and not
    flushed yet stays the parent's: the child's copy of it goes nowhere.
    """
    os.setsid()  # Ctrl-C is for the parent
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    gc.disable()  # it would copy every page shared with the parent, for garbage that the child's end clears away
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(2 if keep_stderr else 3):
        if descriptor not in keep:
            os.dup2(nowhere, descriptor)
    for descriptor in _descriptors():
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
    said = io.StringIO()
    sys.stdout = sys.stderr = said
    if keep_stderr:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return said


def answer_and_exit(work: Callable[[], Any], writing: int, deadline_s: float) -> NoReturn:
    """A child's whole life: do the work within the deadline, and write its result into the pipe `writing`.

    The result is HEADER and marshal's bytes of (kind, value, output): `value` and the value; `error` and (class,
    message, hint, transient); `fault` and (text, trace).
    """
    code = 1
    try:
        said = begin(writing)
        # Should the parent be killed, a busy loop must not last for ever. Processor time only: to wait is no harm.
        signal.setitimer(signal.ITIMER_PROF, deadline_s + 5)
        answer: tuple[str, Any]
        try:
            answer = ("value", work())
        except ResilError as error:
            kind = next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "")
            answer = ("error", (kind, str(error.message), str(error.hint), bool(error.transient)))
        except BaseException as error:
            answer = ("fault", (f"{type(error).__name__}: {error}", _trace(error)))
        try:
            packed = marshal.dumps((*answer, said.getvalue()))
        except ValueError:
            packed = marshal.dumps(("fault", ("its answer is no plain data", ""), ""))
        if len(packed) > LIMIT_BYTES:
            packed = marshal.dumps(("fault", (f"its answer has {len(packed)} bytes", ""), ""))
        write_all(writing, HEADER.pack(_MAGIC, len(packed), crc32(packed)) + packed)
        code = 0
    finally:
        os._exit(code)


def _descriptors() -> Iterable[int]:
    """The descriptors that are open. Not a range up to the limit: that may be a billion, and kernels before 5.9 close
    them one by one."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names only
    except OSError:
        return range(4096)


def _trace(error: BaseException) -> str:
    if not os.environ.get("RESIL_TRACEBACK"):
        return ""
    import traceback

    return "".join(traceback.format_exception(error))


# ---- a child that nobody waits for ----------------------------------------------------------------------------------


class Detached:
    """A child that delays nobody and outlives the process that started it.

    Forked twice, so that init reaps it and no zombie stays.
    """

    def __init__(self, alive: int) -> None:
        """`alive`: a pipe that ends with the child."""
        self._alive = alive

    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Wait for its end, so long at most; return whether it has ended."""
        if self._alive < 0:
            return True
        poll = select.poll()
        poll.register(self._alive, select.POLLIN | select.POLLHUP)
        try:
            if not poll.poll(max(0.0, seconds) * 1000):
                return False
        except InterruptedError:
            return False
        os.close(self._alive)
        self._alive = -1
        return True

    def forget(self) -> None:
        """Let it be."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


def start_detached(work: Callable[[], None], limit_s: float, *, keep: int = -1, keep_stderr: bool = False) -> Detached:
    """Have a child do something; it is killed after `limit_s`, and whatever it raises is lost.

    `keep`: a descriptor that it shall still have; all others are closed there. `keep_stderr`: what it says on standard
    error appears there; whoever reads from a pipe then waits for its end. Raise OSError if there is no room for
    another process.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        middle = fork()
        if middle == 0:
            _work_and_exit(work, limit_s, {writing, keep}, keep_stderr)
    except OSError:
        os.close(reading)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
    with contextlib.suppress(ChildProcessError):  # somebody else here takes note of all children
        os.waitpid(middle, 0)
    return Detached(reading)


def _work_and_exit(work: Callable[[], None], limit_s: float, keep: set[int], keep_stderr: bool) -> NoReturn:
    code = 1
    try:
        if fork() != 0:
            os._exit(0)
        begin(*keep, keep_stderr=keep_stderr)
        signal.setitimer(signal.ITIMER_REAL, limit_s)  # SIGALRM ends the child, whatever it waits for
        work()
        code = 0
    finally:
        os._exit(code)
