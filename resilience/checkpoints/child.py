"""Starts a worker process (`worker.py`) for a job, and takes its answer. Never waits for it."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import sys
from contextlib import suppress

from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[1:2]; sys.path += sys.argv[2:]\n"
    "from resilience.checkpoints import worker; worker.main()"
)
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_UNWANTED = {"LD_PRELOAD", "PYTHONDEVMODE"}

_left_behind: list[int] = []
"""Processes that were killed and had not ended: they wait in the kernel for a file system."""


class Worker:
    """A job in a child process. Not safe from several threads at once.

    Attributes:
        pid: of the child.
    """

    def __init__(self, job: dict[str, Any], pid: int, pipe: int) -> None:
        """See `start`."""
        self.pid = pid
        self._what = f"{job['do']} of {job.get('part') or job.get('name') or job.get('store', '')}"
        self._pipe = pipe
        self._received = bytearray()
        self._is_closed = False
        self._result: dict[str, Any] | CheckpointError | None = None

    @classmethod
    def start(cls, job: dict[str, Any]) -> Worker:
        """Start a child for a job: `{"do": one of worker.JOBS, "store": path, ...}`. Raise CheckpointError.

        posix_spawn(3) copies neither the page tables of a training of 100 GB nor locks held by threads. The child does
        not import the modules of `site`, and uses no directory of the training's search path but that of xxhash. It
        blocks the signals that schedulers and terminals send to every process of a job: the training saves upon them.
        """
        _left_behind[:] = [pid for pid in _left_behind if not _has_ended(pid)[0]]
        try:
            if not sys.executable:
                raise OSError(errno.ENOENT, "this interpreter does not know where its program is")
            with open(os.memfd_create("resil-job", os.MFD_CLOEXEC), "w+b", buffering=0) as memory:
                memory.write(json.dumps(job).encode())
                memory.seek(0)
                pipe, theirs = os.pipe2(os.O_CLOEXEC)
                try:
                    os.set_blocking(pipe, False)
                    pid = os.posix_spawn(
                        sys.executable,
                        [sys.executable, "-I", "-S", "-c", PROGRAM, _HERE, *_places_of_xxhash()],
                        {name: value for name, value in os.environ.items() if name not in _UNWANTED},
                        file_actions=[(os.POSIX_SPAWN_DUP2, memory.fileno(), 0)]
                        + [(os.POSIX_SPAWN_DUP2, theirs, number) for number in (1, 2)],
                        setsigmask=signal.valid_signals(),
                    )
                except OSError:
                    os.close(pipe)
                    raise
                finally:
                    os.close(theirs)
        except OSError as error:
            raise CheckpointError(
                f"cannot start a process for the {job['do']}: {error.strerror}", transient=True
            ) from error
        return cls(job, pid, pipe)

    def poll(self) -> dict[str, Any] | None:
        """Return the answer, or None while there is none. Raise CheckpointError if the job failed."""
        if self._result is None:
            self._result = self._look()
        if isinstance(self._result, CheckpointError):
            raise self._result
        return self._result

    def kill(self) -> None:
        """Kill the child. One that waits in the kernel for a file system ends when that answers."""
        if self._result is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self._close()
            if not _has_ended(self.pid)[0]:
                _left_behind.append(self.pid)
            self._result = CheckpointError(f"the {self._what} was broken off", transient=True)

    def _look(self) -> dict[str, Any] | CheckpointError | None:
        try:
            while not self._is_closed:
                chunk = os.read(self._pipe, 65536)
                self._received += chunk
                if not chunk:
                    self._close()
        except BlockingIOError:
            return None
        has_ended, status = _has_ended(self.pid)
        if not has_ended:
            return None
        words = self._received.decode("utf-8", "replace").strip()
        try:
            record = json.loads(words.rpartition("\n")[2])
            if "answer" in record:
                found: dict[str, Any] = record["answer"]
                return found
            return CheckpointError(record["error"], hint=record["hint"], transient=record["transient"])
        except (ValueError, TypeError, KeyError):
            end = f"was killed by signal {-status}" if status < 0 else f"ended with code {status}"
            return CheckpointError(
                f"the process for the {self._what} {end}: {words.rpartition(chr(10))[2] or 'it said nothing'}",
                hint="signal 9 may be the end of memory" if status == -signal.SIGKILL else "",
                transient=True,
            )

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self._pipe)


def _has_ended(pid: int) -> tuple[bool, int]:
    """Return whether a child has ended, and its exit code; negative: the signal that killed it."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # the training lets the kernel wait for its children
        return True, 0
    return found != 0, os.waitstatus_to_exitcode(status) if found else 0


def _places_of_xxhash() -> list[str]:
    """Return the directory of the package xxhash, if it is installed."""
    try:
        spec = importlib.util.find_spec("xxhash")
    except (ImportError, ValueError):
        return []
    return [os.path.dirname(os.path.dirname(spec.origin))] if spec is not None and spec.origin else []
