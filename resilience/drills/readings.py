"""What can be read of the training of a drill while it runs: attempts, steps, checkpoints, messages, and its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.alerts.incident import Incident
from resilience.alerts.state import open_alert_state
from resilience.attempts.failure import FailureClass
from resilience.attempts.ledger import LedgerRow, read_ledger
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import BAD
from resilience.drills.isolation import fingerprint
from resilience.drills.stage import Stage
from resilience.drills.words import Facts
from resilience.errors import ResilError
from resilience.job import Job
from resilience.runs.attempts import Attempt
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_events, read_attempts
from resilience.runs.run_logs import newest_log
from resilience.runs.submissions import read_intents

LOG_LINES = 5
SAVES = ("save", "save_begin", "save_staged", "save_failed")
"""Events of the journal by which a guard says what becomes of a save."""


class Readings:
    """Reads of a drill's run."""

    def __init__(self, stage: Stage, facts: Facts, scratch: Path) -> None:
        self.stage, self.name = stage, stage.project.default_run()
        self._facts, self._scratch = facts, scratch

    @property
    def directory(self) -> RunDirectory:
        """Return the run directory."""
        return self.stage.run(self.name)

    @property
    def store(self) -> StoreDirectory | None:
        """Return the directory of checkpoints; None if resil does not know it."""
        path = self.stage.project.loaded.store_path(self.name)
        return None if path is None else StoreDirectory(path)

    def attempt(self) -> Attempt:
        """Return the newest attempt."""
        return read_attempts(self.directory, 1)[-1]

    def rows(self) -> tuple[LedgerRow, ...]:
        """Return the attempts."""
        return read_ledger(self.directory)

    def step(self) -> int:
        """Return the newest step of rank 0; 0 before the first."""
        found = self.stage.ranks(self.name).get(0)
        if found is not None:
            return found[1].step
        rows = self.rows()
        return (rows[-1].last_step or 0) if rows else 0

    def durable(self) -> int | None:
        """Return the step of the newest durable save of all attempts; None: none."""
        return max((row.durable_step for row in self.rows() if row.durable_step is not None), default=None)

    def events(self, *names: str) -> list[Mapping[str, Any]]:
        """Return the newest events of these names in the journals of rank 0, oldest first."""
        words = tuple(f'"{name}"'.encode() for name in names)
        jobs = dict.fromkeys(attempt.job_id for attempt in read_attempts(self.directory))
        found = (event for job in jobs for event in last_events(self.directory, job, "0", words=words))
        return [event for event in found if event.get("event") in names]

    def saves(self) -> list[Mapping[str, Any]]:
        """Return the decisions and saves in the journals of rank 0, oldest first."""
        return self.events("decision", *SAVES)

    def incidents(self, since: float) -> list[Incident]:
        """Return the incidents of the drill that were told after a time."""
        ledger = open_alert_state(self.stage.project, touch=False).ledger
        own = str(self._scratch)
        return [
            one
            for one in ledger.incidents()
            if one.first_told is not None and one.first_told >= since
            and (one.run == self.name or own in one.subject or self.name in one.subject or one.check == "job")
        ]  # fmt: skip

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, oldest first."""
        try:
            return [] if self.store is None else self.store.checkpoints()
        except FileNotFoundError:
            return []

    def wrote_output(self) -> bool:
        """Return whether the training has written below RESIL_DRILL_DIR."""
        return any(path.is_file() for path in (self._scratch / "output").rglob("*"))

    def set_aside(self) -> list[str]:
        """Return the names of the checkpoints that an attempt has refused."""
        if self.store is not None and self._facts.is_own_store:
            with suppress(OSError, ResilError):
                return list(self.store.bad())
        return []

    def lost_bytes(self) -> int:
        """Return the size of what was set aside, and of saves that were never finished."""
        names = [f"{BAD}/{name}" for name in self.set_aside()]
        if self.store is None or not self._facts.is_own_store:
            return 0
        with suppress(OSError, ResilError):
            names += self.store.parts()
        return sum(size for name in names for size, _ in fingerprint(self.store.path / name).values())

    def queue(self) -> tuple[tuple[str, str], ...]:
        """Return the jobs that wait, and the number of submissions."""
        with suppress(ResilError):
            waiting = [(str(job.id.whole), job.reason) for job in self.stage.jobs() if job.state.is_waiting]
            return (*sorted(waiting), ("submissions", str(len(read_intents(self.directory)))))
        return ()

    def all_ended(self) -> bool:
        """Return whether no job is alive any more; False if that is not known."""
        try:
            jobs: tuple[Job, ...] = self.stage.jobs()
        except ResilError:
            return False
        return bool(jobs) and not any(job.state.is_alive for job in jobs)

    def last_words(self) -> str:
        """Return why the training may not have come far enough: the end of its log."""
        rows = self.rows()
        if rows and is_finished(rows[-1]):
            return "it has finished"
        if rows and rows[-1].failure is not None:
            return f"{rows[-1].failure.reason}; {self._end_of_log(is_own=True)}"
        return self._end_of_log()

    def _end_of_log(self, *, is_own: bool = False) -> str:
        """Return the end of the log, with `is_own` without the lines of resil, as far as there are others."""
        path = newest_log(self.directory, read_intents(self.directory))
        if path is None:
            states = ", ".join(f"job {job.id} {job.state} {job.reason}".strip() for job in self.stage.jobs())
            return states or "there is no job"
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith("resil: ")] if is_own else []
        lines = (own or lines)[-LOG_LINES:]
        return "its log ends: " + " / ".join(lines) if lines else "its log is empty"


def is_finished(row: LedgerRow) -> bool:
    """Return whether an attempt reached the end of the training. Pure."""
    return row.failure is not None and row.failure.failure is FailureClass.FINISHED


def answer(events: Iterable[Mapping[str, Any]]) -> tuple[int | None, str]:
    """Return what became of the last decision to save, from a journal's decisions and saves: the step at which the
    training was told, if it has not begun to save since, else None; and the error of the save, if it failed. Pure."""
    told: int | None = None
    error = ""
    for event in events:
        if event.get("event") == "decision" and event.get("save"):
            told = event["step"] if told is None else told
        elif event.get("event") in SAVES:
            told = None
            error = str(event.get("error") or "no reason is known") if event["event"] == "save_failed" else ""
    return told, error
