"""Words for jobs: one line each, and what a run is doing now. Pure."""

from __future__ import annotations

from resilience.job import JobState
from resilience.quantities import format_duration
from resilience.switch import printable
from resilience.watch.checks._job.reading import JobReading, SeenJob
from resilience.watch.checks._job.waiting import Standing

_DOING = {
    JobState.RUNNING: "running",
    JobState.CONFIGURING: "its nodes are getting ready",
    JobState.POWER_UP_NODE: "its nodes are being powered up",
    JobState.COMPLETING: "ending",
    JobState.SUSPENDED: "suspended",
    JobState.STOPPED: "stopped by a signal",
}


def row(job: SeenJob, now: float) -> str:
    """One job as a line of evidence."""
    words = [job.label, job.state, printable(job.name)[:80]]
    if job.user:
        words.append(f"of {job.user}")
    if job.partition:
        words.append(f"on {job.partition}")
    if job.nodes:
        words.append(f"({job.nodes})")
    if job.waits and job.why.words:
        words.append(
            f"- {job.why.words}" + (f" ({job.reason})" if job.reason and job.reason not in job.why.words else "")
        )
    elif job.end is not None:
        words.append(f"- {format_duration(max(0.0, job.end - now))} left")
    if job.count > 1:
        words.append(f"- {job.count} jobs")
    if job.restarts:
        words.append(f"- requeued {job.restarts} times")
    return " ".join(words)


def doing(standing: Standing, now: float) -> str:
    """What a run is doing, in a sentence."""
    if standing.running:
        return _running(standing, now)
    first = (*standing.startable, *standing.blocked, *standing.behind, *standing.never)[0]
    queued = standing.queued
    sentence = f"queued as {first.label}: {first.why.words or 'waits'}"
    expected = expected_start(first, now)
    return sentence + (f", {expected}" if expected else "") + (f"; {queued} jobs wait" if queued > 1 else "")


def _running(standing: Standing, now: float) -> str:
    lead = standing.running[0]
    word = _DOING.get(lead.job_state, f"in state {lead.state}")
    since = f" for {format_duration(max(0.0, now - lead.start))}" if lead.start is not None else ""
    where = f" on {lead.nodes}" if lead.nodes else ""
    others = f" (and {len(standing.running) - 1} more)" if len(standing.running) > 1 else ""
    left = time_left_s(standing, now)
    ends = "" if left is None else f", {format_duration(left)} left"
    queued = f"; {standing.queued} more queued" if standing.queued else "; nothing queued behind it"
    return f"{word}{since} as job {lead.label}{where}{others}{ends}{queued}"


def time_left_s(standing: Standing, now: float) -> float | None:
    """How long something of it will run at the most; None when there is no limit, or nothing runs."""
    if not standing.running:
        return None
    ends = [now if job.job_state is JobState.COMPLETING else job.end for job in standing.running]
    known = [end for end in ends if end is not None]
    return max(0.0, max(known) - now) if len(known) == len(ends) else None


def expected_start(job: SeenJob, now: float) -> str:
    """When a waiting job is expected to start; a moment in the past is `due now`, never minus something."""
    if job.start is None or job.why.blocks_for_ever:
        return ""
    return f"expected to start in {format_duration(job.start - now)}" if job.start > now else "due to start now"


def many(count: int, word: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def known_how(reading: JobReading, now: float) -> tuple[str, ...]:
    """What was looked at, with its age."""
    age = format_duration(max(0.0, now - reading.asked))
    return (*reading.looked, f"the answer is {age} old")
