"""The terminal of `resil top`: keys, redraws, and its state restored whatever happens."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic, time
from typing import TYPE_CHECKING

from resilience.cli.output import paint
from resilience.cli.top.frame import Frame, Line, View, compose, next_incident, selected_run
from resilience.errors import ResilError

if TYPE_CHECKING:
    from types import FrameType

    from resilience.cli.top.worker import Worker

ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
"""The second screen, as of xterm, without a cursor: what was on the terminal comes back (ctlseqs, private modes)."""
TICK_S = 5.0
"""Without news, the screen is drawn again: it says how old the last ones are."""
MESSAGE_S = 8.0
SIGNALLED = 128
"""The exit code of a program that a signal ended is this and the signal's number."""
_ARROWS = {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down"}


def text_of(lines: list[Line]) -> list[str]:
    """Return the lines as the terminal takes them: with colours, unless NO_COLOR or TERM=dumb say otherwise."""
    return ["".join(paint(text, colour) for text, colour in line) for line in lines]


def is_utf8() -> bool:
    """Return whether standard output takes more than ASCII."""
    return "utf" in (sys.stdout.encoding or "").lower()


class Screen:
    """One session on the terminal."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._frame: Frame | None = None
        self._view, self._until = View(message="looking ..."), float("inf")
        self._answer: Callable[[], None] | None = None
        self._shown: list[str] = []
        self._signals: list[int] = []
        self._is_over = False

    def run(self) -> int:
        """Show the screen until a key or a signal ends it. Return the exit code.

        Raise ResilError if the process that looks has ended.
        """
        try:
            return self._run()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return SIGNALLED + signal.SIGHUP  # the terminal is gone

    def _run(self) -> int:
        with self._signals_noted() as woken, _own_terminal():
            self._draw()
            while not self._is_over:
                timeout_s = max(0.0, min(TICK_S, self._until - monotonic()))
                ready, _, _ = select.select([0, self._worker.output, woken], [], [], timeout_s)
                if woken in ready:
                    os.read(woken, 4096)
                    if (code := self._handle_signals()) is not None:
                        return code
                if self._worker.output in ready:
                    self._take()
                if 0 in ready:
                    self._press(os.read(0, 64))
                if monotonic() >= self._until:
                    self._say("")
                self._draw()
        return 0

    # ---- news -------------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        for message in self._worker.messages():
            if isinstance(message, str):
                self._say(message)
            else:
                if self._frame is None:
                    self._say("")
                self._frame = message
        if self._worker.is_over:
            why = self._view.message
            raise ResilError("the process that looks at the runs has ended" + (f": {why}" if why else ""),
                             hint="resil status")  # fmt: skip

    def _say(self, text: str) -> None:
        if self._answer is None:
            self._view = replace(self._view, message=text)
            self._until = monotonic() + MESSAGE_S if text else float("inf")

    # ---- keys -------------------------------------------------------------------------------------------------------

    def _press(self, typed: bytes) -> None:
        if not typed:  # the terminal is gone
            self._is_over = True
        elif typed in _ARROWS:
            self._move(-1 if _ARROWS[typed] == "up" else 1)
        elif not typed.startswith(b"\x1b"):
            for key in typed.decode("ascii", "ignore"):
                self._key(key)
                if self._answer is not None:
                    break  # what was typed, or pasted, with the key is no answer: nobody has seen the question

    def _key(self, key: str) -> None:
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self._say("")
            if key in "yY":
                answer()
            else:
                self._say("nothing was done")
            return
        run = None if self._frame is None else selected_run(self._frame, self._view)
        incident = None if self._frame is None else next_incident(self._frame)
        match key:
            case "q":
                self._is_over = True
            case "l" | "?":
                panel = "log" if key == "l" else "help"
                self._view = replace(self._view, panel="" if self._view.panel == panel else panel)
            case "s" if run is not None:
                self._ask("save", run.run)
            case "k" if run is not None:
                name = run.run
                self._say(f"stop {name} after a save? y: yes, any other key: no")
                self._until, self._answer = float("inf"), lambda: self._ask("kill", name)
            case "a" if incident is not None:
                self._ask("ack", incident.id)
            case "a":
                self._say("there is no incident to acknowledge")

    def _ask(self, verb: str, name: str) -> None:
        taken = self._worker.send(verb, name)
        self._say(f"{verb} {name} ..." if taken else f"{verb} {name}: the disk or the scheduler does not respond")

    def _move(self, by: int) -> None:
        if self._frame is None or (run := selected_run(self._frame, self._view)) is None:
            return
        names = [one.run for one in self._frame.runs]
        name = names[max(0, min(len(names) - 1, names.index(run.run) + by))]
        self._view = replace(self._view, selected=name)
        self._worker.send("select", name)

    # ---- drawing ----------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Write the lines that have changed since the last time, in one piece."""
        width, height = os.get_terminal_size(1)
        frame = self._frame or Frame(time())
        view = self._view if self._frame is not None else replace(self._view, panel="")
        lines = text_of(compose(frame, width or 80, height or 24, view, now=time(), is_utf8=is_utf8()))
        parts = [f"\x1b[{number};1H{line}\x1b[K" for number, line in enumerate(lines, 1)
                 if number > len(self._shown) or line != self._shown[number - 1]]  # fmt: skip
        if parts:
            self._shown = lines
            _write("".join(parts))

    # ---- signals ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals_noted(self) -> Iterator[int]:
        """Note signals instead of acting at once; yield a file descriptor that can be read after one."""
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)

        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        before = {number: signal.getsignal(number) for number in numbers}
        waker = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            for number in numbers:
                signal.signal(number, note)
            yield reading
        finally:
            signal.set_wakeup_fd(waker)
            for number in numbers:
                signal.signal(number, before[number] or signal.SIG_DFL)
            os.close(reading)
            os.close(writing)

    def _handle_signals(self) -> int | None:
        """Act on the signals that came. Return the exit code if one of them ends the program."""
        numbers, self._signals = self._signals, []
        for number in numbers:
            if number == signal.SIGTSTP:
                _write(LEAVE)
                with _as_before():
                    os.kill(0, signal.SIGSTOP)  # until fg; the worker is in the same group
                _write(ENTER)
            elif number != signal.SIGWINCH:
                return SIGNALLED + number
            else:
                _write("\x1b[2J")
            self._shown = []
        return None


_attributes: list[list[object]] = []
"""Of the terminal before."""


@contextmanager
def _own_terminal() -> Iterator[None]:
    """Read single keys without an echo on the second screen of the terminal; afterwards, all is as it was before."""
    before = termios.tcgetattr(0)
    _attributes.append(before)
    own = [*before]
    own[3] = before[3] & ~(termios.ECHO | termios.ICANON)
    try:
        termios.tcsetattr(0, termios.TCSANOW, own)
        _write(ENTER)
        yield
    finally:
        _attributes.pop()
        with suppress(OSError):
            _write(LEAVE)
        with suppress(termios.error, OSError):
            termios.tcsetattr(0, termios.TCSANOW, before)


@contextmanager
def _as_before() -> Iterator[None]:
    own = termios.tcgetattr(0)
    termios.tcsetattr(0, termios.TCSANOW, _attributes[-1])  # type: ignore[arg-type]
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, own)


def _write(text: str) -> None:
    content = text.encode(sys.stdout.encoding or "utf-8", "replace")
    while content:
        content = content[os.write(1, content) :]
