"""Starts a command, forwards signals to it, and takes its exit code.

All signals that are forwarded are blocked and waited for (sigwaitinfo(2)), so that none is lost or handled between two
instructions, and so that the sender is known: what the terminal sends, its whole process group gets, and the command is
in that group.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell (POSIX, Shell Command Language, 2.8.2)."""
PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent: sigaction(2)."""
FORWARDED = frozenset({
    signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
    signal.SIGTSTP,
})  # fmt: skip
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""Signals that end a command which has not started yet."""
_WAITED = FORWARDED | {signal.SIGCHLD}
_SUSPENDING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals of job control: a shell that has started this process must see it stop as well."""
_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the interpreter ignores, and a command must not."""


class CannotStart(Exception):
    """The command cannot be started; `code` is the exit code of a shell for that."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


class Command:
    """A command, before, while and after it runs. Only the main thread uses it.

    Attributes:
        pid: of its process; 0 before the start.
        code: its exit code, 128 + signal for one that was killed; None before its end.
        received: the signals that were forwarded, or ended it before the start, oldest first.
    """

    def __init__(self) -> None:
        """Block the signals from now on. They are never unblocked: this process ends with the command."""
        self.pid = 0
        self.code: int | None = None
        self.received: list[signal.Signals] = []
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would take the exit code from us
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)

    def unblock(self) -> None:
        """Handle signals as before; those that have arrived act now."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def ended_before_start(self) -> int | None:
        """Return the exit code for a signal that has arrived before the start and ends the command; else None."""
        pending = {one for one in signal.sigpending() & ENDING if signal.getsignal(one) != signal.SIG_IGN}
        if not pending:
            return None
        first = signal.Signals(min(pending))
        self.received.append(first)
        self.code = 128 + first
        return self.code

    def start(self, argv: Sequence[str], environ: Mapping[str, str], files: Mapping[int, int]) -> None:
        """Start it, while this process has no threads yet; `files`: its descriptors by number. Raise CannotStart.

        The kernel kills it with this process (PR_SET_PDEATHSIG, prctl(2)): a launcher that kills its workers would
        otherwise leave the command behind, on its GPU.
        """
        error_from, error_to = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv, environ, files, self._mask, parent, error_to)
        os.close(error_to)
        error = b""
        while chunk := os.read(error_from, 4096):  # ends as soon as the program runs
            error += chunk
        os.close(error_from)
        if error:
            os.waitpid(self.pid, 0)
            code, _, why = error.decode("utf-8", "replace").partition(" ")
            raise CannotStart(why, int(code))

    def wait(self, timeout_s: float, on_signal: Callable[[signal.Signals], None]) -> None:
        """Wait for a signal or the end of the command, and forward the signal.

        `on_signal` is called with each one that was forwarded.
        """
        self._reap()
        if self.code is not None:
            return
        info = signal.sigtimedwait(_WAITED, timeout_s)
        if info is not None and info.si_signo != signal.SIGCHLD:
            number = signal.Signals(info.si_signo)
            is_of_terminal = info.si_code == SI_KERNEL
            if not is_of_terminal:
                self.send(number)
            self.received.append(number)
            on_signal(number)
        self._reap()

    def wait_after_end(self, timeout_s: float) -> bool:
        """Wait at most this long, after the end of the command; return whether a signal tells this process to end."""
        info = signal.sigtimedwait(_WAITED, timeout_s)
        return info is not None and info.si_signo in ENDING

    def send(self, number: int) -> None:
        """Send a signal to the command, if it runs: its pid is not reused before it is reaped."""
        if self.pid and self.code is None:
            with suppress(OSError):
                os.kill(self.pid, number)

    def _reap(self) -> None:
        if self.code is None and self.pid:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self.code = 1
                return
            if pid and os.WIFSTOPPED(status):
                if os.WSTOPSIG(status) in _SUSPENDING:
                    os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT, which is forwarded
            elif pid:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code


def replace_process(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command. Raise CannotStart.

    A script without a `#!` line is run by /bin/sh, as execvp(3) does.
    """
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execvpe(argv[0], list(argv), environ)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            script = argv[0] if "/" in argv[0] else shutil.which(argv[0]) or argv[0]
            os.execve("/bin/sh", ["/bin/sh", script, *argv[1:]], environ)
    except OSError as error:
        raise _explain(argv[0], error) from None
    except ValueError as error:  # a NUL in an argument
        raise CannotStart(f"cannot start {argv[0]!r}: {error}", NOT_EXECUTABLE) from None


def _become(
    argv: Sequence[str], environ: Mapping[str, str], files: Mapping[int, int], mask: Collection[int], parent: int,
    error_to: int,
) -> NoReturn:  # fmt: skip
    """In the forked process: become the command."""
    try:
        with suppress(Exception):
            import ctypes  # in this process only

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
        for number, own in files.items():
            os.dup2(own, number)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        replace_process(argv, environ)
    except CannotStart as error:
        os.write(error_to, f"{error.code} {error}".encode("utf-8", "replace"))
    except BaseException as error:
        os.write(error_to, f"{NOT_EXECUTABLE} cannot start {argv[0]}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(NOT_EXECUTABLE)


def _explain(program: str, error: OSError) -> CannotStart:
    why = f"cannot start {program}: {error.strerror or error}"
    return CannotStart(why, NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE)


def say(text: str) -> None:
    """Print a message of the supervisor on stderr. Never fails, nor waits for a reader: then the message is lost."""
    with suppress(OSError):
        room = select.poll()
        room.register(2, select.POLLOUT)
        if room.poll(200):
            os.write(2, f"resil: {text}\n".encode("utf-8", "backslashreplace")[: select.PIPE_BUF])
