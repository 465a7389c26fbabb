"""A node of the job is lost, as by a power supply or a kernel that stops."""

from __future__ import annotations

from resilience.drills.library import Drill
from resilience.drills.training import CouldNotLook, Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, judge_resumed, missing_settings, resumed

END_S, RESUME_S = 300.0, 600.0


def outlook(facts: Facts) -> Outlook:
    """Say what a lost node would lead to. Pure."""
    how = "SLURM ends or requeues the job" if facts.scheduler == "slurm" else "the job ends without a word"
    return Outlook(
        f"{how}; the next attempt waits until the lost one cannot train any more, then resumes",
        missing_settings(facts, "guard", "successor"),
    )


def play(training: Training) -> None:
    """Save, and lose the node of the batch shell."""
    if training.facts.scheduler == "slurm":
        hint = "resil drill lose-node --scheduler local"
        raise CouldNotLook("only an administrator can take a node of SLURM away", hint=hint)
    training.save()
    training.watch()
    training.more_steps()
    host = training.readings.attempt().host
    training.strike(lambda: training.inject("scheduler", fault="lost-node", node=host))
    if training.see_end(END_S):
        training.see_resume(RESUME_S)


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the run went on elsewhere. Pure."""
    wrong = judge_resumed(seen, facts)
    return wrong or Judgement(Outcome.PASS, f"known as lost after {seen.stopped_s:.0f} s; {resumed(seen)}")


DRILL = Drill(
    summary="a node is lost",
    expects="The attempt counts as lost, not as a failure of the training; the next one goes on, never two at once.",
    outlook=outlook,
    play=play,
    judge=judge,
)
