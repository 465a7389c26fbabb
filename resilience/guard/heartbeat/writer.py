"""Copies the beats of a node's ranks to the run directory, by time, and writes the journal.

A process beside the ranks does it where several ranks share a node, and a thread of rank 0 where it is alone. The
process needs nothing of the training, so its beat goes on while the training holds the GIL; the thread's stands still.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from resilience import layout
from resilience.base.background import BackgroundCall
from resilience.base.files import replace_file
from resilience.guard.heartbeat.beat import Pulse, RankBeat
from resilience.guard.heartbeat.run_directory import (
    RunDirectoryWriter,
    append_journal,
    as_line,
    file_mode,
    read_learned,
)
from resilience.guard.recorder import MAX_EVENTS
from resilience.guard.stacks import StacksOnDemand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.heartbeat.beat import SharedProgress
    from resilience.guard.heartbeat.connection import WriterConnection
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

FINISHED_S = 30.0
"""How long the training waits, when it is done, for `finished` to be on the disk."""
SILENT_S = 60.0
"""After so long without an answer of the run directory people are told."""
LAST_WORDS_S = 5.0
ROUTINE = frozenset({"start", "resume", "phase", "save_begin", "save_staged", "save", "decision", "finished", "end"})
"""Events that every rank has alike: only rank 0's are written."""


def start_writer(place: RankInfo, settings: GuardSettings, slot: SharedProgress, recorder: Recorder) -> HeartbeatWriter:
    """Return this rank's heartbeat writer. Start the process of the node where the settings ask for one; never wait."""
    writer = HeartbeatWriter(place, settings, slot, recorder)
    wanted = settings.mirror
    if wanted == "auto":
        wanted = "process" if place.world > 1 else "thread"
    if wanted == "process" and place.run_dir and slot.descriptor >= 0:
        from resilience.guard.agreement.address_file import address_file
        from resilience.guard.heartbeat.connection import WriterConnection, order

        file = str(address_file(place))
        writer.stacks.keep()
        line = WriterConnection(place, slot, order(place, settings.beat_s, file), writer.warn_once, writer.stacks)
        line.maintain()
        writer.use(line, file)
    elif place.run_dir and wanted == "thread":
        writer.stacks.show()
    return writer


class HeartbeatWriter:
    """Writes the heartbeat and the journal of one rank, or hands them to the writer process of its node.

    Attributes:
        locate: asks the node's writer process where rank 0 listens; None when ranks must read the file themselves.
        stacks: writes the stacks of this process when it gets a signal.
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
        self._pulse = Pulse(time.time())
        self._beat_due = 0.0
        self._writer = RunDirectoryWriter(place.run_dir, place.job_id, place.attempt, place.host, most_lines=MAX_EVENTS)
        self._unsent: list[bytes] = []
        self._owed_finish = ""
        self._why_unfinished = ""
        self._one_at_a_time = threading.Lock()
        self._worked_at = time.monotonic()
        self._is_over = False

    def use(self, line: WriterConnection, address_file: str) -> None:
        """Let the node's process write the heartbeat, and tell where rank 0 listens."""
        self._line = line
        self._address_file = address_file
        self.locate = self._locate

    def warn_once(self, text: str) -> None:
        """One fault of the heartbeat costs one warning, however long it lasts."""
        self._recorder.warn(text, key="mirror:" + text.partition(":")[0])

    def work(self) -> None:
        """Do what is due. On rank 0 this may wait for the run directory; on other ranks it never touches it.

        Never raises: what cannot be written is kept, and people are told once.
        """
        if not self._place.run_dir or self._is_over or not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            self._work(last=False)
        finally:
            self._one_at_a_time.release()

    def look_after(self) -> None:
        """From a thread that touches no shared file: say so when the one that does has not come back for long."""
        if not self._place.is_first or not self._place.run_dir or self._is_over:
            return
        silent_s = max(SILENT_S, 3 * self._settings.poll_s)
        if time.monotonic() - self._worked_at > silent_s:
            self._recorder.warn(
                f"{self._place.run_dir} has not answered for {silent_s:g} s: switches are not seen and nothing is "
                "written there until it does. The training goes on",
                key="silent",
            )

    def write_finished(self) -> None:
        """Mark the run as finished, safe on the disk; waits `FINISHED_S` at most."""
        place = self._place
        if not place.run_dir:
            return
        self._owed_finish = finished_text(place, os.environ, time.time())
        self._why_unfinished = f"no answer in {FINISHED_S:g} s"
        self._in_thread(self._finish_now, FINISHED_S)
        if self._owed_finish:
            self._recorder.warn(
                f"the run could not be marked as finished in {place.run_dir}: {self._why_unfinished}. Queued jobs of "
                "the run would start; it is tried again until this process ends"
            )

    def write_now(self) -> None:
        """Write what is known now, in the caller's thread, which may hang. After `stop`, rank 0's journal only."""
        if self._place.run_dir and (self._place.is_first or not self._is_over):
            with self._one_at_a_time:
                self._work(last=True)

    def learned(self) -> str | None:
        """What this rank has learned in another job: empty for nothing, None when the node's process has not answered
        yet. Reads the file itself where there is no such process. May wait for the file system."""
        if self._line is not None and not self._line.given_up:
            return self._line.learned()
        return (read_learned(self._place.run_dir, self._place.rank) if self._place.run_dir else None) or ""

    def learn(self, text: str) -> None:
        """Write this rank's `learned/<rank>.json`, when there is time."""
        self._learned = text

    def lead(self) -> None:
        """This rank decides by itself from now on: what rank 0 would write of it is written."""
        self._writes_routine = True

    def write_last(self) -> None:
        """After `stop`, when the interpreter exits: append to this rank's journal, in a thread where one can be had."""
        lines = [as_line(record) for record in self._recorder.take()]

        def write() -> None:
            with contextlib.suppress(OSError):
                append_journal(self._place.run_dir, self._place.job_id, self._place.rank, lines)

        if self._place.run_dir and lines and not self._in_thread(write, LAST_WORDS_S):
            write()

    def stop(self, wait_s: float) -> None:
        """Write the last words, and leave the node's process; waits about `wait_s` for each."""
        if self._is_over:
            return
        self._in_thread(self.write_now, wait_s)
        self._is_over = True
        if self._line is not None:
            self._line.close(min(wait_s, 1.0))
        self._slot.close()
        self.stacks.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: nothing is ours."""
        self._is_over = True
        self.stacks.close()
        if self._line is not None:
            self._line.after_fork_in_child()
        self._slot.after_fork_in_child()

    # ---- what is written --------------------------------------------------------------------------------------

    def _in_thread(self, what: Callable[[], None], wait_s: float) -> bool:
        """Do what may hang in a dead file system, and wait for it so long at most. False: there is no thread."""
        try:
            call = BackgroundCall(what, "resil-last-words").start()
        except RuntimeError:
            return False
        with contextlib.suppress(Exception):  # TimeoutError too: a thread that hangs is left behind
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
                f"cannot write to {place.run_dir}: {error}. Heartbeat and journal wait until it is well again; the "
                "training goes on",
                key="run directory",
            )
        elif lost:
            writer.lost = self._recorder.dropped = 0
            self._recorder.event("dropped", count=lost)
        self._worked_at = time.monotonic()

    def _hand_over(self) -> None:
        """What is out of the routine on another rank goes to its node's process, which writes it."""
        taken = self._recorder.take()
        records = [record for record in taken if self._writes_routine or record["event"] not in ROUTINE]
        self._unsent += [as_line(record) for record in records]
        del self._unsent[:-1000]
        while self._unsent and self._line is not None and self._line.tell(self._place.rank, self._unsent[0]):
            del self._unsent[0]
        if self._learned and self._line is not None and self._line.learn(self._place.rank, self._learned):
            self._learned = ""

    def _due_beat(self, last: bool) -> dict[int, RankBeat] | None:
        """The heartbeat that this rank writes itself, if it is time to."""
        self._pulse.look(self._slot.read(), time.time())
        if not self._writes_beat or (self._line is not None and not self._line.given_up):
            return None
        if not last and time.monotonic() < self._beat_due:
            return None
        self._beat_due = time.monotonic() + self._settings.beat_s
        return {self._place.rank: RankBeat(os.getpid(), self._pulse)}

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
    """What `finished` says: the words that the batch shell writes, with the job's label as people write it."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    label = f"{array}_{task}" if array.isdigit() and task.isdigit() and place.job_id != "0" else place.job_id
    return f'attempt = {place.attempt}\ntime = {int(now)}\njob = "{label}"\n'
