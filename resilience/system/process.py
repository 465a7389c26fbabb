"""Runs programs with enforced deadlines.

`subprocess.run(timeout=)` is not a deadline: after the timeout the call waits for the child, and a child in
uninterruptible sleep (a hung file system) never ends. Here the child is killed with its process group and, if still
there after half a second, abandoned. The start has the same deadline, because the program or its working directory may
be on the hung file system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from resilience.base.background import BackgroundCall
from resilience.errors import EX_TEMPFAIL, DeliveryError, ProbeError

# vfork suspends this thread, which holds the interpreter lock, until the child has called exec: a program or a
# directory on a hung mount would block the whole process, including deadlines. fork takes a fraction of a millisecond
# longer. The setting is documented:
# https://docs.python.org/3/library/subprocess.html#disabling-use-of-vfork-or-posix-spawn
setattr(subprocess, "_USE_VFORK", False)  # noqa: B010 - a plain assignment is refused by type checkers

REAP_GRACE_S = 0.5
"""Time to reap a killed child before the child is abandoned."""

PIPE_GRACE_S = 0.5
"""Time to wait for the end of the output after the program has ended: a background process may keep the pipe
open."""

SAY_S = 3.0
"""Longest wait for a program to read: for a thousand nodes, a line is longer than a pipe is wide."""

OUTPUT_LIMIT_BYTES = 512 * 2**20
"""Maximum size of the output: a queue of a million jobs is about 200 MB."""

LINE_LIMIT_BYTES = 64 * 2**20
"""Maximum length of a line."""

_CHUNK_BYTES = 2**18
_ERRORS_LIMIT_BYTES = 2**20
_POLL_S = 0.1
_TRANSIENT = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ETXTBSY}
_abandoned: list[subprocess.Popen[bytes]] = []
"""Children that could not be killed; reaped when they have ended."""


class ProgramMissing(ProbeError):
    """The program does not exist on this host."""


class DeadlineExceeded(ProbeError):
    """The program exceeded its deadline and was killed or abandoned."""


class OutputTooLarge(ProbeError):
    """The program wrote more than OUTPUT_LIMIT_BYTES."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a program.

    Attributes:
        argv: the command.
        returncode: exit code; the negative signal number if a signal ended the program.
        stdout: decoded as UTF-8; invalid bytes become surrogates.
        stderr: likewise.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class ProcessRunner:
    """Runs programs on PATH, without a shell."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """Run a program to its end and return its result.

        The environment is `env`, by default that of this process. Raise ProgramMissing if the program does not exist,
        DeadlineExceeded after `timeout_s` seconds, OutputTooLarge if the output exceeds OUTPUT_LIMIT_BYTES. Background
        processes of the program keep running.
        """
        deadline = time.monotonic() + timeout_s
        process = _start(argv, env, cwd, deadline, stdin=stdin.encode("utf-8", "surrogateescape"))
        stdout, stderr = bytearray(), bytearray()
        try:
            for is_output, chunk in _exchange(process, deadline):
                (stdout if is_output else stderr).extend(chunk)
                if len(stdout) + len(stderr) > OUTPUT_LIMIT_BYTES:
                    raise OutputTooLarge(f"{argv[0]} wrote more than {OUTPUT_LIMIT_BYTES} bytes")
            if not _wait(process, deadline):
                raise _deadline_exceeded(argv, timeout_s)
        except _OutOfTime:
            raise _deadline_exceeded(argv, timeout_s) from None
        finally:
            _end(process)
        return Completed(tuple(argv), process.returncode, _text(stdout), _text(stderr))

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Run a program and yield the lines of its standard output, without newlines.

        If the program fails, raise CommandFailed after the last line: if the iterator ends normally, the output is
        complete. Otherwise raise as `run`.
        """
        deadline = time.monotonic() + timeout_s
        process = _start(argv, env, None, deadline)
        errors, rest = bytearray(), bytearray()
        try:
            for is_output, chunk in _exchange(process, deadline):
                if not is_output:
                    errors += chunk[: _ERRORS_LIMIT_BYTES - len(errors)]
                    continue
                # Complete lines are decoded per chunk, which is a third faster for a queue of 100,000 rows.
                whole, line_end, after = chunk.rpartition(b"\n")
                if line_end:
                    yield from _text(rest + whole).split("\n")
                    rest.clear()
                rest += after
                if len(rest) > LINE_LIMIT_BYTES:
                    raise OutputTooLarge(f"{argv[0]} wrote a line of more than {LINE_LIMIT_BYTES} bytes")
            if not _wait(process, deadline):
                raise _OutOfTime
        except _OutOfTime:
            raise _deadline_exceeded(argv, timeout_s) from None
        finally:
            _end(process)
        if rest:
            yield _text(rest)
        if process.returncode != 0 or errors:
            raise CommandFailed(Completed(tuple(argv), process.returncode, "", _text(errors)))


class CommandFailed(ProbeError):
    """A streamed program failed or wrote to its standard error.

    Attributes:
        completed: its exit code and standard error.
    """

    def __init__(self, completed: Completed) -> None:
        super().__init__(f"{completed.argv[0]} ended with {completed.returncode}: {completed.stderr.strip()[:500]}")
        self.completed = completed


class _OutOfTime(Exception):
    """Internal: the deadline passed while reading."""


def _deadline_exceeded(argv: Sequence[str], timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{argv[0]} did not end within {timeout_s:g} s", transient=True)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for a program that has closed its output; return whether the program ended in time.

    Popen.wait with a timeout polls, which doubles the time of a fast program; a pidfd (Linux 5.3, pidfd_open(2)) is
    signalled at once.
    """
    left = max(0.01, deadline - time.monotonic())
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(process.pid)
        try:
            select.select([descriptor], [], [], left)
        finally:
            os.close(descriptor)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.01, deadline - time.monotonic()))
    return process.returncode is not None


class Conversation:
    """A running program that reads and writes lines. Leaving `with` kills the program with its process group."""

    def __init__(self, argv: Sequence[str], *, timeout_s: float) -> None:
        """Start the program; raise as ProcessRunner.run. `timeout_s`: how long the start may take."""
        self._process = _start(argv, None, None, time.monotonic() + timeout_s, stdin=None)
        self._rest = bytearray()
        self._errors = bytearray()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        _end(self._process)

    @property
    def errors(self) -> str:
        """Return what the program has written to standard error so far, without surrounding blanks."""
        return _text(self._errors).strip()

    def say(self, line: str) -> None:
        """Write a line. A program that has ended, or does not read for SAY_S, does not hear it."""
        assert self._process.stdin is not None
        number, rest = self._process.stdin.fileno(), line.encode("utf-8", "surrogateescape") + b"\n"
        os.set_blocking(number, False)
        room, end = select.poll(), time.monotonic() + SAY_S
        room.register(number, select.POLLOUT)
        with contextlib.suppress(OSError):
            while rest and (left_s := end - time.monotonic()) > 0:
                if room.poll(1000 * left_s):
                    rest = rest[os.write(number, rest) :]

    def hear(self, timeout_s: float) -> Iterator[str]:
        """Yield lines as they arrive, until the program ends or `timeout_s` has passed; may be called again."""
        with contextlib.suppress(_OutOfTime):
            for is_output, chunk in _exchange(self._process, time.monotonic() + timeout_s):
                if not is_output:
                    self._errors += chunk[: _ERRORS_LIMIT_BYTES - len(self._errors)]
                    continue
                *lines, rest = (bytes(self._rest) + chunk).split(b"\n")
                self._rest = bytearray(rest[:LINE_LIMIT_BYTES])
                yield from map(_text, lines)


def _start(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, deadline: float, *, stdin: bytes | None = b""
) -> subprocess.Popen[bytes]:
    _reap_abandoned()
    timeout_s = deadline - time.monotonic()

    def start() -> subprocess.Popen[bytes]:
        silent = subprocess.PIPE if stdin is None else subprocess.DEVNULL
        with _whole(stdin) if stdin else contextlib.nullcontext(silent) as source:
            return subprocess.Popen(
                list(argv),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                cwd=cwd,
                # A process group of its own, so that the deadline also ends child processes.
                start_new_session=True,
            )

    try:
        # fork and exec may block on the program's file or the working directory. A thread that blocks there can be
        # abandoned, and does not prevent this process from exiting.
        return BackgroundCall(start, "resil-launch", late=_end).result(timeout_s)
    except TimeoutError as error:
        if error.errno:  # from a file server
            raise _cannot_start(argv[0], cwd, error) from error
        raise DeadlineExceeded(f"{argv[0]} could not be started within {timeout_s:.3g} s", transient=True) from None
    except OSError as error:
        raise _cannot_start(argv[0], cwd, error) from error
    except (ValueError, RuntimeError) as error:  # a NUL byte in an argument; no more threads
        transient = isinstance(error, RuntimeError)
        raise ProbeError(f"cannot run {argv[0]!r}: {error}", transient=transient) from error


def _whole(content: bytes) -> IO[bytes]:
    """Return a file in memory. With a pipe, `crontab -` might install half a table if this process is killed."""
    file: IO[bytes]
    try:
        file = open(os.memfd_create("stdin"), "wb+")  # noqa: SIM115 - whoever starts the program closes it
    except (AttributeError, OSError):  # an old C library, or forbidden by a policy
        import tempfile

        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.seek(0)  # which also flushes
    return file


def _cannot_start(program: str, cwd: str | None, error: OSError) -> ProbeError:
    if cwd is not None and error.filename == cwd:
        return ProbeError(f"cannot run {program} in {cwd}: {error.strerror}")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ProgramMissing(f"cannot run {program}: {error.strerror}", hint=f"is {program} on PATH?")
    if isinstance(error, PermissionError) or error.errno == errno.ENOEXEC:
        return ProgramMissing(f"cannot run {program}: {error.strerror}", hint="is it an executable program?")
    return ProbeError(f"cannot run {program}: {error.strerror}", transient=error.errno in _TRANSIENT)


def _exchange(process: subprocess.Popen[bytes], deadline: float) -> Iterator[tuple[bool, bytes]]:
    """Yield (is standard output, bytes) of the program's output.

    Stop when both streams are closed, or PIPE_GRACE_S after the program has ended and written nothing more. Raise
    _OutOfTime at the deadline.
    """
    assert process.stdout is not None and process.stderr is not None
    grace_end: float | None = None
    with contextlib.suppress(OSError):  # a larger pipe for large queues, if the user's limits allow it
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            now = time.monotonic()
            if now >= deadline:
                raise _OutOfTime
            # Checked before the pipes, which then contain all output of an ended program.
            if grace_end is None and process.poll() is not None:
                grace_end = now + PIPE_GRACE_S
            ready = selector.select(min(deadline - now, _POLL_S))
            if not ready and grace_end is not None and now > grace_end:
                return
            for key, _ in ready:
                if chunk := os.read(key.fd, _CHUNK_BYTES):
                    yield key.fileobj is process.stdout, chunk
                else:
                    selector.unregister(key.fileobj)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and its group if still running, close the pipes, and abandon a child that cannot be killed."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=REAP_GRACE_S)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if process.returncode is None:
        _abandoned.append(process)


def _reap_abandoned() -> None:
    for process in list(_abandoned):
        if process.poll() is not None:
            with contextlib.suppress(ValueError):
                _abandoned.remove(process)


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", "surrogateescape")


# ---- programs that receive a message on standard input --------------------------------------------------------------

EX_PERMANENT = {
    64: "usage",
    65: "bad data",
    66: "no input",
    67: "no such user",
    68: "no such host",
    76: "protocol",
    77: "no permission",
    78: "configuration",
}
"""Exit codes of permanent failures (sysexits.h), which are not retried. Any other code may be a transient failure:
shell scripts exit with 1 for any error, and an alert must not be lost."""

_LAST_CHARACTERS = 100_000
"""Number of characters at the end of the output that are searched for a message."""


def run_with_input(
    argv: Sequence[str], text: str, run: Callable[..., Completed], *, timeout_s: float, environment: Mapping[str, str]
) -> Completed:
    """Run a program with a text on its standard input, and return the result of a successful run.

    `run`: the method of the system's runner. Raise DeliveryError on failure: transient unless the exit code means a
    permanent failure.
    """
    program = argv[0]
    try:
        done = run(list(argv), timeout_s=timeout_s, env=environment, stdin=text)
    except ProgramMissing as error:  # another node may have the program
        raise DeliveryError(error.message, hint=error.hint) from None
    except DeadlineExceeded as error:
        raise DeliveryError(error.message, hint="the program was killed; it may have completed before") from None
    except ProbeError as error:
        raise DeliveryError(error.message, hint=error.hint, transient=error.transient) from None
    if done.returncode == 0:
        return done
    said = said_by(done)
    how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
    meaning = EX_PERMANENT.get(done.returncode) or ("temporary failure" if done.returncode == EX_TEMPFAIL else "")
    message = f"{program} {how}{f' ({meaning})' if meaning else ''}{f': {said}' if said else ''}"
    raise DeliveryError(message, transient=done.returncode not in EX_PERMANENT)


def said_by(done: Completed) -> str:
    """Return the last line of a program's standard error, else of its output, redacted; at most 200 characters."""
    from resilience.system.redaction import redact  # takes a millisecond to import

    for text in (done.stderr, done.stdout):
        # Redacted before truncation, which could split a secret.
        lines = [line for line in redact(text[-_LAST_CHARACTERS:]).splitlines() if line.strip()]
        if lines:
            return "".join(c if c.isprintable() else "?" for c in lines[-1].strip())[:200]
    return ""
