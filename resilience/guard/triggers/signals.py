"""Signals to the process: a handler that only sets flags.

In a forked child, such as a data-loader worker, the guard's handler is inactive: TERM, INT and HUP act there as before
the guard, and USR1 and USR2 do nothing, because some schedulers signal the whole process tree of a job. A spawned child
has no guard: USR1 ends it, unless it sets a handler itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from resilience.guard import signal_actions
from resilience.guard.decision import BuiltInTrigger, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

AGAIN_S = 1.0
"""SLURM signals a task of srun twice in the same second (proctrack/cgroup: slurmstepd and srun both send TERM), and
launchers forward signals that their processes have received already. A second TERM counts only after this."""

HANDLED_S = 0.3
"""A main thread that has not called a handler this long after its signal is stuck in a library."""

OTHERS = "The batch shell's stop file, the guard's clock and the switches still work"

_MEANING = {
    "USR1": "the job's time is nearly over",
    "USR2": "the job's time is nearly over",
    "TERM": "the job is being terminated (time limit, cancel, preemption or requeue)",
    "HUP": "the terminal or the launcher is gone",
    "INT": "interrupted by a user (a second SIGINT ends the training immediately)",
}

_installed: Signals | None = None


class Signals(BuiltInTrigger):
    """The signal handlers of this process.

    The handler counts the signal and makes the next step check for requests. It takes no lock, does no I/O, and calls
    the previous Python handler. A second INT takes effect immediately, and so does a second TERM unless a save is
    running: half a checkpoint is useless, and SIGKILL follows in any case.

    Signals ignored before the guard started stay ignored, as nohup intends.

    Python calls handlers in the main thread only, between two bytecode instructions. A main thread that waits in a
    library for ranks that are gone never reaches them. So the interpreter also writes each signal into a pipe
    (signal.set_wakeup_fd), which the watching thread reads.

    Attributes:
        is_closing: the guard is being closed: a second signal only hurries it.
        is_orphan: rank 0 is gone: no second TERM can be expected before SIGKILL.
    """

    name = "signal"

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        gate: Gate,
        is_saving: Callable[[], bool] = bool,
    ) -> None:
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._gate = gate
        self._is_saving = is_saving
        self._handler = self._handle  # one object, for comparisons by identity
        self._pid = os.getpid()
        self._launcher = os.getppid()
        self.is_closing = False
        self.is_orphan = False
        self._before: dict[int, Any] = {}
        self._chained: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._foreign: dict[int, bytes] = {}  # handlers that a library had set below Python
        self._replacements = signal_actions.Replacements(self._handler)
        self._received: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._wakeup = (-1, -1)
        self._piped: dict[int, int] = {}  # read from the pipe: how many, and when the first and the last
        self._piped_at: dict[int, tuple[float, float]] = {}
        self._is_inside: dict[int, bool] = {}
        self._requested: set[int] = set()
        self._is_open = False

    # ---- installing and removing handlers, in the main thread --------------------------------------------------

    def install(self) -> None:
        """Set the handlers; warn if that is impossible or late."""
        global _installed
        if not self._settings.signals:
            return
        if threading.current_thread() is not threading.main_thread():
            names = ", ".join(f"SIG{name}" for name in self._settings.signals)
            self._recorder.warn(
                f"the guard was started outside the main thread, where Python cannot set signal handlers: {names} do "
                f"not reach it. {OTHERS}. Start it in the main thread: `with guard:`, or guard.start()"
            )
            return
        if self._gate.count == 1 and self._place.job_id != "0":
            self._recorder.warn(
                "the guard was started by its first step: a signal before that ends the process. Start the guard "
                "before building the model: `with guard:`, or guard.start()"
            )
        self._is_open = True
        _installed = self
        self._open_wakeup()
        for name in self._settings.signals:
            number = getattr(signal, f"SIG{name}", None)
            if number is not None:
                self._install_one(int(number), f"SIG{name}")
        self._report_blocked()

    def _install_one(self, number: int, name: str) -> None:
        before = signal.getsignal(number)
        is_known = before not in (signal.SIG_DFL, None) or not signal_actions.is_caught(number)
        action = signal_actions.read_action(number) if "ctypes" in sys.modules or not is_known else None
        address = signal_actions.DEFAULT if action is None else signal_actions.address_of(action)
        if before is signal.SIG_IGN or address == signal_actions.IGNORED:
            if number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
                self._recorder.warn(f"{name} was ignored when this process started: the guard does not handle it")
            return
        self._received[number] = self._seen[number] = 0
        self._first[number] = self._last[number] = 0.0
        self._is_inside[number] = False
        self._before[number] = before
        function = _function_of(before)
        if function is not None:
            self._chained[number] = function
        elif action is not None and address != signal_actions.DEFAULT and before is not signal.default_int_handler:
            self._foreign[number] = action
            owner = signal_actions.library_of(address) or "a library"
            self._recorder.warn(
                f"{name} was handled by {owner}; the guard replaces that handler and restores it at the end. To keep "
                f"it: RESIL_GUARD__SIGNALS without {name.removeprefix('SIG')}"
            )
        try:
            signal.signal(number, self._handler)
        except (ValueError, OSError) as error:  # a subinterpreter
            del self._before[number]
            self._recorder.warn(f"cannot handle {name}: {error}. {OTHERS}")
            return
        if number not in (signal.SIGINT, signal.SIGTERM):
            signal.siginterrupt(number, False)  # SA_RESTART: many C libraries do not retry after EINTR
        if action is not None:
            self._replacements.remember(number)

    def restore(self) -> None:
        """Restore the previous handlers, except where another has replaced ours. Ours does nothing from then on."""
        global _installed
        if os.getpid() != self._pid:
            return
        self._is_open = False
        if _installed is self:
            _installed = None
        if threading.current_thread() is not threading.main_thread():
            return  # the handler stays installed, and acts as the previous one
        self._close_wakeup()
        for number in self._before:
            if self._replacements.is_ours(number):
                self._restore_one(number)

    def reinstall(self) -> list[str]:
        """Install the guard's handlers again where others replaced them; chain those. Main thread only.

        Return the names of these signals.
        """
        taken = []
        for number in self._before:
            if self._replacements.is_ours(number):
                continue
            current = signal.getsignal(number)
            function = _function_of(current)
            if function is not None and current is not self._handler:
                self._chained[number] = function
            signal.signal(number, self._handler)
            self._replacements.reset(number)
            taken.append(signal.Signals(number).name)
        return taken

    def after_fork_in_child(self) -> None:
        """In a forked child: restore the previous handlers; ignore USR1 and USR2."""
        self._close_wakeup()
        for number in self._before:
            if signal.getsignal(number) is self._handler:
                if number in (signal.SIGUSR1, signal.SIGUSR2):
                    signal.signal(number, _do_nothing)  # not SIG_IGN, which its child programs would inherit
                else:
                    self._restore_one(number)

    def _restore_one(self, number: int) -> None:
        before = self._before[number]
        signal.signal(number, signal.SIG_DFL if before is None else before)
        if number in self._foreign:
            signal_actions.write_action(number, self._foreign[number])

    # ---- received signals --------------------------------------------------------------------------------------

    def take(self) -> list[Request]:
        """Return the signals received since the last call as requests, one per signal."""
        taken = []
        while request := self._next():
            taken.append(request)
        return taken

    def poll(self) -> Request | None:
        """Return one request, from the watching thread, for a training that does not step; check the handlers."""
        self._report_replaced()
        return self._next()

    def hurries(self, since: float) -> bool:
        """Return whether another signal has requested the end of this process since then (monotonic seconds)."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            last, first = self._last.get(number, 0.0), self._first.get(number, 0.0)
            if last >= since > 0 and (first >= since or last - first >= AGAIN_S):
                return True
        return False

    @property
    def has_lost_launcher(self) -> bool:
        """Return whether the parent process is gone."""
        return os.getppid() != self._launcher

    def _next(self) -> Request | None:
        for number in self._received:
            count = max(self._received[number], self._piped.get(number, 0))
            if count != self._seen[number]:
                self._seen[number] = count
                if number not in self._requested:
                    self._requested.add(number)
                    name = signal.Signals(number).name
                    return Request(self.name, f"{name} received: {_MEANING[name.removeprefix('SIG')]}")
        return None

    def done(self, outcome: str) -> None:
        """Allow the next signal to request again."""
        self._requested.clear()

    # ---- in the handler ----------------------------------------------------------------------------------------

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_open or os.getpid() != self._pid:
            self._handle_inactive(number, frame)
            return
        self._received[number] += 1
        gate = self._gate
        gate.urgent = True
        gate.limit = gate.poll_limit = 0
        if self._is_second(number) and number in (signal.SIGINT, signal.SIGTERM) and not self.is_closing:
            self._act_as_before(number, frame)
        else:
            self._call_chained(number, frame)

    def _call_chained(self, number: int, frame: FrameType | None) -> None:
        """Call the previous handler. It may have kept ours, and call it in turn."""
        if number in self._chained and not self._is_inside[number]:
            self._is_inside[number] = True
            try:
                self._chained[number](number, frame)
            finally:
                self._is_inside[number] = False

    def _is_second(self, number: int) -> bool:
        now, first = time.monotonic(), self._first[number]
        self._last[number] = now
        if first == 0.0:
            self._first[number] = now
            return False
        return number == signal.SIGINT or (now - first >= AGAIN_S and self._may_end())

    def _may_end(self) -> bool:
        """Return whether a second TERM takes effect immediately: not during a save, unless SIGKILL would be next."""
        return self.is_orphan or self.has_lost_launcher or not self._is_saving()

    def _act_as_before(self, number: int, frame: FrameType | None) -> None:
        """Act as without the guard."""
        self._restore_one(number)
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    def _handle_inactive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in a child that was forked without Python's hooks, and after the end of the guard."""
        if os.getpid() != self._pid and number in (signal.SIGUSR1, signal.SIGUSR2):
            return
        if signal.getsignal(number) is self._handler:
            self._act_as_before(number, frame)
        else:  # another handler replaced ours and calls it
            self._call_chained(number, frame)

    # ---- signals that the main thread does not handle -----------------------------------------------------------

    def _open_wakeup(self) -> None:
        """Have the interpreter write each signal into a pipe, unless the wakeup descriptor is in use (asyncio)."""
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if (before := signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(before)
            self._close_wakeup()

    def _close_wakeup(self) -> None:
        (reader, writer), self._wakeup = self._wakeup, (-1, -1)
        if reader < 0:
            return
        try:
            if (now := signal.set_wakeup_fd(-1)) != writer:
                signal.set_wakeup_fd(now)
        except ValueError:  # not the main thread: a child that another thread has forked
            pass
        os.close(reader)
        os.close(writer)

    def listen(self) -> None:
        """Count the signals in the pipe; called by the watching thread about every second. If the main thread does not
        handle a second TERM, end the process."""
        now = time.monotonic()
        with contextlib.suppress(OSError):  # no signal, or no pipe
            piped = os.read(self._wakeup[0], 4096)
            for number in set(piped) & set(self._received):
                self._piped[number] = self._piped.get(number, 0) + piped.count(number)
                first, _ = self._piped_at.get(number, (now, now))
                self._piped_at[number] = (first, now)
        term = signal.SIGTERM
        if self._piped.get(term, 0) <= self._received.get(term, 0):
            return  # the main thread has handled them all
        piped_first, last = self._piped_at[term]
        first = min(self._first[term] or piped_first, piped_first)
        if last - first >= AGAIN_S / 2 and now - last >= HANDLED_S and self._may_end():
            self._recorder.say("a second SIGTERM arrived while the training is stuck in a library: ending the process")
            if signal_actions.write_action(term, bytes(signal_actions.STRUCT_BYTES)):  # SIG_DFL
                os.kill(os.getpid(), term)

    # ---- replaced and blocked handlers --------------------------------------------------------------------------

    def _report_replaced(self) -> None:
        if not self._is_open:
            return
        for number, owner in self._replacements.check(self._before):
            name = signal.Signals(number).name
            self._recorder.warn(
                f"the guard's handler of {name} was replaced by {owner}: {name} no longer reaches the guard. {OTHERS}. "
                "Start the guard after the code that set that handler, or choose another signal (RESIL_GUARD__SIGNALS)"
            )

    def _report_blocked(self) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(self._before)
        for number in sorted(blocked):
            name = signal.Signals(number).name
            self._recorder.warn(f"{name} is blocked in the main thread: it may never reach the guard. {OTHERS}")


def _after_fork() -> None:
    if _installed is not None:
        _installed.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Ignore the signal: the handler of forked children."""


def _function_of(handler: Any) -> Callable[[int, FrameType | None], Any] | None:
    """Return the handler if it is a function, other than Python's three initial ones; else None."""
    return handler if callable(handler) and handler is not signal.default_int_handler else None
