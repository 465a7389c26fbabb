"""Excludes bad hosts from the queued jobs of a run, so that the run goes on elsewhere, and takes that back.

`attempts/excluded.json` has each host that the breaker found, with the jobs from which it was excluded, written before
it is: only these are changed back, and only once, because people exclude hosts too. A host is no longer excluded once
its failures are a day old, or a person has closed the breaker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resilience import layout
from resilience.errors import NoSuchJob, SchedulerError, SchedulerUnavailable
from resilience.hostlist import expand, fold
from resilience.job import Job, JobId, JobUpdate
from resilience.records import from_record, to_json, to_record
from resilience.runs.breaker_file import breaker_path
from resilience.runs.run_jobs import handle_of, jobs_of_run, scheduler_of
from resilience.runs.submissions import read_intents
from resilience.system.files import read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.schedulers import Scheduler


NO_NODE = "BadConstraints"
"""SLURM's reason of a job that excludes all nodes that could run it. `scontrol update` accepts that (22.05)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A bad host.

    Attributes:
        host: its name in the scheduler.
        why: its failures.
        jobs: jobs and arrays from which it was excluded because of that.
        left: those from which it was not, because they have no other node, or it is refused, or was excluded already.
    """

    host: str
    why: str
    jobs: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def read_excluded(directory: RunDirectory) -> tuple[Exclusion, ...]:
    """Return the bad hosts of a run; none if the file is damaged. Raise StateDirectoryError for a read error."""
    found = read_regular(breaker_path(directory, layout.EXCLUDED))
    with suppress(ValueError, TypeError, KeyError):
        records = json.loads(found[0])["hosts"] if found is not None else ()
        return tuple(from_record(Exclusion, record, strict=True) for record in records)
    return ()


def describe_exclusion(one: Exclusion) -> str:
    """Return a sentence. Pure."""
    jobs = f"is excluded from job {', '.join(one.jobs)}" if one.jobs else "is not excluded from any queued job"
    return f"{one.host} seems to be bad, and {jobs}: {one.why}"


def go_elsewhere(project: Project, directory: RunDirectory, hosts: Mapping[str, str]) -> str:
    """Exclude these hosts, each with the reason, from the queued jobs of a run, and no others any more.

    Return a sentence if anything changed. Raise SchedulerUnavailable if the scheduler does not answer, then another
    call completes the work; StateDirectoryError if that cannot be written down.
    """
    before = {one.host: one for one in read_excluded(directory)}
    if not hosts and not before:
        return ""
    found = {host: replace(before.get(host) or Exclusion(host=host, why=why), why=why) for host, why in hosts.items()}
    said, new = [], ", ".join(sorted(found.keys() - before.keys()))
    is_enabled = project.loaded.settings.act.enabled
    if new and not is_enabled:
        said.append(f"it would exclude {new} from the queued jobs of {directory.run} if [act] were enabled")
    if (found and is_enabled) or any(one.jobs for one in before.values()):
        said += _Changes(project, directory, before, found).make()
    if found != before:
        _write(directory, found)
    return "; ".join(said)


class _Changes:
    """What is to change, job by job.

    Attributes:
        before: the hosts that are written down.
        found: the bad hosts, completed job by job.
    """

    def __init__(
        self, project: Project, directory: RunDirectory, before: dict[str, Exclusion], found: dict[str, Exclusion]
    ) -> None:
        self.directory, self.before, self.found = directory, before, found
        self._may_exclude = project.loaded.settings.act.enabled
        intents = read_intents(directory)
        self._scheduler: Scheduler = project.scheduler(scheduler_of(intents))
        self._queued: dict[JobId, list[Job]] = {}
        for job in jobs_of_run(self._scheduler.jobs(), directory.run, intents):
            if job.state.is_waiting:
                self._queued.setdefault(handle_of(job, intents), []).append(job)

    def make(self) -> list[str]:
        return [said for job_id, records in sorted(self._queued.items()) if (said := self._change(job_id, records))]

    def _change(self, job_id: JobId, records: Sequence[Job]) -> str:
        name, found = str(job_id), self.found
        ours = {host for host, one in self.before.items() if name in one.jobs}
        is_stuck = any(job.reason == NO_NODE for job in records)
        back = ours if is_stuck else ours - found.keys()
        new = {host for host, one in found.items() if self._may_exclude and name not in (*one.jobs, *one.left)}
        if not back and not new:
            return ""
        try:
            given = {host for job in records for host in expand(self._scheduler.job(job.id).excluded)}
        except NoSuchJob:  # it has begun
            return ""
        added = set() if is_stuck else self._spared(new - given, given - back, records)
        previous = dict(found)
        self._note(name, added, (new | (back & found.keys())) - added)
        if not added and not back & given:
            return ""
        if added:
            _write(self.directory, self.before | found)
        hosts = fold(added or back)
        try:
            self._scheduler.update(job_id, JobUpdate(exclude=fold(given - back | added)))
        except SchedulerUnavailable:
            _write(self.directory, self.before | previous)
            raise
        except SchedulerError as error:
            self._note(name, set(), added)
            return f"{hosts} cannot be excluded from job {name}: {error.message}"
        why = "; ".join(found[host].why for host in sorted(added))
        return f"excluded {hosts} from job {name}: {why}" if added else f"job {name} may use {hosts} again"

    def _note(self, name: str, excluded: set[str], left: set[str]) -> None:
        for host in excluded | left:
            one = self.found[host]
            jobs, rest = {*one.jobs} - {name}, {*one.left}
            (jobs if host in excluded else rest).add(name)
            self.found[host] = replace(one, jobs=tuple(sorted(jobs)), left=tuple(sorted(rest)))

    def _spared(self, hosts: set[str], given: set[str], records: Sequence[Job]) -> set[str]:
        """Return the hosts that these jobs can spare: enough other nodes of their partitions can run jobs now."""
        nodes, found = self._scheduler.nodes() if hosts else (), set[str]()
        partitions = {name for job in records for name in job.partition.split(",")}  # an empty one: unknown
        usable = {node.name for node in nodes if node.is_usable and partitions & {"", *node.partitions}} - given
        for host in sorted(hosts & {node.name for node in nodes}):
            if len(usable - found - {host}) >= max(1, *(job.node_count for job in records)):
                found.add(host)
        return found


def _write(directory: RunDirectory, hosts: Mapping[str, Exclusion]) -> None:
    record = {"hosts": [to_record(one) for _, one in sorted(hosts.items())]}
    write_atomic(breaker_path(directory, layout.EXCLUDED), to_json(record).decode(), mode=directory.file_mode)
