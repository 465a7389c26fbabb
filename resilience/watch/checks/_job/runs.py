"""Reads the run directories: who submitted each run, whether the run is over, and its newest attempts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from resilience import layout
from resilience.attempts.elsewhere import describe_exclusion, read_excluded
from resilience.errors import EX_TEMPFAIL, StateDirectoryError
from resilience.job import Fault, Job
from resilience.runs.attempts import AttemptEnd
from resilience.runs.breaker_file import OpenBreaker, read_breaker
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import attempt_numbers, read_attempts
from resilience.runs.run_jobs import requeues_itself, scheduler_of, submitters
from resilience.runs.run_logs import start_of_attempt
from resilience.runs.settle import unsettled
from resilience.runs.submissions import (
    ADOPTED,
    Deed,
    Intent,
    Intervention,
    describe_intervention,
    newest_intent,
    own_script_of,
    read_journal,
)
from resilience.runs.switches import policy_of_run, read_switch
from resilience.switch import Switch, describe_age
from resilience.system.files import explain_os_error, read_regular
from resilience.system.ports import is_account

ATTEMPTS_SHOWN = 5
_KILL = "the kill switch was set by "
"""The batch shell's reason of an end (slurm_templates/_attempt.bash, resil_killed)."""
CLEARED_S = 1800.0
"""How long a submit is awaited after `resil clear`."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, from its own files.

    Attributes:
        scheduler: the scheduler of its jobs; empty if it never had a job.
        users: the users who may have jobs of this run.
        over: why the run needs no job, or empty; `over_since` is since when.
        starts: when its newest attempts began, within the requested time.
        last_end: when the newest attempt ended; None while running or if unknown.
        last_beat: the last heartbeat of its batch shell, by the file server's clock.
        submitting: a description of a submission that may be in progress.
        error: why its files could not be read.
        done: what a person did to the run since the last submission, or None.
        cancelled: the jobs and arrays that people ever cancelled.
        stopped: how many intents are older than the newest deed of a person.
        within_s: the requested time of `starts`.
        breaker: its breaker if that is open, or None.
        hosts: one line on each bad host.
        requeues: whether its jobs requeue themselves.
    """

    directory: RunDirectory
    intents: tuple[Intent, ...] = ()
    scheduler: str = ""
    users: tuple[str, ...] = ()
    over: str = ""
    over_since: float | None = None
    starts: tuple[float, ...] = ()
    last_end: float | None = None
    last_beat: float | None = None
    submitting: str = ""
    error: str = ""
    done: Intervention | None = None
    cancelled: frozenset[int] = frozenset()
    stopped: int = 0
    within_s: float = 0.0
    breaker: OpenBreaker | None = None
    hosts: tuple[str, ...] = ()
    requeues: bool = False

    @property
    def run(self) -> str:
        """Return the name of the run."""
        return self.directory.run

    @property
    def ids(self) -> tuple[int, ...]:
        """Return its known jobs and arrays, oldest first."""
        return tuple(intent.job_id.array for intent in self.intents if intent.job_id is not None)

    @property
    def has_attempts(self) -> bool:
        """Return whether its jobs record their attempts: rendered scripts do."""
        return bool(self.starts) or self.last_end is not None or self.last_beat is not None

    @property
    def newest_chain(self) -> tuple[int, ...]:
        """Return its jobs and arrays since a person last cancelled or cleared it: a single new job is no chain.

        A user's own script that is queued behind no other job begins a chain as well: the earlier jobs have ended.
        """
        intents = self.intents[self.stopped :]
        begin = max((n for n, one in enumerate(intents) if self._begins(one)), default=0)
        return tuple(intent.job_id.array for intent in intents[begin:] if intent.job_id is not None)

    def _begins(self, intent: Intent) -> bool:
        if not own_script_of(self.directory, (intent,)):
            return False
        end = intent.argv.index(intent.script) if intent.script in intent.argv else len(intent.argv)
        return not any(word.startswith(("--dependency", "-d")) for word in intent.argv[:end])


def read_runs(directories: Sequence[RunDirectory], *, me: str, now: float, within_s: float) -> Iterator[RunFacts]:
    """Yield the facts from each run's files, with `error` for a run that cannot be read."""
    is_known = cache(is_account)
    for directory in directories:
        try:
            journal = read_journal(directory)
            intents = journal.intents
            if journal.copied_from and newest_intent(intents) is None:
                continue  # its jobs are those of the original
            over, over_since = _over(directory, now)
            starts, last_end, last_beat = _attempts(directory, now - within_s)
            yield RunFacts(
                directory=directory,
                intents=intents,
                scheduler=scheduler_of(intents),
                users=submitters(directory, intents, me, is_known),
                over=over,
                over_since=over_since,
                starts=starts,
                last_end=last_end,
                last_beat=last_beat,
                submitting=unsettled(intents, now),
                done=journal.done,
                cancelled=journal.cancelled,
                stopped=journal.stopped,
                within_s=within_s,
                breaker=None if over else read_breaker(directory),
                hosts=() if over else tuple(map(describe_exclusion, read_excluded(directory))),
                requeues=not over and requeues_itself(directory, intents),
            )
        except StateDirectoryError as error:
            yield RunFacts(directory, error=error.message)


def journal_damage(directory: RunDirectory) -> str:
    """Return why the journal may lack a queued job; empty if it is complete.

    Damage before the last readable submission does not matter: jobs of that time have ended, or another line has them.
    """
    path = directory.path / layout.SUBMISSIONS
    try:
        found = read_regular(path, limit_bytes=2**24)
    except StateDirectoryError as error:
        return error.message
    if found is None or not found[0].strip():
        lost = f"{path} is {'missing' if found is None else 'empty'} although the run had jobs"
        return lost if _had_jobs(directory) else ""
    is_whole = True
    for line in found[0].splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            is_whole = is_whole and not line.strip()
        else:
            is_whole = is_whole or (isinstance(record, dict) and record.get("event") in ("intent", ADOPTED))
    return "" if is_whole else f"{path} is damaged after the last readable submission"


def _had_jobs(directory: RunDirectory) -> bool:
    for name in (layout.SCRIPTS, layout.ATTEMPTS):
        with suppress(OSError), os.scandir(directory.path / name) as entries:
            if any(entries):
                return True
    return False


def describe_attempts(directory: RunDirectory) -> tuple[str, ...]:
    """Return one line on how each of the newest attempts ended."""
    lines = []
    with suppress(StateDirectoryError):
        for attempt in read_attempts(directory, newest=ATTEMPTS_SHOWN):
            end = "end not recorded" if attempt.end is None else attempt.end.value
            code = "" if attempt.exit_code is None else f", exit code {attempt.exit_code}"
            lasted = (
                "" if attempt.end_time is None else f" after {max(0.0, attempt.end_time - attempt.start_time):.0f} s"
            )
            lines.append(f"attempt {attempt.number} (job {attempt.label} on {attempt.host}): {end}{code}{lasted}")
    return tuple(lines)


def count_as_churn(facts: RunFacts) -> tuple[float, ...]:
    """Return the starts of the attempts that no person ended: not by a kill switch or a cancel, and not finished."""
    try:
        attempts = read_attempts(facts.directory, newest=len(facts.starts))
    except StateDirectoryError:
        return facts.starts
    meant = [
        attempt.end is AttemptEnd.FINISHED
        or _KILL in attempt.why
        or (attempt.end is AttemptEnd.TERMINATED and start_of_attempt(attempt).array in facts.cancelled)
        for attempt in attempts
    ]
    return tuple(start for start, is_meant in zip(facts.starts, meant, strict=False) if not is_meant)


def _over(directory: RunDirectory, now: float) -> tuple[str, float | None]:
    """Return why the run needs no job any more, and since when."""
    mark = directory.path / layout.FINISHED
    try:
        return "finished: the training is complete", mark.stat().st_mtime
    except FileNotFoundError:
        pass
    except OSError as error:
        raise explain_os_error(error, "stat", mark) from error
    if not os.path.lexists(directory.path / layout.SWITCHES / layout.KILL_SWITCH):
        return "", None
    switch = read_switch(directory, layout.KILL_SWITCH, policy_of_run(directory))
    if switch is None or not switch.honoured:
        return "", None
    return _killed(switch, now), switch.when


def _killed(switch: Switch, now: float) -> str:
    why = f": {switch.why}" if switch.why else ""
    return f"stopped on purpose: {switch.who} set the kill switch{describe_age(now - switch.when)}{why}"


def over_by_intervention(facts: RunFacts, rows: Sequence[Job], now: float) -> tuple[str, float | None]:
    """Return why a run without a live job needs none: a person ended it, and since when. Pure.

    A job that failed after the cancel was not ended by it.
    """
    done = facts.done
    if done is None:
        return "", None
    failed = [job for job in rows if job.end_time is not None and job.end_time > done.time and is_failure(job)]
    is_over = {
        Deed.CANCELLED: not any(job.id.array in done.jobs for job in failed),
        Deed.CANCELLED_PENDING: not failed,
        Deed.CLEARED: now - done.time < CLEARED_S,
    }
    return (describe_intervention(done, now), done.time) if is_over.get(done.deed) else ("", None)


def is_failure(job: Job) -> bool:
    """Return whether a job ended by a fault of the training or the cluster. Exit code 75 is a stop on purpose. Pure."""
    if job.exit_code is not None and job.exit_code.status == EX_TEMPFAIL:
        return False
    return job.state.fault in (Fault.TRAINING, Fault.CLUSTER)


def _attempts(directory: RunDirectory, since: float) -> tuple[tuple[float, ...], float | None, float | None]:
    """Return when the newest attempts began, when the last one ended, and its last heartbeat.

    Uses only file times, which is fast for a thousand runs: an attempt's file is created when it begins.
    """
    attempts = directory.path / layout.ATTEMPTS
    try:
        numbers = attempt_numbers(directory)
    except OSError:
        return (), None, None
    starts: list[float] = []
    for number in reversed(numbers):
        began = _written(f"{attempts}/{layout.attempt_file(number)}")
        if began is None or began < since:
            break
        starts.append(began)
    if not numbers:
        return (), None, None
    end = _written(f"{attempts}/{layout.attempt_end_file(numbers[-1])}")
    beat = _written(f"{attempts}/{layout.attempt_beat_file(numbers[-1])}")
    return tuple(reversed(starts)), end, beat


def _written(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except OSError:
        return None
