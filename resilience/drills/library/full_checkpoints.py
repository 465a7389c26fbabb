"""The file system of the checkpoints is full, or the quota is used up."""

from __future__ import annotations

from dataclasses import replace

from resilience.drills.library import Drill
from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, judge_earlier, missing_settings
from resilience.runs import switches

TELL_S, SAVE_S, MOST_S, ASK_AGAIN_S = 240.0, 240.0, 3600.0, 5.0


def outlook(facts: Facts) -> Outlook:
    """Say what a full disk would lead to. Pure."""
    missing = missing_settings(facts, "guard", "store", told_by=("fs", "log"))
    return Outlook(
        "resil watch fs and log tell it; the last good checkpoint stays, and the next save succeeds", missing
    )


def play(training: Training) -> None:
    """Leave no room for a save, ask for one, and give the room back once that was told."""
    training.need_store()
    training.save()
    training.watch()
    training.more_steps()

    def fill() -> str:
        done = training.inject("disk-full", MOST_S)
        training.ask_for_save()
        return done

    failed_before = len(training.readings.events("save_failed"))
    training.strike(fill)

    def has_failed() -> bool:
        if training.struck().failure is not None:
            return training.see_end(0.0)
        late = training.readings.events("save_failed")[failed_before:]
        if late:
            why = f"the save of step {late[-1].get('step')} failed: {late[-1].get('error')}"
            training.seen = replace(training.seen, notes=(why,))
        return bool(late)

    training.see(has_failed, TELL_S)
    # Each next attempt would fail at it as well, until the breaker holds all.
    switches.clear(training.stage.project, training.readings.directory)
    training.see_told(TELL_S, "fs", "log", "ckpt")
    training.restore()
    _see_saved_again(training)


def _see_saved_again(training: Training) -> None:
    """Ask for saves until one is durable, in this attempt or the next."""
    clock, readings = training.stage.project.system.clock, training.readings
    before, asked_at = max(training.seen.durable or 0, readings.durable() or 0), 0.0

    def is_saved() -> bool:
        nonlocal asked_at
        if clock.monotonic() > asked_at + ASK_AGAIN_S:
            asked_at = clock.monotonic()
            training.ask_for_save()
        return (readings.durable() or 0) > before

    training.seen = replace(training.seen, saved_again=training.see(is_saved, SAVE_S))
    if training.seen.stopped_s is not None or (training.struck().failure is not None and training.see_end(1.0)):
        training.see_resume(1.0)


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the full disk was told, and whether the training survived it. Pure."""
    if not seen.saved_again:
        return Judgement(
            Outcome.FAIL,
            f"no save became durable once there was room again ({seen.cause or 'the training did not save again'})",
            "let the loop go on after a failed save, or exit with another code than 0, so that the next job resumes",
        )
    if earlier := judge_earlier(seen):
        return earlier
    if seen.told_s is None:
        return Judgement(Outcome.FAIL, "nobody was told that a save failed", "see: resil watch fs --explain")
    if not facts.channels:
        return Judgement(Outcome.FAIL, "it was told to nobody: no channel is configured", "set channels in [alert]")
    told = f"told after {seen.told_s:.0f} s; the training lost one save, and"
    if seen.stopped_s is None:
        return Judgement(Outcome.PASS, f"{told} went on; it saved again")
    return Judgement(
        Outcome.PASS,
        f"{told} ended ({seen.cause or seen.end}); it saved again",
        "catch the error of a failed save, so that the training goes on: except (OSError, CheckpointError)",
    )


DRILL = Drill(
    summary="no room for checkpoints",
    expects="The failed save is told; the last good checkpoint stays; with room again, the training saves.",
    outlook=outlook,
    play=play,
    judge=judge,
    preloads=True,
)
