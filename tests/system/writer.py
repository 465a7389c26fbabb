"""A process that writes once, from where strace can kill it or make the kernel refuse at any system call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL
from typing import IO

import pytest

OF_THE_INTERPRETER = {"brk", "mmap", "munmap", "mremap", "futex", "exit_group", "restart_syscall", "rt_sigaction"}
"""System calls that touch no file and are not the same in every run."""

REFUSED = 7
"""Exit code of a writer whose call raised StateDirectoryError."""

_SERVER = """
import os, signal, sys
from pathlib import Path
from resilience.errors import StateDirectoryError
from resilience.system.files import append_line, write_atomic
exec(sys.argv[1])
for request in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            exec(request)
        except StateDirectoryError:
            os._exit(7)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

_CALL = re.compile(r"(\w+)\(")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one write ended, and the system calls it made."""

    code: int
    calls: tuple[str, ...]


class Writer:
    """Forks a fresh writer per request, so that a hundred kill points take seconds."""

    def __init__(self, requests: IO[str], answers: IO[str], log: Path) -> None:
        self._requests = requests
        self._answers = answers
        self._log = log

    def run(self, request: str, *inject: str) -> Outcome:
        """Run one line of Python in a fresh process under strace; `inject` as strace(1) has it."""
        print(request, file=self._requests, flush=True)
        pid = int(self._answers.readline())
        tracer = subprocess.Popen(
            ["strace", "-p", str(pid), "-o", str(self._log), *(f"--inject={wish}" for wish in inject)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert tracer.stderr is not None
        with tracer.stderr as words:
            said = words.readline()
            if "attached" not in said:
                subprocess.run(["kill", f"-{SIGKILL}", str(pid)], check=False)
                self._answers.readline()
                pytest.skip(f"strace may not attach here: {said}")
            subprocess.run(["kill", f"-{SIGCONT}", str(pid)], check=True)
            code = int(self._answers.readline())
            words.read()
        tracer.wait()
        calls = [match[1] for line in self._log.read_text().splitlines() if (match := _CALL.match(line))]
        return Outcome(code, tuple(calls))

    def kill_points(self, request: str) -> Iterator[tuple[str, int]]:
        """Every system call of the request, as (name, its count among calls of that name)."""
        seen: dict[str, int] = {}
        for name in self.run(request).calls:
            seen[name] = seen.get(name, 0) + 1
            yield name, seen[name]


def sampled(points: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Every second point; all of them in a long campaign."""
    return [*points][:: 1 if "RESIL_SOAK" in os.environ else 2]


@contextmanager
def writer(log: Path, preload: str = "") -> Iterator[Writer]:
    """A writer; the test is skipped where there is no strace. `preload`: what is run once, before it forks."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace (apt-get install strace)")
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, preload],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    with server:
        yield Writer(server.stdin, server.stdout, log)
