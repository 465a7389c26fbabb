"""What the run directories say: who submitted each run, whether it is over, and how its newest attempts went."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import attempt_numbers, read_attempts
from resilience.runs.run_jobs import scheduler_of, submitters
from resilience.runs.submissions import Intent, Outcome, read_intents
from resilience.runs.switches import policy_of_run, read_switch
from resilience.switch import Switch, describe_age
from resilience.system.files import explain_os_error, read_regular
from resilience.system.ports import is_account

IN_FLIGHT_S = 120.0
"""An intent younger than this whose fate is not journalled may be a submit that is at it right now."""
ATTEMPTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, from its own files.

    Attributes:
        scheduler: which one has its jobs; empty when it never had one.
        people: who may have jobs of it.
        over: why nothing needs to live, or empty; `over_since` is when that was said.
        starts: when its newest attempts began, as far as that is within the time asked for.
        last_end: when the newest attempt ended, None while it runs or is not known to be over.
        last_beat: when its batch shell last showed that it lives, by the file server's clock.
        submitting: a submit that may be at it right now, in words.
        error: why its files could not be read.
    """

    directory: RunDirectory
    intents: tuple[Intent, ...] = ()
    scheduler: str = ""
    people: tuple[str, ...] = ()
    over: str = ""
    over_since: float | None = None
    starts: tuple[float, ...] = ()
    last_end: float | None = None
    last_beat: float | None = None
    submitting: str = ""
    error: str = ""

    @property
    def run(self) -> str:
        """Its name."""
        return self.directory.run

    @property
    def ids(self) -> tuple[int, ...]:
        """The jobs and arrays it is known to have had, oldest first."""
        return tuple(intent.job_id.array for intent in self.intents if intent.job_id is not None)


def read_runs(directories: Sequence[RunDirectory], *, me: str, now: float, within_s: float) -> Iterator[RunFacts]:
    """Read what each run's files say. One that cannot be read says so; it hides no other."""
    is_known = cache(is_account)
    for directory in directories:
        try:
            intents = read_intents(directory)
            over, over_since = _over(directory, now)
            starts, last_end, last_beat = _attempts(directory, now - within_s)
            yield RunFacts(
                directory=directory,
                intents=intents,
                scheduler=scheduler_of(intents),
                people=submitters(directory, intents, me, is_known),
                over=over,
                over_since=over_since,
                starts=starts,
                last_end=last_end,
                last_beat=last_beat,
                submitting=_submitting(intents, now),
            )
        except StateDirectoryError as error:
            yield RunFacts(directory, error=error.message)


def journal_damage(directory: RunDirectory) -> str:
    """Why a job may have been queued that the journal does not show; empty when it shows all.

    What stands before the last submit that can be read is no matter: jobs of then are over, or known by another line.
    """
    path = directory.path / layout.SUBMISSIONS
    try:
        found = read_regular(path, limit_bytes=2**24)
    except StateDirectoryError as error:
        return error.message
    if found is None or not found[0].strip():
        lost = f"{path} is {'not there' if found is None else 'empty'}, and the run had jobs"
        return lost if _had_jobs(directory) else ""
    is_whole = True
    for line in found[0].splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            is_whole = is_whole and not line.strip()
        else:
            is_whole = is_whole or (isinstance(record, dict) and record.get("event") == "intent")
    return "" if is_whole else f"{path} is damaged behind the last submit that can be read"


def _had_jobs(directory: RunDirectory) -> bool:
    for name in (layout.SCRIPTS, layout.ATTEMPTS):
        with suppress(OSError), os.scandir(directory.path / name) as entries:
            if any(entries):
                return True
    return False


def describe_attempts(directory: RunDirectory) -> tuple[str, ...]:
    """How the newest attempts went, a line each, for people."""
    lines = []
    with suppress(StateDirectoryError):
        for attempt in read_attempts(directory, newest=ATTEMPTS_SHOWN):
            end = "has not said how it ended" if attempt.end is None else attempt.end.value
            code = "" if attempt.exit_code is None else f", exit code {attempt.exit_code}"
            lasted = (
                "" if attempt.end_time is None else f" after {max(0.0, attempt.end_time - attempt.start_time):.0f} s"
            )
            lines.append(f"attempt {attempt.number} (job {attempt.label} on {attempt.host}): {end}{code}{lasted}")
    return tuple(lines)


def _over(directory: RunDirectory, now: float) -> tuple[str, float | None]:
    """Why the run needs no job any more, and since when."""
    mark = directory.path / layout.FINISHED
    try:
        return "finished: the training says that it is done", mark.stat().st_mtime
    except FileNotFoundError:
        pass
    except OSError as error:
        raise explain_os_error(error, "look at", mark) from error
    if not os.path.lexists(directory.path / layout.SWITCHES / layout.KILL_SWITCH):
        return "", None
    switch = read_switch(directory, layout.KILL_SWITCH, policy_of_run(directory))
    if switch is None or not switch.honoured:
        return "", None
    return _killed(switch, now), switch.when


def _killed(switch: Switch, now: float) -> str:
    why = f": {switch.why}" if switch.why else ""
    return f"stopped on purpose: {switch.who} threw the kill switch{describe_age(now - switch.when)}{why}"


def _attempts(directory: RunDirectory, since: float) -> tuple[tuple[float, ...], float | None, float | None]:
    """When the newest attempts began, when the last one ended, and its last beat.

    By the files' times alone, which costs a thousand runs nothing: an attempt's file is made when it begins.
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


def _submitting(intents: Sequence[Intent], now: float) -> str:
    if not intents or intents[-1].outcome not in (Outcome.OPEN, Outcome.UNCERTAIN):
        return ""
    newest = intents[-1]
    by = f" by {newest.by}" if newest.by else ""
    if newest.outcome is Outcome.OPEN and abs(now - newest.time) < IN_FLIGHT_S:
        return f"a submit{by} began {max(0.0, now - newest.time):.0f} s ago and has not ended"
    return f"nobody knows yet what came of a submit{by}"
