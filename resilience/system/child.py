"""Runs our own functions in child processes with deadlines that are real ones.

A thread that looks at a hung file system can neither be ended nor left behind: the process could not exit. A child can:
it is killed at its deadline, given a moment, and abandoned. The child is forked, so nothing is imported again (about a
millisecond), and what it was told to do needs no name.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilience.errors import ProbeError, ResilError

REAP_GRACE_S = 0.2
"""How long a killed child may take to be reaped before it is abandoned."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one child.

    Attributes:
        value: what its function returned.
        error: what it raised instead, as a ResilError; None when all went well.
        took_s: how long it took.
        abandoned_pid: set when the child could not even be killed: it hangs in the kernel.
    """

    value: Any = None
    error: ResilError | None = None
    took_s: float = 0.0
    abandoned_pid: int | None = None


@dataclass(slots=True)
class _Child:
    pid: int
    pipe: int
    started: float
    deadline: float
    received: bytearray


def run_apart(works: Mapping[str, tuple[Callable[[], Any], float]]) -> Iterator[tuple[str, Answer]]:
    """Run each function in a child of its own, all at once; yield (key, answer) as they end.

    `works` maps a key to the function and its deadline in seconds. A function's value must be plain data: texts,
    bytes, numbers, None, tuples, lists and dicts of them. A child that does
    not answer in time gives a ProbeError; so does one that dies.
    """
    children: dict[str, _Child] = {}
    with selectors.DefaultSelector() as selector:
        for key, (work, deadline_s) in works.items():
            child = _start(work, deadline_s)
            children[key] = child
            selector.register(child.pipe, selectors.EVENT_READ, key)
        try:
            while children:
                now = time.monotonic()
                wait = min(child.deadline for child in children.values()) - now
                for ready, _ in selector.select(max(0.0, wait)):
                    child = children[ready.data]
                    chunk = os.read(child.pipe, 2**18)
                    if chunk:
                        child.received += chunk
                        continue
                    selector.unregister(child.pipe)
                    del children[ready.data]
                    yield ready.data, _ended(child)
                now = time.monotonic()
                for key in [key for key, child in children.items() if child.deadline <= now]:
                    child = children.pop(key)
                    selector.unregister(child.pipe)
                    yield key, _overdue(child)
        finally:
            for child in children.values():  # whoever asked has gone away
                _overdue(child)


def _start(work: Callable[[], Any], deadline_s: float) -> _Child:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    now = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _work(work, reading, writing)
    os.close(writing)
    return _Child(pid, reading, now, now + deadline_s, bytearray())


def _work(work: Callable[[], Any], reading: int, writing: int) -> None:
    """The child's whole life."""
    code = 1
    try:
        os.setsid()  # the deadline must reach what it starts as well
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(reading)
        try:
            answer = marshal.dumps(("value", work()))
        except ResilError as error:
            answer = marshal.dumps(("error", (error.message, error.hint, error.transient)))
        except BaseException as error:
            answer = marshal.dumps(("fault", f"{type(error).__name__}: {error}"))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        code = 0
    finally:
        os._exit(code)


def _ended(child: _Child) -> Answer:
    took_s = time.monotonic() - child.started
    os.close(child.pipe)
    status = _reap(child.pid, REAP_GRACE_S)
    try:
        kind, value = marshal.loads(child.received)
    except Exception:
        return Answer(error=ProbeError(f"the look ended without an answer (wait status {status})"), took_s=took_s)
    if kind == "value":
        return Answer(value, took_s=took_s)
    if kind == "error":
        message, hint, transient = value
        return Answer(error=ProbeError(message, hint=hint, transient=transient), took_s=took_s)
    return Answer(error=ProbeError(f"the look failed: {value}", hint="this is a bug of the watchdog"), took_s=took_s)


def _overdue(child: _Child) -> Answer:
    took_s = time.monotonic() - child.started
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child.pid, signal.SIGKILL)  # before it had a group of its own
    os.close(child.pipe)
    gone = _reap(child.pid, REAP_GRACE_S) is not None
    error = ProbeError(f"no answer within {child.deadline - child.started:g} s", transient=True)
    return Answer(error=error, took_s=took_s, abandoned_pid=None if gone else child.pid)


def _reap(pid: int, grace_s: float) -> int | None:
    """The wait status of a child, or None if it does not end within the grace."""
    end = time.monotonic() + grace_s
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if done:
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)
