"""Excludes bad hosts from the jobs of a run, so that it goes on elsewhere, takes that back, and proves it.

A host is bad if the breaker of the run or the evidence of all runs (nodes/standing.py) says so.
`attempts/excluded.json` has each one with the jobs from which it was excluded, written before it is: only these are
changed back, and only once, because people exclude hosts too. A host is no longer excluded once its failures are a day
old, its exclusion has expired, or a person has closed the breaker or allowed it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.errors import NoSuchJob, SchedulerError, SchedulerUnavailable
from resilience.hostlist import expand, fold
from resilience.job import Job, JobId, JobUpdate
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from resilience.nodes.standing import Choice, Standing, State, choose, judge
from resilience.records import from_record, to_json, to_record
from resilience.runs.breaker_file import breaker_path
from resilience.runs.run_jobs import handle_of, jobs_of_run, scheduler_of
from resilience.runs.submissions import read_intents
from resilience.system.files import read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.attempts.ledger import LedgerRow
    from resilience.cluster import Node
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.schedulers import Scheduler


NO_NODE = "BadConstraints"
"""SLURM's reason of a job that excludes all nodes that could run it. `scontrol update` accepts that (22.05)."""
PROVEN_S = 86400.0
"""So long the next attempt is awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A bad host.

    Attributes:
        host: its name in the scheduler.
        why: its failures.
        jobs: jobs and arrays from which it was excluded because of that.
        left: those from which it was not, because they have no other node, or it is refused, or was excluded already.
        since: when it was found to be bad, in seconds since the epoch.
        proof: which attempt began without it since then, or with it, in words; empty: none has begun.
    """

    host: str
    why: str
    jobs: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    since: float = 0.0
    proof: str = ""


def read_excluded(directory: RunDirectory) -> tuple[Exclusion, ...]:
    """Return the bad hosts of a run; none if the file is damaged. Raise StateDirectoryError for a read error."""
    with suppress(ValueError, TypeError):
        return tuple(from_record(Exclusion, record, strict=True) for record in _read(directory).get("hosts", ()))
    return ()


def has_exclusions(directory: RunDirectory) -> bool:
    """Return whether a host is excluded from a job of the run, or must be taken back once the job is queued again."""
    return bool(read_excluded(directory) or _read_over(directory))


def _read_over(directory: RunDirectory) -> dict[str, set[str]]:
    """Return hosts that are good again, each with the jobs that were running then: SLURM changes only queued ones."""
    found = _read(directory).get("over", {})
    return {str(host): {*map(str, jobs)} for host, jobs in found.items()} if isinstance(found, dict) else {}


def _read(directory: RunDirectory) -> dict[str, Any]:
    found = read_regular(breaker_path(directory, layout.EXCLUDED))
    with suppress(ValueError):
        record = json.loads(found[0]) if found is not None else {}
        return record if isinstance(record, dict) else {}
    return {}


def describe_exclusion(one: Exclusion) -> str:
    """Return a sentence. Pure."""
    jobs = f"is excluded from job {', '.join(one.jobs)}" if one.jobs else "is not excluded from any queued job"
    proof = f"; since then {one.proof}" if one.proof else ""
    return f"{one.host} seems to be bad, and {jobs}: {one.why}{proof}"


def read_standings(project: Project) -> tuple[Standing, ...]:
    """Return what is known of the nodes of the cluster. Raise StateDirectoryError if it cannot be read."""
    now = project.system.clock.now()
    return judge(evidence_folder(project).read(now).evidence, now)


def go_elsewhere(
    project: Project, directory: RunDirectory, hosts: Mapping[str, str], standings: Sequence[Standing] = ()
) -> str:
    """Exclude these hosts, each with the reason, from the queued jobs of a run, and those that are excluded for all
    runs, as far as the run can do without them; and no others any more.

    Return a sentence if anything changed. Raise SchedulerUnavailable if the scheduler does not answer, then another
    call completes the work; StateDirectoryError if that cannot be written down.
    """
    before, over = {one.host: one for one in read_excluded(directory)}, _read_over(directory)
    shared = {one.node: one.why for one in standings if one.state is State.EXCLUDED}
    if not hosts and not shared and not before and not over:
        return ""
    said = []
    is_enabled = project.loaded.settings.act.enabled
    has_changed = bool(over) or any(one.jobs for one in before.values())
    changes = _Changes(project, directory, before, over) if is_enabled or has_changed else None
    if is_enabled and changes is not None:
        kept = {host for host in shared if host in hosts or (host in before and before[host].jobs)}
        if shared.keys() - kept:  # else no need to ask for the nodes
            kept |= changes.choose(standings).avoid.keys()
        shared = {host: shared[host] for host in kept}
    now = project.system.clock.now()
    found = {
        host: replace(before.get(host) or Exclusion(host=host, why=why, since=now), why=why)
        for host, why in {**shared, **hosts}.items()
    }
    new = ", ".join(sorted(found.keys() - before.keys()))
    if new and not is_enabled:
        said.append(f"it would exclude {new} from the queued jobs of {directory.run} if [act] were enabled")
    if changes is not None:
        changes.found = found
        said += changes.make()
        changes.join()
        found = changes.found
    still_over = changes.still_over() if changes is not None else {}
    if found != before or still_over != over:
        _write(directory, found, still_over)
    return "; ".join(said)


def still_excluded(directory: RunDirectory, standings: Sequence[Standing]) -> dict[str, str]:
    """Return the hosts that are written down, without those of which is known that they are not excluded any more."""
    over = {one.node for one in standings if one.state is not State.EXCLUDED}
    return {one.host: one.why for one in read_excluded(directory) if one.host not in over}


def apply_standings(project: Project) -> list[str]:
    """Make the queued jobs of all runs avoid the nodes that are excluded now, and no others. Return what changed."""
    standings, said = read_standings(project), []
    for directory in project.runs():
        if not directory.is_finished():
            hosts = still_excluded(directory, standings)
            said.append(go_elsewhere(project, directory, hosts, standings))
    return [text for text in said if text]


def avoid(project: Project, directory: RunDirectory, hosts: Mapping[str, str]) -> tuple[str, ...]:
    """Exclude hosts that failed a check, each with the reason, from queued jobs of a run; return those without them.

    Raise SchedulerError if the scheduler does not answer or refuses.
    """
    before, now = {one.host: one for one in read_excluded(directory)}, project.system.clock.now()
    changes = _Changes(project, directory, before)
    changes.found = before | {
        host: before.get(host) or Exclusion(host=host, why=why, since=now) for host, why in hosts.items()
    }
    return tuple(changes.avoid(hosts.keys()))


def note_submitted(directory: RunDirectory, jobs: Collection[JobId], hosts: Mapping[str, str], now: float) -> None:
    """Write down that these jobs were submitted without these hosts: that is taken back once they are good again."""
    if hosts:
        found = {one.host: one for one in read_excluded(directory)}
        for host, why in hosts.items():
            one = found.get(host) or Exclusion(host=host, why=why, since=now)
            found[host] = replace(one, jobs=tuple(sorted({*one.jobs, *map(str, jobs)})))
        _write(directory, found)


def unproven(directory: RunDirectory, now: float) -> bool:
    """Return whether a host was excluded lately, and no attempt is known to have begun since."""
    return any(not one.proof and now - one.since < PROVEN_S for one in read_excluded(directory))


def note_proofs(project: Project, directory: RunDirectory, rows: Iterable[tuple[LedgerRow, Collection[str]]]) -> None:
    """Write down whether the first attempt since a host was excluded began without it.

    `rows`: attempts, oldest first, each with its nodes. Raise StateDirectoryError if that fails.
    """
    found = {one.host: one for one in read_excluded(directory)}
    proofs = []
    for row, nodes in rows:
        for one in [one for one in found.values() if nodes and not one.proof and one.since > 0]:
            is_without = one.host not in nodes
            if row.start_time < (int(one.since) if is_without else one.since):  # it is a whole second
                continue
            how = "without it" if is_without else "which it was to avoid"
            text = f"attempt {row.attempt} (job {row.job}) began on {fold(nodes)}, {how}"
            found[one.host] = replace(one, proof=text)
            why, about = f"{text}: run {directory.run}", f"{directory.path} {row.attempt}"
            source, by = Source.AVOIDED if is_without else Source.USED, project.system.host.user
            proofs.append(Evidence(node=one.host, time=row.start_time, source=source, why=why, about=about,
                                   run=directory.run, job=row.job, by=by))  # fmt: skip
    if proofs:
        _write(directory, found)
        evidence_folder(project).add(proofs, project.system.clock.now())


class _Changes:
    """What is to change, job by job.

    Attributes:
        before: the hosts that are written down.
        over: those that are good again, with jobs that may be queued again.
        found: the bad hosts, completed job by job.
        written: those that were written down here.
    """

    def __init__(
        self,
        project: Project,
        directory: RunDirectory,
        before: dict[str, Exclusion],
        over: Mapping[str, Collection[str]] = {},
    ) -> None:
        self.directory, self.before, self.over, self.found = directory, before, over, dict[str, Exclusion]()
        self.written: Mapping[str, Exclusion] = {}
        self._may_exclude = project.loaded.settings.act.enabled
        intents = read_intents(directory)
        self._scheduler: Scheduler = project.scheduler(scheduler_of(intents))
        self._queued: dict[JobId, list[Job]] = {}
        self._running = set[str]()
        self._nodes: tuple[Node, ...] = ()
        for job in jobs_of_run(self._scheduler.jobs(), directory.run, intents):
            if job.state.is_waiting:
                self._queued.setdefault(handle_of(job, intents), []).append(job)
            elif job.state.is_alive:
                self._running.add(str(handle_of(job, intents)))

    def make(self) -> list[str]:
        return [said for job_id, records in sorted(self._queued.items()) if (said := self._change(job_id, records))]

    def join(self) -> None:
        """Take over what another watchdog has written down while this one asked: it changes the same jobs."""
        for one in read_excluded(self.directory):
            if one.host not in self.before and one != self.written.get(one.host):
                ours = self.found.get(one.host, one)
                jobs = {*one.jobs, *ours.jobs}
                left = {*one.left, *ours.left} - jobs
                self.found[one.host] = replace(one, jobs=tuple(sorted(jobs)), left=tuple(sorted(left)))

    def _write(self, hosts: Mapping[str, Exclusion]) -> None:
        _write(self.directory, hosts)
        self.written = dict(hosts)

    def still_over(self) -> dict[str, set[str]]:
        """Return what is to be taken back from jobs when they are queued again: of those that run now, and of hosts
        that are bad again."""
        alive, kept = self._running | {str(job_id) for job_id in self._queued}, dict[str, set[str]]()
        for host in {*self.over, *self.before}:
            names = {*self.over.get(host, ())}
            if host not in self.found and host in self.before:
                names |= {*self.before[host].jobs}
            if names := names & (alive if host in self.found else self._running):
                kept[host] = names
        return kept

    def choose(self, standings: Sequence[Standing]) -> Choice:
        """Return which nodes that are excluded for all runs the queued jobs can do without."""
        jobs = [job for records in self._queued.values() for job in records]
        partitions = {name for job in jobs for name in job.partition.split(",")} or {""}
        needed = max((job.node_count for job in jobs), default=1)
        kept = [host for host, one in self.before.items() if one.jobs]
        return choose(standings, self._all_nodes(), partitions, needed, kept=kept)

    def _all_nodes(self) -> tuple[Node, ...]:
        self._nodes = self._nodes or self._scheduler.nodes()
        return self._nodes

    def _still_there(self, hosts: set[str]) -> set[str]:
        """Return the hosts that there are, if that is known: SLURM refuses a list with one that is gone."""
        known = {node.name for node in self._all_nodes()}
        return hosts & known if known else hosts

    def avoid(self, hosts: Collection[str]) -> Iterator[str]:
        for job_id, records in sorted(self._queued.items()):
            given = {host for job in records for host in expand(self._scheduler.job(job.id).excluded)}
            added = self._spared({*hosts} - given, given, records)
            if added:
                self.join()
                self._note(str(job_id), added, set())
                self._write(self.found)
                self._scheduler.update(job_id, JobUpdate(exclude=fold(self._still_there(given) | added)))
            if {*hosts} <= given | added:
                yield str(job_id)

    def _change(self, job_id: JobId, records: Sequence[Job]) -> str:
        name, found = str(job_id), self.found
        ours = {host for host, one in self.before.items() if name in one.jobs}
        ours |= {host for host, names in self.over.items() if name in names}
        is_stuck = any(job.reason == NO_NODE for job in records)
        back = ours if is_stuck else ours - found.keys()
        new = self._new(name)
        if not back and not new:
            return ""
        try:
            given = {host for job in records for host in expand(self._scheduler.job(job.id).excluded)}
        except NoSuchJob:  # it has begun
            return ""
        spared = set() if is_stuck else self._spared(new - given, given - back, records)
        self.join()
        new = self._new(name)
        added, previous = spared & new, dict(found)
        self._note(name, added, (new | (back & found.keys())) - added)
        if not added and not back & given:
            return ""
        if added:
            self._write(self.before | found)
        hosts = fold(added or back)
        try:
            self._scheduler.update(job_id, JobUpdate(exclude=fold(self._still_there(given - back) | added)))
        except SchedulerUnavailable:
            self._write(self.before | previous)
            raise
        except SchedulerError as error:
            self._note(name, set(), added)
            return f"{hosts} cannot be excluded from job {name}: {error.message}"
        why = "; ".join(found[host].why for host in sorted(added))
        return f"excluded {hosts} from job {name}: {why}" if added else f"job {name} may use {hosts} again"

    def _new(self, name: str) -> set[str]:
        """Return the hosts of which nothing was decided for this job."""
        found = self.found.items() if self._may_exclude else ()
        return {host for host, one in found if name not in (*one.jobs, *one.left)}

    def _note(self, name: str, excluded: set[str], left: set[str]) -> None:
        for host in excluded | left:
            one = self.found[host]
            jobs, rest = {*one.jobs} - {name}, {*one.left}
            (jobs if host in excluded else rest).add(name)
            self.found[host] = replace(one, jobs=tuple(sorted(jobs)), left=tuple(sorted(rest)))

    def _spared(self, hosts: set[str], given: set[str], records: Sequence[Job]) -> set[str]:
        """Return the hosts that these jobs can spare: enough other nodes of their partitions can run jobs now."""
        nodes, found = self._all_nodes() if hosts else (), set[str]()
        partitions = {name for job in records for name in job.partition.split(",")}  # an empty one: unknown
        usable = {node.name for node in nodes if node.is_usable and partitions & {"", *node.partitions}} - given
        for host in sorted(hosts & {node.name for node in nodes}):
            if len(usable - found - {host}) >= max(1, *(job.node_count for job in records)):
                found.add(host)
        return found


def _write(
    directory: RunDirectory, hosts: Mapping[str, Exclusion], over: Mapping[str, Collection[str]] | None = None
) -> None:
    """Write the hosts down; what is over stays as it is, unless that is given."""
    over = _read_over(directory) if over is None else over
    record: dict[str, Any] = {"hosts": [to_record(one) for _, one in sorted(hosts.items())]}
    if over:
        record["over"] = {host: sorted(names) for host, names in sorted(over.items())}
    write_atomic(breaker_path(directory, layout.EXCLUDED), to_json(record).decode(), mode=directory.file_mode)
