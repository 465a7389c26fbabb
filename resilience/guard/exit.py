"""Forced exit: a process that has not exited in time after a stop writes all stacks and is terminated.

Three timers, each a fallback for the one before:

1. at the deadline a thread writes the stacks of all threads to stderr and to `journal/<jobid>.<rank>.stacks`, and ends
   the process with the decision's exit code, or with 1 if a requested save is not known to be durable;
2. ten seconds later `faulthandler.dump_traceback_later` does the same in C, with exit code 1: for a library that holds
   the GIL, and for an interpreter that hangs during shutdown;
3. another twenty seconds later a kernel timer (timer_create(2)) sends SIGKILL: for a library that hangs in a C exit
   handler, after the interpreter is gone.

A thread in uninterruptible sleep survives all three until its file system or driver returns. No timer keeps a process
alive, and a fork inherits none. Python has one `dump_traceback_later` per process: a stop replaces one that the
training had set.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import queue
import sys
import threading
import time

from resilience import layout
from resilience.guard.decision import EXIT_ERROR
from resilience.guard.stacks import show_stacks, stderr_descriptor, write_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resilience.guard.decision import Decision
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

SAVES = 3.0
"""A save counts as hung after this many times the duration of the slowest save so far."""
IN_C_AFTER_S = 10.0
BY_KERNEL_AFTER_S = 30.0
WRITE_S = 5.0
"""How long writing the stacks and the journal may take: their file system may hang as well."""
AFTER_CUT_OFF_S = 10.0
"""How long the process may take to exit after a save was cut off."""
BEFORE_END_S = 5.0
"""The stacks are written this long before the job's end, without ending the process: the save may still succeed."""


class ForcedExit:
    """Ends the process if it is still alive when the time limit after a decision to stop has passed."""

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        write_journal: Callable[[], None] = lambda: None,
        is_unsaved: Callable[[], bool] = bool,
    ) -> None:
        """`is_unsaved` returns whether a requested save is missing; then the forced exit is a failure."""
        self._is_unsaved = is_unsaved
        self._place = place
        self._recorder = recorder
        self._write_journal = write_journal
        self._bound_s = settings.exit_timeout_s
        forced = settings.force_exit
        self._is_on = self._bound_s > 0 and (forced == "on" or (forced == "auto" and is_job(place, os.environ)))
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._deadline = 0.0
        self._wait_s = 0.0
        self._event = ""
        self._exit_code = 75
        self._armed_by = 0
        self._expected_since: float | None = None
        self._has_shown = False
        self._timer = KernelTimer()
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._written = threading.Event()

    def arm(self, decision: Decision, slowest_save_s: float | None) -> None:
        """Start the time limit for the save and the exit after a decision to stop.

        The limit is `exit_timeout_s`, or three times the slowest save if that is longer.
        """
        if self._is_on:
            self._bound_s = max(self._bound_s, SAVES * (slowest_save_s or 0.0))
            self._set(self._bound_s, decision.exit_code, f"the stop decided at step {decision.step}")

    def arm_after_close(self, decision: Decision | None, exit_code: int, *, hangs: bool = False) -> None:
        """Restart the time limit after the guard was closed, for the exit of the process.

        Restarted, because some trainings save once more after their loop. The limit is short if an asynchronous save
        `hangs`: Python joins threads at its exit, and would wait for that one.
        """
        if self._is_on and hangs:
            self._set(min(self._bound_s, AFTER_CUT_OFF_S), exit_code, "the exit after a save that was cut off")
        elif self._is_on and decision is not None and decision.stop:
            self._set(self._bound_s, exit_code, f"the exit after the stop at step {decision.step}")

    def expect(self, decision: Decision | None, now: float, bound_s: float | None = None) -> None:
        """Write the stacks once if the training has not reached a decided stop. Called every second while it runs.

        The time limit is `bound_s` or the usual one, whichever is shorter. The process is not ended: the training may
        be in a long evaluation without polls, and hours of work are not saved yet. `decision` None: no stop pending.
        """
        if not self._is_on or self._armed_by or decision is None or not decision.stop:
            self._expected_since = None
        elif self._expected_since is None:
            self._expected_since = now
        elif now - self._expected_since > min(self._bound_s, bound_s or math.inf) and not self._has_shown:
            self._has_shown = True
            self._show(
                f"the training has not reached the stop decided {now - self._expected_since:.0f} s ago, because "
                f"{decision.why}: it hangs, or has not called guard.step() or guard.poll() for too long"
            )

    def left_s(self) -> float:
        """Return the seconds left before the forced exit; infinity if none is armed."""
        return self._deadline - time.monotonic() if self._armed_by == os.getpid() else math.inf

    def before_fork(self) -> None:
        """Disarm faulthandler's timer: a child inherits it without its thread, and would hang at its exit."""
        if self._armed_by == os.getpid():
            faulthandler.cancel_dump_traceback_later()

    def after_fork(self) -> None:
        """Arm faulthandler's timer again in the parent, for the time left."""
        if self._armed_by == os.getpid():
            left_s = max(0.0, self._deadline - time.monotonic())
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                faulthandler.dump_traceback_later(left_s + IN_C_AFTER_S, exit=True, file=stderr_descriptor())

    def _set(self, bound_s: float, exit_code: int, event: str) -> None:
        with self._changed:
            self._deadline = time.monotonic() + bound_s
            self._wait_s, self._exit_code, self._event = bound_s, exit_code, event
            self._changed.notify_all()
        try:
            faulthandler.dump_traceback_later(bound_s + IN_C_AFTER_S, exit=True, file=stderr_descriptor())
            self._timer.set(bound_s + BY_KERNEL_AFTER_S)
            if self._armed_by != os.getpid():
                self._armed_by = os.getpid()
                # Both now: an interpreter that shuts down starts no more threads (3.12).
                threading.Thread(target=self._write, name="resil-stacks", daemon=True).start()
                threading.Thread(target=self._watch, name="resil-exit", daemon=True).start()
        except (OSError, RuntimeError, ValueError, OverflowError) as error:
            self._recorder.warn(f"cannot arm the forced exit; a hung exit may not be ended: {error!r}", "forced exit")

    # ---- in the thread that ends the process --------------------------------------------------------------------

    def _watch(self) -> None:
        end = self._place.end_time
        shown = end is None or time.time() > end - BEFORE_END_S
        while True:
            with self._changed:
                wait_s = self._deadline - time.monotonic()
                end = self._place.end_time
                shows_in_s = end - BEFORE_END_S - time.time() if end and not shown else wait_s
                if min(wait_s, shows_in_s) > 0:
                    self._changed.wait(min(wait_s, shows_in_s, 60.0))  # the end of the job may change
                    continue
            if wait_s <= 0:
                self._force()
            shown = True
            self._report(f"{self._event} has not happened, and the job ends in {BEFORE_END_S:g} s")

    def _force(self) -> None:
        why = f"{self._event} has not happened in {self._wait_s:g} s"
        code = EXIT_ERROR if self._is_unsaved() else self._exit_code
        if code != self._exit_code:
            why += ", and the last save is not known to be durable"
        self._recorder.event("exit", exit_code=code, error=why)
        self._report(f"{why}: this process is terminated")
        os._exit(code)

    def _report(self, text: str) -> None:
        """Have the other thread write all stacks; wait briefly, because the file system may hang as well."""
        self._written.clear()
        self._texts.put(text)
        self._written.wait(WRITE_S)

    # ---- in the thread that writes, and may be abandoned --------------------------------------------------------

    def _write(self) -> None:
        while True:
            text = self._texts.get()
            self._show(text)
            self._write_journal()
            self._written.set()

    def _show(self, text: str) -> None:
        self._recorder.event("stacks", text=text)
        self._recorder.say(f"{text}. All stacks follow")
        show_stacks()
        path, place = self.stacks_file(), self._place
        if path:
            head = f"{int(time.time())} {place.host} pid {os.getpid()}: {text}"
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                write_stacks(path, head, WRITE_S / 2)

    def stacks_file(self) -> str:
        """Return the path of the file for the stacks; empty without a run directory."""
        place = self._place
        return place.run_dir and os.path.join(place.run_dir, layout.JOURNAL, f"{place.job_id}.{place.rank}.stacks")


def is_job(place: RankInfo, environ: Mapping[str, str]) -> bool:
    """Return whether this process is the training of a template's job, and not a notebook or a test.

    `environ` is the environment of the process, not the one that a test passes to its guard.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    if "PYTEST_CURRENT_TEST" in environ or shell() is not None:
        return False
    attempt = environ.get("RESIL_ATTEMPT", "")
    return place.attempt > 0 and attempt.isascii() and attempt.isdigit() and int(attempt) == place.attempt


class KernelTimer:
    """A POSIX timer that sends SIGKILL to this process. Needs no thread, no GIL and no interpreter to expire.

    The kernel deletes the timer at exit and exec; a fork does not inherit the timer (timer_create(2)).
    """

    def __init__(self) -> None:
        self._timer: object = None
        self._pid = 0

    def set(self, wait_s: float) -> None:
        """Expire after `wait_s` seconds. Does nothing if the C library has no such timer."""
        try:
            import ctypes
        except ImportError:
            return

        class SigEvent(ctypes.Structure):  # struct sigevent of Linux: 64 bytes, sigevent(3type)
            _fields_ = (
                ("value", ctypes.c_void_p),
                ("signal", ctypes.c_int),
                ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48),
            )

        class TimerSpec(ctypes.Structure):  # struct itimerspec: interval, value; time_t and long are both C longs
            _fields_ = (
                ("interval_s", ctypes.c_long),
                ("interval_ns", ctypes.c_long),
                ("value_s", ctypes.c_long),
                ("value_ns", ctypes.c_long),
            )

        try:
            library = ctypes.CDLL(None)
            if not hasattr(library, "timer_create"):
                library = ctypes.CDLL("librt.so.1")  # before glibc 2.34
            if self._pid != os.getpid():
                timer = ctypes.c_void_p()
                event = SigEvent(None, 9, 0, b"")  # SIGKILL, SIGEV_SIGNAL
                if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) != 0:
                    return
                self._timer, self._pid = timer, os.getpid()
            seconds = max(0.001, wait_s)
            value = TimerSpec(0, 0, int(seconds), int(seconds % 1 * 1e9))
            library.timer_settime(self._timer, 0, ctypes.byref(value), None)
        except (OSError, AttributeError, ctypes.ArgumentError):
            return
