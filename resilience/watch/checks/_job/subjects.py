"""The subjects of the job watchdog: runs of the state directory, or jobs by name; and the one query of the queue.

A requested name is an exact name, a pattern, or a regular expression with a CPU limit.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import translate

from resilience.errors import ResilError, SettingsError
from resilience.job import Job
from resilience.runs.run_jobs import Owners
from resilience.schedulers import Keep, Scheduler
from resilience.submission import split_comment
from resilience.switch import printable
from resilience.system.ports import Clock
from resilience.watch.checks._job.runs import RunFacts
from resilience.watch.checks._job.settings import EVERYBODY, JobSettings
from resilience.watch.processor import cpu_left_s, cpu_limit

EMBEDDED = "local"
CPU_LIMIT_S = 0.5
"""The CPU limit of one expression for all names of a queue; a normal one takes a tenth for a hundred thousand names."""


class Kind(StrEnum):
    """The syntax of a requested name."""

    EXACT = "exact"
    GLOB = "glob"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class RequestedName:
    """One name to watch.

    Attributes:
        written: as configured; also the subject of findings.
        pattern: the compiled expression; None for an exact name.
    """

    written: str
    name: str
    kind: Kind
    pattern: re.Pattern[str] | None = None

    @property
    def is_pattern(self) -> bool:
        """Return whether several names may match."""
        return self.pattern is not None

    def matches(self, name: str) -> bool:
        """Return whether a job name matches. A regular expression may take long: see Matcher."""
        if self.pattern is None:
            return name == self.name
        match = self.pattern.search if self.kind is Kind.REGEX else self.pattern.match
        return match(name) is not None or name == self.written


def parse_requested(written: str) -> RequestedName:
    """Parse a requested name. Raise SettingsError if the name is empty or does not compile."""
    if not written.strip():
        raise SettingsError("a job name is empty", hint="name a job: resil watch job gpt")
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
        # translate() creates atomic groups, so that such a pattern never backtracks for long
        return RequestedName(written, written, Kind.GLOB, re.compile(translate(written)))
    return RequestedName(written, written, Kind.EXACT)


def subject_of(name: str, users: Sequence[str], cluster: str = "") -> str:
    """Return the subject of findings about a name: printable, with the users and the cluster if they are set.

    For instance `gpt`, `gpt of bob`, `'two\\nlines'`, `gpt of anyone on alpha`.
    """
    shown = name if name and printable(name) == name else ascii(name)
    whose = f" of {'anyone' if '*' in users else ','.join(sorted(users))}" if users else ""
    return shown + whose + (f" on {cluster}" if cluster else "")


class Matcher:
    """Finds the requested names that match a job name, with a cache.

    Attributes:
        errors: for each expression that is too slow, why it is ignored.
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
        """Return the requested names that match."""
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
            self.errors[one.written] = f"{one.written} takes too long to match against the name {ascii(name)[:80]}"
            return False


class _TooLongError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The result of one query of the queue.

    Attributes:
        jobs: the requested jobs, including ended ones that the scheduler still lists.
        queried_at: seconds since the epoch.
        error: why the query failed; then an empty `jobs` means nothing. `advice` is what to try.
    """

    scheduler: str
    jobs: tuple[Job, ...] = ()
    queried_at: float = 0.0
    took_s: float = 0.0
    error: str = ""
    advice: str = ""


def query(client: Scheduler, clock: Clock, users: Collection[str] | None, keep: Keep, place: str = "") -> QueueAnswer:
    """Query the queue once. Never raises if the scheduler does not respond. `place` is the queue's name."""
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
    """The job that the watchdog itself runs in, which must not count as the training.

    Attributes:
        ids: its job ids: its own, its array's, its heterogeneous leader's.
        name: its name; empty outside of a job.
    """

    ids: frozenset[int] = frozenset()
    name: str = ""

    def is_own_job(self, job: Job) -> bool:
        """Return whether this is the watchdog's own job, or a task of the same array."""
        return job.raw_id in self.ids or job.id.array in self.ids

    def siblings(self, jobs: Iterable[Job]) -> frozenset[int]:
        """Return the raw ids of this job and of all jobs of the same user with the same script and name.

        Otherwise a watchdog that submits its own successor would count that as the training.
        """
        jobs = tuple(jobs)
        own = [job for job in jobs if self.is_own_job(job)]
        scripts = {(job.user, job.command) for job in own if job.command}
        return frozenset(
            {job.raw_id for job in own}
            | {job.raw_id for job in jobs if (job.user, job.command) in scripts and job.name == self.name}
        )


def own_job(environ: Mapping[str, str], scheduler: str, cluster: str = "") -> OwnJob:
    """Return the watchdog's own job at this scheduler from the environment; sbatch(1), OUTPUT ENVIRONMENT VARIABLES.

    Jobs of the embedded scheduler have the same variables, but a separate range of ids.
    """
    inside = EMBEDDED if environ.get("RESIL_SCHEDULER") == EMBEDDED else ""
    if (scheduler == EMBEDDED) != (inside == EMBEDDED):
        return OwnJob()
    if cluster and environ.get("SLURM_CLUSTER_NAME", cluster) != cluster:
        return OwnJob()  # each cluster has its own ids
    names = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_HET_JOB_ID")
    ids = (environ.get(name, "") for name in names)
    found = frozenset(int(value) for value in ids if value.isascii() and value.isdecimal() and len(value) < 19)
    return OwnJob(found - {0}, environ.get("SLURM_JOB_NAME", "") if found - {0} else "")


@dataclass(frozen=True, slots=True)
class Subject:
    """One run or one requested name.

    Attributes:
        name: the subject of findings.
        shown: its name in a status line.
        mine: whether its jobs belong to the current user, to whom they are always visible.
        facts: from the run's own files; None for a name.
        is_ours: returns whether a job belongs to it.
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
        subjects: in the order of the settings.
        users: whose jobs to query: None: the current user's; empty: all users'.
        own: the watchdog's own job.
    """

    def __init__(self, subjects: Sequence[Subject], users: Sequence[str] | None, own: OwnJob) -> None:
        self.subjects, self.users, self.own = tuple(subjects), users, own

    @property
    @abstractmethod
    def keep(self) -> Keep:
        """Return the predicate of the query."""

    @abstractmethod
    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        """Return the jobs of each subject, by its name, without the watchdog's own job."""

    def with_jobs(self, subject: Subject, jobs: Sequence[Job]) -> Subject:
        """Return a subject as its jobs in the queue define it."""
        return subject

    def error_of(self, subject: Subject) -> str:
        """Return why a subject could not be searched for; otherwise empty."""
        return ""

    def own_name(self, subject: Subject) -> str:
        """Return the name of the watchdog's own job if it matches the subject; otherwise empty."""
        return ""


class WatchedRuns(Watched):
    """Runs, identified by the tokens in their jobs' comments, not by job names."""

    def __init__(self, facts: Sequence[RunFacts], me: str, own: OwnJob) -> None:
        self._owners = Owners({one.run: one.intents for one in facts if not one.error})
        users = sorted({user for one in facts for user in one.users})
        subjects = [Subject(one.run, one.run, set(one.users) <= {me}, self._is_of(one.run), one) for one in facts]
        super().__init__(subjects, None if set(users) <= {me} else users, own)

    def _is_of(self, run: str) -> Callable[[Job], bool]:
        return lambda job: run in self._owners.sort([job])

    @property
    def keep(self) -> Keep:
        runs_of = self._owners.runs_of
        return lambda array, _, comment: bool(runs_of(array, comment))

    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        return self._owners.sort(jobs)


class WatchedNames(Watched):
    """Jobs by name, except the watchdog's own job and those with the same script.

    The name of a run also means the run's jobs: those of a user's own script have the name of that script. A live job
    of this name that is of no run keeps the name a name.
    """

    def __init__(
        self, settings: JobSettings, own: OwnJob, me: str = "", cluster: str = "", runs: Sequence[RunFacts] = ()
    ) -> None:
        requested = tuple({one.written: one for one in map(parse_requested, settings.names)}.values())
        self._matcher = Matcher(requested)
        self._owners = Owners({one.run: one.intents for one in runs if not one.error})
        facts = self._runs = {one.run: one for one in runs}
        users: Sequence[str] = settings.users
        others = sorted({user for one in runs for user in one.users} | {me}) if runs else []
        subjects = [
            Subject(
                name=subject_of(one.written, users, cluster),
                shown=subject_of(one.written if one.is_pattern else one.name, (), cluster),
                mine=not users and (one.written not in facts or set(facts[one.written].users) <= {me}),
                is_ours=self._is_of(one),
                facts=facts.get(one.written),
                requested=one,
            )
            for one in requested
        ]
        known = () if EVERYBODY in users else users
        super().__init__(subjects, known if users else others if set(others) - {me} else None, own)

    def _is_of(self, one: RequestedName) -> Callable[[Job], bool]:
        def is_ours(job: Job) -> bool:
            is_named = one in self._matcher.find(job.name) and not self.own.is_own_job(job)
            return is_named or one.written in self._owners.sort([job])

        return is_ours

    @property
    def keep(self) -> Keep:
        find, own, runs_of = self._matcher.find, self.own.ids, self._owners.runs_of
        return lambda array, name, comment: bool(find(name)) or array in own or bool(runs_of(array, comment))

    def with_jobs(self, subject: Subject, jobs: Sequence[Job]) -> Subject:
        """Return the subject without the facts of its run if a live job has this name and is not the run's."""
        if subject.facts is None:
            return subject
        is_run = all(subject.name in self._owners.sort([job]) for job in jobs if job.state.is_alive)
        return subject if is_run else replace(subject, facts=None)

    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        jobs = tuple(jobs)
        left_out = self.own.siblings(jobs) if self.own.ids else frozenset()
        names = {subject.requested: subject.name for subject in self.subjects}
        found = self._owners.sort(jobs)
        of_runs = {name: {job.id for job in own} for name, own in found.items()}
        for job in jobs:
            if job.raw_id not in left_out:
                for one in self._matcher.find(job.name):
                    is_other = one.written in self._runs and split_comment(job.comment) is not None
                    if not is_other and job.id not in of_runs.get(names[one], ()):
                        found.setdefault(names[one], []).append(job)
        return found

    def error_of(self, subject: Subject) -> str:
        return "" if subject.requested is None else self._matcher.errors.get(subject.requested.written, "")

    def own_name(self, subject: Subject) -> str:
        matched = self.own.name and subject.requested in self._matcher.find(self.own.name)
        return self.own.name if matched else ""
