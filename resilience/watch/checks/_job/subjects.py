"""Who is watched: the runs of the state directory, or jobs by name; and whose a job of the queue is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from resilience.job import Job
from resilience.runs.run_jobs import Owners
from resilience.schedulers import Keep
from resilience.watch.checks._job.queue import OwnJob
from resilience.watch.checks._job.runs import RunFacts
from resilience.watch.checks._job.settings import EVERYBODY, JobSettings
from resilience.watch.checks._job.wanted import Matcher, Wanted, parse_wanted, subject_of


@dataclass(frozen=True, slots=True)
class Subject:
    """One run, or one name, of which findings will be made.

    Attributes:
        name: what findings are about.
        shown: how a PULSE line calls it.
        mine: whether its jobs are one's own, which are never hidden.
        facts: what a run's own files say; None for a name.
        is_ours: whether a job is of it.
    """

    name: str
    shown: str
    mine: bool
    is_ours: Callable[[Job], bool]
    facts: RunFacts | None = None
    wanted: Wanted | None = None


class Watched(ABC):
    """Everybody who is watched at one scheduler.

    Attributes:
        subjects: in the order asked for.
        users: whose queue to ask for: None for one's own, empty for everybody's.
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

    def trouble(self, subject: Subject) -> str:
        """Why a subject could not be looked for."""
        return ""

    def own_name(self, subject: Subject) -> str:
        """The name of the watchdog's own job, when that is one of those watched."""
        return ""


class WatchedRuns(Watched):
    """Runs, known by the tokens that their jobs carry. Names mean nothing here, the watchdog's own least of all."""

    def __init__(self, facts: Sequence[RunFacts], me: str, own: OwnJob) -> None:
        self._owners = Owners({one.run: one.intents for one in facts if not one.trouble})
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
        wanted = tuple({one.written: one for one in map(parse_wanted, settings.names)}.values())
        self._matcher = Matcher(wanted)
        users = settings.users
        subjects = [
            Subject(
                subject_of(one.written, users, cluster), _shown(one, cluster), not users, self._is_of(one), wanted=one
            )
            for one in wanted
        ]
        super().__init__(subjects, (() if EVERYBODY in users else users) if users else None, own)

    def _is_of(self, one: Wanted) -> Callable[[Job], bool]:
        return lambda job: one in self._matcher.find(job.name) and not self.own.is_it(job)

    @property
    def keep(self) -> Keep:
        find, own = self._matcher.find, self.own.ids
        return lambda array, name, _: bool(find(name)) or array in own

    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        jobs = tuple(jobs)
        left_out = self.own.siblings(jobs) if self.own.ids else frozenset()
        names = {subject.wanted: subject.name for subject in self.subjects}
        found: dict[str, list[Job]] = {}
        for job in jobs:
            if job.raw_id not in left_out:
                for one in self._matcher.find(job.name):
                    found.setdefault(names[one], []).append(job)
        return found

    def trouble(self, subject: Subject) -> str:
        return "" if subject.wanted is None else self._matcher.trouble.get(subject.wanted.written, "")

    def own_name(self, subject: Subject) -> str:
        matched = self.own.name and subject.wanted in self._matcher.find(self.own.name)
        return self.own.name if matched else ""


def _shown(one: Wanted, cluster: str) -> str:
    return subject_of(one.written if one.is_pattern else one.name, (), cluster)
