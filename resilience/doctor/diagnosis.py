"""Diagnoses of `resil doctor`: failed checks, and the effect of a cluster's settings on a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.cluster import ClusterConfig, Node
from resilience.errors import ResilError
from resilience.finding import Verdict
from resilience.messages import plural, quoted


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of a doctor's report.

    Attributes:
        topic: the object of the check.
        verdict: OK; WARNING: works, with a pitfall; CRITICAL: will not work; UNKNOWN: could not be checked.
        text: the finding.
        advice: the remedy, or empty.
    """

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""


def guarded(topic: str, examine: Callable[[], Iterable[Diagnosis]]) -> Iterator[Diagnosis]:
    """Yield the diagnoses of a check; a check that fails is UNKNOWN. A third-party plugin may raise any exception."""
    try:
        yield from examine()
    except ResilError as error:
        yield Diagnosis(topic, Verdict.UNKNOWN, error.message, error.hint)
    except (Exception, SystemExit) as error:
        yield Diagnosis(topic, Verdict.UNKNOWN, f"check failed: {type(error).__name__}: {error}")


def try_to_write(directory: Path) -> None:
    """Write a file into a directory and remove it. Raise OSError if that fails."""
    with tempfile.NamedTemporaryFile(prefix=".resil-doctor-", dir=directory) as probe:
        probe.write(b"can write\n")
        probe.flush()


WRITE_S = 10.0
"""Time limit for writing a small file: a file system that takes longer hangs."""


def try_state_directory(path: Path) -> Diagnosis:
    """Write into the state directory, or into its nearest parent that exists; a child with a deadline does it."""
    from resilience.system.child import run_in_child

    def write() -> tuple[str, str]:
        directory = path
        while not directory.exists() and directory != directory.parent:
            directory = directory.parent
        try:
            try_to_write(directory)
        except OSError as error:
            return str(directory), error.strerror or str(error)
        return str(directory), ""

    ((_, answer),) = run_in_child({0: (write, WRITE_S)})
    if answer.is_overdue:
        text = f"{path}: the file system did not respond within {WRITE_S:g} s"
        return Diagnosis("state directory", Verdict.CRITICAL, text, f"ls {quoted(path)}")
    if answer.error is not None:
        return Diagnosis("state directory", Verdict.UNKNOWN, f"{path}: {answer.error.message}", answer.error.hint)
    directory, trouble = answer.value
    if trouble:
        return Diagnosis(
            "state directory",
            Verdict.CRITICAL,
            f"cannot write in {directory}: {trouble}",
            "set state_dir under [run] in resil.toml to a directory of yours on the shared file system",
        )
    made = "" if directory == str(path) else f"; {path} is made at the first submit"
    return Diagnosis("state directory", Verdict.OK, f"wrote a file in {directory} and removed it{made}")


def diagnose_cluster(config: ClusterConfig) -> Iterator[Diagnosis]:
    """Yield the effect of each setting of a cluster on a run. Pure.

    The settings are those of `scontrol show config`: each line names the key and its value.
    """
    is_local = config.scheduler == "local"
    judges: tuple[tuple[str, Any, Callable[[Any], Judged]], ...] = (
        ("JobRequeue", config.job_requeue, _requeue),
        ("KillWait", config.kill_wait_s, _kill_wait),
        ("signals" if is_local else "proctrack", "local" if is_local else config.proctrack or None, _proctrack),
        ("MaxArraySize", config.max_array_size, _array),
        ("preemption", config if config.preempt_type or is_local else None, _preemption),
    )
    for topic, value, judge in judges:
        if value is not None:
            yield Diagnosis(topic, *judge(value))
        else:
            advice = "use --signal=B:..., as resil's templates do" if topic == "proctrack" else ""
            yield Diagnosis(topic, Verdict.UNKNOWN, "`scontrol show config` does not name it", advice)
    if config.over_time_limit_min:
        yield Diagnosis("OverTimeLimit", Verdict.OK, f"jobs may run {config.over_time_limit_min} min over their limit")
    down = sorted(name for name, state in config.partitions.items() if state and state != "UP")
    up = sorted(set(config.partitions) - set(down))
    if down and not up:
        yield Diagnosis(
            "partitions", Verdict.CRITICAL, f"no partition is up: {', '.join(down)}", "jobs wait until one is"
        )
    elif config.partitions:
        closed = f"; not up: {', '.join(down)}" if down else ""
        yield Diagnosis("partitions", Verdict.OK, f"up: {', '.join(up)}{closed}")


def diagnose_nodes(nodes: Sequence[Node]) -> Diagnosis:
    """Return how many nodes can start a job. Pure."""
    usable = sum(node.is_usable for node in nodes)
    text = f"{usable:,} of {plural(len(nodes), 'node')} can start a job"
    if usable or not nodes:
        return Diagnosis("nodes", Verdict.OK if nodes else Verdict.UNKNOWN, text)
    return Diagnosis("nodes", Verdict.WARNING, text, "sinfo -R")


Judged = tuple[Verdict, str] | tuple[Verdict, str, str]


def _requeue(is_on: bool) -> Judged:
    if is_on:
        return Verdict.OK, "on: jobs go back into the queue after a node failure or a preemption"
    return Verdict.WARNING, "off: a node failure ends a job", "set requeue = true under [submit]"


def _kill_wait(seconds: int) -> Judged:
    late = "saves must start before the limit: keep signal_lead_s long" if seconds < 30 else ""
    return Verdict.OK, f"{seconds} s between SIGTERM and SIGKILL", late


def _proctrack(kind: str) -> Judged:
    if kind == "local":
        return Verdict.OK, "--signal=B:... reaches the batch shell, as resil's templates use it"
    if kind == "linuxproc":
        reaches = "linuxproc: a signal reaches every process, data-loader workers as well"
        return Verdict.WARNING, reaches, "workers must ignore it; orphans may survive a job"
    reaches = f"{kind}: a plain --signal reaches srun's tasks only, never a python below bash"
    advice = "use --signal=B:..., as resil's templates do: it reaches the run through its switch file"
    return Verdict.OK, reaches, advice


def _array(size: int) -> Judged:
    if size < 2:
        return Verdict.WARNING, "arrays are disabled", "queue with --chain instead"
    return Verdict.OK, f"{size}: indexes up to {size - 1}"


def _preemption(config: ClusterConfig) -> Judged:
    if config.scheduler == "local" or config.preempt_type in ("none", "(null)"):
        return Verdict.OK, "none: no job is preempted"
    text = f"{config.preempt_type}, mode {config.preempt_mode or 'unknown'}"
    if config.send_user_signal:
        return Verdict.OK, f"{text}; --signal is sent before it"
    advice = "make the training stop on SIGTERM as well; GraceTime is how long it has"
    return Verdict.WARNING, f"{text}; --signal is not sent before it (no send_user_signal), only SIGTERM", advice
