"""Signals to the process: a handler that sets a flag, and nothing else.

In a forked child, a loader's worker, the handler is not ours any more: TERM, INT and HUP do there what they did before
the guard, and USR1 and USR2 nothing, because some schedulers signal the whole tree of a job. A spawned child begins
anew and knows of no guard: USR1 ends it, unless it sets a handler itself.
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
"""SLURM tells a task of srun twice that it ends, in the same second (proctrack/cgroup: slurmstepd and srun both send
TERM), and launchers pass on what their processes got already. A second TERM counts only after this."""

TAKEN_S = 0.3
"""A main thread that has not called a handler so long after its signal is stuck in a library."""

OTHERS = "The batch shell's stop file, the clock and the switches still do"

_MEANING = {
    "USR1": "the job's time is nearly over",
    "USR2": "the job's time is nearly over",
    "TERM": "the job is being ended (time limit, cancel, preemption or requeue)",
    "HUP": "the terminal or the launcher is gone",
    "INT": "somebody wants it to stop (once more, and it ends at once)",
}

_installed: Signals | None = None


class Signals(BuiltInTrigger):
    """The handlers of this process.

    The handler counts, and makes the next step ask. It takes no lock, does no I/O, and calls the Python handler that
    was there before. The second INT takes effect at once, and so does a second TERM, unless a save is running: half a
    checkpoint helps nobody, and SIGKILL follows in any case.

    What was ignored when the guard came stays ignored: nohup means it.

    Python calls handlers in the main thread only, between two instructions of its own. A main thread that waits in a
    library for ranks that are no more never gets there. So the interpreter also writes each signal into a pipe
    (signal.set_wakeup_fd), which the watching thread reads.

    Attributes:
        is_closing: the guard is being closed: a second signal hurries it and does nothing else.
        is_orphan: rank 0 is gone: whoever ends this process will not be asked a second time.
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
        self._handler = self._handle  # one object, by which it is known again
        self._pid = os.getpid()
        self._launcher = os.getppid()
        self.is_closing = False
        self.is_orphan = False
        self._before: dict[int, Any] = {}
        self._chained: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._foreign: dict[int, bytes] = {}  # what somebody had set below Python
        self._replacements = signal_actions.Replacements(self._handler)
        self._came: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._wakeup = (-1, -1)
        self._heard: dict[int, int] = {}  # in the pipe: how many, and when the first and the last were read
        self._heard_at: dict[int, tuple[float, float]] = {}
        self._is_inside: dict[int, bool] = {}
        self._asked: set[int] = set()
        self._is_open = False

    # ---- handlers come and go, in the main thread --------------------------------------------------------------

    def install(self) -> None:
        """Set the handlers, and say where that is not possible or comes late."""
        global _installed
        if not self._settings.signals:
            return
        if threading.current_thread() is not threading.main_thread():
            names = ", ".join(f"SIG{name}" for name in self._settings.signals)
            self._recorder.warn(
                f"the guard is started in a thread other than the main one, where Python sets no signal handlers: "
                f"{names} do not reach it. {OTHERS}. Start it in the main thread: `with guard:`, or guard.start()"
            )
            return
        if self._gate.count == 1 and self._place.job_id != "0":
            self._recorder.warn(
                "the guard was started by its first step: a signal that comes before that ends the process. Start it "
                "before the model is built: `with guard:`, or guard.start()"
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
                self._recorder.warn(f"{name} is ignored in this process by whoever started it: the guard leaves it so")
            return
        self._came[number] = self._seen[number] = 0
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
                f"{name} was handled by {owner} before the guard came; the guard takes its place, and gives it back at "
                f"its end. To leave it: RESIL_GUARD__SIGNALS without {name.removeprefix('SIG')}"
            )
        try:
            signal.signal(number, self._handler)
        except (ValueError, OSError) as error:  # a subinterpreter
            del self._before[number]
            self._recorder.warn(f"cannot handle {name}: {error}. {OTHERS}")
            return
        if number not in (signal.SIGINT, signal.SIGTERM):
            signal.siginterrupt(number, False)  # SA_RESTART: C libraries forget to try again after EINTR
        if action is not None:
            self._replacements.remember(number)

    def restore(self) -> None:
        """Give back what was there before, unless somebody else has replaced it. From then on the handler is deaf."""
        global _installed
        if os.getpid() != self._pid:
            return
        self._is_open = False
        if _installed is self:
            _installed = None
        if threading.current_thread() is not threading.main_thread():
            return  # the handler is still there, and does what was done before it
        self._close_wakeup()
        for number in self._before:
            if self._replacements.is_ours(number):
                self._give_back(number)

    def reinstall(self) -> list[str]:
        """Take back the signals that others took; their Python handlers are called after ours. Main thread only.

        Return the names of those taken back.
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
        """In a forked child: nothing here is for the guard."""
        self._close_wakeup()
        for number in self._before:
            if signal.getsignal(number) is self._handler:
                if number in (signal.SIGUSR1, signal.SIGUSR2):
                    signal.signal(number, _do_nothing)  # not SIG_IGN: programs that it starts would inherit that
                else:
                    self._give_back(number)

    def _give_back(self, number: int) -> None:
        before = self._before[number]
        signal.signal(number, signal.SIG_DFL if before is None else before)
        if number in self._foreign:
            signal_actions.write_action(number, self._foreign[number])

    # ---- what has come -----------------------------------------------------------------------------------------

    def take(self) -> list[Request]:
        """What came since the last call, as requests. Each signal asks once."""
        taken = []
        while request := self._next():
            taken.append(request)
        return taken

    def poll(self) -> Request | None:
        """One of them, from the watching thread, for a training that does not step; and look after the handlers."""
        self._report_replaced()
        return self._next()

    def hurries(self, since: float) -> bool:
        """Whether somebody has asked once more since then (monotonic seconds) that this process ends."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            last, first = self._last.get(number, 0.0), self._first.get(number, 0.0)
            if last >= since > 0 and (first >= since or last - first >= AGAIN_S):
                return True
        return False

    @property
    def has_lost_launcher(self) -> bool:
        """Whether the process that has started this one is gone."""
        return os.getppid() != self._launcher

    def _next(self) -> Request | None:
        for number in self._came:
            count = max(self._came[number], self._heard.get(number, 0))
            if count != self._seen[number]:
                self._seen[number] = count
                if number not in self._asked:
                    self._asked.add(number)
                    name = signal.Signals(number).name
                    return Request(self.name, f"{name} came: {_MEANING[name.removeprefix('SIG')]}")
        return None

    def done(self, outcome: str) -> None:
        """The next one may ask again."""
        self._asked.clear()

    # ---- in the handler ----------------------------------------------------------------------------------------

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_open or os.getpid() != self._pid:
            self._handle_for_others(number, frame)
            return
        self._came[number] += 1
        gate = self._gate
        gate.urgent = True
        gate.limit = gate.poll_limit = 0
        if self._is_second(number) and number in (signal.SIGINT, signal.SIGTERM) and not self.is_closing:
            self._act_as_before(number, frame)
        else:
            self._call_chained(number, frame)

    def _call_chained(self, number: int, frame: FrameType | None) -> None:
        """Call the handler that we stand before. It may have kept ours, and call it in turn."""
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
        """Whether a second TERM takes effect at once: not in the middle of a save, unless nobody will ask again."""
        return self.is_orphan or self.has_lost_launcher or not self._is_saving()

    def _act_as_before(self, number: int, frame: FrameType | None) -> None:
        """Do what would have happened without the guard."""
        self._give_back(number)
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    def _handle_for_others(self, number: int, frame: FrameType | None) -> None:
        """In a child that was forked past Python's hooks, and after the end of the guard."""
        if os.getpid() != self._pid and number in (signal.SIGUSR1, signal.SIGUSR2):
            return
        if signal.getsignal(number) is self._handler:
            self._act_as_before(number, frame)
        else:  # somebody took our place and calls us
            self._call_chained(number, frame)

    # ---- what the main thread has no time for -------------------------------------------------------------------

    def _open_wakeup(self) -> None:
        """Have the interpreter write each signal into a pipe, unless somebody else is told already (asyncio)."""
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
        """For the watching thread, about every second: count what came. A second TERM that the main thread does not
        take ends the process from here."""
        now = time.monotonic()
        with contextlib.suppress(OSError):  # nothing came, or there is no pipe
            came = os.read(self._wakeup[0], 4096)
            for number in set(came) & set(self._came):
                self._heard[number] = self._heard.get(number, 0) + came.count(number)
                first, _ = self._heard_at.get(number, (now, now))
                self._heard_at[number] = (first, now)
        term = signal.SIGTERM
        if self._heard.get(term, 0) <= self._came.get(term, 0):
            return  # the main thread has taken them all
        heard_first, last = self._heard_at[term]
        first = min(self._first[term] or heard_first, heard_first)
        if last - first >= AGAIN_S / 2 and now - last >= TAKEN_S and self._may_end():
            self._recorder.say("SIGTERM came again, and the training is stuck in a library: it ends now")
            if signal_actions.write_action(term, bytes(signal_actions.STRUCT_BYTES)):  # SIG_DFL
                os.kill(os.getpid(), term)

    # ---- whether they are still there ---------------------------------------------------------------------------

    def _report_replaced(self) -> None:
        if not self._is_open:
            return
        for number, owner in self._replacements.check(self._before):
            name = signal.Signals(number).name
            self._recorder.warn(
                f"the guard's handler of {name} was replaced by {owner}: {name} does not reach the guard any more. "
                f"{OTHERS}. Start the guard after whatever set that handler, or choose another signal "
                "(RESIL_GUARD__SIGNALS)"
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
    """A worker's handler."""


def _function_of(handler: Any) -> Callable[[int, FrameType | None], Any] | None:
    """The handler, if it is a function of somebody's, and not one of the three that Python begins with."""
    return handler if callable(handler) and handler is not signal.default_int_handler else None
