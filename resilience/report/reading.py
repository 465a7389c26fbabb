"""Collects what the ledger of time is made from: attempts, journals, submissions, evidence of hangs, the scheduler.

Journals are read once, line by line, all of one job together; nothing is kept of a line but what it adds to the spans.
A source that cannot be read is named in the notes; what it would have told is unknown time.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from resilience import layout
from resilience.attempts.failure import FailureClass
from resilience.attempts.ledger import KeptEnd, Siblings, end_of, ended_attempts, last_position
from resilience.attempts.reconcile import records_of
from resilience.errors import HostlistError, ResilError
from resilience.hostlist import expand
from resilience.job import Job
from resilience.messages import plural
from resilience.report.compose import Life, compose
from resilience.report.fold import LOST, RECENT, RUNNING, SLACK_MS, AttemptFold, Durations
from resilience.report.goodput import Category, Goodput
from resilience.runs.attempts import Attempt
from resilience.runs.breaker_file import breaker_path, closings, read_breaker
from resilience.runs.injections import Injection, describe_injection, journalled
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_beat
from resilience.runs.run_jobs import live_jobs, scheduler_of
from resilience.runs.run_logs import start_of_attempt
from resilience.runs.submissions import Intent, read_journal
from resilience.system.files import explain_os_error, open_without_waiting, read_regular

SILENT_S = 600.0
"""An attempt without an end whose heartbeat is older may have ended."""
MOST_ASKED = 200
"""The newest attempts of which the scheduler is asked what the run directory does not tell."""
LONG_AFTER_S = 300.0
"""Events this long before or after the attempts of a job are of a wrong clock."""
FOREVER_MS = 2**60
_HANG = re.compile(r"(\d{4,18})-(\d{1,18})\.(?:html|txt|acted)")
_GPUS = re.compile(r"(?:^|\s)--(gpus|gpus-per-node|gres|gpus-per-task|ntasks|ntasks-per-node)[= ]([^\s,]+)")
_COUNT = re.compile(r"(?:^|[:=])(\d{1,7})$")
SCRIPT_BYTES = 2**20
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""Half the time of json.loads; what follows the object on its line is ignored."""


class _Window(NamedTuple):
    """When an attempt began, until when it is folded, and the class of its end."""

    attempt: Attempt
    start_ms: int
    end_ms: int
    ended: str
    folded_as: str


@dataclass(frozen=True, slots=True)
class _Told:
    """What the scheduler told: records by attempt, and whether jobs wait or run."""

    records: Mapping[int, Job]
    live: tuple[Job, ...] = ()
    note: str = ""


def read_goodput(
    project: Project, directory: RunDirectory, *, since: float | None = None, ask_scheduler: bool = True
) -> Goodput:
    """Return where the time of a run went; without attempts it is empty.

    `since`: leave out what was earlier, in seconds since the epoch. The scheduler is asked for what the run directory
    does not tell; without an answer that is unknown. Raise StateDirectoryError if the run directory cannot be read.
    """
    now = project.system.clock.now()
    attempts, journal = ended_attempts(directory), read_journal(directory)
    intents = journal.intents
    siblings = Siblings(attempts, intents)
    ends = {one.number: end_of(directory, one, siblings) for one in attempts if one.end is not None}
    told = _ask(project, directory, attempts, ends, intents) if ask_scheduler and attempts else _Told({})
    windows = _windows(directory, attempts, ends, told.records, now)
    held_until = _held_until(directory)
    hangs, durations, recent = _hangs(directory), Durations(), deque[float](maxlen=RECENT)
    lives, notes = list[Life](), [told.note] if told.note else []
    if journal.copied_from:
        notes.append(
            f"this run directory is a copy of {journal.copied_from}: submissions and incidents are those of the "
            "original, so when its jobs were queued is unknown here"
        )
    options = _Options(intents)
    previous_end: dict[int, int] = {}
    durable_step, has_saved, unseen = None, False, 0
    anew, has_steps = list[int](), False
    folds: dict[int, AttemptFold] = {}
    of_job = defaultdict[int, list[_Window]](list)
    for window in windows:
        of_job[window.attempt.job_id].append(window)
    for window in windows:
        attempt = window.attempt
        if attempt.number not in folds:
            folds |= _fold_job(directory, of_job[attempt.job_id], hangs, recent, durations, notes)
        fold = folds.pop(attempt.number)
        durable_step = fold.durable_step if fold.durable_step is not None else durable_step
        has_saved |= fold.has_saved
        unseen += not fold.is_seen
        gpus = options.gpus_of(attempt, fold.nodes, fold.world)
        queued = _queued_ms(window, options.intents, told.records, previous_end.get(attempt.job_id))
        previous_end[attempt.job_id] = window.end_ms
        spans = tuple(fold.finish())
        first_step = next((one.first_step for one in spans if one.first_step is not None), None)
        if first_step == 0 and has_steps:
            anew.append(attempt.number)
        has_steps |= first_step is not None
        lives.append(
            Life(
                attempt=attempt.number,
                job=attempt.label,
                ended=window.ended,
                start_ms=window.start_ms,
                end_ms=window.end_ms,
                spans=spans,
                launch_ms=fold.launch_ms,
                queued_ms=queued,
                held_until_ms=held_until.get(attempt.number, FOREVER_MS if fold.is_held else None),
                gpus=gpus,
            )
        )
    is_running = bool(lives) and lives[-1].ended == RUNNING
    is_over = directory.is_finished() or (bool(lives) and lives[-1].ended == FailureClass.FINISHED)
    waits = _waits(directory, told.live)
    notes += _notes(windows, unseen, anew)
    found = compose(
        directory.run,
        lives,
        end_ms=_ms(now) if is_running or not lives or (waits is not None and not is_over) else 0,
        waits=waits or Category.QUEUE,
        since_ms=None if since is None else _ms(since),
        durable_step=(durable_step or 0) if has_saved and not is_over and not is_running else None,
        durations=durations,
        notes=notes,
    )
    faults = [one for one in journalled(directory) if since is None or (one.ended or now) >= since]
    return replace(found, injected=tuple(_injected(one) for one in faults)) if faults else found


def _injected(one: Injection) -> str:
    return (f"attempt {one.attempt}: " if one.attempt else "") + describe_injection(one)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# ---- attempts and the scheduler ------------------------------------------------------------------------------------


def _windows(
    directory: RunDirectory,
    attempts: Sequence[Attempt],
    ends: Mapping[int, KeptEnd],
    records: Mapping[int, Job],
    now: float,
) -> list[_Window]:
    found = []
    for number, attempt in enumerate(attempts):
        record, kept = records.get(attempt.number), ends.get(attempt.number)
        by_scheduler = record.end_time if record is not None else kept.end_time if kept is not None else None
        ended = str(kept.failure.failure) if kept is not None else RUNNING
        folded_as, end = ended, now
        if attempt.end is None:
            if by_scheduler is not None:
                ended, folded_as, end = LOST, "", by_scheduler
            elif _is_silent(directory, attempt, now):
                ended = folded_as = LOST
        elif attempt.exit_code is not None and attempt.end_time is not None:
            end = attempt.end_time
        elif by_scheduler is not None:
            end = by_scheduler
        else:  # the time in its end is that of the later attempt which noticed
            later = attempts[number + 1].start_time if number + 1 < len(attempts) else now
            folded_as, end = LOST, attempt.end_time or later
        start = _ms(attempt.start_time)
        found.append(_Window(attempt, start, max(start, _ms(end)), ended, folded_as))
    return found


def _is_silent(directory: RunDirectory, attempt: Attempt, now: float) -> bool:
    return now - (last_beat(directory, attempt) or attempt.start_time) > SILENT_S


def _ask(
    project: Project,
    directory: RunDirectory,
    attempts: Sequence[Attempt],
    ends: Mapping[int, KeptEnd],
    intents: Sequence[Intent],
) -> _Told:
    """Ask for the jobs that no submission tells of, the ends that were not recorded, and whether jobs are queued."""
    is_silent = attempts[-1].end is None and _is_silent(directory, attempts[-1], project.system.clock.now())
    known = {one.job_id.array for one in intents if one.job_id is not None and not one.adopted}
    asked = []
    for one in attempts[-MOST_ASKED:]:
        kept = ends.get(one.number)
        is_lost = one.exit_code is None and kept is not None and kept.end_time is None and not kept.is_reconciled
        is_lost |= one is attempts[-1] and is_silent
        if one.job_id and (is_lost or start_of_attempt(one).array not in known):
            asked.append(one)
    is_open = not directory.is_finished() and (is_silent or attempts[-1].end is not None)
    try:
        scheduler = project.scheduler(scheduler_of(intents))
        records = records_of(scheduler, directory, asked) if asked else {}
        live = live_jobs(scheduler, directory, project.system.host.user) if is_open and intents else ()
    except ResilError as error:
        return _Told({}, note=f"the scheduler does not tell what the run directory leaves open: {error.message}")
    return _Told(records, live)


def _waits(directory: RunDirectory, live: Sequence[Job]) -> Category | None:
    """Return what the run waits for after its newest attempt; None: nothing that is known."""
    breaker = read_breaker(directory)
    if breaker is not None and breaker.acting:
        return Category.HELD
    waiting = [job for job in live if job.state.is_waiting]
    if not waiting:
        return Category.UNKNOWN if live else None  # a job runs that resil does not see
    return Category.HELD if all(job.reason.startswith("JobHeld") for job in waiting) else Category.QUEUE


def _queued_ms(
    window: _Window, intents: Mapping[int, Intent], records: Mapping[int, Job], previous_end: int | None
) -> int | None:
    """Return when a job began to wait for its start: its submit, or the end of an attempt that it was requeued after;
    None if that is unknown."""
    attempt = window.attempt
    if not attempt.job_id:
        return window.start_ms  # no job: somebody has started it
    if previous_end is not None:
        return previous_end
    intent, record = intents.get(start_of_attempt(attempt).array), records.get(attempt.number)
    if intent is not None and not intent.adopted:  # a submit after the start is of another clock
        return _ms(intent.time) if _ms(intent.time) <= window.start_ms + SLACK_MS else None
    return _ms(record.submit_time) if record is not None and record.submit_time is not None else None


def _held_until(directory: RunDirectory) -> dict[int, int]:
    """Return until when the breaker held the jobs after attempts."""
    held = dict.fromkeys(closings(directory), FOREVER_MS)
    if held:
        with suppress(OSError):
            held[max(held)] = _ms(breaker_path(directory, layout.BREAKER_CLOSED).stat().st_mtime)
    breaker = read_breaker(directory)
    if breaker is not None and breaker.acting:
        held[breaker.attempt] = FOREVER_MS
    return held


def _hangs(directory: RunDirectory) -> dict[int, list[int]]:
    """Return the steps at which a hang was found, by attempt."""
    found = defaultdict[int, list[int]](list)
    with suppress(OSError):
        for name in os.listdir(directory.path / layout.HANGS):  # noqa: PTH208
            if match := _HANG.fullmatch(name):
                found[int(match[1])].append(int(match[2]))
    return found


def _notes(windows: Sequence[_Window], unseen: int, anew: Sequence[int]) -> Iterator[str]:
    if unseen:
        yield (
            f"no guard and no step was seen of {unseen} of {plural(len(windows), 'attempt')}: "
            "their time after the launch is unknown"
        )
    lost = [one.attempt.number for one in windows if one.folded_as == LOST]
    if lost:
        yield f"no end was recorded of {plural(len(lost), 'attempt')} ({_shown(lost)}): unknown after the last event"
    if anew:
        yield (
            f"{'attempt' if len(anew) == 1 else 'attempts'} {_shown(anew)} began again at step 0, so the steps before "
            "count as redone: a training that resumes tells where, with guard.resumed(step)"
        )


def _shown(numbers: Sequence[object]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


# ---- journals ------------------------------------------------------------------------------------------------------


def _fold_job(
    directory: RunDirectory,
    group: Sequence[_Window],
    hangs: Mapping[int, Sequence[int]],
    recent: deque[float],
    durations: Durations,
    notes: list[str],
) -> dict[int, AttemptFold]:
    """Fold the events of all attempts of one job, which share its journals. A file that cannot be read is noted."""
    folds = {
        one.attempt.number: AttemptFold(
            one.attempt.number,
            one.start_ms,
            one.end_ms,
            ended=one.folded_as,
            recent=recent,
            durations=durations,
            hang_steps=hangs.get(one.attempt.number, ()),
        )
        for one in group
    }
    begin = min(one.start_ms for one in group) / 1000 - LONG_AFTER_S
    end = max(one.end_ms for one in group) / 1000 + LONG_AFTER_S
    job = group[0].attempt.job_id
    names = [layout.JOURNAL + f"/{job}.{whose}.jsonl" for whose in ("batch", "0", "progress")]
    streams = [_events(directory.path / name, begin, end, notes) for name in names]
    positions = [last_position(directory, job, host) for host in {one.attempt.host for one in group}]
    beats = ({"event": "progress", **one._asdict()} for one in sorted(filter(None, positions), key=lambda at: at.time))
    for event in heapq.merge(*streams, beats, key=_time):
        number = event.get("attempt")
        if isinstance(number, int) and number in folds:
            folds[number].add(event)
    return folds


def _time(event: Mapping[str, Any]) -> float:
    time: float = event["time"]
    return time


def _events(path: Path, begin: float, end: float, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal with a time between two moments. Damaged lines are skipped."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_without_waiting) as file:
            for line in file:
                try:
                    event = _scan(line, 0)[0]
                    if begin <= event["time"] <= end:
                        yield event
                except (ValueError, TypeError, KeyError, RecursionError, StopIteration):
                    continue
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(explain_os_error(error, "read", path).message)


# ---- GPUs ----------------------------------------------------------------------------------------------------------


class _Options:
    """What the submissions of a run asked for.

    Attributes:
        intents: submissions by job or array.
    """

    def __init__(self, intents: Sequence[Intent]) -> None:
        self.intents = {one.job_id.array: one for one in intents if one.job_id is not None}
        self._by_array: dict[int, dict[str, int]] = {}

    def gpus_of(self, attempt: Attempt, nodes: str, world: int | None) -> int | None:
        """Return the number of GPUs of an attempt's job; None if its submission does not tell."""
        array = start_of_attempt(attempt).array
        if array not in self._by_array:
            intent = self.intents.get(array)
            self._by_array[array] = {} if intent is None else parse_gpus(f"{_script(intent)} {' '.join(intent.argv)}")
        options = self._by_array[array]
        try:
            node_count = len(expand(nodes or attempt.host)) or 1
        except HostlistError:
            return options.get("gpus")
        if "gpus" in options:
            return options["gpus"]
        for name in ("gpus-per-node", "gres"):
            if name in options:
                return options[name] * node_count
        tasks = options.get("ntasks", options.get("ntasks-per-node", 0) * node_count) or world
        return options["gpus-per-task"] * tasks if tasks and "gpus-per-task" in options else None


def parse_gpus(options: str) -> dict[str, int]:
    """Given options of sbatch, return those that tell GPUs and tasks, with their numbers; the last of each. Pure."""
    found = {}
    for name, value in _GPUS.findall(options):
        number = _COUNT.search(value)
        if number is not None and (name != "gres" or value.startswith(("gpu:", "gres:gpu:", "gres/gpu:"))):
            found[name] = int(number[1])
    return found


def _script(intent: Intent) -> str:
    """Return the directives of a submitted script, on one line; empty if it cannot be read."""
    with suppress(ResilError):
        found = read_regular(Path(intent.script), limit_bytes=SCRIPT_BYTES)
        if found is not None:
            lines = found[0].decode("utf-8", "replace").splitlines()
            return " ".join(line.removeprefix("#SBATCH") for line in lines if line.startswith("#SBATCH"))
    return ""
