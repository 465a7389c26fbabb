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
from resilience.base.files import create_file, read_regular, replace_file
from resilience.base.switches import name_of_user
from resilience.errors import EX_TEMPFAIL
from resilience.guard.heartbeat.beat import quote
from resilience.guard.heartbeat.run_directory import append_journal, as_line, file_mode, subfolder
from resilience.guard.rank_info import RankInfo
from resilience.runs.attempts import AttemptEnd

LOOKED_BACK = 50
"""Newest attempts among which a rank looks for its own."""
_NUMBER = re.compile(r"[0-9]{4,18}")


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The attempt of this process in `attempts/`. Every method may hang on a dead file system, and raises OSError.

    Attributes:
        number: the fencing token.
        label: the displayed id of the job; `0_7` for attempt 7 where there is no job.
        place: of this process.
    """

    number: int
    label: str
    place: RankInfo

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
        """Record its end. The counts for the breaker are added after this, unless it made progress."""
        fields = {
            "end": quote(end.value), "exit_code": code, "time": int(time.time()), "launched": str(launched).lower(),
            "gone": str(self.place.is_one_node).lower(), "why": quote(why),
        }  # fmt: skip
        if code == 0:
            fields |= {"burnt": 0, "outside": 0}  # progress
        text = "".join(f"{key} = {value}\n" for key, value in fields.items())
        replace_file(self.path(layout.attempt_end_file(self.number)), text, mode=file_mode(self.place.run_dir))
        with suppress(OSError):
            os.unlink(self.path(layout.attempt_beat_file(self.number)))
        self.journal("attempt_end", end=end.value, exit_code=code, launched=launched, reason=why)


def claim_attempt(place: RankInfo, label: str) -> AttemptRecord:
    """Take the next number. Raise OSError.

    Only one of several processes creates the hard link, also on NFS; without hard links, O_EXCL.
    """
    directory = subfolder(place.run_dir, layout.ATTEMPTS)
    mode = file_mode(place.run_dir)
    number = max((int(name) for name in os.listdir(directory) if _NUMBER.fullmatch(name)), default=0)
    while True:
        number += 1
        own_label = label or f"0_{number}"
        fields = {
            "number": number, "label": quote(own_label), "restart": place.restart, "host": quote(place.host),
            "pid": os.getpid(), "start": int(time.time()), "user": quote(name_of_user(os.geteuid())),
            "launch": quote(place.launch_id), "by": quote("resil run"),
        }  # fmt: skip
        if place.job_id != "0":  # without a job, later attempts go by the heartbeat alone
            fields["job_id"] = place.job_id
        text = "".join(f"{key} = {value}\n" for key, value in fields.items())
        if create_file(os.path.join(directory, layout.attempt_file(number)), text, mode=mode):
            return AttemptRecord(number, own_label, place)


def find_attempt(place: RankInfo, wait_s: float) -> int:
    """Return the number that rank 0 of this launch has taken, on whichever node; 0 if none is seen within `wait_s`."""
    directory, until = os.path.join(place.run_dir, layout.ATTEMPTS), time.monotonic() + wait_s
    while True:
        with suppress(OSError):
            numbers = sorted(int(name) for name in os.listdir(directory) if _NUMBER.fullmatch(name))
            for number in reversed(numbers[-LOOKED_BACK:]):
                fields = _fields(os.path.join(directory, layout.attempt_file(number)))
                is_over = os.path.exists(os.path.join(directory, layout.attempt_end_file(number)))
                if fields.get("launch") == place.launch_id and not is_over:
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
    return int(fields.get("exit_code", 1)), str(fields.get("why", ""))


def _fields(path: str) -> dict[str, Any]:
    """Return the values in a TOML file; none if it cannot be read."""
    import tomllib  # imported late: 4 ms

    try:
        found = read_regular(path)
        return tomllib.loads(found[0].decode()) if found is not None else {}
    except (OSError, ValueError):
        return {}
