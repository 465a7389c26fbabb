"""Predicts the effect of a kill switch that was just set, and when it takes place.

The switch is already set, so unknown facts are reported as unknown and raise no error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.errors import ResilError, StateDirectoryError
from resilience.job import JobState
from resilience.quantities import format_duration
from resilience.runs.attempts import Attempt, KillStage, clock_time, describe
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_events
from resilience.runs.status import RunStatus, run_statuses
from resilience.runs.submissions import adopted_ids, own_script_of, read_intents
from resilience.switch import Scope
from resilience.system.files import open_without_waiting, read_regular

DEFAULT_BOUND_S = 300.0
"""Time for a training to reach a step, if none was measured (slurm_templates/_attempt.bash)."""
NOTICE_S = 5.0
"""Interval at which the batch shell and the guard read the switches, unless set otherwise."""
_START = re.compile(rb'^\{"event":"start",.*"attempt":(\d+)[,}]', re.MULTILINE)
_OF_A_RANK = re.compile(r"\d+\.\d+\.jsonl")
_JOURNAL_BYTES = 16 * 2**20
_SUPERVISED = re.compile(r"\bresil(?:ience)? run\b")
_STAGES = b"resil_stages"
"""A function of the batch shell. Scripts of older resil versions lack it, and never end a training by force."""
_LAUNCH = b"resil_journal launch"
"""Scripts of older resil versions lack it; then the end of an attempt's setup is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOutlook:
    """The state of a run whose kill switch was just set.

    Attributes:
        headline: as of `resil status`: running, queued, not queued, finished, unknown.
        attempt: the one that trains now, or None.
        is_in_setup: whether it has not launched its training yet; its setup commands are not interrupted.
        is_guarded: whether the guard was seen in it; None if unknown.
        ever_guarded: whether one was ever seen in this run; None if unknown.
        within_s: the longest measured step and save together; None if not measured.
        bound_s: time for the training to reach a step.
        stage: of the batch shell, if the switch was set before.
        queued: how many jobs wait.
        script: the user's own script that the run was queued with, or empty.
        is_supervised: whether that calls `resil run`.
        is_old: whether the batch script was written by a resil version that never ends a training by force.
        owner: the user who can cancel the jobs; empty for the present user.
        adopted: the live jobs that were queued without resil.
    """

    headline: str
    attempt: Attempt | None = None
    is_in_setup: bool = False
    is_guarded: bool | None = False
    ever_guarded: bool | None = False
    within_s: float | None = None
    bound_s: float = DEFAULT_BOUND_S
    stage: KillStage | None = None
    queued: int = 0
    script: str = ""
    is_supervised: bool = False
    is_old: bool = False
    owner: str = ""
    adopted: tuple[str, ...] = ()


def read_outlook(project: Project, directory: RunDirectory) -> KillOutlook:
    """Read the run, and query the queue once. Raise StateDirectoryError if the run's own files cannot be read."""
    (status,) = run_statuses(project, (directory,))
    attempt = _training(directory, status)
    learned = _learned(directory)
    step_s, save_s = _number(learned.get("slowest_step_s")), _number(learned.get("slowest_save_s"))
    intents = read_intents(directory)
    script = _content(intents[-1].script) if intents else b""
    adopted = adopted_ids(intents)
    rows = [row for row in status.rows if int(row.job.split("_")[0]) not in adopted]
    owner = (intents[-1].by if intents else "") or directory.owner()
    me = project.system.host.user
    return KillOutlook(
        headline=status.headline,
        attempt=attempt,
        is_in_setup=attempt is not None and _LAUNCH in script and not _journalled(directory, attempt, "launch"),
        is_guarded=_saw_guard(directory, attempt) if attempt is not None else False,
        ever_guarded=ever_saw_guard(directory),
        within_s=None if step_s is None or save_s is None else step_s + save_s + NOTICE_S,
        bound_s=_bound_s(directory, learned),
        stage=status.kill,
        queued=sum(n for row in rows for state, n in row.counts.items() if JobState(state).is_waiting),
        script=own_script_of(directory, intents),
        is_supervised=is_supervised(script.decode("utf-8", "replace")),
        is_old=bool(script) and _STAGES not in script,
        owner="" if me in (owner, "root") else owner,
        adopted=tuple(row.job for row in status.rows if row not in rows and row.is_alive),
    )


def describe_outlook(outlook: KillOutlook, run: str, scope: Scope, now: float) -> list[str]:
    """Return lines about the effect, and about the remaining options. Pure."""
    is_finished = outlook.headline == "finished"
    lines = ["the run is finished"] if is_finished else []
    if outlook.adopted:
        jobs = f"job{'s' if len(outlook.adopted) > 1 else ''} {', '.join(outlook.adopted)}"
        lines.append(f"adopted {jobs}: queued without resil, does not see the switch, saves nothing and runs on")
    if outlook.script and not outlook.adopted:
        lines += _of_own_script(outlook)
    elif outlook.attempt is not None:
        lines += _of_attempt(outlook, outlook.attempt, now)
    elif outlook.adopted:
        pass
    elif outlook.headline == "running":
        lines.append("a job runs that has not launched the training, and will not")
    elif outlook.headline != "unknown" and not is_finished:
        lines.append("no job of the run is running")
    if outlook.headline == "unknown":
        lines.append("the scheduler did not report which jobs run")
    if outlook.queued and outlook.script and not outlook.is_supervised:
        lines.append(f"queued jobs ({outlook.queued}) are not cancelled: resil cancel {run} --pending")
    elif outlook.queued:
        end = "end within seconds of their start"
        if scope is Scope.ALL:
            end = "are cancelled when the first of them starts" if outlook.attempt is None else "are cancelled then"
        lines.append(f"queued jobs ({outlook.queued}) {end}")
    if is_finished and outlook.attempt is None and not outlook.script:
        return [*lines, f"to clear the switch: resil clear {run}"]
    at_once = f"its owner {outlook.owner} can end it at once" if outlook.owner else "to end it at once"
    lines.append(f"to continue the run: resil clear {run}; {at_once}, without a save: resil cancel {run}")
    return lines


def _of_own_script(outlook: KillOutlook) -> list[str]:
    if outlook.is_supervised:
        how = "as its --stop says, else by SIGTERM; SIGKILL follows if the command does not end"
        return [f"`resil run` in its own script, {outlook.script}, asks the command to stop {how}"]
    lines = [f"this run was queued with its own script, {outlook.script}: a training that hangs is not ended by force"]
    if outlook.ever_guarded is False:
        return [
            *lines,
            "no guard was ever seen in this run: it stops only if its training checks the switch itself",
        ]
    return [*lines, "a training with a guard stops at its next step, after a save"]


def _of_attempt(outlook: KillOutlook, attempt: Attempt, now: float) -> list[str]:
    name = f"attempt {attempt.number} (job {attempt.label})"
    if outlook.stage is not None:
        return [f"{name} is already being ended: {describe(outlook.stage, now)}"]
    if outlook.is_in_setup and not outlook.is_guarded:
        return [f"{name} is in its setup, which is not interrupted: it stops when the setup is over"]
    at = clock_time(now + outlook.bound_s + NOTICE_S, now)
    ends = f"the batch shell ends {name} at {at}: SIGTERM, and SIGKILL after KillWait"
    if outlook.is_old:
        ends = "the batch script was written by an older resil, so a training that hangs is not ended by force"
    if outlook.ever_guarded is False:
        return [f"no guard was ever seen in this run: nothing will be saved. {ends[0].upper()}{ends[1:]}"]
    if outlook.is_guarded is False:
        return [
            f"{name} stops at its first step if it has a guard: none has been seen so far",
            f"if it does not, {ends}",
        ]
    within = "" if outlook.within_s is None else f": within about {format_duration(round(outlook.within_s))}"
    if not outlook.is_old:
        ends = f"if it has not by {at}: stacks of all ranks, SIGTERM, and SIGKILL after KillWait"
    return [f"{name} stops at its next step, after a save{within}", ends]


def _training(directory: RunDirectory, status: RunStatus) -> Attempt | None:
    """Return the attempt that trains or is in its setup; a newer attempt may already wait for it."""
    for attempt in reversed(status.attempts[-3:]):
        if attempt.end is None and _journalled(directory, attempt, "attempt_start"):
            return attempt
    return None


def _journalled(directory: RunDirectory, attempt: Attempt, name: str) -> bool:
    events = last_events(directory, attempt.job_id)
    return any(e.get("event") == name and e.get("attempt") == attempt.number for e in events)


def _learned(directory: RunDirectory) -> Mapping[str, Any]:
    with suppress(ResilError, ValueError, RecursionError):
        found = read_regular(directory.path / layout.LEARNED / "0.json")
        record = json.loads(found[0]) if found is not None else {}
        return record if isinstance(record, dict) else {}
    return {}


def _bound_s(directory: RunDirectory, learned: Mapping[str, Any]) -> float:
    """Return the bound as the batch shell computes it: the setting of the last submit, the measured time, or five
    minutes."""
    guard: object = None
    with suppress(StateDirectoryError):
        guard = directory.settings().get("guard")
    requested = _number(guard.get("kill_timeout_s")) if isinstance(guard, dict) else None
    return requested or _number(learned.get("kill_after_s")) or DEFAULT_BOUND_S


def _saw_guard(directory: RunDirectory, attempt: Attempt) -> bool | None:
    path = directory.path / layout.JOURNAL / f"{attempt.job_id}.0.jsonl"
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            return str(attempt.number).encode() in _START.findall(file.read(_JOURNAL_BYTES))
    except FileNotFoundError:
        return False
    except OSError:
        return None


def ever_saw_guard(directory: RunDirectory) -> bool | None:
    """Return whether a guard was ever seen in the run; None if its directory cannot be read."""
    try:
        journal = os.listdir(directory.path / layout.JOURNAL)  # noqa: PTH208
        beats = os.listdir(directory.path / layout.BEATS)  # noqa: PTH208
    except OSError:
        return None
    return any(map(_OF_A_RANK.fullmatch, journal)) or any(not name.startswith(".") for name in beats)


def is_supervised(script: str) -> bool:
    """Return whether a script calls `resil run`, which follows the switches. Pure."""
    return _SUPERVISED.search(script) is not None


def _content(script: str) -> bytes:
    """Return the content of a script; empty if it cannot be read."""
    with suppress(OSError):
        return Path(script).read_bytes()
    return b""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else None
