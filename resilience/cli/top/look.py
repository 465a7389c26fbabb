"""Gathers what `resil top` shows, and does what its keys ask for.

Every function here may hang on a dead disk: the screen runs them in a process of its own (worker.py).
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.attempts.ledger import progress_of
from resilience.cli.show_status import sentences
from resilience.cli.top.frame import SPARK, Frame, IncidentView, Rank, RunView
from resilience.cron.late import late_notice
from resilience.errors import ResilError, StateDirectoryError
from resilience.ranks.beats import NodeBeat, read_beats
from resilience.ranks.stragglers import Pace, describe, judge, newest_attempt
from resilience.runs.queue_cache import FLOOR_S
from resilience.runs.run_files import last_events, read_tail
from resilience.runs.run_jobs import scheduler_of, submitters
from resilience.runs.run_logs import newest_log
from resilience.runs.status import RunStatus, run_statuses
from resilience.runs.submissions import Intent, newest_intent, read_intents
from resilience.runs.switches import set_switch
from resilience.switch import Scope
from resilience.system.files import read_regular

if TYPE_CHECKING:
    from resilience.runs.attempts import Attempt
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

LOG_BYTES, LOG_LINES = 16384, 100
MOST_INCIDENTS = 50
SHARE = 0.005
"""Reading heartbeats takes no more of a core, and all the rest neither: together 1 %."""
MINUTES_S = 1440.0
"""The line of rates covers so many seconds at most: a minute for each of its signs."""
LEAST_S = 2.0
"""A sign of it stands for at least so many seconds."""
RECENT_S = 60.0
"""Without measured windows, the rate is that of so many seconds."""
SILENT_S, STANDS_S, STANDS_STEPS = 60.0, 30.0, 10.0
"""A node is silent after so many seconds without a heartbeat; a rank stands after so many seconds and steps."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


@dataclass(slots=True)
class _Known:
    """What was read of one run, and not changed since."""

    beats: tuple[NodeBeat, ...] = ()
    beats_mark: object = None
    beats_at: float = 0.0
    beats_due: float = 0.0
    pace: Pace | None = None
    attempt: int = 0
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=256))
    log: Path | None = None
    intents: tuple[Intent, ...] = ()


class Looker:
    """Looks at runs again and again. The scheduler is asked once in ten seconds on average, and never more often.

    Attributes:
        statuses: of the runs, as of the last question.
        directories: theirs, by name.
        trouble: why the runs could not be looked at; empty if they could.
        beats_s: CPU seconds that reading heartbeats has taken: those of a thousand ranks take a second.
    """

    def __init__(self, project: Project, run: str = "") -> None:
        """`run`: name or path; empty: all runs. Raise UsageError if there is no such run."""
        self.beats_s = 0.0
        self._project = project
        self._only = (project.existing(run),) if run else ()
        self.directories: dict[str, RunDirectory] = {}
        self.statuses: tuple[RunStatus, ...] = ()
        self._asked, self._next_query, self.trouble = 0.0, 0.0, ""
        self._late = ""
        self._known: dict[str, _Known] = {}
        self._incidents: tuple[IncidentView, ...] = ()
        self._incidents_mark: object = None
        self._alerts: Any = None

    def look(self, selected: str = "") -> Frame:
        """Return what is known now; of the `selected` run (default: the first) also the end of its log."""
        clock = self._project.system.clock
        if clock.monotonic() >= self._next_query or not self._next_query:
            self._look_at_queue()
        now = clock.now()
        trouble = [text for text in (self.trouble, self._late) if text]
        try:
            incidents = self._open_incidents(now)
        except ResilError as error:
            incidents = ()
            trouble.append(f"incidents: {error.message}")
        names = [status.run for status in self.statuses]
        shown = selected if selected in names else (names or [""])[0]
        views = tuple(self._view(status, now, is_selected=status.run == shown) for status in self.statuses)
        age_s = max((status.age_s for status in self.statuses), default=0.0) + now - self._asked
        return Frame(
            time=now,
            runs=views,
            incidents=incidents,
            queue_age_s=age_s,
            trouble=tuple(trouble),
            empty=f"no run has been submitted here yet (state directory {self._project.loaded.state_dir})",
        )

    # ---- the scheduler ----------------------------------------------------------------------------------------------

    def _look_at_queue(self) -> None:
        clock, me = self._project.system.clock, self._project.system.host.user
        queries = set()
        try:
            directories = self._only or self._project.runs()
            for directory in directories:
                known = self._known.setdefault(directory.run, _Known())
                with suppress(ResilError):
                    known.intents = read_intents(directory)
                    known.log = newest_log(directory, known.intents)
                    queries.add((scheduler_of(known.intents), submitters(directory, known.intents, me)))
            self.statuses = run_statuses(self._project, directories)
            self.directories = {directory.run: directory for directory in directories}
            self.trouble = ""
        except ResilError as error:
            self.trouble = error.message
        self._asked = clock.now()
        self._next_query = clock.monotonic() + FLOOR_S * max(1, len(queries))
        with suppress(ResilError):
            self._late = late_notice(self._project)

    # ---- one run ----------------------------------------------------------------------------------------------------

    def _view(self, status: RunStatus, now: float, *, is_selected: bool) -> RunView:
        directory = self.directories[status.run]
        known = self._known.setdefault(status.run, _Known())
        attempt = status.attempts[-1] if status.attempts else None
        is_running = attempt is not None and attempt.end is None and status.headline in ("running", "unknown")
        left_s = next((row.time_left_s for row in status.rows if row.time_left_s is not None), None)
        learned: dict[str, Any] = {}
        if attempt is not None and is_running:
            self._read_beats(directory, known, attempt)
            learned = _learned(directory, attempt.number)
        else:
            known.beats, known.beats_mark, known.pace = (), None, None
        facts = tuple(sentences(status, status.rows, now))
        if attempt is not None:
            where = f" on {attempt.host}" if attempt.host else ""
            facts = (f"attempt {attempt.number}, job {attempt.label}{where}", *facts)
        steps = [one.step for beat in known.beats for one in beat.ranks]
        pace = known.pace
        points = tuple(known.points) if is_running else ()
        return RunView(
            run=status.run,
            state=status.headline,
            step=max([status.step or 0, *steps]) if steps else status.step,
            step_s=(pace and pace.step_s) or recent_step_s(points),
            rates=rates(points),
            ends=None if left_s is None else self._asked + left_s,
            next_save=next_save(directory, attempt.job_id, learned, attempt.start_time)
            if attempt and learned
            else None,
            memory_per_s=memory_per_s(learned),
            facts=facts,
            slow=describe(pace.stragglers) if pace is not None else "",
            ranks=ranks_of(known.beats, pace, known.beats_at),
            ranks_at=known.beats_at,
            log_path=str(known.log or "") if is_selected else "",
            log=_last_lines(known.log) if is_selected and known.log is not None else (),
        )

    def _read_beats(self, directory: RunDirectory, known: _Known, attempt: Attempt) -> None:
        """Read the heartbeats of an attempt if they have changed, and add how far the training is to the points."""
        job_id = attempt.job_id
        if known.attempt != attempt.number:
            known.attempt = attempt.number
            known.points.clear()
            known.points.extend(sorted(progress_of(directory, attempt)))
        mark = []
        with suppress(OSError), os.scandir(directory.path / layout.BEATS) as entries:
            for entry in entries:
                if entry.name.startswith(f"{job_id}."):
                    mark.append((entry.name, entry.stat().st_mtime_ns))
        clock, begun = self._project.system.clock, process_time()
        if sorted(mark) == known.beats_mark:
            known.beats_at = clock.now()
            return
        if clock.monotonic() < known.beats_due:
            return
        known.beats_mark, known.beats_at = sorted(mark), clock.now()
        with suppress(StateDirectoryError):
            known.beats = tuple(newest_attempt(read_beats(directory, job_id=str(job_id))))
            known.pace = judge(known.beats)
        first = min(((one.rank, beat.time, one.step) for beat in known.beats for one in beat.ranks), default=None)
        if first is not None and (not known.points or first[1] > known.points[-1][0]):
            known.points.append((first[1], float(first[2])))
        took_s = process_time() - begun
        known.beats_due = clock.monotonic() + took_s / SHARE * max(1, len(self.statuses))
        self.beats_s += took_s

    # ---- incidents --------------------------------------------------------------------------------------------------

    def _open_incidents(self, now: float) -> tuple[IncidentView, ...]:
        from resilience.alerts.state import open_alert_state

        if self._alerts is None:
            self._alerts = open_alert_state(self._project)
        if self._alerts.refusal is not None:
            raise self._alerts.refusal
        place = self._alerts.ledger.directory.primary
        try:
            mark: object = place.stat().st_mtime_ns
        except OSError:
            mark = None
        if mark is None or mark != self._incidents_mark:
            found = [one for one in self._alerts.ledger.incidents(now) if one.is_open][:MOST_INCIDENTS]
            self._incidents_mark = mark
            self._incidents = tuple(
                IncidentView(one.episode, one.verdict.value, one.check, one.subject, one.summary, one.opened,
                             one.acknowledged_by)
                for one in found
            )  # fmt: skip
        return self._incidents

    # ---- keys -------------------------------------------------------------------------------------------------------

    def act(self, verb: str, name: str) -> str:
        """Do what a key asks for: `save` or `kill` a run, or `ack` an incident. Return the answer for the person."""
        try:
            if verb == "ack":
                from resilience.alerts.commands import acknowledge

                (incident,) = acknowledge(self._project, [name])
                self._incidents_mark = None
                return f"acknowledged {incident.check} {incident.subject}; to undo: resil alert ack --undo {name}"
            if name not in self.directories:
                return f"{verb} {name}: this run is no longer there"
            directory = self.directories[name]
            kind = layout.KILL_SWITCH if verb == "kill" else layout.SAVE_SWITCH
            done = set_switch(self._project, directory, kind, why="by resil top", scope=Scope.JOB)
            newest = newest_intent(self._known[name].intents)
            if done.warning:
                return f"{kind} switch set, but {done.warning}"
            if newest is not None and newest.adopted:
                return f"{kind} switch set, but the job was queued without resil and does not see it"
            state = next((one.headline for one in self.statuses if one.run == name), "")
            idle = f", the run is {state}" if state in ("finished", "queued", "not queued") else ""
            return f"{kind} switch set{idle}; to clear it: resil clear {name}"
        except ResilError as error:
            return f"{verb} {name}: {error.message}"


# ---- pure -----------------------------------------------------------------------------------------------------------


def rates(points: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Given (time, step) in order, return steps per second in equal stretches of time, oldest first. Pure."""
    rising = [point for number, point in enumerate(points) if not number or point[1] >= points[number - 1][1]]
    if len(rising) < 2:
        return ()
    end = rising[-1][0]
    each = max(LEAST_S, min(end - rising[0][0], MINUTES_S) / SPARK)
    count = min(SPARK, int((end - rising[0][0]) / each))
    edges = [end - each * number for number in range(count, -1, -1)]
    steps = [_step_at(rising, edge) for edge in edges]
    return tuple(max(0.0, after - before) / each for before, after in pairwise(steps))


def _step_at(points: Sequence[tuple[float, float]], time: float) -> float:
    for (begin, first), (end, last) in pairwise(points):
        if time <= end:
            return first + (last - first) * max(0.0, time - begin) / (end - begin) if end > begin else last
    return points[-1][1]


def recent_step_s(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the seconds per step in the last minute; None if there was none. Pure."""
    recent = [point for point in points if point[0] >= points[-1][0] - RECENT_S]
    if len(recent) < 2:
        recent = list(points[-2:])
    if len(recent) < 2 or recent[-1][1] <= recent[0][1]:
        return None
    return (recent[-1][0] - recent[0][0]) / (recent[-1][1] - recent[0][1])


def ranks_of(beats: Sequence[NodeBeat], pace: Pace | None, now: float) -> tuple[Rank, ...]:
    """Return how the ranks were at `now`, when the heartbeats were read, by number. Pure."""
    step_s = (pace and pace.step_s) or 0.0
    factors = {one.rank: one.factor for one in pace.ranks} if pace is not None else {}
    found = []
    for beat in beats:
        is_silent = now - beat.time > SILENT_S and now - beat.written > SILENT_S
        for one in beat.ranks:
            if one.has_left:
                continue
            stands_s = beat.time - one.advanced if one.phase == "train" and one.advanced else 0.0
            if stands_s < max(STANDS_S, STANDS_STEPS * step_s):
                stands_s = 0.0
            found.append(Rank(one.rank, beat.host, factors.get(one.rank), stands_s, is_silent, one.is_gone))
    return tuple(sorted(found, key=lambda one: one.rank))


def memory_per_s(learned: dict[str, Any]) -> float | None:
    """Return the rise of memory that the guard has measured; 0 if there is no trend, None if unknown. Pure."""
    memory = learned.get("host_memory")
    if not isinstance(memory, dict) or "trend" not in memory:
        return None
    with suppress(TypeError, ValueError, IndexError):
        return float(memory["trend"][0]) if memory["trend"] is not None else 0.0
    return None


# ---- files ----------------------------------------------------------------------------------------------------------


def next_save(directory: RunDirectory, job_id: int, learned: dict[str, Any], start: float) -> float | None:
    """Return when the guard saves next by itself, in seconds since the epoch; None if it does not, or if unknown."""
    cadence = learned.get("cadence")
    interval_s = cadence.get("interval_s") if isinstance(cadence, dict) else None
    if not isinstance(interval_s, int | float) or interval_s <= 0:
        return None
    begun = last_events(directory, job_id, "0", (b'"save_begin"',))
    times = [one["time"] for one in begun if isinstance(one.get("time"), int | float)]
    return float(times[-1] if times else start) + interval_s


def _learned(directory: RunDirectory, attempt: int) -> dict[str, Any]:
    """Return the measurements of rank 0 of this attempt; empty if there are none."""
    with suppress(StateDirectoryError, ValueError, RecursionError):
        found = read_regular(directory.path / layout.LEARNED / "0.json")
        learned = json.loads(found[0]) if found is not None else None
        if isinstance(learned, dict) and learned.get("attempt") == attempt:
            return learned
    return {}


def _last_lines(path: Path) -> tuple[str, ...]:
    """Return the last lines of a log; of a progress bar, its last state."""
    try:
        text = read_tail(path, LOG_BYTES)[0].decode("utf-8", "replace")
    except OSError as error:
        return (f"cannot be read: {error.strerror}",)
    lines = text.rstrip("\n").split("\n")[-LOG_LINES:]
    return tuple(_ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2]).expandtabs() for line in lines)
