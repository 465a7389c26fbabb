"""Submits and queries jobs in a child process, so that a hung controller cannot delay ticks.

One child runs at a time. It may outlive the scheduler: it holds its claims under its own process id.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.cron.records import RunRecord
from resilience.errors import ResilError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry
    from resilience.cron.slots import Claim

LONGEST_S = 900.0
"""A child that runs longer is hung on a disk: it is killed, and the next one is started."""


class SubmitterResult(NamedTuple):
    """Result of one child.

    Attributes:
        records: records written to the history.
        problem: why a query or submission failed; empty: none did.
    """

    records: tuple[RunRecord, ...] = ()
    problem: str = ""


class JobSubmitter:
    """Runs one child at a time, and queues claims for the next one."""

    def __init__(self, cron: CronProject) -> None:
        self._cron = cron
        self._waiting: list[Claim] = []
        self._pid = 0
        self._pipe = -1
        self._began = 0.0
        self._received = bytearray()

    @property
    def is_busy(self) -> bool:
        """Return whether a child is running."""
        return self._pid != 0

    @property
    def waiting(self) -> Sequence[Claim]:
        """Claims queued for the next child."""
        return self._waiting

    def hand(self, claims: Sequence[Claim], entries: Sequence[Entry]) -> None:
        """Start a child that submits these slots and queries earlier jobs; return at once.

        While an earlier child is running, the claims are queued for the next call. Raise OSError if fork fails.
        """
        from resilience.system.child import answer_and_exit

        known = {(claim.key, claim.slot, claim.id) for claim in self._waiting}
        self._waiting += [claim for claim in claims if (claim.key, claim.slot, claim.id) not in known]
        if self._pid and time.monotonic() - self._began > LONGEST_S:
            self._abandon()
        if self._pid:
            return
        reading, writing = os.pipe()
        os.set_inheritable(writing, False)
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if pid == 0:
            answer_and_exit(lambda: self._work(entries), writing, LONGEST_S)
        os.close(writing)
        self._pid, self._pipe, self._began, self._waiting = pid, reading, time.monotonic(), []
        self._received.clear()

    def poll(self, timeout_s: float = 0.0) -> SubmitterResult | None:
        """Return the child's result; None if none is running or it has not ended. Waits up to `timeout_s`."""
        if not self._pid:
            return None
        until = time.monotonic() + timeout_s
        watch = select.poll()  # select(2) knows no descriptor beyond 1023
        watch.register(self._pipe, select.POLLIN)
        while watch.poll(1000 * max(0.0, until - time.monotonic())):
            chunk = os.read(self._pipe, 65536)
            self._received += chunk
            if not chunk:
                return self._over()
        return None

    def close(self) -> None:
        """Stop waiting. A running child continues on its own."""
        if self._pid:
            os.close(self._pipe)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)
            self._pid, self._pipe = 0, -1

    def _over(self) -> SubmitterResult:
        import marshal

        from resilience.system.child import HEADER

        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._pid, self._pipe = 0, -1
        try:
            kind, value, *_ = marshal.loads(self._received[HEADER.size :])
            if kind == "value":
                records, problem = value
                return SubmitterResult(tuple(map(RunRecord.from_json, records)), problem)
            words = value[1] if kind == "error" else value[0]
            return SubmitterResult((), f"submitting cron jobs failed: {words}")
        except (ValueError, EOFError, TypeError, KeyError):
            return SubmitterResult((), "the process that submits cron jobs was killed; the next tick checks its jobs")

    def _abandon(self) -> None:
        import signal

        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        self._pid, self._pipe = 0, -1

    def _work(self, entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], str]:
        from resilience.cron.submit import settle_submits

        records: list[dict[str, Any]] = []
        try:
            for record in settle_submits(self._cron.with_entry_environment(), self._waiting, entries):
                plain = record.to_json()
                records.append({key: str(v) if isinstance(v, str) else v for key, v in plain.items()})
        except ResilError as error:
            return records, f"{error.message}; the next tick tries again"
        return records, ""
