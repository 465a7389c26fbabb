"""One line of a doctor, how a failing examination becomes one, and what a cluster's settings mean for a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from resilience.cluster import ClusterConfig
from resilience.errors import ResilError
from resilience.finding import Verdict


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the doctor's.

    Attributes:
        topic: what was looked at.
        verdict: OK; WARNING: works, with a trap; CRITICAL: will not work; UNKNOWN: could not look.
        text: what was found.
        advice: what to do, or empty.
    """

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""


def guarded(topic: str, examine: Callable[[], Iterable[Diagnosis]]) -> Iterator[Diagnosis]:
    """The diagnoses of an examination; one that fails is UNKNOWN. An outsider's plugin may raise anything."""
    try:
        yield from examine()
    except ResilError as error:
        yield Diagnosis(topic, Verdict.UNKNOWN, error.message, error.hint)
    except (Exception, SystemExit) as error:
        yield Diagnosis(topic, Verdict.UNKNOWN, f"cannot tell: {type(error).__name__}: {error}")


def try_to_write(folder: Path) -> None:
    """Write a file there and remove it. Raise OSError."""
    with tempfile.NamedTemporaryFile(prefix=".resil-doctor-", dir=folder) as probe:
        probe.write(b"can write\n")
        probe.flush()


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest one above it that exists. Raise OSError if the file system does not say."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def diagnose_cluster(config: ClusterConfig) -> Iterator[Diagnosis]:
    """Given a cluster's settings, yield what they mean, one line each. Pure."""
    if config.scheduler != "local":
        yield from _services(config)
    yield _requeue(config)
    yield _kill_wait(config)
    yield _proctrack(config)
    yield _array(config)
    yield _preemption(config)
    if config.over_time_limit_min:
        yield Diagnosis("OverTimeLimit", Verdict.OK, f"jobs may run {config.over_time_limit_min} min over their limit")
    down = sorted(name for name, state in config.partitions.items() if state and state != "UP")
    up = sorted(set(config.partitions) - set(down))
    if down and not up:
        yield Diagnosis("partitions", Verdict.CRITICAL, f"none is up: {', '.join(down)}", "jobs wait until one is")
    elif config.partitions:
        closed = f"; not up: {', '.join(down)}" if down else ""
        yield Diagnosis("partitions", Verdict.OK, f"{', '.join(up)}{closed}")


def _services(config: ClusterConfig) -> Iterator[Diagnosis]:
    yield _yes_no(
        "accounting", config.accounting, "sacct answers", "off: how a job ended is forgotten after MinJobAge (300 s)"
    )
    yield _yes_no("scrontab", config.scrontab, "enabled", "not enabled here")


def _yes_no(topic: str, value: bool | None, yes: str, no: str) -> Diagnosis:
    if value is None:
        return Diagnosis(topic, Verdict.UNKNOWN, "cannot tell")
    return Diagnosis(topic, Verdict.OK, yes if value else no)


def _requeue(config: ClusterConfig) -> Diagnosis:
    if config.job_requeue is None:
        return Diagnosis("JobRequeue", Verdict.UNKNOWN, "cannot tell")
    if config.job_requeue:
        return Diagnosis("JobRequeue", Verdict.OK, "jobs go back into the queue after a node failure or a preemption")
    return Diagnosis(
        "JobRequeue",
        Verdict.WARNING,
        "off: a node failure ends a job",
        "set requeue = true under [submit] to ask for it",
    )


def _kill_wait(config: ClusterConfig) -> Diagnosis:
    if config.kill_wait_s is None:
        return Diagnosis("KillWait", Verdict.UNKNOWN, "cannot tell")
    text = f"{config.kill_wait_s} s between SIGTERM and SIGKILL"
    if config.kill_wait_s < 30:
        return Diagnosis("KillWait", Verdict.OK, text, "saves must start before the limit: keep signal_lead_s long")
    return Diagnosis("KillWait", Verdict.OK, text)


def _proctrack(config: ClusterConfig) -> Diagnosis:
    if config.scheduler == "local":
        return Diagnosis("signals", Verdict.OK, "--signal=B:... reaches the batch shell, as resil's templates use it")
    if not config.proctrack:
        return Diagnosis("proctrack", Verdict.UNKNOWN, "cannot tell", "use --signal=B:..., as resil's templates do")
    if config.proctrack == "linuxproc":
        return Diagnosis(
            "proctrack",
            Verdict.WARNING,
            "linuxproc: a signal reaches every process, data-loader workers as well",
            "workers must ignore it; orphans may survive a job",
        )
    return Diagnosis(
        "proctrack",
        Verdict.OK,
        f"{config.proctrack}: a plain --signal reaches srun's tasks only, never a python below bash",
        "use --signal=B:..., as resil's templates do: it reaches the run through its switch file",
    )


def _array(config: ClusterConfig) -> Diagnosis:
    if config.max_array_size is None:
        return Diagnosis("MaxArraySize", Verdict.UNKNOWN, "cannot tell")
    if config.max_array_size < 2:
        return Diagnosis("MaxArraySize", Verdict.WARNING, "arrays are switched off", "queue with --chain instead")
    return Diagnosis("MaxArraySize", Verdict.OK, f"{config.max_array_size}: indexes up to {config.max_array_size - 1}")


def _preemption(config: ClusterConfig) -> Diagnosis:
    if config.scheduler == "local" or config.preempt_type in ("none", "(null)"):
        return Diagnosis("preemption", Verdict.OK, "none")
    if not config.preempt_type:
        return Diagnosis("preemption", Verdict.UNKNOWN, "cannot tell")
    text = f"{config.preempt_type}, mode {config.preempt_mode or 'unknown'}"
    if config.send_user_signal:
        return Diagnosis("preemption", Verdict.OK, f"{text}; --signal is sent before it")
    return Diagnosis(
        "preemption",
        Verdict.WARNING,
        f"{text}; --signal is not sent before it (no send_user_signal), only SIGTERM",
        "make the training stop on SIGTERM as well; GraceTime is how long it has",
    )
