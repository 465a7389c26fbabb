"""One rank is killed, as by a GPU that falls off the bus, or by the kernel for memory."""

from __future__ import annotations

from resilience.drills.library import Drill
from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, judge_resumed, missing_settings, resumed

END_S, RESUME_S = 120.0, 300.0


def outlook(facts: Facts) -> Outlook:
    """Say what a killed rank would lead to. Pure."""
    next_one = f"the next job resumes ({facts.successors})" if facts.successors else "no next job is queued"
    return Outlook(f"the attempt ends with the rank; {next_one}", missing_settings(facts, "guard", "successor"))


def play(training: Training) -> None:
    """Save, make a few more steps, and kill the last rank."""
    training.save()
    training.watch()
    training.more_steps()
    rank = training.last_rank()
    training.strike(lambda: training.inject("kill", rank=rank))
    if training.see_end(END_S):
        training.see_resume(RESUME_S)


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the run went on where it had saved. Pure."""
    wrong = judge_resumed(seen, facts)
    return wrong or Judgement(Outcome.PASS, f"the attempt ended after {seen.stopped_s:.0f} s; {resumed(seen)}")


DRILL = Drill(
    summary="one rank is killed",
    expects="The attempt ends at once, not only the rank; the next one goes on at the newest checkpoint.",
    outlook=outlook,
    play=play,
    judge=judge,
)
