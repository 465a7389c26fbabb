"""`resil status --prom FILE`: the state of runs for the textfile collector of Prometheus' node exporter.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, 0.0.4); of the collector:
https://github.com/prometheus/node_exporter#textfile-collector: no timestamps, a file that is renamed into place, the
same HELP and TYPE in all files. What could not be looked at has no sample, and one of `resil_scrape_error`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resilience import layout
from resilience.errors import ResilError, UsageError

if TYPE_CHECKING:
    from resilience.cli.top.frame import Frame, RunView
    from resilience.report.goodput import Goodput
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.runs.status import RunStatus

SUFFIX = ".prom"
"""The collector reads no other file."""
METRICS: Mapping[str, tuple[str, str]] = {
    "resil_run_info": ("gauge", "A run of the project; 1."),
    "resil_run_state": ("gauge", "1 for the state that the run is in, 0 for the others; none if it is unknown."),
    "resil_run_step": ("gauge", "The last step seen."),
    "resil_run_step_duration_seconds": ("gauge", "Seconds per step of the running attempt."),
    "resil_run_time_left_seconds": ("gauge", "Until the time limit of the running job."),
    "resil_run_waiting_jobs": ("gauge", "Jobs and array tasks that wait in the queue."),
    "resil_run_ranks": ("gauge", "Ranks of the running attempt by condition: well, slow, standing, silent, gone."),
    "resil_run_memory_growth_bytes_per_second": ("gauge", "Trend of the memory nearest to its limit; 0: none."),
    "resil_run_breaker_open": ("gauge", "Whether the breaker holds the run."),
    "resil_run_kill_switch_set": ("gauge", "Whether an accepted kill switch is set."),
    "resil_checkpoint_age_seconds": ("gauge", "Since the newest durable save."),
    "resil_checkpoint_verified_age_seconds": ("gauge", "Since the save of the newest verified checkpoint."),
    "resil_attempts_total": ("counter", "Attempts that have ended, by class of their end."),
    "resil_run_time_seconds": ("gauge", "Where the time of the run went until now, by category; steps move to redone."),
    "resil_run_ettr_ratio": ("gauge", "Productive time, of all time of the run."),
    "resil_incidents_open": ("gauge", "Open incidents of the project, by verdict."),
    "resil_scrape_error": ("gauge", "Whether a source could not be looked at; its samples are absent then."),
    "resil_scrape_completed_timestamp_seconds": ("gauge", "When resil wrote this file."),
}
"""Type and help. Both are the same in all files, as the collector demands. The time is no counter: steps that are lost
are taken from the productive time, which would look to Prometheus like a counter that begins anew."""
MOST_JOURNAL_BYTES = 16 * 2**20
"""Where the time went is read from all journals of a run: so many take one second of a core, or three if they are of
10,000 attempts. Of a run with more it is not told."""
STATES = ("running", "queued", "finished", "not queued")
VERDICTS = ("WARNING", "UNKNOWN", "CRITICAL")
CONDITIONS = ("well", "slow", "slow", "slow", "standing", "silent", "gone")
"""By the level of a rank (top/frame.py)."""


class Sample(NamedTuple):
    """One value of a metric."""

    metric: str
    labels: Mapping[str, str]
    value: float


def write_prom(project: Project, path: Path, run: str = "") -> None:
    """Write the metrics of all runs, or of one. Raise UsageError unless the name ends in `.prom`."""
    from resilience.cli.top.look import Looker
    from resilience.system.files import write_atomic

    if path.suffix != SUFFIX:
        raise UsageError(f"--prom {path}: the node exporter reads files whose name ends in {SUFFIX} only",
                         hint=f"resil status --prom {path.with_suffix(SUFFIX)}")  # fmt: skip
    looker = Looker(project, run)
    frame = looker.look()
    views = {view.run: view for view in frame.runs}
    samples = list(project_samples(frame)) if project.loaded.settings.alert.channels else []
    for status in looker.statuses:
        samples += run_samples(status, views[status.run], frame.time)
        samples += _attempts(looker.directories[status.run], status)
        samples += _times(project, looker.directories[status.run], status)
    samples.append(Sample("resil_scrape_error", {"source": "state_directory"}, bool(looker.trouble)))
    samples.append(Sample("resil_scrape_completed_timestamp_seconds", {}, project.system.clock.now()))
    write_atomic(path, render(samples, str(project.loaded.project)), mode=0o644, durable=False)


def _attempts(directory: RunDirectory, status: RunStatus) -> list[Sample]:
    """Return how many attempts ended, by class."""
    from resilience.attempts.ledger import end_of

    if status.unreadable:
        return []
    try:
        classes = Counter(
            end_of(directory, one).failure.failure.value for one in status.attempts if one.end is not None
        )
    except (ResilError, OSError):
        return [Sample("resil_scrape_error", {"run": status.run, "source": "attempts"}, 1)]
    error = Sample("resil_scrape_error", {"run": status.run, "source": "attempts"}, 0)
    counted = (
        Sample("resil_attempts_total", {"run": status.run, "class": name}, count) for name, count in classes.items()
    )
    return [error, *counted]


def _times(project: Project, directory: RunDirectory, status: RunStatus) -> Iterator[Sample]:
    """Yield where the time of a run went, as its run directory tells it; nothing before its first attempt."""
    from resilience.report.reading import read_goodput

    if status.unreadable or not status.attempts:
        return
    goodput = None
    with suppress(ResilError, OSError):
        if _journal_bytes(directory) > MOST_JOURNAL_BYTES:
            return
        goodput = read_goodput(project, directory, ask_scheduler=False)
    yield Sample("resil_scrape_error", {"run": status.run, "source": "time"}, goodput is None)
    if goodput is not None:
        yield from time_samples(goodput)


def _journal_bytes(directory: RunDirectory) -> int:
    try:
        with os.scandir(directory.path / layout.JOURNAL) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError:
        return 0


# ---- pure -----------------------------------------------------------------------------------------------------------


def project_samples(frame: Frame) -> Iterator[Sample]:
    """Yield what is known of incidents, which are recorded where there is a channel for them. Pure."""
    is_known = not any(text.startswith("incidents: ") for text in frame.trouble)
    yield Sample("resil_scrape_error", {"source": "incidents"}, not is_known)
    counts = Counter(one.verdict for one in frame.incidents)
    for verdict in VERDICTS if is_known else ():
        yield Sample("resil_incidents_open", {"verdict": verdict.lower()}, counts[verdict])


def run_samples(status: RunStatus, view: RunView, now: float) -> Iterator[Sample]:
    """Yield what is known of a run; nothing about what could not be looked at. Pure."""

    def sample(metric: str, value: float, **labels: str) -> Sample:
        return Sample(f"resil_{metric}", {"run": status.run, **labels}, value)

    yield sample("scrape_error", bool(status.unreadable), source="run_directory")
    if status.unreadable:
        return
    is_queue_known = status.headline in STATES and not status.trouble
    yield sample("scrape_error", not is_queue_known, source="scheduler")
    yield sample("run_info", 1, scheduler=status.scheduler)
    if is_queue_known:
        for state in STATES:
            yield sample("run_state", status.headline == state, state=state.replace(" ", "_"))
        yield sample("run_waiting_jobs", sum(row.counts.get("PENDING", 0) for row in status.rows))
        if view.ends is not None:
            yield sample("run_time_left_seconds", max(0.0, view.ends - now))
    if status.step is not None or view.step is not None:
        yield sample("run_step", max(status.step or 0, view.step or 0))
    if view.step_s is not None:
        yield sample("run_step_duration_seconds", view.step_s)
    if view.memory_per_s is not None:
        yield sample("run_memory_growth_bytes_per_second", view.memory_per_s)
    conditions = Counter(CONDITIONS[one.level] for one in view.ranks)
    for condition in dict.fromkeys(CONDITIONS) if view.ranks else ():
        yield sample("run_ranks", conditions[condition], condition=condition)
    yield sample("run_breaker_open", status.breaker is not None)
    yield sample("run_kill_switch_set", any(one.kind == "kill" and one.honoured for one in status.switches))
    yield from _checkpoints(status, now)


def time_samples(goodput: Goodput) -> Iterator[Sample]:
    """Yield where the time of a run went: all categories, so that a share has its whole. Pure."""
    for category, ms in goodput.ms.items():
        yield Sample("resil_run_time_seconds", {"run": goodput.run, "category": category}, ms / 1000)
    if goodput.ettr is not None:
        yield Sample("resil_run_ettr_ratio", {"run": goodput.run}, goodput.ettr)


def _checkpoints(status: RunStatus, now: float) -> Iterator[Sample]:
    store, labels = status.checkpoints, {"run": status.run}
    times = [status.save.time] if status.save is not None and status.save.step is not None and status.save.time else []
    if store is not None:
        yield Sample("resil_scrape_error", {**labels, "source": "checkpoints"}, bool(store.trouble))
        if store.newest is not None and store.newest.at:
            times.append(store.newest.at)
        if store.verified is not None and store.verified.at:
            yield Sample("resil_checkpoint_verified_age_seconds", labels, max(0.0, now - store.verified.at))
    if times:
        yield Sample("resil_checkpoint_age_seconds", labels, max(0.0, now - max(times)))


def render(samples: Iterable[Sample], project: str) -> str:
    """Return the samples as text, each metric once with its help and type. Every sample is labelled with the project:
    two projects may have runs of the same name, and their files are read together. Pure."""
    found: dict[str, list[str]] = {name: [] for name in METRICS}
    for one in samples:
        labels = {"project": project, **one.labels}
        shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        found[one.metric].append(f"{one.metric}{{{shown}}} {float(one.value):.15g}")
    lines = []
    for name, (kind, text) in METRICS.items():
        if found[name]:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *found[name]]
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    safe = text.encode("utf-8", "replace").decode()
    return safe.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
