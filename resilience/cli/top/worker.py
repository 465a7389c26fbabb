"""The process that looks for the screen of `resil top`: a disk or a scheduler that hangs blocks it, not the keys.

The screen writes lines (`select gpt`, `save gpt`, `kill gpt`, `ack 1a2b3c4d`), the worker writes pickled frames and
answers, each after its length. Both are this program: nothing else can write to the pipes.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, NoReturn

from resilience.base.files import write_all
from resilience.cli.top.frame import Frame

if TYPE_CHECKING:
    from resilience.runs.project import Project

EVERY_S = 2.0
END_S = 1.0
"""How long a worker may take to end before it is killed, and a killed one before it is abandoned."""
_LENGTH = struct.Struct("<I")


class Worker:
    """The running process, seen from the screen.

    Attributes:
        output: where its messages can be read.
        is_over: whether it has ended by itself.
    """

    def __init__(self, project: Project, run: str) -> None:
        """Start it. Raise OSError if no process can be started."""
        commands, self._input = os.pipe2(os.O_CLOEXEC)
        self.output, messages = os.pipe2(os.O_CLOEXEC)
        self.is_over = False
        self._received = bytearray()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._input)
            os.close(self.output)
            _work(project, run, commands, messages)
        os.close(commands)
        os.close(messages)
        os.set_blocking(self._input, False)  # a worker that hangs does not read

    def send(self, verb: str, name: str) -> bool:
        """Ask for something; return whether the worker takes it."""
        try:
            os.write(self._input, f"{verb} {name}\n".encode())
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[Frame | str]:
        """Yield the frames and answers that have come, once `output` can be read."""
        chunk = os.read(self.output, 1 << 20)
        self.is_over = not chunk
        self._received += chunk
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            yield pickle.loads(self._received[_LENGTH.size : end])
            del self._received[:end]

    def close(self) -> None:
        """End the process, and its programs; one that is blocked in the kernel is abandoned."""
        os.close(self._input)
        os.close(self.output)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)
            until = monotonic() + END_S
            while monotonic() < until:
                with suppress(ChildProcessError):
                    if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                        sleep(0.01)
                        continue
                return


def _work(project: Project, run: str, commands: int, messages: int) -> NoReturn:
    """Be the worker, until the screen closes its pipe or sends SIGTERM."""
    code = 0
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGWINCH):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: sys.exit(0))  # programs that run are ended on the way
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        _look_and_act(project, run, commands, messages)
    except (BrokenPipeError, SystemExit):
        pass
    except BaseException as error:
        code = 1
        with suppress(OSError):
            _write(messages, f"internal error: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _look_and_act(project: Project, run: str, commands: int, messages: int) -> None:
    from resilience.cli.top.look import SHARE, Looker

    looker, selected, rest, is_started = Looker(project, run), "", b"", False
    while True:
        before = _cpu_s() - looker.beats_s
        frame = looker.look(selected)
        every_s = (
            max(EVERY_S, (_cpu_s() - looker.beats_s - before) / SHARE) if is_started else EVERY_S
        )  # the first one imports
        _write(messages, replace(frame, every_s=every_s))
        until, is_started = monotonic() + every_s, True
        while (left_s := until - monotonic()) > 0:
            if not select.select([commands], [], [], left_s)[0]:
                continue
            chunk = os.read(commands, 4096)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                verb, _, name = line.decode().partition(" ")
                if verb == "select":
                    selected = name
                else:
                    _write(messages, looker.act(verb, name))
                until = 0.0


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of the programs and children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _write(messages: int, message: Frame | str) -> None:
    content = pickle.dumps(message)
    write_all(messages, _LENGTH.pack(len(content)) + content)
