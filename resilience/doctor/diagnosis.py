"""Diagnoses of `resil doctor`: failed checks, and the effect of a cluster's settings on a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.cluster import ClusterConfig
from resilience.errors import ResilError
from resilience.finding import Verdict


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


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists. Raise OSError if the file system does not respond."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def diagnose_cluster(config: ClusterConfig) -> Iterator[Diagnosis]:
    """Yield the effect of each setting of a cluster on a run. Pure."""
    is_local = config.scheduler == "local"
    lost = "off: SLURM forgets how a job ended after MinJobAge (300 s)"
    judges: tuple[tuple[str, Any, Callable[[Any], Judged]], ...] = (
        ("accounting", config.accounting, lambda is_on: (Verdict.OK, "sacct responds" if is_on else lost)),
        ("scrontab", config.scrontab, lambda is_on: (Verdict.OK, "enabled" if is_on else "not enabled here")),
        ("JobRequeue", config.job_requeue, _requeue),
        ("KillWait", config.kill_wait_s, _kill_wait),
        ("signals" if is_local else "proctrack", "local" if is_local else config.proctrack or None, _proctrack),
        ("MaxArraySize", config.max_array_size, _array),
        ("preemption", config if config.preempt_type or is_local else None, _preemption),
    )
    for topic, value, judge in judges[2:] if is_local else judges:
        if value is not None:
            yield Diagnosis(topic, *judge(value))
        else:
            advice = "use --signal=B:..., as resil's templates do" if topic == "proctrack" else ""
            yield Diagnosis(topic, Verdict.UNKNOWN, "unknown", advice)
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
        yield Diagnosis("partitions", Verdict.OK, f"{', '.join(up)}{closed}")


Judged = tuple[Verdict, str] | tuple[Verdict, str, str]


def _requeue(is_on: bool) -> Judged:
    if is_on:
        return Verdict.OK, "jobs go back into the queue after a node failure or a preemption"
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
        return Verdict.OK, "none"
    text = f"{config.preempt_type}, mode {config.preempt_mode or 'unknown'}"
    if config.send_user_signal:
        return Verdict.OK, f"{text}; --signal is sent before it"
    advice = "make the training stop on SIGTERM as well; GraceTime is how long it has"
    return Verdict.WARNING, f"{text}; --signal is not sent before it (no send_user_signal), only SIGTERM", advice
