"""Decides whether the dependencies of a job are fulfilled. Pure.

Source: sbatch(1), --dependency. A whole array stands for all its tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from resilience.job import JobState
from resilience.schedulers._local.records import Task

_JOB = re.compile(r"(?P<id>\d+)(?:_(?P<task>\d+|\*))?(?:\+(?P<minutes>\d+))?")


class Answer(StrEnum):
    """YES: start. NOT_YET: wait. NEVER: cannot be fulfilled any more, unless that job is requeued."""

    YES = "yes"
    NOT_YET = "not yet"
    NEVER = "never"


def job_ids(dependency: str) -> tuple[int, ...]:
    """Return the job ids in a dependency with explicit types."""
    return tuple(int(match["id"]) for part in _parts(dependency)[1] for match in _jobs(part))


def with_array_ids(dependency: str, names: Mapping[int, tuple[int, int]]) -> str:
    """Replace raw ids of array tasks by `array_index`. `names` maps raw ids to (array, index)."""

    def rename(match: re.Match[str]) -> str:
        found = names.get(int(match["id"]))
        minutes = f"+{match['minutes']}" if match["minutes"] else ""
        return match[0] if found is None or match["task"] else f"{found[0]}_{found[1]}{minutes}"

    separator, parts = _parts(dependency)
    renamed = []
    for part in parts:
        kind, colon, jobs = part.partition(":")
        renamed.append(kind + colon + _JOB.sub(rename, jobs))
    return separator.join(renamed)


def needs_singleton(dependency: str) -> bool:
    """Return whether `singleton` is one of the dependencies."""
    return "singleton" in _parts(dependency)[1]


def after_start(dependency: str) -> str:
    """Return the dependency of a job that has started: only `singleton` applies again after a requeue."""
    return "singleton" if needs_singleton(dependency) else ""


def judge(
    dependency: str, index: int | None, known: Mapping[int, Sequence[Task]], now: float, *, singleton: bool
) -> Answer:
    """Return whether a job with this dependency may start.

    `known` has the jobs of the submissions in the dependency; a missing submission was purged, and counts as completed,
    as in SLURM. `singleton`: whether there is no earlier job of the same name. A delay (`after:7+5`) is relative to
    `now`.
    """
    separator, parts = _parts(dependency)
    answers = [
        (Answer.YES if singleton else Answer.NOT_YET) if part == "singleton" else _judge_part(part, index, known, now)
        for part in parts
    ]
    return _any(answers) if separator == "?" else _all(answers)


def _parts(dependency: str) -> tuple[str, list[str]]:
    separator = "?" if "?" in dependency else ","
    return separator, [part for part in dependency.split(separator) if part]


def _jobs(part: str) -> list[re.Match[str]]:
    return [match for word in part.split(":")[1:] if (match := _JOB.fullmatch(word))]


def _judge_part(part: str, index: int | None, known: Mapping[int, Sequence[Task]], now: float) -> Answer:
    kind = part.partition(":")[0]
    answers = []
    for match in _jobs(part):
        tasks = known.get(int(match["id"]))
        if tasks is None:
            answers.append(Answer.YES)
            continue
        if match["task"] not in (None, "*"):
            tasks = [task for task in tasks if task.index == int(match["task"])]
        elif kind == "aftercorr" and index is not None and (own := [task for task in tasks if task.index == index]):
            tasks = own
        answers.append(_judge_tasks(kind, tasks, int(match["minutes"] or 0) * 60, now))
    return _all(answers)


def _judge_tasks(kind: str, tasks: Sequence[Task], delay_s: int, now: float) -> Answer:
    if kind == "after":
        begun = all(task.state.is_final or (task.start is not None and task.start + delay_s <= now) for task in tasks)
        return Answer.YES if begun else Answer.NOT_YET
    ended = all(task.state.is_final for task in tasks)
    failed = any(task.state.is_final and task.state is not JobState.COMPLETED for task in tasks)
    if kind == "afterany":
        return Answer.YES if ended else Answer.NOT_YET
    if kind == "afternotok":
        if not ended:
            return Answer.NOT_YET
        return Answer.YES if failed else Answer.NEVER
    if failed:
        return Answer.NEVER
    return Answer.YES if ended else Answer.NOT_YET


def _all(answers: Sequence[Answer]) -> Answer:
    if Answer.NEVER in answers:
        return Answer.NEVER
    return Answer.NOT_YET if Answer.NOT_YET in answers else Answer.YES


def _any(answers: Sequence[Answer]) -> Answer:
    if Answer.YES in answers:
        return Answer.YES
    return Answer.NOT_YET if Answer.NOT_YET in answers else Answer.NEVER
