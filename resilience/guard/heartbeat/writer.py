"""Copies the beats of a node's ranks to the run directory at intervals, and writes the journal.

For several ranks a process beside the ranks of each node writes, for a single rank a thread of its own. The process is
independent of the training, so its heartbeat continues while the training holds the GIL; the thread's stops meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from resilience import layout
from resilience.base.background import BackgroundCall
from resilience.base.files import replace_file
from resilience.guard.heartbeat.beat import Progress, RankBeat
from resilience.guard.heartbeat.run_directory import (
    RunDirectoryWriter,
    append_journal,
    as_line,
    file_mode,
    read_learned,
    stacks_requested,
)
from resilience.guard.recorder import MAX_EVENTS
from resilience.guard.stacks import StacksOnDemand, read_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.heartbeat.beat import SharedProgress
    from resilience.guard.heartbeat.connection import WriterConnection
    from resilience.guard.heartbeat.run_directory import Asked
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

FINISHED_S = 30.0
"""How long a completed training waits until `finished` is durable."""
SILENT_S = 60.0
"""Warn when the run directory has not responded for this long."""
LAST_WORDS_S = 5.0
ROUTINE = frozenset({"start", "resume", "phase", "save_begin", "save_staged", "save", "decision", "finished", "end"})
"""Events that are the same on every rank: only rank 0's are written."""


def start_writer(place: RankInfo, settings: GuardSettings, slot: SharedProgress, recorder: Recorder) -> HeartbeatWriter:
    """Return this rank's heartbeat writer. Start the node's writer process if the settings require it; never wait."""
    writer = HeartbeatWriter(place, settings, slot, recorder)
    mode = settings.mirror
    if mode == "auto":
        mode = "process" if place.world > 1 else "thread"
    if mode == "process" and place.run_dir and slot.descriptor >= 0:
        from resilience.guard.agreement.address_file import address_file
        from resilience.guard.heartbeat.connection import WriterConnection, order

        file = str(address_file(place))
        writer.stacks.keep()
        line = WriterConnection(place, slot, order(place, settings.beat_s, file), writer.warn_once, writer.stacks)
        line.maintain()
        writer.use(line, file)
    elif place.run_dir and mode == "thread":
        writer.stacks.show()
    return writer


class HeartbeatWriter:
    """Writes the heartbeat and the journal of one rank, or sends them to the writer process of its node.

    Attributes:
        locate: queries the node's writer process for the address of rank 0; None if ranks read the file themselves.
        stacks: writes the stacks of this process on a signal.
    """

    def __init__(self, place: RankInfo, settings: GuardSettings, slot: SharedProgress, recorder: Recorder) -> None:
        self.locate: Callable[[], Address | None] | None = None
        self.stacks = StacksOnDemand()
        self._place = place
        self._settings = settings
        self._slot = slot
        self._recorder = recorder
        self._line: WriterConnection | None = None
        self._address_file = ""
        self._writes_routine = False
        self._learned = ""
        self._writes_beat = settings.mirror != "off" and place.is_first and bool(place.run_dir)
        self._progress, self._first_steps = Progress(time.time()), Progress(time.time())
        self._first_steps.update(slot.read(), time.time())
        self._beat_due = 0.0
        self._stacks_requested: Asked | None = None
        self._writer = RunDirectoryWriter(place.run_dir, place.job_id, place.attempt, place.host, most_lines=MAX_EVENTS)
        self._unsent: list[bytes] = []
        self._owed_finish = ""
        self._why_unfinished = ""
        self._one_at_a_time = threading.Lock()
        self._worked_at = time.monotonic()
        self._is_over = False

    def use(self, line: WriterConnection, address_file: str) -> None:
        """Use the node's writer process for the heartbeat and the address of rank 0."""
        self._line = line
        self._address_file = address_file
        self.locate = self._locate

    def warn_once(self, text: str) -> None:
        """Warn once of each fault of the heartbeat, however long it lasts."""
        self._recorder.warn(text, key="mirror:" + text.partition(":")[0])

    def work(self) -> None:
        """Write everything due. On rank 0 this may wait for the run directory; other ranks never touch it.

        Never raises: while writing fails, events stay queued and the guard warns once.
        """
        if not self._place.run_dir or self._is_over or not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            self._work(last=False)
        finally:
            self._one_at_a_time.release()

    def hurry(self) -> bool:
        """Return whether `work` should write this rank's heartbeat now: at most once a second after the first step.

        Called from another thread than `work`.
        """
        if self._is_over or not self._writes_beat:
            return False
        now = time.time()
        self._first_steps.update(self._slot.read(), now)
        is_now = self._first_steps.is_news(now, self._settings.beat_s)
        if is_now:
            self._beat_due = 0.0
        return is_now

    def check_responsive(self) -> None:
        """Warn if the thread that touches shared files has been blocked for long; called from another thread."""
        if not self._place.is_first or not self._place.run_dir or self._is_over:
            return
        silent_s = max(SILENT_S, 3 * self._settings.poll_s)
        if time.monotonic() - self._worked_at > silent_s:
            self._recorder.warn(
                f"{self._place.run_dir} has not responded for {silent_s:g} s: until it does, switches are not read and "
                "nothing is written there. The training continues",
                key="silent",
            )

    def write_finished(self) -> None:
        """Mark the run as finished, durably; wait `FINISHED_S` at most."""
        place = self._place
        if not place.run_dir:
            return
        self._owed_finish = finished_text(place, os.environ, time.time())
        self._why_unfinished = f"no response within {FINISHED_S:g} s"
        self._in_thread(self._finish_now, FINISHED_S)
        if self._owed_finish:
            self._recorder.warn(
                f"the run could not be marked as finished in {place.run_dir}: {self._why_unfinished}. Queued jobs of "
                "the run would start; retrying until this process ends"
            )

    def write_now(self) -> None:
        """Write now, in the caller's thread, which may hang. After `stop`, write rank 0's journal only."""
        if self._place.run_dir and (self._place.is_first or not self._is_over):
            with self._one_at_a_time:
                self._work(last=True)

    def learned(self) -> str | None:
        """Return the measurements of this rank in an earlier job: empty if none, None while the node's process has not
        answered. Read the file without such a process. May wait for the file system."""
        if self._line is not None and not self._line.given_up:
            return self._line.learned()
        return (read_learned(self._place.run_dir, self._place.rank) if self._place.run_dir else None) or ""

    def learn(self, text: str) -> None:
        """Queue this rank's `learned/<rank>.json`."""
        self._learned = text

    def lead(self) -> None:
        """Write all events from now on: this rank decides by itself, without rank 0."""
        self._writes_routine = True

    def write_last(self) -> None:
        """After `stop`, when the interpreter exits: append to this rank's journal, in a thread if possible."""
        lines = [as_line(record) for record in self._recorder.take()]

        def write() -> None:
            with contextlib.suppress(OSError):
                append_journal(self._place.run_dir, self._place.job_id, self._place.rank, lines)

        if self._place.run_dir and lines and not self._in_thread(write, LAST_WORDS_S):
            write()

    def stop(self, wait_s: float) -> None:
        """Write the remaining events, and disconnect from the node's process; wait about `wait_s` for each."""
        if self._is_over:
            return
        self._in_thread(self.write_now, wait_s)
        self._is_over = True
        if self._line is not None:
            self._line.close(min(wait_s, 1.0))
        self._slot.close()
        self.stacks.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: close the copies of the parent's resources."""
        self._is_over = True
        self.stacks.close()
        if self._line is not None:
            self._line.after_fork_in_child()
        self._slot.after_fork_in_child()

    # ---- writing ----------------------------------------------------------------------------------------------

    def _in_thread(self, function: Callable[[], None], wait_s: float) -> bool:
        """Call a function that may hang in a dead file system, in a thread; wait at most `wait_s`. False: no thread."""
        try:
            call = BackgroundCall(function, "resil-last-words").start()
        except RuntimeError:
            return False
        with contextlib.suppress(Exception):  # TimeoutError too: a thread that hangs is abandoned
            call.result(wait_s)
        return True

    def _finish_now(self) -> None:
        with self._one_at_a_time:
            self._write_finished()

    def _work(self, *, last: bool) -> None:
        if self._line is not None and not self._is_over:
            self._line.maintain()
        place = self._place
        if not place.is_first:
            self._hand_over()
            return
        self._write_finished()
        writer = self._writer
        writer.add_lines(place.rank, [as_line(record) for record in self._recorder.take()])
        if self._learned:
            writer.add_learned(place.rank, self._learned)
            self._learned = ""
        error = writer.write(None if self._is_over else self._due_beat(last))
        lost = writer.lost + self._recorder.dropped
        if error:
            self._recorder.warn(
                f"cannot write to {place.run_dir}: {error}. Heartbeat and journal stay queued until it recovers; the "
                "training continues",
                key="run directory",
            )
        elif lost:
            writer.lost = self._recorder.dropped = 0
            self._recorder.event("dropped", count=lost)
        self._worked_at = time.monotonic()

    def _hand_over(self) -> None:
        """On other ranks: send events that are not routine to the node's process, which writes them."""
        taken = self._recorder.take()
        records = [record for record in taken if self._writes_routine or record["event"] not in ROUTINE]
        self._unsent += [as_line(record) for record in records]
        del self._unsent[:-1000]
        while self._unsent and self._line is not None and self._line.send_line(self._place.rank, self._unsent[0]):
            del self._unsent[0]
        if self._learned and self._line is not None and self._line.learn(self._place.rank, self._learned):
            self._learned = ""

    def _due_beat(self, last: bool) -> dict[int, RankBeat] | None:
        """Return the heartbeat that this rank writes itself, if due."""
        self._progress.update(self._slot.read(), time.time())
        if not self._writes_beat or (self._line is not None and not self._line.given_up):
            return None
        if not last and time.monotonic() < self._beat_due:
            return None
        self._beat_due = time.monotonic() + self._settings.beat_s
        self._answer_stacks_request()
        return {self._place.rank: RankBeat(os.getpid(), self._progress)}

    def _answer_stacks_request(self) -> None:
        """Queue the stacks of this process if they are requested; while a library holds the GIL, nothing is written."""
        with contextlib.suppress(OSError, AttributeError):
            asked = stacks_requested(self._place.run_dir, self._place.job_id)
            if asked is not None and asked != self._stacks_requested:
                self._stacks_requested = asked
                self._writer.add_stacks(self._place.rank, os.getpid(), read_stacks())

    def _write_finished(self) -> None:
        if not self._owed_finish:
            return
        run_dir = self._place.run_dir
        try:
            path = os.path.join(run_dir, layout.FINISHED)
            replace_file(path, self._owed_finish, mode=file_mode(run_dir), durable=True)
            self._owed_finish = ""
        except OSError as error:
            self._why_unfinished = error.strerror or str(error)

    def _locate(self) -> Address | None:
        line = self._line
        if line is None or self._is_over:
            return None
        if not line.given_up:
            return line.address()
        from pathlib import Path

        from resilience.guard.agreement.address_file import read_address

        return read_address(Path(self._address_file))


def finished_text(place: RankInfo, environ: Mapping[str, str], now: float) -> str:
    """Return the text of `finished`, the same that the batch shell writes, with the job id as squeue shows it."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    label = f"{array}_{task}" if array.isdigit() and task.isdigit() and place.job_id != "0" else place.job_id
    return f'attempt = {place.attempt}\ntime = {int(now)}\njob = "{label}"\n'
