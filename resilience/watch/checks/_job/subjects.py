"""The subjects of the job watchdog: runs of the state directory, or jobs by name; and one query of the queue for all.

A requested name is an exact name, a pattern, or a regular expression that may not take for ever.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate

from resilience.errors import ResilError, SettingsError
from resilience.job import Job
from resilience.runs.run_jobs import Owners
from resilience.schedulers import Keep, Scheduler
from resilience.switch import printable
from resilience.system.ports import Clock
from resilience.watch.checks._job.runs import RunFacts
from resilience.watch.checks._job.settings import EVERYBODY, JobSettings
from resilience.watch.processor import cpu_left_s, cpu_limit

EMBEDDED = "local"
CPU_LIMIT_S = 0.5
"""What one expression may cost for all names of a queue. A hundred thousand names cost an honest one a tenth."""


class Kind(StrEnum):
    """How a name is written."""

    EXACT = "exact"
    GLOB = "glob"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class RequestedName:
    """One name to watch.

    Attributes:
        written: as it was written, which is also what findings are about.
        pattern: the compiled expression; None for an exact name.
    """

    written: str
    name: str
    kind: Kind
    pattern: re.Pattern[str] | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether several names may match."""
        return self.pattern is not None

    def matches(self, name: str) -> bool:
        """Whether a job of this name is meant. A regular expression may take long: see Matcher."""
        if self.pattern is None:
            return name == self.name
        match = self.pattern.search if self.kind is Kind.REGEX else self.pattern.match
        return match(name) is not None or name == self.written


def parse_requested(written: str) -> RequestedName:
    """Given a name as people write it, return it. Raise SettingsError if it is empty, or does not compile."""
    if not written.strip():
        raise SettingsError("an empty name would watch nothing", hint="name a job: resil watch job gpt")
    if written.startswith("="):
        return RequestedName(written, written[1:], Kind.EXACT)
    if len(written) > 2 and written.startswith("/") and written.endswith("/"):
        try:
            return RequestedName(written, written, Kind.REGEX, re.compile(written[1:-1]))
        except (re.error, RecursionError, OverflowError) as error:
            raise SettingsError(
                f"{written} is not a regular expression: {error}", hint="/^tr11-.*-ml$/ is one; tr11-* is a pattern"
            ) from None
    if any(character in written for character in "*?["):
        # translate() writes atomic groups, so that such a pattern never backtracks for long
        return RequestedName(written, written, Kind.GLOB, re.compile(translate(written)))
    return RequestedName(written, written, Kind.EXACT)


def subject_of(name: str, users: Sequence[str], cluster: str = "") -> str:
    """The text that findings about a name have: printable, with the users when they are not just oneself, and the
    cluster when one was named.

    For instance `gpt`, `gpt of bob`, `'two\\nlines'`, `gpt of anyone on alpha`.
    """
    shown = name if name and printable(name) == name else ascii(name)
    whose = f" of {'anyone' if '*' in users else ','.join(sorted(users))}" if users else ""
    return shown + whose + (f" on {cluster}" if cluster else "")


class Matcher:
    """Says which of the requested names a job's name is, each name looked at once.

    Attributes:
        errors: for each expression that is too slow to match, why it is not used.
    """

    def __init__(self, requested: Sequence[RequestedName], cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self._exact: dict[str, list[RequestedName]] = {}
        for one in requested:
            if one.kind is Kind.EXACT:
                self._exact.setdefault(one.name, []).append(one)
        self._patterns = [one for one in requested if one.is_pattern]
        self._left_s = {one.written: cpu_limit_s for one in self._patterns}
        self._known: dict[str, tuple[RequestedName, ...]] = {}
        self.errors: dict[str, str] = {}

    def find(self, name: str) -> tuple[RequestedName, ...]:
        """The requested names that this one is."""
        if not self._patterns:
            return tuple(self._exact.get(name, ()))
        known = self._known.get(name)
        if known is None:
            found = (*self._exact.get(name, ()), *(one for one in self._patterns if self._matches(one, name)))
            known = self._known[name] = found
        return known

    def _matches(self, one: RequestedName, name: str) -> bool:
        if one.written in self.errors:
            return False
        if one.kind is not Kind.REGEX:
            return one.matches(name)
        try:
            with cpu_limit(self._left_s[one.written], _TooLongError):
                try:
                    return one.matches(name)
                finally:
                    self._left_s[one.written] = max(0.001, cpu_left_s())
        except _TooLongError:
            self.errors[one.written] = f"{one.written} takes for ever to compare with the name {ascii(name)[:80]}"
            return False


class _TooLongError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The answer to one query of the queue.

    Attributes:
        jobs: the jobs that were requested, ended ones included while they are remembered.
        queried_at: seconds since the epoch.
        error: why there was no answer; then nothing follows from `jobs` being empty. `advice` is what to try.
    """

    scheduler: str
    jobs: tuple[Job, ...] = ()
    queried_at: float = 0.0
    took_s: float = 0.0
    error: str = ""
    advice: str = ""


def query(client: Scheduler, clock: Clock, users: Collection[str] | None, keep: Keep, place: str = "") -> QueueAnswer:
    """Query the queue once. Never raises for a scheduler that does not respond. `place` is the queue's name."""
    place = place or client.name
    queried_at, began = clock.now(), clock.monotonic()
    try:
        jobs = client.jobs(users=users, finished=True, keep=keep)
    except ResilError as error:
        took_s = clock.monotonic() - began
        return QueueAnswer(place, queried_at=queried_at, took_s=took_s, error=error.message, advice=error.hint)
    return QueueAnswer(place, jobs, queried_at, clock.monotonic() - began)


@dataclass(frozen=True, slots=True)
class OwnJob:
    """The job that the watchdog itself runs in: it must never take itself for the training.

    Attributes:
        ids: the numbers that SLURM knows it by: its own, its array's, its heterogeneous leader's.
        name: its name, empty outside of a job.
    """

    ids: frozenset[int] = frozenset()
    name: str = ""

    def is_it(self, job: Job) -> bool:
        """Whether this is the watchdog's own job, or a task of the array that it is one of."""
        return job.raw_id in self.ids or job.id.array in self.ids

    def siblings(self, jobs: Iterable[Job]) -> frozenset[int]:
        """The raw ids of this job and of all that run its very script for the same person, under the same name.

        A watchdog that queues its own successor would otherwise take that for the training.
        """
        jobs = tuple(jobs)
        own = [job for job in jobs if self.is_it(job)]
        scripts = {(job.user, job.command) for job in own if job.command}
        return frozenset(
            {job.raw_id for job in own}
            | {job.raw_id for job in jobs if (job.user, job.command) in scripts and job.name == self.name}
        )


def own_job(environ: Mapping[str, str], scheduler: str, cluster: str = "") -> OwnJob:
    """The watchdog's own job at this scheduler, as its environment tells; sbatch(1), OUTPUT ENVIRONMENT VARIABLES.

    Jobs of the embedded scheduler have the same variables, but numbers of their own.
    """
    inside = EMBEDDED if environ.get("RESIL_SCHEDULER") == EMBEDDED else ""
    if (scheduler == EMBEDDED) != (inside == EMBEDDED):
        return OwnJob()
    if cluster and environ.get("SLURM_CLUSTER_NAME", cluster) != cluster:
        return OwnJob()  # each cluster counts for itself
    names = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_HET_JOB_ID")
    ids = (environ.get(name, "") for name in names)
    found = frozenset(int(value) for value in ids if value.isascii() and value.isdecimal() and len(value) < 19)
    return OwnJob(found - {0}, environ.get("SLURM_JOB_NAME", "") if found - {0} else "")


@dataclass(frozen=True, slots=True)
class Subject:
    """One run, or one name, of which findings will be made.

    Attributes:
        name: what findings are about.
        shown: its name in a PULSE line.
        mine: whether its jobs are one's own, which are never hidden.
        facts: from the run's own files; None for a name.
        is_ours: whether a job is of it.
    """

    name: str
    shown: str
    mine: bool
    is_ours: Callable[[Job], bool]
    facts: RunFacts | None = None
    requested: RequestedName | None = None


class Watched(ABC):
    """All subjects watched at one scheduler.

    Attributes:
        subjects: in the order asked for.
        users: whose jobs to query: None for one's own, empty for all users'.
        own: the watchdog's own job.
    """

    def __init__(self, subjects: Sequence[Subject], users: Sequence[str] | None, own: OwnJob) -> None:
        self.subjects, self.users, self.own = tuple(subjects), users, own

    @property
    @abstractmethod
    def keep(self) -> Keep:
        """The predicate for the one query."""

    @abstractmethod
    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        """The jobs of each subject, by its name; the watchdog's own left out."""

    def error_of(self, subject: Subject) -> str:
        """Why a subject could not be searched for; empty when it was."""
        return ""

    def own_name(self, subject: Subject) -> str:
        """The name of the watchdog's own job, when that is one of those watched."""
        return ""


class WatchedRuns(Watched):
    """Runs, known by the tokens that their jobs carry. Names mean nothing here, the watchdog's own least of all."""

    def __init__(self, facts: Sequence[RunFacts], me: str, own: OwnJob) -> None:
        self._owners = Owners({one.run: one.intents for one in facts if not one.error})
        people = sorted({person for one in facts for person in one.people})
        subjects = [Subject(one.run, one.run, set(one.people) <= {me}, self._is_of(one.run), one) for one in facts]
        super().__init__(subjects, None if set(people) <= {me} else people, own)

    def _is_of(self, run: str) -> Callable[[Job], bool]:
        return lambda job: run in self._owners.runs_of(job.id.array, job.comment)

    @property
    def keep(self) -> Keep:
        runs_of = self._owners.runs_of
        return lambda array, _, comment: bool(runs_of(array, comment))

    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        found: dict[str, list[Job]] = {}
        for job in jobs:
            for run in self._owners.runs_of(job.id.array, job.comment):
                found.setdefault(run, []).append(job)
        return found


class WatchedNames(Watched):
    """Jobs by their names. The watchdog's own job, and those that run its very script, are never among them."""

    def __init__(self, settings: JobSettings, own: OwnJob, cluster: str = "") -> None:
        requested = tuple({one.written: one for one in map(parse_requested, settings.names)}.values())
        self._matcher = Matcher(requested)
        users = settings.users
        subjects = [
            Subject(
                name=subject_of(one.written, users, cluster),
                shown=subject_of(one.written if one.is_pattern else one.name, (), cluster),
                mine=not users,
                is_ours=self._is_of(one),
                requested=one,
            )
            for one in requested
        ]
        super().__init__(subjects, (() if EVERYBODY in users else users) if users else None, own)

    def _is_of(self, one: RequestedName) -> Callable[[Job], bool]:
        return lambda job: one in self._matcher.find(job.name) and not self.own.is_it(job)

    @property
    def keep(self) -> Keep:
        find, own = self._matcher.find, self.own.ids
        return lambda array, name, _: bool(find(name)) or array in own

    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        jobs = tuple(jobs)
        left_out = self.own.siblings(jobs) if self.own.ids else frozenset()
        names = {subject.requested: subject.name for subject in self.subjects}
        found: dict[str, list[Job]] = {}
        for job in jobs:
            if job.raw_id not in left_out:
                for one in self._matcher.find(job.name):
                    found.setdefault(names[one], []).append(job)
        return found

    def error_of(self, subject: Subject) -> str:
        return "" if subject.requested is None else self._matcher.errors.get(subject.requested.written, "")

    def own_name(self, subject: Subject) -> str:
        matched = self.own.name and subject.requested in self._matcher.find(self.own.name)
        return self.own.name if matched else ""
