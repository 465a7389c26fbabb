"""What a fault of processes hits: a rank, all ranks of the step, a node or the batch shell of the attempt that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilience.base.processes import start_ticks
from resilience.errors import NoSuchJob, ResilError, UsageError
from resilience.inject import Scene
from resilience.inject.hosts import ask, ask_to_undo, hosts_of, place_of
from resilience.inject.processes import Process, answer, is_helper, is_own, ranks_in, tree_of
from resilience.messages import plural
from resilience.ranks.beats import NodeBeat
from resilience.ranks.collect import running_beats
from resilience.system.ports import SystemClock

SHOWN = 4
"""Processes named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """What is hit.

    Attributes:
        rank: the rank to hit, as the training numbers it.
        step: all ranks of the training.
        node: every process of the job on this node.
        batch: the batch shell of the job; only `kill` and `stop` can.
    """

    rank: int | None = None
    step: bool = False
    node: str = ""
    batch: bool = False


class Target(NamedTuple):
    """Processes to hit.

    Attributes:
        words: `rank 3 of job 12 (process 4242 on node7)`.
        pids: pid and start of each process, by host.
        trees: of their descendants as well.
        ranks: the ranks among them; `guarded`: those whose guard sends heartbeats.
    """

    words: str
    pids: Mapping[str, Sequence[tuple[int, int]]]
    trees: Mapping[str, Sequence[tuple[int, int]]]
    ranks: tuple[int, ...]
    guarded: tuple[int, ...]


def look_at_processes(settings: TargetSettings, scene: Scene) -> dict[str, Any]:
    """Return the processes of the attempt that runs, by host, and which of them are ranks; of what `settings` need.

    Raise NoSuchJob if none runs, UsageError if nothing or two things are named, ProbeError if a node does not answer.
    """
    _check_one(settings)
    directory = scene.directory
    place = place_of(scene)
    if not place.attempt:
        raise NoSuchJob(f"no attempt of run {directory.run} is running", hint=f"see: resil status {directory.run}")
    job, host = place.job, place.host
    beats: Sequence[NodeBeat] = ()
    with suppress(NoSuchJob):
        beats = [one for one in running_beats(directory, SystemClock().now()) if one.attempt == place.attempt]
    ranks = {one.rank: (beat.host, one.pid) for beat in beats for one in beat.ranks if not one.is_gone}
    if settings.batch or not place.is_slurm:
        hosts = [host]
    elif settings.rank in ranks:
        hosts = [ranks[settings.rank][0]]
    else:
        hosts = hosts_of(scene, place)
        if settings.node in hosts:
            hosts = [settings.node]
    srun_job = job if place.is_slurm else ""
    found = ask(scene, srun_job, {one: {"job": job} for one in hosts}, answer) if job else {host: {"processes": []}}
    processes = {name: [Process(*one) for one in some["processes"]] for name, some in found.items()}
    if not place.is_slurm:  # also of a training that somebody has started without a job
        known = {one.pid for one in processes[host]}
        for rank, (_, pid) in ranks.items():
            if pid not in known and (ticks := start_ticks(pid)) and is_own(pid):
                processes[host].append(Process(pid, ticks, 0, rank, -1, True, "rank"))
    return {
        "run": directory.run,
        "job": job,
        "attempt": place.attempt,
        "srun_job": srun_job,
        "shown_job": str(place.start),
        "hosts": hosts,
        "batch_host": host,
        "beats": {str(rank): list(where) for rank, where in ranks.items()},
        "processes": {host: [list(one) for one in some] for host, some in processes.items()},
    }


def _check_one(settings: TargetSettings) -> None:
    named = [settings.rank is not None, settings.step, bool(settings.node), settings.batch]
    if sum(named) != 1:
        what = "no target was named" if not any(named) else "one target at a time"
        raise UsageError(what, hint="one of --rank N, --step, --node NAME and --batch")


def choose(settings: TargetSettings, seen: Mapping[str, Any]) -> Target:
    """Return the processes that are meant. Raise UsageError if there are none. Pure."""
    processes = {host: [Process(*one) for one in some] for host, some in seen["processes"].items()}
    roots = _roots(processes, seen["beats"])
    job = f" of job {seen['shown_job']}" if seen["job"] else f" of run {seen['run']}"
    guarded = tuple(sorted(map(int, seen["beats"])))
    if settings.batch:
        shell = _batch_shell(processes.get(seen["batch_host"], []))
        if shell is None:
            raise UsageError(f"no batch shell{job} was found on {seen['batch_host']}", hint="see: resil status")
        return _target(f"the batch shell{job}", {seen["batch_host"]: [shell]}, {}, (), ())
    if settings.node:
        some = processes.get(settings.node, [])
        if settings.node not in processes:
            raise UsageError(f"node {settings.node} is none{job}", hint=f"its nodes: {', '.join(seen['hosts'])}")
        if not some:
            raise UsageError(f"no process{job} runs on node {settings.node}")
        inside = tuple(sorted(rank for rank, (host, _) in roots.items() if host == settings.node))
        return _target(f"node {settings.node}{job}", {settings.node: some}, {}, inside, guarded)
    wanted = sorted(roots) if settings.step else [settings.rank]
    if settings.step and not roots:
        raise UsageError(f"no rank{job} was found", hint="the training may not have started yet")
    if settings.rank is not None and settings.rank not in roots:
        known = f"its ranks: {_numbers(sorted(roots))}" if roots else "the training may not have started yet"
        raise UsageError(f"there is no rank {settings.rank}{job}", hint=known)
    by_host: dict[str, list[Process]] = {}
    trees: dict[str, list[Process]] = {}
    for rank in wanted:
        host, one = roots[rank]  # type: ignore[index]
        by_host.setdefault(host, []).append(one)
        trees.setdefault(host, []).extend(tree_of(one, processes[host]))
    words = f"all {plural(len(wanted), 'rank')}{job}" if settings.step else f"rank {settings.rank}{job}"
    hit = tuple(rank for rank in wanted if rank is not None)
    return _target(words, by_host, trees, hit, guarded)


def _roots(
    processes: Mapping[str, Sequence[Process]], beats: Mapping[str, Sequence[Any]]
) -> dict[int, tuple[str, Process]]:
    """Return host and process of each rank: as the guards tell, else as environments do."""
    if not beats:
        return {rank: (host, one) for host, some in processes.items() for rank, one in ranks_in(some).items()}
    by_pid = {(host, one.pid): one for host, some in processes.items() for one in some}
    return {int(rank): (host, by_pid[host, pid]) for rank, (host, pid) in beats.items() if (host, pid) in by_pid}


def _batch_shell(processes: Sequence[Process]) -> Process | None:
    pids = {one.pid for one in processes}
    tops = [one for one in processes if one.parent not in pids and one.step < 0 and not one.is_launched]
    return min((one for one in tops if not is_helper(one)), key=lambda one: one.ticks, default=None)


def _target(
    words: str,
    by_host: Mapping[str, Sequence[Process]],
    trees: Mapping[str, Sequence[Process]],
    ranks: tuple[int, ...],
    guarded: tuple[int, ...],
) -> Target:
    named = [f"{one.pid} on {host}" for host, some in by_host.items() for one in some]
    count = "process" if len(named) == 1 else "processes"
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    inside = tuple(rank for rank in ranks if rank in guarded)
    return Target(
        f"{words} ({count} {', '.join(named[:SHOWN])}{more})",
        {host: [(one.pid, one.ticks) for one in some] for host, some in by_host.items()},
        {host: [(one.pid, one.ticks) for one in some] for host, some in (trees or by_host).items()},
        ranks, inside,
    )  # fmt: skip


def _numbers(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")


def signal_processes(
    number: int, state: Mapping[str, Any], scene: Scene, *, is_undo: bool = False
) -> dict[str, Mapping[str, Any]]:
    """Signal the processes of a plan that are still there, and return what became of each, by host.

    Raise ProbeError if a host does not answer; an undo has nothing to do once the attempt is over.
    """
    orders = {host: {"signal": number, "pids": list(some)} for host, some in state["pids"].items()}
    return ask_to_undo(scene, state, orders, answer) if is_undo else ask(scene, state["srun_job"], orders, answer)


def check_sent(found: Mapping[str, Mapping[str, Any]], job: str) -> None:
    """Raise NoSuchJob if no process got its signal, ResilError if the system refused one."""
    refused = [f"{pid} on {host}" for host, one in found.items() for pid in one["refused"]]
    if refused:
        raise ResilError(f"the system does not let you signal {', '.join(refused)}", hint="is the process your own?")
    if not any(one["sent"] for one in found.values()):
        raise NoSuchJob(f"the processes of job {job} have ended before they got the signal", hint="try again")
