"""Runs Python functions in child processes with enforced deadlines.

A thread blocked on a hung file system can neither be ended nor abandoned: the process could not exit. A child process
can: at its deadline the child is killed with all its descendants or, if blocked in the kernel, abandoned. Children are
forked, so nothing is imported again (about a millisecond), and any closure can be passed.

A child blocked in the kernel (state D, proc_pid_stat(5)) is not killed: on most file systems the signal has no effect,
and on others (a hard NFS mount) the next probe would wait for the whole deadline again. The end of the abandoned child
shows that the mount responds again; system/stuck.py keeps a record of the child.
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
"""Time for a killed child to end, or a blocked child to continue, before the child is abandoned."""

MAX_STARTING = 32
"""Maximum number of children started within STARTING_S: ten thousand targets must not become ten thousand processes."""

STARTING_S = 0.25
"""A child older than this counts as blocked, and no longer delays the start of others."""

MAX_CHILDREN = 400
"""Maximum number of children: a process has 1024 file descriptors, and the machine has other users."""

LIMIT_BYTES = 64 * 2**20
"""Maximum size of an answer."""

HEADER = struct.Struct("<4sQI")
"""Header of an answer: magic number, length in bytes, CRC-32. The marshalled answer follows."""

_MAGIC = b"rsl1"
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals blocked until the child has reset the handlers that it inherited from the parent."""

_RESET = (*_BLOCKED, signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2)
_KINDS: tuple[type[ResilError], ...] = (SettingsError, UsageError, SchedulerUnavailable, NotSupported)
"""Errors that keep their class in the parent; others become ProbeError."""

_CHUNK_BYTES = 2**18
_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_leaving: set[int] = set()
"""Children that have answered or were abandoned, and are not reaped yet."""

KeyT = TypeVar("KeyT", bound=Hashable)


class Answer(NamedTuple):
    """The result of a child.

    Attributes:
        value: the return value of its function.
        error: the error of the function as a ResilError, or None.
        took_s: duration in seconds.
        is_overdue: whether the deadline passed.
        abandoned: the remaining processes, which are blocked in the kernel.
        said: standard output and standard error of the child.
    """

    value: Any = None
    error: ResilError | None = None
    took_s: float = 0.0
    is_overdue: bool = False
    abandoned: tuple[int, ...] = ()
    said: str = ""


class _Child:
    """A running child."""

    def __init__(self, key: Any, pid: int, pipe: int, started: float, deadline_s: float) -> None:
        self.key, self.pid, self.pipe = key, pid, pipe
        self.started, self.deadline_s, self.ends = started, deadline_s, started + deadline_s
        self.received = bytearray()
        self.waits: int | None = None  # number of context switches when the child was found blocked in the kernel
        self.killed: tuple[int, ...] = ()  # the child and its descendants
        self.is_closed = False


def run_in_child(works: Mapping[KeyT, tuple[Callable[[], Any], float]]) -> Generator[tuple[KeyT, Answer], None, None]:
    """Run each function in its own child process, in parallel; yield (key, answer) as the children end.

    `works` maps a key to the function and its deadline in seconds from the start of the child. The return value must be
    plain data: str, bytes, numbers, None, and tuples, lists and dicts of them. The answer is a ProbeError if the child
    exceeds its deadline, dies, or cannot be started. Standard input and output of the child are /dev/null, and the
    child inherits no file descriptor, so that an abandoned child keeps no pipe and no lock of the parent open.

    Closing the generator, also by an exception, ends all children. Long-running processes must call `reap`.
    """
    waiting = deque((key, work, deadline_s) for key, (work, deadline_s) in works.items())
    longest_s = max((deadline_s for _, _, deadline_s in waiting), default=0.0)
    children: dict[int, _Child] = {}
    crowded: float | None = None
    grace_s = 0.0  # children that have answered exit at once, and are reaped later
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
                            break  # retry after the end of another child
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
                if waiting and len(children) >= MAX_CHILDREN:
                    crowded = crowded or now
                if crowded is not None and now - crowded > longest_s:  # and no child has answered since
                    while waiting:
                        error = ProbeError("not probed: too many other probes hang", transient=True)
                        yield waiting.popleft()[0], Answer(error=error)
        finally:
            _end_all(children.values())
    reap(grace_s)


def _has_room(children: dict[int, _Child]) -> bool:
    if len(children) >= MAX_CHILDREN:
        return False
    now, young = time.monotonic(), 0
    for child in reversed(children.values()):
        if now - child.started > STARTING_S:
            break
        young += 1
    return young < MAX_STARTING


def _pause(children: dict[int, _Child], more: bool) -> float:
    """Return how long to wait for an answer before the next action is due."""
    if not children:
        return 0.0
    pause = min(child.ends for child in children.values()) - time.monotonic()
    if more:
        pause = min(pause, STARTING_S)
    if any(child.is_closed for child in children.values()):
        pause = min(pause, 0.01)  # the child is dead, its descendants may still be ending
    return min(max(0.0, pause), 3600.0)  # epoll_wait counts milliseconds in 31 bits


def _start(key: Any, work: Callable[[], Any], deadline_s: float, children: dict[int, _Child]) -> _Child:
    """Start a child and add it to `children` before a signal can interrupt, so that cleanup finds the child."""
    if len(_leaving) >= MAX_STARTING:
        reap(GRACE_S)  # on a busy machine, children that have answered may not have exited yet
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
    """Read available data; return whether more is expected."""
    chunk = os.read(child.pipe, _CHUNK_BYTES)
    child.received += chunk
    if not chunk or len(child.received) > LIMIT_BYTES + HEADER.size:
        return False
    if len(child.received) < HEADER.size:
        return True
    # Do not rely on end of file: a process forked by the probe may keep the pipe open.
    return len(child.received) < HEADER.size + int(HEADER.unpack_from(child.received)[1])


def _answer_of(child: _Child) -> Answer:
    """Return the answer of a child that has ended or has written its complete answer."""
    took_s = time.monotonic() - child.started
    _leaving.add(child.pid)
    raw = bytes(child.received[HEADER.size :])
    try:
        magic, length, checksum = HEADER.unpack_from(child.received)
        if (magic, length, checksum) != (_MAGIC, len(raw), crc32(raw)):
            raise ValueError
        kind, value, said = marshal.loads(raw)
    except (struct.error, ValueError, EOFError, TypeError):
        return Answer(error=ProbeError(f"the probe ended without a result: {_end_of(child)}"), took_s=took_s)
    error: ResilError | None = None
    if kind == "error":
        name, message, hint, transient = value
        owner = next((owner for owner in _KINDS if owner.__name__ == name), ProbeError)
        error, value = owner(message, hint=hint, transient=transient), None
    elif kind == "fault":
        error, value = ProbeError(f"the probe failed: {value[0]}", hint=value[1] or "this is a bug in the probe"), None
    return Answer(value, error, took_s, said=said)


def _end_of(child: _Child) -> str:
    """Describe the end of a child that gave no answer."""
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child.pid, os.WNOHANG)
        if done:
            _leaving.discard(child.pid)
            code = os.waitstatus_to_exitcode(status)
            return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        time.sleep(0.001)
    return "still running"


def _not_started(error: OSError) -> Answer:
    return Answer(
        error=ProbeError(
            f"cannot start a process for the probe: {error.strerror}",
            hint="check `ulimit -u`, `ulimit -n` and the memory of this host",
            transient=True,
        )
    )


def _overdue(child: _Child, now: float) -> Answer | None:
    """Take the next action for an overdue child; return its answer once the child has ended or is abandoned."""
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
        if child.waits == switches(child.pid):  # blocked since then
            _leaving.add(child.pid)
            return Answer(error=error, took_s=took_s, is_overdue=True, abandoned=(child.pid,))
    child.killed = _kill(child.pid)
    child.ends = now + GRACE_S
    return None


def _kill(pid: int) -> tuple[int, ...]:
    """Kill a child and its descendants, including their process groups; return their pids."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # so that no descendant is started while they are listed
    processes = (pid, *descendants(pid))
    for victim in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(victim) == victim:
                os.killpg(victim, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)
    return processes


def _end_all(children: Collection[_Child]) -> None:
    """End all children after the caller stopped iterating."""
    for child in children:
        if not child.killed:
            _kill(child.pid)
        _leaving.add(child.pid)
        if not child.is_closed:
            os.close(child.pipe)
    if children:
        reap(GRACE_S)


def reap(grace_s: float = 0.0) -> None:
    """Reap ended children, so that long-running processes have no zombies."""
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
    """As os.fork, without the warning of Python 3.12 about forks in multi-threaded processes.

    The only thread of resil (system/process.py) holds no lock that a child takes; the interpreter resets its own locks.
    """
    if tuple(sys.version_info) < (3, 12):
        return os.fork()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def begin(*keep: int, keep_stderr: bool = False, unblock: bool = True) -> io.StringIO:
    """Prepare a forked child: new session, default signal handlers, no inherited descriptors.

    `keep`: descriptors that stay open. Standard streams are /dev/null, except for standard error with `keep_stderr`;
    the output of the child is captured in the returned buffer. Output that the parent had buffered but not flushed is
    discarded in the child. Without `unblock`, signals stay blocked as in the parent: the child unblocks them after it
    has installed its own handlers.
    """
    os.setsid()  # Ctrl-C goes to the parent only
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if unblock:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    gc.disable()  # a collection would copy pages shared with the parent, and the child exits soon
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(2 if keep_stderr else 3):
        if descriptor not in keep:
            os.dup2(null, descriptor)
    for descriptor in _descriptors():
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)
    said = io.StringIO()
    sys.stdout = sys.stderr = said
    if keep_stderr:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return said


def answer_and_exit(work: Callable[[], Any], writing: int, deadline_s: float) -> NoReturn:
    """Run `work` in a child within the deadline, write the result to the pipe `writing`, and exit.

    The result is HEADER and the marshalled (kind, value, output): `value` and the value; `error` and (class, message,
    hint, transient); `fault` and (text, trace).
    """
    code = 1
    try:
        said = begin(writing)
        # If the parent is killed, a busy loop must end. Only CPU time is limited, because waiting is harmless.
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
            packed = marshal.dumps(("fault", ("its result is not plain data", ""), ""))
        if len(packed) > LIMIT_BYTES:
            packed = marshal.dumps(("fault", (f"its result has {len(packed)} bytes", ""), ""))
        write_all(writing, HEADER.pack(_MAGIC, len(packed), crc32(packed)) + packed)
        code = 0
    finally:
        os._exit(code)


def _descriptors() -> Iterable[int]:
    """Return the open descriptors. A range up to the limit may have a billion numbers, which kernels before 5.9 close
    one by one."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names only
    except OSError:
        return range(4096)


def _trace(error: BaseException) -> str:
    if not os.environ.get("RESIL_TRACEBACK"):
        return ""
    import traceback

    return "".join(traceback.format_exception(error))


# ---- detached children -----------------------------------------------------------------------------------------------


class Detached:
    """A child that outlives its parent, which does not wait for the child.

    Forked twice, so that init reaps the child and no zombie remains.
    """

    def __init__(self, alive: int) -> None:
        """`alive`: a pipe that the child holds open until it ends."""
        self._alive = alive

    def is_over(self) -> bool:
        """Return whether the child has ended."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end of the child; return whether the child has ended."""
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
        """Stop observing the child."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


def start_detached(work: Callable[[], None], limit_s: float, *, keep: int = -1, keep_stderr: bool = False) -> Detached:
    """Run `work` in a detached child that is killed after `limit_s`. Exceptions of `work` are lost.

    `keep`: a descriptor that stays open in the child. `keep_stderr`: keep standard error open; the reader of a pipe
    then waits for the end of the child. Raise OSError if no process can be started.
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
    with contextlib.suppress(ChildProcessError):  # already reaped elsewhere in this process
        os.waitpid(middle, 0)
    return Detached(reading)


def _work_and_exit(work: Callable[[], None], limit_s: float, keep: set[int], keep_stderr: bool) -> NoReturn:
    code = 1
    try:
        if fork() != 0:
            os._exit(0)
        begin(*keep, keep_stderr=keep_stderr)
        signal.setitimer(signal.ITIMER_REAL, limit_s)  # SIGALRM ends the child
        work()
        code = 0
    finally:
        os._exit(code)
