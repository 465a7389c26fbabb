"""The record of an attempt, where no batch shell of a template writes one. Format: docs/reference/run-directory.md."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from resilience import layout
from resilience.base.files import read_regular, replace_file
from resilience.base.switches import name_of_user
from resilience.errors import EX_TEMPFAIL
from resilience.guard.heartbeat.beat import quote
from resilience.guard.heartbeat.run_directory import append_journal, as_line, file_mode, subfolder
from resilience.guard.rank_info import RankInfo
from resilience.runs.attempts import AttemptEnd

LOOKED_BACK = 50
"""Earlier attempts that are searched for the counts, as the batch shell does."""
TRAINED_S = 300.0
"""Where no guard was ever seen no save is known: an attempt that ran for this long counts as progress."""
JOURNAL_BYTES = 2**20
"""The end of a guard's journal that is searched for saves."""
_NUMBER = re.compile(r"[0-9]{4,18}")
_STEP = re.compile(rb'"step":([0-9]{1,18})[,}]')


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The attempt of this process in `attempts/`. Every method may hang on a dead file system, and raises OSError.

    Attributes:
        number: the fencing token.
        label: the displayed id of the job; `0_7` for attempt 7 where there is no job.
        place: of this process.
        start_time: in seconds since the epoch.
    """

    number: int
    label: str
    place: RankInfo
    start_time: float

    def path(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.place.run_dir, layout.ATTEMPTS, name)

    def beat(self, count: int) -> None:
        """Write its heartbeat."""
        path = self.path(layout.attempt_beat_file(self.number))
        replace_file(path, f"{self.number} {count} {int(time.time())}\n", mode=file_mode(self.place.run_dir))

    def journal(self, event: str, **fields: Any) -> None:
        """Add an event to the journal of the job, as a batch shell does."""
        place = self.place
        job_id = int(place.job_id) if place.job_id.isdigit() else 0
        head = {"event": event, "time": int(time.time()), "attempt": self.number, "job_id": job_id}
        line = as_line({**head, "label": self.label, "restart": place.restart, "host": place.host, **fields})
        append_journal(place.run_dir, place.job_id, "batch", [line])

    def finish(self, end: AttemptEnd, code: int, why: str, *, launched: bool = True) -> None:
        """Record its end."""
        now = time.time()
        burnt, outside, best = self._counts()
        saved = self._newest_save()
        has_trained = saved is None and best < 0 and now - self.start_time >= TRAINED_S
        if code == 0 or has_trained or (saved is not None and saved > best):
            burnt = outside = 0
        elif end is AttemptEnd.EXITED:
            burnt += 1
        elif end is AttemptEnd.TERMINATED:
            outside += 1
        fields = {
            "end": quote(end.value), "exit_code": code, "time": int(now), "launched": str(launched).lower(),
            "gone": str(self.place.is_one_node).lower(), "burnt": burnt, "outside": outside, "why": quote(why),
        }  # fmt: skip
        best = max(best, -1 if saved is None else saved)
        if best >= 0:
            fields["durable"] = best
        text = "".join(f"{key} = {value}\n" for key, value in fields.items())
        replace_file(self.path(layout.attempt_end_file(self.number)), text, mode=file_mode(self.place.run_dir))
        with suppress(OSError):
            os.unlink(self.path(layout.attempt_beat_file(self.number)))
        self.journal("attempt_end", end=end.value, exit_code=code, launched=launched, reason=why)

    def _newest_save(self) -> int | None:
        """Return the newest step that a guard in the command has saved, -1 for none; None if no guard was seen."""
        journal = os.path.join(self.place.run_dir, layout.JOURNAL, f"{self.place.job_id}.0.jsonl")
        mark = f'"attempt":{self.number},'.encode()
        try:
            with open(journal, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - JOURNAL_BYTES))
                own = [line for line in file.read(JOURNAL_BYTES).splitlines() if mark in line]
        except OSError:
            own = []
        steps = (_STEP.search(line) for line in own if line.startswith(b'{"event":"save",'))
        return max((int(step[1]) for step in steps if step), default=-1) if own else None

    def _counts(self) -> tuple[int, int, int]:
        """Return how many attempts in a row before this one failed, how many were ended from outside, and the newest
        step that is durable; -1: none is known."""
        closed = _whole(_fields(self.path(layout.BREAKER_CLOSED)).get("attempt", ""))
        lost = 0
        for number in range(self.number - 1, max(0, self.number - LOOKED_BACK), -1):
            end = _fields(self.path(layout.attempt_end_file(number)))
            if "burnt" in end:
                best = _whole(end["durable"]) if "durable" in end else -1
                counts = (0, 0) if number <= closed else (_whole(end["burnt"]), _whole(end.get("outside", "")))
                return counts[0], counts[1] + lost, best
            lost += number > closed and os.path.exists(self.path(layout.attempt_file(number)))
        return 0, lost, -1


def claim_attempt(place: RankInfo, label: str) -> AttemptRecord:
    """Take the next number. Raise OSError.

    Only one of several processes creates the hard link, also on NFS; without hard links, O_EXCL.
    """
    directory = subfolder(place.run_dir, layout.ATTEMPTS)
    mode, start = file_mode(place.run_dir), time.time()
    number = max((int(name) for name in os.listdir(directory) if _NUMBER.fullmatch(name)), default=0)
    while True:
        number += 1
        own_label = label or f"0_{number}"
        fields = {
            "number": number, "label": quote(own_label), "restart": place.restart, "host": quote(place.host),
            "pid": os.getpid(), "start": int(start), "user": quote(name_of_user(os.geteuid())),
            "launch": quote(place.launch_id), "by": quote("resil run"),
        }  # fmt: skip
        if place.job_id != "0":  # without a job, later attempts go by the heartbeat alone
            fields["job_id"] = place.job_id
        text = "".join(f"{key} = {value}\n" for key, value in fields.items()).encode()
        if _create(os.path.join(directory, layout.attempt_file(number)), text, mode):
            return AttemptRecord(number, own_label, place, start)


def find_attempt(place: RankInfo, wait_s: float) -> int:
    """Return the number that rank 0 of this launch has taken, on whichever node; 0 if none is seen within `wait_s`."""
    directory, until = os.path.join(place.run_dir, layout.ATTEMPTS), time.monotonic() + wait_s
    while True:
        with suppress(OSError):
            numbers = sorted(int(name) for name in os.listdir(directory) if _NUMBER.fullmatch(name))
            for number in reversed(numbers[-LOOKED_BACK:]):
                fields = _fields(os.path.join(directory, layout.attempt_file(number)))
                is_over = os.path.exists(os.path.join(directory, layout.attempt_end_file(number)))
                if fields.get("launch") == quote(place.launch_id) and not is_over:
                    return number
        if time.monotonic() >= until:
            return 0
        time.sleep(0.2)


def end_of(code: int, *, is_finished: bool, asked: str, asked_signal: int, received: str) -> tuple[AttemptEnd, str]:
    """Return how an attempt ended, and why. Pure.

    `asked`: why the command was asked to stop, `asked_signal` by which signal; `received`: the first signal from
    outside that ends programs.
    """
    if code == 0 and is_finished:
        return AttemptEnd.FINISHED, ""
    if asked and (code in (0, EX_TEMPFAIL) or (code == 128 + asked_signal and asked_signal != signal.SIGTERM)):
        return AttemptEnd.STOPPED, asked
    if received and (code or received == signal.SIGTERM.name):
        return AttemptEnd.TERMINATED, received
    if asked:
        return AttemptEnd.TERMINATED, asked
    killed = next((f"killed by {one.name}" for one in signal.Signals if code == 128 + one), "")
    return (AttemptEnd.STOPPED if code == EX_TEMPFAIL else AttemptEnd.EXITED), killed


def note_failure(place: RankInfo, number: int, code: int, why: str) -> None:
    """Note that this rank, which does not write the attempt's record, has failed by itself. Raise OSError."""
    path = os.path.join(place.run_dir, layout.ATTEMPTS, f"{layout.attempt_file(number)}.failed.{place.rank}")
    why = f"rank {place.rank} on {place.host} failed: {why or f'exit code {code}'}"
    replace_file(path, f"exit_code = {code}\nwhy = {quote(why)}\n", mode=file_mode(place.run_dir))


def first_failure(place: RankInfo, number: int) -> tuple[int, str] | None:
    """Return exit code and reason of the rank that has noted its failure first; None if none has. Raise OSError."""
    directory = os.path.join(place.run_dir, layout.ATTEMPTS)
    start = f"{layout.attempt_file(number)}.failed."
    paths = [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(start)]
    if not paths:
        return None
    fields = _fields(min(paths, key=os.path.getmtime))
    return _whole(fields.get("exit_code", "")), fields.get("why", "").strip('"')


def _create(path: str, text: bytes, mode: int) -> bool:
    """Create a file with its content, unless it exists; return whether this process created it."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
    replace_file(temporary, text, mode=mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # After a retransmission, the server reports "exists" for the link just made.
        return os.path.samefile(temporary, path)
    except OSError:  # no hard links on this file system
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)
    finally:
        with suppress(OSError):
            os.unlink(temporary)
    return True


def _fields(path: str) -> dict[str, str]:
    """Return the values in a file of `key = value` lines as they are written; none if it cannot be read."""
    try:
        found = read_regular(path)
    except OSError:
        return {}
    lines = found[0].decode("utf-8", "replace").splitlines() if found is not None else []
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
