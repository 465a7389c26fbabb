"""Runs other programs with deadlines that are real ones.

`subprocess.run(timeout=)` is not a deadline: after the timeout it waits for the child, and a child in
uninterruptible sleep (a hung file system) never ends. Here the child is killed with its process group, given half
a second, and then abandoned; the call returns.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from resilience.errors import ProbeError

REAP_GRACE_S = 0.5
"""How long a killed child may take to be reaped before it is abandoned."""

OUTPUT_LIMIT_BYTES = 512 * 2**20
"""More output than this is not an answer: a queue of a million jobs is about 200 MB."""

_CHUNK_BYTES = 2**16


class ProgramMissing(ProbeError):
    """There is no such program on this machine."""


class DeadlineExceeded(ProbeError):
    """The program did not end in time and was killed, or abandoned where it could not be."""


class OutputTooLarge(ProbeError):
    """The program wrote more than any answer could be."""


@dataclass(frozen=True, slots=True)
class Completed:
    """How a program ended.

    Attributes:
        argv: what was run.
        returncode: its exit code; minus the signal number when a signal ended it.
        stdout: decoded as UTF-8, bytes that are not UTF-8 kept as surrogates.
        stderr: the same.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class ProcessRunner:
    """Runs programs found on PATH, each argument as it is, never through a shell."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """Run a program to its end and return how it ended.

        The environment is `env` when given, else this process's own. Raise ProgramMissing if there is no such
        program, DeadlineExceeded if it did not end within `timeout_s` seconds, OutputTooLarge if it would not stop
        writing.
        """
        deadline = time.monotonic() + timeout_s
        process = _start(argv, env, cwd, want_stdin=bool(stdin))
        try:
            stdout, stderr = _communicate(process, stdin.encode("utf-8", "surrogateescape"), deadline)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            if process.returncode is None:
                raise _deadline_exceeded(argv, timeout_s)
        except _OutOfTime:
            raise _deadline_exceeded(argv, timeout_s) from None
        finally:
            _end(process)
        return Completed(tuple(argv), process.returncode, _text(stdout), _text(stderr))

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Run a program and yield its standard output line by line, without keeping it.

        The lines keep no newline. When the program fails, raise CommandFailed after the last line; so a caller that
        has seen the iterator end normally knows that the answer is whole. Raise as `run` does besides.
        """
        deadline = time.monotonic() + timeout_s
        process = _start(argv, env, None, want_stdin=False)
        errors = bytearray()
        rest = b""
        try:
            for is_output, chunk in _read(process, deadline):
                if not is_output:
                    errors += chunk[: 2**20]
                    continue
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "surrogateescape")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            if process.returncode is None:
                raise _OutOfTime
        except _OutOfTime:
            raise _deadline_exceeded(argv, timeout_s) from None
        finally:
            _end(process)
        if rest:
            yield rest.decode("utf-8", "surrogateescape")
        if process.returncode != 0 or errors:
            raise CommandFailed(Completed(tuple(argv), process.returncode, "", _text(bytes(errors))))


class CommandFailed(ProbeError):
    """A streamed program ended with an error code or wrote to its standard error.

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


def _start(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, *, want_stdin: bool
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if want_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            # A process group of its own: the deadline must reach what the program started as well.
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ProgramMissing(f"cannot run {argv[0]}: {error.strerror}", hint=f"is {argv[0]} on PATH?") from error
    except OSError as error:
        raise ProbeError(f"cannot run {argv[0]}: {error.strerror}", transient=True) from error


def _communicate(process: subprocess.Popen[bytes], stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
    if process.stdin is not None:
        # Scripts handed over this way are smaller than a pipe's buffer; a reader that died is its own answer.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    stdout, stderr = bytearray(), bytearray()
    for is_output, chunk in _read(process, deadline):
        (stdout if is_output else stderr).extend(chunk)
        if len(stdout) + len(stderr) > OUTPUT_LIMIT_BYTES:
            raise OutputTooLarge(f"{process.args!r} wrote more than {OUTPUT_LIMIT_BYTES} bytes")
    return bytes(stdout), bytes(stderr)


def _read(process: subprocess.Popen[bytes], deadline: float) -> Iterator[tuple[bool, bytes]]:
    """Yield (is standard output, bytes) until both streams are closed. Raise _OutOfTime at the deadline."""
    assert process.stdout is not None and process.stderr is not None
    with selectors.DefaultSelector() as selector:
        streams: list[IO[bytes]] = [process.stdout, process.stderr]
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise _OutOfTime
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if chunk:
                    yield key.fileobj is process.stdout, chunk
                else:
                    selector.unregister(key.fileobj)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure the child and its group are gone, or abandoned; close the pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=REAP_GRACE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if process.returncode is None:
        # Abandoned in uninterruptible sleep. Tell Popen so that its destructor does not warn or wait.
        process.returncode = -signal.SIGKILL


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
