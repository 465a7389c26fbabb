"""The scheduler's controller does not answer, as for minutes at a restart, or for an hour of overload."""

from __future__ import annotations

from resilience.drills.library import Drill
from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, missing_settings
from resilience.quantities import format_duration

TELL_S, AFTER_S, MOST_S = 240.0, 120.0, 3600.0
DEADLINE_S = 5.0
"""How long the watchdogs of the drill wait for the controller."""


def outlook(facts: Facts) -> Outlook:
    """Say what a silent controller would lead to. Pure."""
    return Outlook(
        f"the training goes on; resil watch job is UNKNOWN, tells that after {format_duration(facts.unknown_for_s)}, "
        "and does nothing to the queue",
        missing_settings(facts, told_by=("job",)),
    )


def play(training: Training) -> None:
    """Let every question to the controller hang, until a watchdog has told it."""
    training.more_steps()

    def hang() -> str:
        done = training.inject("scheduler", MOST_S, fault="hang")
        training.is_blind = True
        deadline_s = min(DEADLINE_S, training.stage.project.loaded.settings.scheduler.deadline_s)
        training.watch({"RESIL_SCHEDULER__DEADLINE_S": f"{deadline_s:g}"}, deadline_s)
        return done

    training.strike(hang)
    training.see_told(TELL_S, "job")
    went_on = training.see_steps(TELL_S)
    training.restore()
    training.is_blind = False
    training.watch()
    training.see_steps(AFTER_S if went_on else 0.0)


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the training went on, and nothing was done to the queue. Pure."""
    if not seen.left_alone:
        return Judgement(
            Outcome.FAIL, "jobs were queued, held or cancelled while nothing was known about the queue", "report a bug"
        )
    if not seen.went_on:
        return Judgement(
            Outcome.FAIL,
            f"the training did not go on ({seen.cause or 'no further step'})",
            "do not ask the scheduler in the training itself: no squeue or scontrol in the loop",
        )
    if seen.told_s is None:
        return Judgement(Outcome.FAIL, "no watchdog told that the controller was silent", "see: resil watch job")
    if not facts.channels:
        return Judgement(Outcome.FAIL, "it was told to nobody: no channel is configured", "set channels in [alert]")
    with_yours = f"{format_duration(facts.unknown_for_s)} later with your settings"
    return Judgement(
        Outcome.PASS, f"the training went on, the queue was left alone, told after {seen.told_s:.0f} s ({with_yours})"
    )


DRILL = Drill(
    summary="the controller does not answer",
    expects="The training goes on; a watchdog says that it does not know; no job is queued, held or cancelled.",
    outlook=outlook,
    play=play,
    judge=judge,
)
