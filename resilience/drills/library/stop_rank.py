"""One rank stands still, as in a collective that never returns, or on a file system that hangs."""

from __future__ import annotations

from resilience.drills.library import Drill
from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, judge_known, missing_settings, resumed
from resilience.quantities import format_duration

TELL_S, END_S, RESUME_S, MOST_S = 240.0, 300.0, 300.0, 3600.0
"""resil acts upon a hang when its signs have lasted for 2 min, and collects evidence before."""
ENDS = ("restart_step", "requeue")
"""Settings of `on_hang` that end a training that hangs."""
SLOW, MOST_HANG_S = 5.0, 600.0
"""The training counts as hung after so many of its steps, if that is longer than the tempo says, at most after this."""
LONG_S = 3600.0
"""A hang that holds the allocation for longer than this before it is told is worth a word."""


def outlook(facts: Facts) -> Outlook:
    """Say what a rank that stands still would lead to. Pure."""
    after = _after(facts)
    does = f"and {facts.on_hang} follows" if facts.on_hang != "tell" else "and the job stays until somebody acts"
    missing = missing_settings(facts, "guard", told_by=("log",))
    if facts.on_hang in ENDS and not facts.acts:
        missing.append(f"on_hang = {facts.on_hang} needs enabled = true in [act]: without it, it is only told")
    if facts.on_hang not in ENDS:
        missing.append("a hang holds the allocation until a person acts: on_hang = restart_step in [watch.log]")
    if late := _late(facts):
        missing.append(late)
    if facts.quiet_hours:
        missing.append(f"only the worst is told in the quiet hours {facts.quiet_hours}")
    return Outlook(f"resil watch log tells it {after} after the last step, {does}", missing)


def _after(facts: Facts) -> str:
    if facts.hang_s is not None:
        return format_duration(facts.hang_s)
    return f"{format_duration(facts.floor_s)} or more"


def _never_told(facts: Facts) -> bool:
    """Return whether the time limit of a job comes before a hang of it counts as one. Pure."""
    return facts.hang_s is not None and facts.walltime_s is not None and facts.hang_s >= facts.walltime_s


def _late(facts: Facts) -> str:
    """Return what to change if a hang is told late or never with these settings; empty: nothing. Pure."""
    if facts.hang_s is None or (facts.hang_s <= LONG_S and not _never_told(facts)):
        return ""
    held = f"a hang holds the allocation for {format_duration(facts.hang_s)} before it is told"
    if _never_told(facts):
        held = f"no hang is told before the time limit: that takes {format_duration(facts.hang_s)}"
    return f"{held}; lower timeout_s in [watch.log], or leave it out"


def play(training: Training) -> None:
    """Stop the last rank, and continue it once that was told."""
    training.save()
    hang_s = min(MOST_HANG_S, max(training.tempo.hang_s, SLOW * training.step_s))
    training.watch({"RESIL_WATCH__LOG__TIMEOUT_S": f"{hang_s:g}"})
    training.more_steps()
    rank = training.last_rank()
    training.strike(lambda: training.inject("stop", MOST_S, rank=rank))
    training.see_told(TELL_S, "log", "ranks")
    if _is_ended(training.facts, training.seen):
        if training.see_end(END_S):
            training.see_resume(RESUME_S)
        return
    training.restore()
    training.see_steps(RESUME_S)


def _is_ended(facts: Facts, seen: Seen) -> bool:
    """Return whether on_hang must end the launch: only where other ranks show that one keeps them waiting. Pure."""
    return facts.on_hang in ENDS and facts.acts and seen.ranks > 1


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the hang was told, and ended where the settings say so. Pure."""
    if seen.told_s is None:
        return Judgement(
            Outcome.FAIL,
            "no watchdog noticed that a rank stood still",
            "give the guard every step: guard.step(); see: resil watch log --explain",
        )
    told = f"told after {seen.told_s:.0f} s ({_after(facts)} with your settings)"
    if _never_told(facts):
        limit = format_duration(facts.walltime_s or 0.0)
        return Judgement(Outcome.FAIL, f"{told}: a job ends before, at its time limit of {limit}", _late(facts))
    if _is_ended(facts, seen):
        if seen.resumed_s is None:
            return Judgement(
                Outcome.FAIL, f"{told}, but {facts.on_hang} did not follow", "see: resil why; resil stacks"
            )
        unknown = judge_known(seen)
        return unknown or Judgement(Outcome.PASS, f"{told}, then {facts.on_hang}; {resumed(seen)}", _late(facts))
    advice = "let the hang end by itself: on_hang = restart_step in [watch.log], enabled = true in [act]"
    if facts.on_hang in ENDS and facts.acts:
        advice = f"{facts.on_hang} acts only where other ranks wait for one: with a single rank, a person must"
    if not seen.went_on and seen.stopped_s is None:
        return Judgement(Outcome.FAIL, f"{told}; the training did not go on when the rank did", "see: resil stacks")
    if not facts.channels:
        return Judgement(Outcome.FAIL, f"{told}, but to nobody: no channel is configured", "set channels in [alert]")
    return Judgement(Outcome.PASS, told, _late(facts) or advice)


DRILL = Drill(
    summary="one rank stands still",
    expects="A watchdog tells that the training hangs, although its job runs, and on_hang follows if it is set.",
    outlook=outlook,
    play=play,
    judge=judge,
)
