"""`resil watch nodes`: runs without nodes to spare, nodes that SLURM takes from a running job, bad ones in use.

One query of the queue and one of the nodes for all runs. Nothing is said of the embedded scheduler, which has one host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.attempts.elsewhere import read_excluded
from resilience.errors import HostlistError, SettingsError
from resilience.finding import Figure, Finding, Verdict
from resilience.hostlist import expand, fold
from resilience.job import JobState
from resilience.messages import cut, plural
from resilience.nodes.check import START_S
from resilience.nodes.evidence import EvidenceFolder
from resilience.nodes.standing import Standing, choose, judge
from resilience.runs.context import Context
from resilience.runs.run_jobs import Owners, newest, scheduler_of, submitters
from resilience.runs.submissions import excluded_by_user, newest_intent, read_intents
from resilience.watch.on_nodes import LOOK_S, findings_on, look
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.cluster import Node
    from resilience.job import Job
    from resilience.runs.run_directory import RunDirectory
    from resilience.runs.submissions import Intent

NO_RUN = "runs"
LAST_S = 15.0
"""For the files, besides the two queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSettings:
    """What is too few.

    Attributes:
        runs: the runs to watch. Default: all of the state directory.
        warn_spares: fewer usable nodes than this, besides those that a run needs, are a WARNING; never where the
            partition has no others anyway.
        look: watchdogs to run on every node of the running jobs, beside the training: `["local"]` and a table
            [watch.local] with `kind = "fs"` and the paths of the nodes' own disks. Needs `srun --overlap`.
    """

    runs: tuple[str, ...] = ()
    warn_spares: int = 1
    look: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesReading:
    """The nodes of one run.

    Attributes:
        partition: of its newest job; empty: unknown, then all nodes of the cluster count.
        needed: nodes of that job.
        total, usable, idle: of the partition; `usable` without those that the run avoids.
        avoided: nodes that its jobs exclude, for the user or by resil.
        beyond: bad nodes that it must use nevertheless, and why.
        lost: nodes of its running jobs that SLURM takes away, with state and reason.
        is_running: whether a job of it has its nodes already.
        looks: the findings on each node of its running jobs, as plain data.
        unseen: nodes whose findings are unknown, and why.
        nothing: why nothing can be said.
    """

    partition: str = ""
    needed: int = 0
    total: int = 0
    usable: int = 0
    idle: int = 0
    avoided: tuple[str, ...] = ()
    beyond: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    is_running: bool = False
    looks: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    nothing: str = ""


class NodesCheck:
    """The watchdog of nodes."""

    summary = "nodes: none to spare, lost by a running job, or bad and in use nevertheless"
    Settings = NodesSettings
    Reading = NodesReading
    memory = Memory(count=1)
    argument = "runs"
    example = "resil watch nodes gpt"

    def targets(self, settings: NodesSettings, context: Context) -> Sequence[Target]:
        """Return one target: all runs."""
        if settings.warn_spares < 0:
            raise SettingsError(f"warn_spares = {settings.warn_spares} must be at least 0", hint="warn_spares = 1")
        if "nodes" in settings.look:
            raise SettingsError("look: the watchdog nodes cannot run itself", hint='look = ["local"]')
        look_s = LOOK_S if settings.look else 0.0
        return [Target("nodes of the runs", deadline_s=2 * context.scheduler_deadline_s + LAST_S + look_s)]

    def probe(
        self, target: Target, settings: NodesSettings, context: Context, before: Mapping[str, Timed[NodesReading]]
    ) -> Mapping[str, NodesReading]:
        """Query the queue and the nodes of each scheduler that has runs."""
        by_scheduler: dict[str, list[RunDirectory]] = {}
        for directory in context.runs():
            if (not settings.runs or directory.run in settings.runs) and not directory.is_finished():
                by_scheduler.setdefault(scheduler_of(read_intents(directory)), []).append(directory)
        found: dict[str, NodesReading] = {}
        now = context.system.clock.now()
        for name, directories in by_scheduler.items():
            if name not in ("", "local"):
                standings = judge(EvidenceFolder(Path(context.evidence), context.group).read(now).evidence, now)
                found |= _Reader(context, settings, name, standings).read(directories)
        missing = {run: NodesReading(nothing="it has no job in a cluster") for run in settings.runs if run not in found}
        return found | missing or {NO_RUN: NodesReading(nothing="no run has a job in a cluster")}

    def judge(
        self, subject: str, readings: Sequence[Timed[NodesReading]], settings: NodesSettings, now: float
    ) -> Sequence[Finding]:
        """Return a finding for each fault, or one that says how many nodes are to spare."""
        return judge_reading(subject, readings[-1].reading, settings)


def judge_reading(run: str, seen: NodesReading, settings: NodesSettings) -> Sequence[Finding]:
    """Return the findings. Pure."""
    if seen.nothing:
        return [Finding(subject=run, verdict=Verdict.OK, summary=seen.nothing, looked=(seen.nothing,))]
    spares = seen.usable - seen.needed
    where = f" of partition {seen.partition}" if seen.partition else ""
    excluded = f", {len(seen.avoided)} excluded ({cut(', '.join(seen.avoided), 80)})" if seen.avoided else ""
    counts = f"{seen.usable} of {plural(seen.total, 'node')}{where} usable, {seen.idle} idle{excluded}"
    faults = []
    if spares < 0:
        verdict = Verdict.WARNING if seen.is_running else Verdict.CRITICAL
        which = "the next job" if seen.is_running else "the job"
        text = f"{which} cannot start: it needs {plural(seen.needed, 'node')}; {counts}"
        faults.append((verdict, "no-nodes", text))
    elif spares < settings.warn_spares and seen.total > seen.needed:
        faults.append((Verdict.WARNING, "no-spares", f"{plural(spares, 'node')} to spare: {counts}"))
    if seen.lost:
        text = "; ".join(f"{node}: {why}" for node, why in seen.lost.items())
        faults.append((Verdict.WARNING, "taken-away", f"its running job loses {cut(text, 300)}"))
    if seen.beyond:
        text = "; ".join(f"{node}: {why}" for node, why in seen.beyond.items())
        faults.append((Verdict.WARNING, "not-excluded", f"bad, but in use: {cut(text, 300)}"))
    if seen.unseen:
        faults.append((Verdict.UNKNOWN, "no-answer", f"not looked on {cut('; '.join(seen.unseen), 300)}"))
    figures = (Figure(label="spares", value=spares, warn=settings.warn_spares),)
    if not faults:
        text = f"{plural(spares, 'node')} to spare: {counts}"
        one = Finding(subject=run, verdict=Verdict.OK, summary=text, run=run, figures=figures, looked=(counts,))
        return [one, *_on_nodes(run, seen)]
    partition = f" -p {seen.partition}" if seen.partition else ""
    return [
        Finding(
            subject=run,
            verdict=verdict,
            fault=fault,
            summary=text,
            advice=f"see them: resil nodes; sinfo -N -l{partition}",
            run=run,
            figures=figures,
            looked=(counts,),
        )
        for verdict, fault, text in faults
    ] + _on_nodes(run, seen)


def _on_nodes(run: str, seen: NodesReading) -> list[Finding]:
    found = [one for node, packed in seen.looks.items() for one in findings_on(node, packed)]
    return [replace(one, run=one.run or run) for one in found]


class _Reader:
    """Reads the nodes of the runs of one scheduler."""

    def __init__(
        self, context: Context, settings: NodesSettings, scheduler: str, standings: Sequence[Standing]
    ) -> None:
        self._context, self._settings, self._standings = context, settings, standings
        self._client, self._me = context.scheduler(scheduler), context.system.host.user
        self._until = 0.0

    def read(self, directories: Sequence[RunDirectory]) -> dict[str, NodesReading]:
        intents = {directory.run: read_intents(directory) for directory in directories}
        users = {user for one in directories for user in submitters(one, intents[one.run], self._me)}
        sorted_jobs = Owners(intents).sort(self._client.jobs(users=users))
        live = {run: [job for job in jobs if job.state.is_alive] for run, jobs in sorted_jobs.items()}
        nodes = self._client.nodes() if any(live.values()) else ()
        self._until = self._context.system.clock.monotonic() + LOOK_S
        found = {}
        for directory in directories:
            last = newest(live.get(directory.run, ()), intents[directory.run])
            if last is None:
                found[directory.run] = NodesReading(nothing="it has no job")
            else:
                mine = intents[directory.run]
                found[directory.run] = self._read_run(directory, mine, live[directory.run], last, nodes)
        return found

    def _read_run(
        self, directory: RunDirectory, intents: Sequence[Intent], jobs: Sequence[Job], last: Job, nodes: Sequence[Node]
    ) -> NodesReading:
        partitions, needed = last.partition.split(","), max(1, last.node_count)
        mine = [node for node in nodes if not {"", *node.partitions}.isdisjoint(partitions)]
        ours, theirs = {one.host for one in read_excluded(directory) if one.jobs}, set[str]()
        if (intent := newest_intent(intents)) is not None:
            with suppress(HostlistError):  # then sbatch has refused it
                theirs = {*expand(excluded_by_user(intent))}
        avoided = ours | theirs
        act = directory.settings().get("act")
        may_exclude = isinstance(act, dict) and act.get("enabled") is True
        usable = [node for node in mine if node.is_usable and node.name not in avoided]
        running = [job for job in jobs if job.state.may_have_processes and job.nodes]
        own = {host for job in running for host in expand(job.nodes)}
        choice = choose(self._standings, nodes, partitions, needed, kept=ours, given=theirs)
        looks, unseen = self._look(running)
        return NodesReading(
            partition=last.partition,
            needed=needed,
            total=len(mine),
            usable=len(usable),
            idle=sum(node.state == "IDLE" for node in usable),
            avoided=tuple(sorted(avoided & {node.name for node in mine})),
            beyond=dict(choice.beyond) if may_exclude else {},
            lost={node.name: _words(node) for node in nodes if node.name in own and not node.is_usable},
            is_running=bool(running),
            looks=looks,
            unseen=unseen,
        )

    def _look(self, running: Sequence[Job]) -> tuple[dict[str, tuple[dict[str, Any], ...]], tuple[str, ...]]:
        """Return the findings on the nodes of these jobs, and the nodes without an answer, with the reason."""
        found: dict[str, tuple[dict[str, Any], ...]] = {}
        unseen = []
        names, monotonic = self._settings.look, self._context.system.clock.monotonic
        for job in running if names else ():
            if job.state is not JobState.RUNNING:  # srun refuses a job that ends
                continue
            hosts, left_s = expand(job.nodes), self._until - monotonic()
            if job.user != self._me:  # srun starts nothing in jobs of others
                unseen.append(f"{job.nodes}: job {job.id} belongs to {job.user}")
            elif left_s < START_S:
                unseen.append(f"{job.nodes}: no time was left")
            else:
                seen = look(str(job.raw_id), hosts, names, self._context.config, left_s)
                found |= {host: tuple(map(dict, packed)) for host, packed in seen.found.items()}
                if silent := [host for host in hosts if host not in seen.found]:
                    unseen.append(f"{fold(silent)}: {' '.join(seen.error.split())}")
        return found, tuple(unseen)


def _words(node: Node) -> str:
    state = ", ".join([node.state, *node.flags]).lower().replace("_", " ")
    return f"{state} ({node.reason})" if node.reason else state


CHECK = NodesCheck()
