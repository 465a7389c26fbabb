"""Collects what the report of a run shows: from the run directory, the incidents, the checkpoints and the nodes.

Only the ledger of time asks the scheduler, and says so if there is no answer: a run directory can be read on a machine
without one. A source that is not there is a sentence of the report, not an empty section.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any

from resilience import layout
from resilience.alerts.state import open_alert_state
from resilience.attempts.breaker import with_decisions
from resilience.attempts.ledger import LedgerRow, read_ledger
from resilience.checkpoints.directory import Checkpoint, StoreDirectory, list_names
from resilience.checkpoints.names import STORE
from resilience.checkpoints.quarantine import reason
from resilience.checkpoints.verified import read_verified
from resilience.errors import CheckpointError, HostlistError, QuantityError, ResilError, StateDirectoryError
from resilience.hostlist import expand
from resilience.messages import cut, plural
from resilience.nodes.evidence import evidence_folder
from resilience.nodes.standing import State, judge
from resilience.quantities import format_duration, parse_slurm_time_s
from resilience.records import from_record, to_record
from resilience.report.advise import advise
from resilience.report.contents import (
    AttemptLine,
    CheckpointLine,
    IncidentLine,
    NodeLine,
    Outcome,
    Plan,
    Report,
    Saves,
    attempt_lines,
    step_lines,
)
from resilience.report.goodput import Goodput
from resilience.report.reading import read_goodput
from resilience.runs.breaker_file import closings, read_breaker
from resilience.runs.open_project import in_child
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_beat, last_events, read_attempts
from resilience.system.files import read_regular

SILENT_S = 600.0
"""An attempt without an end whose heartbeat is older may have died with its node."""
MOST_CHECKPOINTS, MOST_NODES, MOST_LOSSES, MOST_INCIDENTS = 60, 60, 400, 200
EVIDENCE_LINES, LINE = 12, 300
SAVES_OF = 20
"""The newest attempts whose journals tell what a save costs."""


def read_report(project: Project, directory: RunDirectory) -> Report:
    """Return the report of a run. Raise StateDirectoryError if the run directory cannot be read."""
    now, loaded = project.system.clock.now(), project.loaded
    rows = with_decisions(read_ledger(directory), loaded.settings.act, now, closings=closings(directory))
    time = read_goodput(project, directory) if rows else None
    attempts = attempt_lines(rows, {} if time is None else {one.attempt: one.redone_steps for one in time.by_attempt})
    missing = [*_unreconciled(rows), *(() if time is None else time.notes)]
    report = Report(
        run=directory.run,
        made_at=now,
        state=_state(directory, attempts, time),
        time=None if time is None else replace(time, spans=()),
        plan=_plan(project),
        saves=saves_of(_events_of_saves(directory, rows)),
        attempts=attempts,
        steps=() if time is None else step_lines(time.spans),
        incidents=_incidents(project, directory, attempts, now, missing),
        checkpoints=_checkpoints(project, directory, missing),
        nodes=_nodes(project, directory, attempts, now, missing),
        losses=_losses(directory),
    )
    missing += _silent(directory, attempts, now)
    if not report.losses:
        missing.append("no loss: the training gives none to the guard (guard.step(loss=...)), or has no guard")
    advice = advise(report, () if time is None else time.spans)
    return replace(report, advice=advice, missing=tuple(dict.fromkeys(missing)))


def _state(directory: RunDirectory, attempts: Sequence[AttemptLine], time: Goodput | None) -> str:
    if directory.is_finished():
        return "finished"
    if attempts and attempts[-1].outcome is Outcome.RUNNING:
        return "running" if time is None or time.is_running else "running, or lost"
    if (directory.path / layout.SWITCHES / layout.KILL_SWITCH).exists():
        return "killed"
    if read_breaker(directory) is not None:
        return "held by the breaker"
    return "not finished" if attempts else "not started"


def _plan(project: Project) -> Plan:
    settings = project.loaded.settings
    walltime_s = None
    with suppress(QuantityError):
        walltime_s = parse_slurm_time_s(str(settings.sbatch.get("time", "unlimited")))
    every = settings.guard.every if settings.guard is not None else ""
    return Plan(every=every, walltime_s=walltime_s, keep_queued=settings.act.keep_queued)


def _unreconciled(rows: Sequence[LedgerRow]) -> Iterator[str]:
    ended = [row for row in rows if row.failure is not None]
    without = [row for row in ended if row.state is None]
    if without:
        yield (
            f"no record of the scheduler (sacct) of {len(without)} of {plural(len(ended), 'ended attempt')}: their "
            "ends are those that batch shell, journal and log show"
        )


def _silent(directory: RunDirectory, attempts: Sequence[AttemptLine], now: float) -> Iterator[str]:
    if attempts and attempts[-1].outcome is Outcome.RUNNING:
        (attempt,) = read_attempts(directory, newest=1)
        beat = last_beat(directory, attempt)
        if beat is None or now - beat > SILENT_S:
            since = "ever" if beat is None else f"for {format_duration(now - beat)}"
            yield f"attempt {attempt.number} has no recorded end, and no heartbeat {since}: it may be lost"


# ---- saves and losses ----------------------------------------------------------------------------------------------


def _events_of_saves(directory: RunDirectory, rows: Sequence[LedgerRow]) -> list[dict[str, Any]]:
    jobs = dict.fromkeys(attempt.job_id for attempt in read_attempts(directory, newest=SAVES_OF)) if rows else {}
    return [event for job in jobs for event in last_events(directory, job, "0", words=(b'"save',))]


def saves_of(events: Iterable[Mapping[str, Any]]) -> Saves:
    """Return what saves cost, from journals of rank 0. Pure."""
    begun: list[tuple[object, float]] = []
    seconds: dict[str, list[float]] = {"save": [], "save_staged": []}
    for event in events:
        name, took, time = event.get("event"), event.get("seconds"), event.get("time")
        if isinstance(name, str) and name in seconds and isinstance(took, int | float):
            seconds[name].append(float(took))
        if name == "save_begin" and isinstance(time, int | float):
            begun.append((event.get("attempt"), float(time)))
    gaps = [later - earlier for (one, earlier), (other, later) in pairwise(begun) if one == other and later > earlier]
    durable, staged = seconds["save"], seconds["save_staged"]
    return Saves(
        count=len(durable),
        stall_s=median(staged or durable) if staged or durable else None,
        durable_s=median(durable) if durable else None,
        interval_s=median(gaps) if gaps else None,
    )


def _losses(directory: RunDirectory) -> tuple[tuple[int, float], ...]:
    """Return the newest losses, as the guard of rank 0 keeps them for the next job: one for each step."""
    with suppress(StateDirectoryError, ValueError, TypeError, KeyError, AttributeError):
        found = read_regular(directory.path / layout.LEARNED / "0.json")
        if found is not None:
            known: dict[int, float] = {}
            for one in json.loads(found[0])["losses"]:
                first = int(one["step"]) - len(one["losses"]) + 1
                known |= {first + number: float(loss) for number, loss in enumerate(one["losses"])}
            points = sorted((step, loss) for step, loss in known.items() if isfinite(loss))
            return tuple(points[:: max(1, -(-len(points) // MOST_LOSSES))])
    return ()


# ---- incidents -----------------------------------------------------------------------------------------------------


def _incidents(
    project: Project, directory: RunDirectory, attempts: Sequence[AttemptLine], now: float, missing: list[str]
) -> tuple[IncidentLine, ...]:
    """Return those of the run, and those of no run, such as a full disk, that were open while it lived."""
    if not attempts:
        return ()
    begin = attempts[0].start_time - (attempts[0].queue_s or 0.0)
    end = now if attempts[-1].end_time is None else attempts[-1].end_time
    state = open_alert_state(project)
    ledger = state.ledger
    found = [
        one
        for one in reversed(ledger.incidents())
        if one.run == directory.run
        or (not one.run and one.opened <= end and (one.resolved is None or one.resolved >= begin))
    ]
    missing += [f"incidents: {text}" for text in dict.fromkeys([state.error, state.note, *ledger.errors]) if text]
    if not project.loaded.settings.alert.channels:
        missing.append("no channel is configured, so incidents are told to nobody: [alert] channels")
    if len(found) > MOST_INCIDENTS:
        missing.append(f"the {len(found) - MOST_INCIDENTS} oldest of {len(found)} incidents are not shown")
    return tuple(
        IncidentLine(
            episode=one.episode,
            check=one.check,
            subject=cut(one.subject, LINE),
            fault=one.fault,
            verdict=one.worst.value,
            summary=cut(one.summary, LINE),
            opened=one.opened,
            resolved=one.resolved,
            host=one.host,
            advice=cut(one.advice, LINE),
            evidence=tuple(cut(line, LINE) for line in one.evidence[:EVIDENCE_LINES]),
            times=max(1, one.number) if one.run else 1,
            messages=max(0, one.count - (one.resolved is not None and one.count > 0)),
            acknowledged_by=one.acknowledged_by,
        )
        for one in found[-MOST_INCIDENTS:]
    )


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def _checkpoints(project: Project, directory: RunDirectory, missing: list[str]) -> tuple[CheckpointLine, ...]:
    """Return the newest checkpoints and those set aside; a child reads them, for their disk may hang."""
    path = project.loaded.store_path(directory.run)
    if path is None:
        missing.append("no directory of checkpoints is configured: [checkpoints] path")
        return ()

    def read() -> list[dict[str, Any]]:
        return [to_record(one) for one in read_checkpoints(str(path))]

    answer = in_child(project.system, f"checkpoints {path}", read, project.loaded.settings.watch.deadline_s)
    if answer.error is not None:
        missing.append(f"checkpoints: {answer.error.message}")
        return ()
    found = tuple(from_record(CheckpointLine, record) for record in answer.value)
    if not found:
        missing.append(f"no checkpoint was committed in {path}")
    return found


def read_checkpoints(path: str) -> tuple[CheckpointLine, ...]:
    """Return what is in a directory of checkpoints, newest last. Raise CheckpointError, StateDirectoryError."""
    store = StoreDirectory(path)
    if STORE not in list_names(store.own):
        return ()
    try:
        lines = [_checkpoint_line(one) for one in store.checkpoints()[-MOST_CHECKPOINTS:]]
        for name in store.bad()[-MOST_CHECKPOINTS:]:
            record: dict[str, Any] = {}
            with suppress(OSError, CheckpointError):
                record = reason(store, name)
            why = cut(str(record.get("why") or "no reason recorded"), LINE)
            lines.append(CheckpointLine(name=name, step=None, state="set aside", why=why))
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    return tuple(lines)


def _checkpoint_line(one: Checkpoint) -> CheckpointLine:
    line = CheckpointLine(name=one.name, step=one.step, state="not verified")
    try:
        manifest, verified = one.manifest(), read_verified(one)
    except (CheckpointError, OSError) as error:
        return replace(line, state="damaged", why=cut(getattr(error, "message", "") or str(error), LINE))
    line = replace(
        line,
        saved_at=manifest.durable_at,
        size_bytes=manifest.size_bytes,
        label=manifest.label,
        metrics=tuple(sorted(manifest.metrics.items())),
    )
    if verified is None or (verified.fault is None and verified.level != "digest"):
        return line
    fault = "" if verified.fault is None else cut(str(verified.fault), LINE)
    return replace(line, state="damaged" if fault else "verified", why=fault, verified_at=verified.at)


# ---- nodes ---------------------------------------------------------------------------------------------------------


def _nodes(
    project: Project, directory: RunDirectory, attempts: Sequence[AttemptLine], now: float, missing: list[str]
) -> tuple[NodeLine, ...]:
    """Return the nodes that the run used, those that failures name and bad ones first."""
    try:
        standings = {one.node: one for one in judge(evidence_folder(project).read(now).evidence, now)}
    except ResilError as error:
        standings = {}
        missing.append(f"what is known of nodes: {error.message}")
    nodes: dict[str, NodeLine] = {}
    for one in attempts:
        try:
            names = expand(one.nodes) or [one.host]
        except HostlistError:
            names = [one.host]
        ran_s = (one.end_time if one.end_time is not None else now) - one.start_time
        for name in dict.fromkeys(name for name in names if name):
            at = nodes.get(name, NodeLine(node=name, attempts=0, failures=0, seconds=0.0))
            is_named = one.outcome is Outcome.FAILED and name == one.blamed
            nodes[name] = replace(
                at, attempts=at.attempts + 1, failures=at.failures + is_named, seconds=at.seconds + max(0.0, ran_s)
            )
    lines = [
        replace(line, state=str(known.state), why=cut(known.why, LINE), until=known.until)
        if (known := standings.get(line.node)) is not None
        else line
        for line in nodes.values()
    ]
    order = [State.EXCLUDED, State.PROBATION, State.SUSPECT, State.GOOD]
    lines.sort(key=lambda one: (order.index(State(one.state)), -one.failures, -one.attempts, one.node))
    if len(lines) > MOST_NODES:
        missing.append(f"{len(lines) - MOST_NODES} of {len(lines)} nodes are not shown: nothing is known against them")
    return tuple(lines[:MOST_NODES])
