"""A decided exit happens: if the process does not end in time, all stacks are written and it is ended by force.

Three bells, each for when the one before cannot ring:

1. at the bound a thread writes the stacks of all threads to stderr and to `journal/<jobid>.<rank>.stacks`, and ends the
   process with the decision's exit code, or with 1 when something that was to be saved is not known to be durable;
2. ten seconds later `faulthandler.dump_traceback_later` does it in C, with exit code 1: for a library that holds the
   GIL, and for an interpreter that hangs while it is taken down;
3. another twenty seconds later a timer of the kernel (timer_create(2)) sends SIGKILL: for a library that hangs in the
   exit handlers of C, when the interpreter is gone.

A thread that waits uninterruptibly in the kernel ends by none of them: only its file system or its driver can let go.
None of them keeps a process alive, and a fork inherits none. Python has one `dump_traceback_later` for the whole
process: one that the training had set is replaced when a stop is decided, not before.
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
"""A save may take so many times the slowest one so far before it counts as hung."""
IN_C_AFTER_S = 10.0
BY_KERNEL_AFTER_S = 30.0
LAST_WORDS_S = 5.0
"""How long the stacks and the journal may take: their file system may be what hangs."""
AFTER_CUT_OFF_S = 10.0
"""How long what comes behind the guard may take when a save hangs."""
BEFORE_END_S = 5.0
"""So long before the job's end the stacks are written, without ending anything: the save may still succeed."""


class ForcedExit:
    """Armed by a decision to stop; rings when the process is still there at the bound."""

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        write_journal: Callable[[], None] = lambda: None,
        is_unsaved: Callable[[], bool] = bool,
    ) -> None:
        """`is_unsaved` tells whether something is not saved that should be: then the forced end is a failure."""
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
        self._what = ""
        self._exit_code = 75
        self._armed_by = 0
        self._expected_since: float | None = None
        self._has_shown = False
        self._timer = KernelTimer()
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._written = threading.Event()

    def arm(self, decision: Decision, slowest_save_s: float | None) -> None:
        """A stop was given to the training: it has to save and to end within the bound.

        The bound is `exit_timeout_s`, or three times the slowest save if that is longer.
        """
        if self._is_on:
            self._bound_s = max(self._bound_s, SAVES * (slowest_save_s or 0.0))
            self._set(self._bound_s, decision.exit_code, f"the stop decided at step {decision.step}")

    def left(self, decision: Decision | None, exit_code: int, *, hangs: bool = False) -> None:
        """The guard was closed after a decision to stop: what is left to do is to end, within the same bound anew.

        Anew, because some trainings save once more behind their loop. When a save in the background `hangs`, nothing
        more is expected: Python waits at its end for threads, and would wait for that one.
        """
        if self._is_on and hangs:
            self._set(min(self._bound_s, AFTER_CUT_OFF_S), exit_code, "the exit after a save that was cut off")
        elif self._is_on and decision is not None and decision.stop:
            self._set(self._bound_s, exit_code, f"the exit after the stop at step {decision.step}")

    def expect(self, decision: Decision | None, now: float, bound_s: float | None = None) -> None:
        """Asked every second while the training runs: a stop is decided, and the training has not come to it.

        Show once, after `bound_s` or the usual bound, where it hangs instead. It is not ended: it may be a long
        evaluation that nobody polls in, and the work of hours is not saved yet. None: nothing is awaited.
        """
        if not self._is_on or self._armed_by or decision is None or not decision.stop:
            self._expected_since = None
        elif self._expected_since is None:
            self._expected_since = now
        elif now - self._expected_since > min(self._bound_s, bound_s or math.inf) and not self._has_shown:
            self._has_shown = True
            self._show(
                f"a stop is decided, because {decision.why}, and the training has not come to it in "
                f"{now - self._expected_since:.0f} s: it hangs, or does without guard.step() and guard.poll() for long"
            )

    def left_s(self) -> float:
        """How many seconds are left before the process is ended by force; infinite when nothing is armed."""
        return self._deadline - time.monotonic() if self._armed_by == os.getpid() else math.inf

    def before_fork(self) -> None:
        """Disarm what is in C: a child inherits it without its thread, and waits for that for ever at its exit."""
        if self._armed_by == os.getpid():
            faulthandler.cancel_dump_traceback_later()

    def after_fork(self) -> None:
        """In the parent: arm it for what is left."""
        if self._armed_by == os.getpid():
            left_s = max(0.0, self._deadline - time.monotonic())
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                faulthandler.dump_traceback_later(left_s + IN_C_AFTER_S, exit=True, file=stderr_descriptor())

    def _set(self, bound_s: float, exit_code: int, what: str) -> None:
        with self._changed:
            self._deadline = time.monotonic() + bound_s
            self._wait_s, self._exit_code, self._what = bound_s, exit_code, what
            self._changed.notify_all()
        try:
            faulthandler.dump_traceback_later(bound_s + IN_C_AFTER_S, exit=True, file=stderr_descriptor())
            self._timer.set(bound_s + BY_KERNEL_AFTER_S)
            if self._armed_by != os.getpid():
                self._armed_by = os.getpid()
                # Both now: an interpreter that is ending starts no more threads (3.12).
                threading.Thread(target=self._write, name="resil-stacks", daemon=True).start()
                threading.Thread(target=self._watch, name="resil-exit", daemon=True).start()
        except (OSError, RuntimeError, ValueError, OverflowError) as error:
            self._recorder.warn(f"an exit that hangs may not be forced: {error!r}", key="forced exit")

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
                    self._changed.wait(min(wait_s, shows_in_s, 60.0))  # the end of the job may be moved
                    continue
            if wait_s <= 0:
                self._force()
            shown = True
            self._tell(f"{self._what} has not happened, and the job ends in {BEFORE_END_S:g} s")

    def _force(self) -> None:
        why = f"{self._what} has not happened in {self._wait_s:g} s"
        code = EXIT_ERROR if self._is_unsaved() else self._exit_code
        if code != self._exit_code:
            why += ", and what was to be saved is not known to be durable"
        self._recorder.event("exit", exit_code=code, error=why)
        self._tell(f"{why}: this process is ended by force")
        os._exit(code)

    def _tell(self, text: str) -> None:
        """Have it said where all threads are; do not wait long, because what is written to may hang as well."""
        self._written.clear()
        self._texts.put(text)
        self._written.wait(LAST_WORDS_S)

    # ---- in the thread that writes, and may be left behind ------------------------------------------------------

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
        self._keep_stacks(text)

    def stacks_file(self) -> str:
        """Where the stacks are kept; empty without a run directory."""
        place = self._place
        return place.run_dir and os.path.join(place.run_dir, layout.JOURNAL, f"{place.job_id}.{place.rank}.stacks")

    def _keep_stacks(self, text: str) -> None:
        path, place = self.stacks_file(), self._place
        if path:
            head = f"{int(time.time())} {place.host} pid {os.getpid()}: {text}"
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                write_stacks(path, head, LAST_WORDS_S / 2)


def is_job(place: RankInfo, environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to a job of a template, and is its training: no notebook and no test is killed.

    The process's own environment is asked, not the one that a test has made up for its guard.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    if "PYTEST_CURRENT_TEST" in environ or shell() is not None:
        return False
    told = environ.get("RESIL_ATTEMPT", "")
    return place.attempt > 0 and told.isascii() and told.isdigit() and int(told) == place.attempt


class KernelTimer:
    """A POSIX timer that sends SIGKILL to this process. Needs no thread, no GIL and no interpreter when it rings.

    Deleted by the kernel at the process's end and at exec; not inherited by a fork (timer_create(2)).
    """

    def __init__(self) -> None:
        self._timer: object = None
        self._pid = 0

    def set(self, wait_s: float) -> None:
        """Ring in so many seconds from now. Where the C library has no such timer, nothing happens."""
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
