"""Runs drills one after another, each with a training of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from resilience.drills.isolation import changed, fingerprint, preloaded
from resilience.drills.library import Drill
from resilience.drills.scratch import own_project, scratch, scratch_of
from resilience.drills.stage import Stage
from resilience.drills.training import CouldNotLook, DidWrong, Training
from resilience.drills.words import Facts, Judgement, Outcome, Seen
from resilience.errors import ResilError, UsageError
from resilience.inject import typed
from resilience.messages import suggest
from resilience.plugins import Family
from resilience.runs.project import Project
from resilience.runs.run_jobs import live_jobs
from resilience.system.files import make_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One drill that was made.

    Attributes:
        name: as users type it.
        seen: what was measured.
        seconds: of the whole drill.
        left: what could not be ended or removed, a sentence each.
    """

    name: str
    drill: Drill
    judgement: Judgement
    seen: Seen
    seconds: float
    left: tuple[str, ...] = ()


@cache
def drills() -> Family:
    """Return the plugin family of drills."""
    return Family("drills", "DRILL")


def names() -> tuple[str, ...]:
    """Return the names of all drills, as users type them."""
    return tuple(typed(name) for name in drills().names())


def find(name: str) -> Drill:
    """Return a drill by its typed name. Raise UsageError, suggesting the nearest, if there is none."""
    if name not in names():
        raise UsageError(f"there is no drill {name!r}", hint=suggest(name, names()))
    found: Drill = drills().load(name.replace("-", "_"))
    return found


def is_live(project: Project, run: str) -> bool:
    """Return whether the real run has jobs. Raise SchedulerUnavailable if that is not known."""
    directory = project.directory(run)
    return directory.exists() and bool(live_jobs(project.scheduler(), directory, project.system.host.user))


def rehearse(
    project: Project,
    facts: Facts,
    chosen: Sequence[str],
    *,
    limit_s: float,
    keep: bool,
    say: Callable[[str], None],
) -> Iterator[Result]:
    """Yield the result of each drill as it ends. `say` gets a sentence for each event.

    Raise UsageError if other drills of the project run.
    """
    root = scratch_of(project)
    with scratch(project, root, keep=keep, say=say):
        for name in chosen:
            drill = find(name)
            say(f"{name}: {drill.summary}. Expected: {drill.expects[0].lower()}{drill.expects[1:]}")
            result = _rehearse(project, facts, name, drill, root / name, limit_s, say)
            yield result
            if result.judgement.reason.startswith(HARM):
                return


HARM = "the drill's training changed files of the real run"


def _rehearse(
    project: Project, facts: Facts, name: str, drill: Drill, scratch: Path, limit_s: float, say: Callable[[str], None]
) -> Result:
    clock = project.system.clock
    began = clock.monotonic()
    real = Path(facts.store) if facts.store else None
    was_live = is_live(project, facts.run)
    before = fingerprint(real)
    if was_live or real is None:
        why = "it has jobs" if was_live else "[checkpoints] path is not set"
        say(f"{name}: whether the checkpoints of the real run stay as they are is not looked at: {why}")
    make_directory(scratch / "output", mode=0o700)
    if drill.preloads and not os.access("/dev/fuse", os.W_OK) and shutil.which("cc"):
        facts = replace(facts, command=preloaded(facts.command, facts.template, sys.executable))
    stage = Stage(own_project(project, facts, name, scratch))
    training = Training(stage, facts, scratch, limit_s=limit_s, say=say)
    left: list[str] = []
    try:
        judgement = _play(drill, training, facts)
    finally:
        left = training.close()
    if not was_live and (harmed := changed(before, fingerprint(real))):
        more = f" and {len(harmed) - 1} more" if len(harmed) > 1 else ""
        why = f"; {judgement.reason}" if judgement.outcome is Outcome.UNKNOWN else ""
        judgement = Judgement(
            Outcome.FAIL, f"{HARM}: {harmed[0]}{more}{why}",
            "save with Store.from_env(), or write to $RESIL_DRILL_DIR if it is set; the other drills were not made",
        )  # fmt: skip
    seconds = clock.monotonic() - began
    return Result(name=name, drill=drill, judgement=judgement, seen=training.seen, seconds=seconds, left=tuple(left))


def _play(drill: Drill, training: Training, facts: Facts) -> Judgement:
    try:
        training.start()
        drill.play(training)
        return drill.judge(training.finish(), facts)
    except DidWrong as error:
        return Judgement(Outcome.FAIL, error.message, error.hint)
    except CouldNotLook as error:
        return Judgement(Outcome.UNKNOWN, error.message, error.hint)
    except ResilError as error:
        return Judgement(Outcome.UNKNOWN, f"the drill could not be made: {error.message}", error.hint)
    except OSError as error:
        return Judgement(Outcome.UNKNOWN, f"the drill could not be made: {error}")
