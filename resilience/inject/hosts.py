"""Where a training runs, and how its hosts are asked: this one directly, nodes of a SLURM job by a task beside it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from resilience.errors import ProbeError, SchedulerError, UsageError
from resilience.hostlist import expand
from resilience.inject import Scene
from resilience.job import JobId, Liveness
from resilience.runs.run_files import read_attempts
from resilience.runs.run_jobs import scheduler_of, srun_command
from resilience.runs.run_logs import start_of_attempt
from resilience.runs.submissions import read_intents
from resilience.system.answers import answer_lines, parse_answers

SRUN_S = 45.0
"""How long a task beside the training may take: srun waits for a slot, and starts Python from a shared disk."""
SOON_S = 10.0
"""The same for an undo, before it is asked whether the attempt is over: the srun of a job that ends just then waits."""
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Place(NamedTuple):
    """The attempt that runs; without one, this host.

    Attributes:
        attempt: its number, and `job` its id; 0 and empty: none runs.
        is_slurm: whether the job is SLURM's, so that it may have other hosts than this one.
        host: of its batch shell.
        start: array or job, and task.
    """

    attempt: int
    job: str
    is_slurm: bool
    host: str
    start: JobId


def place_of(scene: Scene) -> Place:
    """Return where the training runs. Raise UsageError if that is another host without SLURM."""
    here = scene.project.system.host.name
    attempt = next(iter(read_attempts(scene.directory, newest=1)), None)
    if attempt is None or attempt.end is not None:
        return Place(0, "", False, here, JobId(0))
    start, job = start_of_attempt(attempt), str(attempt.job_id or "")
    is_slurm = scheduler_of(read_intents(scene.directory)) == "slurm"
    if not is_slurm and attempt.host.partition(".")[0] != here.partition(".")[0]:
        raise UsageError(f"job {job} runs on {attempt.host}", hint=f"run this command there: ssh {attempt.host}")
    return Place(attempt.number, job, is_slurm, attempt.host, JobId(start.array or 0, start.task))


def hosts_of(scene: Scene, place: Place) -> list[str]:
    """Return the hosts of the training. Raise ResilError if the scheduler does not tell."""
    nodes = scene.project.scheduler("slurm").job(place.start).nodes if place.is_slurm else ""
    return sorted(expand(nodes)) if nodes else [place.host]


def command(job: str, hosts: Sequence[str]) -> list[str]:
    """Return what starts a program there: an srun, or nothing without a job of SLURM. Pure."""
    return srun_command(job, hosts) if job else []


def ask(
    scene: Scene, job: str, orders: Mapping[str, Mapping[str, Any]], answer: Answer, timeout_s: float = SRUN_S
) -> dict[str, Mapping[str, Any]]:
    """Have each host answer its order, and return the answers by host.

    `job`: of SLURM, or empty: this host. `answer`: a function of a module that calls `serve` with it as a program.
    Raise ProbeError if a host does not answer.
    """
    if not job:
        return {host: answer(order) for host, order in orders.items()}
    argv = [*command(job, list(orders)), sys.executable, "-m", answer.__module__, json.dumps(orders)]
    lines = list[str]()
    failure: ProbeError | None = None
    try:
        for line in scene.project.system.runner.stream(argv, timeout_s=timeout_s):
            lines.append(line)
    except ProbeError as error:
        failure = error
    found: dict[str, Mapping[str, Any]] = {str(one.pop("host")): one for one in parse_answers(lines)}
    if missing := sorted(set(orders) - set(found)):
        if failure is None:
            raise ProbeError(f"{', '.join(missing)} did not answer", hint="see: squeue, sinfo")
        raise ProbeError(
            f"no task could be started beside the training of job {job}: {failure.message}",
            hint=failure.hint or "has the job ended? see: resil status --fresh",
        ) from failure
    return found


def ask_to_undo(
    scene: Scene, state: Mapping[str, Any], orders: Mapping[str, Mapping[str, Any]], answer: Answer
) -> dict[str, Mapping[str, Any]]:
    """Have each host undo a fault, as `ask`; no answers if the attempt that was hit is over.

    Raise ProbeError if a host does not answer although it is not: a job that was requeued may have other nodes.
    """
    for timeout_s in (SOON_S, SRUN_S):
        try:
            return ask(scene, state["srun_job"], orders, answer, timeout_s)
        except ProbeError:
            if is_over(scene, state):
                break
            if timeout_s == SRUN_S:
                raise
    return {}


def serve(answer: Answer) -> Mapping[str, Any]:
    """Answer for this node, as a program; return its order."""
    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    order: Mapping[str, Any] = json.loads(sys.argv[1])[host]
    sys.stdout.write(answer_lines({"host": host, **answer(order)}))
    sys.stdout.flush()
    return order


def is_over(scene: Scene, state: Mapping[str, Any]) -> bool:
    """Return whether the attempt that was hit is over, so that SLURM has ended all that there was: False if unknown."""
    with suppress(SchedulerError, UsageError):
        place = place_of(scene)
        if place.attempt != state["attempt"]:
            return True
        presence = scene.project.scheduler("slurm").presence(place.start)
        is_queued = presence.job is not None and not presence.job.state.may_have_processes
        return presence.liveness is Liveness.GONE or is_queued
    return False
