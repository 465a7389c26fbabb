"""Checks the nodes of a run, of this allocation, or this node, and keeps the results: `checks/` in the run directory,
the figures of all runs in `nodes/history.jsonl` of the state directory, and failed nodes as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from resilience.errors import StateDirectoryError, UsageError
from resilience.hostlist import expand
from resilience.messages import suggest
from resilience.nodes.check import Asked, ask_here, ask_nodes, load_checks, with_products
from resilience.nodes.checks import Expected, Outcome
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from resilience.nodes.fleet import chosen, figures_of, judge_nodes, parse_rule, with_faults
from resilience.nodes.pairs import judge_pairs
from resilience.nodes.torch_child import idle_torch
from resilience.runs.run_jobs import jobs_of_run, scheduler_of, srun_command
from resilience.runs.submissions import read_intents
from resilience.system.files import append_line, make_directory, read_lines, write_atomic

if TYPE_CHECKING:
    from resilience.nodes.fleet import NodeReport
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

KEPT_LINES = 2000
"""Of the history: the last checks of a few hundred nodes."""


class CheckTarget(NamedTuple):
    """The nodes to check.

    Attributes:
        text: which they are, in words.
        hosts: their names; empty: this node, without srun.
        job: SLURM's internal id of the job that has them: srun does not know the tasks of an array.
        directory: of the run that they belong to.
        is_cluster: whether other jobs may have other nodes: what fails is evidence.
        is_idle: whether no training runs there.
    """

    text: str
    hosts: tuple[str, ...] = ()
    job: str = ""
    directory: RunDirectory | None = None
    is_cluster: bool = False
    is_idle: bool = False


def find_target(project: Project, run: str = "") -> CheckTarget:
    """Return the nodes of the running job of a run; without a run those of this allocation, else this node.

    Raise UsageError if no job of the run is running.
    """
    if run:
        directory = project.existing(run)
        intents = read_intents(directory)
        scheduler = project.scheduler(scheduler_of(intents))
        for job in jobs_of_run(scheduler.jobs(), directory.run, intents):
            if job.state.may_have_processes and job.nodes:
                is_here = scheduler.name == "local"
                hosts = () if is_here else tuple(expand(job.nodes))
                return CheckTarget(f"{job.nodes} of job {job.id}", hosts, str(job.raw_id), directory, not is_here)
        raise UsageError(f"no job of run {directory.run} is running", hint="check this node: resil nodes check")
    environ = project.system.environ
    hosts = tuple(expand(environ.get("SLURM_JOB_NODELIST", "")))
    job_id = environ.get("SLURM_JOB_ID", "")
    is_cluster = bool(job_id) and environ.get("RESIL_SCHEDULER") != "local"
    if is_cluster and len(hosts) > 1:
        return CheckTarget(f"the {len(hosts)} nodes of job {job_id}", hosts, job_id, is_cluster=True, is_idle=True)
    return CheckTarget("this node", job=job_id, is_cluster=is_cluster, is_idle=bool(job_id))


def check_nodes(project: Project, target: CheckTarget, only: Sequence[str] = ()) -> tuple[NodeReport, ...]:
    """Ask the nodes, judge them and keep the results. Raise UsageError for an unknown check or a rule that is none."""
    settings, environ = project.loaded.settings.nodes, project.system.environ
    every = load_checks()
    checks = {name: every[name] for name in chosen(every, only)}
    for key, text in settings.rules.items():
        if key.partition(".")[0] not in every:
            raise UsageError(f"there is no check for {key!r} in rules of [nodes]", hint=suggest(key, sorted(every)))
        parse_rule(key, text)
    state_dir = project.loaded.state_dir
    shared = target.directory.path if target.directory is not None else state_dir
    if not shared.is_dir():
        shared = project.loaded.project
    expected = Expected(directory=str(shared), mounts=settings.mounts, is_idle=target.is_idle)
    if target.hosts:
        asked = ask_nodes(srun_command(target.job, target.hosts), target.hosts, checks, expected)
    else:
        found = ask_here(checks, expected, environ)
        with idle_torch(expected, environ) as torch:
            asked = Asked((with_products(found, torch),))
    path = state_dir / "nodes" / "history.jsonl"
    history = list(read_lines(path))[-KEPT_LINES:]
    reports = judge_nodes(asked.nodes, checks, expected, settings.rules, history)
    reports = with_faults(reports, "pairs", judge_pairs(asked.rounds, asked.how))
    with suppress(OSError, StateDirectoryError):  # a check of a node with a full disk ends with its result
        _keep(project, target, asked, reports)
    with suppress(OSError, StateDirectoryError):
        now = project.system.clock.now()
        evidence_folder(project).add(evidence_of(target, reports, now, project.system.host.user), now)
    return reports


def evidence_of(target: CheckTarget, reports: Sequence[NodeReport], now: float, by: str) -> tuple[Evidence, ...]:
    """Return the evidence in the reports of a job's nodes. Pure.

    None if most nodes fail: then it is not the nodes. Of a single node nobody knows that: if the checks of one run
    convict many, one after the other, it is not the nodes either (nodes/standing.py). A node that is slow with two
    others is slow, whoever they are.
    """
    bad = [one for one in reports if one.outcome is Outcome.FAIL]
    if not target.is_cluster or 2 * len(bad) > len(reports) > 1:
        return ()
    run = target.directory.run if target.directory is not None else ""
    slow = [one for one in reports if one not in bad and one.faults.get("pairs")]
    found = []
    for source, nodes in ((Source.CHECK, bad), (Source.SLOW, slow)):
        for one in nodes:
            failed = ",".join(sorted(name for name, faults in one.faults.items() if faults))
            alone = target.directory.path if target.directory is not None and len(reports) == 1 else ""
            about = f"{alone} {target.job}:{failed}" if alone else f"{target.job}:{one.host} {failed}"
            found.append(
                Evidence(
                    node=one.host, time=now, source=source, why=one.why, about=about, run=run, job=target.job, by=by
                )
            )
    return tuple(found)


def _keep(project: Project, target: CheckTarget, asked: Asked, reports: Sequence[NodeReport]) -> None:
    now = project.system.clock.now()
    if target.directory is not None:
        path = target.directory.path / "checks" / f"{target.job}.jsonl"
        make_directory(path.parent, mode=target.directory.directory_mode)
        for node, one in zip(asked.nodes, reports, strict=True):
            record = {"time": now, "outcome": one.outcome.value, "why": one.why} | asdict(node)
            append_line(path, record, mode=target.directory.file_mode, sync=False)
    path = project.loaded.state_dir / "nodes" / "history.jsonl"
    if project.loaded.state_dir.is_dir():
        make_directory(path.parent, mode=0o755)
        for node in asked.nodes:
            append_line(path, {"time": now} | figures_of(node), mode=0o644, sync=False)
        if len(lines := path.read_bytes().splitlines(keepends=True)) > 2 * KEPT_LINES:
            write_atomic(path, b"".join(lines[-KEPT_LINES:]), mode=0o644)
