"""What a forked child does from its birth to its answer, and the form that its answer has. See child.py."""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import signal
import struct
import sys
from binascii import crc32
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from resilience.errors import NotSupported, ResilError, SchedulerUnavailable, SettingsError, UsageError

LIMIT_BYTES = 64 * 2**20
"""No answer is larger."""

HEADER = struct.Struct("<4sQI")
"""Before each answer: MAGIC, its length in bytes, its CRC-32. Then come marshal's bytes."""
MAGIC = b"rsl1"
BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that must wait until the child has handlers of its own."""
KINDS: tuple[type[ResilError], ...] = (SettingsError, UsageError, SchedulerUnavailable, NotSupported)
"""Errors that keep their class on the way; the others arrive as ProbeError."""


def live(work: Callable[[], Any], writing: int, deadline_s: float) -> NoReturn:
    """The child's whole life: do the work within the deadline, and write what came of it into the pipe `writing`."""
    code = 1
    try:
        for number in (*BLOCKED, signal.SIGCHLD, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        os.setsid()  # nobody's Ctrl-C but ours
        # Should we be killed ourselves, it must not count in circles for ever. Processor time only: to wait is no harm.
        signal.setitimer(signal.ITIMER_PROF, deadline_s + 5)
        gc.disable()  # it would copy every page that it shares with us, for garbage that its end clears away
        said = _cut_loose(writing)
        try:
            answer = ("value", work())
        except ResilError as error:
            kind = next((kind.__name__ for kind in KINDS if isinstance(error, kind)), "")
            answer = ("error", (kind, str(error.message), str(error.hint), bool(error.transient)))
        except BaseException as error:
            answer = ("fault", (f"{type(error).__name__}: {error}", _trace(error)))
        try:
            packed = marshal.dumps((*answer, said.getvalue()))
        except ValueError:
            packed = marshal.dumps(("fault", ("its answer is no plain data", ""), ""))
        if len(packed) > LIMIT_BYTES:
            packed = marshal.dumps(("fault", (f"its answer has {len(packed)} bytes", ""), ""))
        write_all(writing, HEADER.pack(MAGIC, len(packed), crc32(packed)) + packed)
        code = 0
    finally:
        os._exit(code)


def _cut_loose(writing: int) -> Any:
    """Let go of everything that we had open but the pipe, and return what catches the child's words.

    What we have written and not flushed yet stays ours: the child's copy of it goes nowhere.
    """
    import io

    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        if descriptor != writing:
            os.dup2(nowhere, descriptor)
    for descriptor in _descriptors():
        if descriptor > 2 and descriptor != writing:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
    said = io.StringIO()
    sys.stdout = sys.stderr = said
    return said


def _descriptors() -> Iterable[int]:
    """What is open. Not up to the limit: that may be a billion, and kernels before 5.9 close them one by one."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names only
    except OSError:
        return range(4096)


def _trace(error: BaseException) -> str:
    if not os.environ.get("RESIL_TRACEBACK"):
        return ""
    import traceback

    return "".join(traceback.format_exception(error))


def write_all(descriptor: int, content: bytes) -> None:
    """Write to a pipe, however little it takes at a time."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
