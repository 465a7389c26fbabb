"""What is known of a subject from before this look: ids, whether it is a chain, requeues, how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.job import Job
from resilience.watch.checks._job.reading import JobReading
from resilience.watch.checks._job.subjects import Subject

IDS_KEPT = 3


def newest_ids(subject: Subject, jobs: Sequence[Job], past: JobReading | None) -> tuple[int, ...]:
    if subject.facts is not None:
        return subject.facts.ids[-IDS_KEPT:]
    seen = sorted({job.id.array for job in jobs})
    return tuple(dict.fromkeys((*(past.ids if past is not None and not seen else ()), *seen)))[-IDS_KEPT:]


def is_chain(subject: Subject, jobs: Sequence[Job], past: JobReading | None) -> bool:
    """Whether jobs of it come one after another. Those that match a pattern may be many that have nothing in common."""
    if past is not None and past.is_chain:
        return True
    waits = len(jobs) > 1 and any(job.state.is_waiting and job.dependency for job in jobs)
    if waits or any("%" in job.tasks for job in jobs):
        return True
    if subject.facts is None and subject.wanted is not None and subject.wanted.is_pattern:
        return False
    known = subject.facts.ids if subject.facts is not None else ()
    return len(set(known)) > 1 or any(job.is_array_record or job.id.task is not None for job in jobs)


def requeued(past: JobReading | None, restarts: Mapping[str, int], now: float) -> list[float]:
    """A moment for each requeue since the look before; apart by a millisecond, so that each counts."""
    if past is None:
        return []
    known = {str(job.raw) for job in past.jobs}
    grown = sum(max(0, count - past.restarts.get(raw, 0)) for raw, count in restarts.items() if raw in known)
    return [now - number / 1000 for number in range(min(grown, 50))]


def ended_words(job: Job | None) -> str:
    if job is None:
        return ""
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"job {job.id} ended: {job.state}{code}"


def ago(now: float, then: float) -> str:
    return f"{max(0.0, now - then):.0f} s ago"
