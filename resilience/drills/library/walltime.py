"""The time limit comes earlier than planned, as by a maintenance, or an operator's change."""

from __future__ import annotations

from resilience.drills.library import Drill
from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, judge_resumed, missing_settings, resumed
from resilience.job import JobId, JobUpdate
from resilience.quantities import format_duration

RESUME_S, SLACK_S = 300.0, 120.0


def outlook(facts: Facts) -> Outlook:
    """Say what the end of the time leads to. Pure."""
    missing = missing_settings(facts, "guard", "successor")
    if facts.lead_s <= 0:
        missing.append("there is no warning before the time limit: set signal_lead_s in [submit]")
    if facts.walltime_s is not None and facts.lead_s >= facts.walltime_s:
        missing.append(
            f"the warning comes {format_duration(facts.lead_s)} before a limit of {format_duration(facts.walltime_s)}: "
            "every job would stop at its start; lower signal_lead_s in [submit]"
        )
    if not facts.watches_walltime:
        missing.append("the guard does not look at the time limit: walltime = true in [guard]")
    how = f"the warning comes {format_duration(facts.lead_s)} before the limit" if facts.lead_s else "no warning comes"
    return Outlook(f"{how}; the guard saves and stops in time, and the next job resumes", missing)


def play(training: Training) -> None:
    """Cut the time limit of the running job, whose guard has measured a save."""
    training.save()
    training.more_steps()
    training.watch()
    cut_s = training.tempo.cut_s

    def cut() -> str:
        job = JobId(training.readings.attempt().job_id)
        end = training.stage.project.system.clock.now() + cut_s
        training.stage.project.scheduler().update(job, JobUpdate(end_time=end))
        return f"the time limit of job {job} was cut to {cut_s:g} s from now"

    training.strike(cut)
    if training.see_end(cut_s + SLACK_S):
        training.see_resume(RESUME_S)


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the training saved and stopped in time. Pure."""
    if seen.stopped_s is not None and seen.saved_at is None:
        return Judgement(
            Outcome.FAIL,
            f"the job ended without a save ({seen.cause or seen.end})",
            "save when decision.save says so, and leave the loop at decision.stop; a longer signal_lead_s in [submit]",
        )
    wrong = judge_resumed(seen, facts)
    if wrong is not None:
        return wrong
    if seen.redone:
        return Judgement(
            Outcome.FAIL,
            f"it saved at step {seen.saved_at} and stopped; {resumed(seen)}",
            "stop right after the save: leave the loop at decision.stop",
        )
    return Judgement(Outcome.PASS, f"it saved at step {seen.saved_at} and stopped in time; {resumed(seen)}")


DRILL = Drill(
    summary="the time limit is cut",
    expects="The training saves and stops before the limit, on every rank; the next one goes on without a step twice.",
    outlook=outlook,
    play=play,
    judge=judge,
)
