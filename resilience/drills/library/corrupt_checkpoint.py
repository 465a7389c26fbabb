"""One bit of the newest checkpoint flips, as by a disk or a memory that fails silently."""

from __future__ import annotations

from pathlib import Path

from resilience.drills.library import Drill
from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outcome, Outlook, Seen, judge_known, missing_settings, resumed
from resilience.inject.checkpoint.alter import flip_bit

END_S, RESUME_S = 120.0, 300.0


def outlook(facts: Facts) -> Outlook:
    """Say what a damaged checkpoint would lead to. Pure."""
    missing = missing_settings(facts, "guard", "store", "successor")
    if not facts.store:
        return Outlook("nobody would notice: the next attempt loads it, or crashes at it", missing)
    return Outlook("the next attempt refuses it by its digests, and resumes from the one before it", missing)


def play(training: Training) -> None:
    """Save twice, flip a bit in the newer checkpoint, and kill a rank, so that the next attempt reads it."""
    training.need_store()
    training.save()
    training.more_steps()
    training.save()
    training.watch()
    rank = training.last_rank()

    def damage() -> str:
        path, bit = damage_checkpoint(training.readings.checkpoints()[-1].path)
        done = training.inject("kill", rank=rank)
        return f"bit {bit} of {path.parent.name}/{path.name} was flipped; then {done}"

    training.strike(damage)
    if training.see_end(END_S):
        training.see_resume(RESUME_S)


def damage_checkpoint(checkpoint: Path) -> tuple[Path, int]:
    """Flip a bit in the middle of the largest file of a checkpoint; return the file and the number of the bit."""
    files = [path for path in ([checkpoint] if checkpoint.is_file() else checkpoint.rglob("*")) if path.is_file()]
    largest = max((path for path in files if ".resil" not in path.parts), key=lambda path: path.stat().st_size)
    return largest, 8 * flip_bit(largest)


def judge(seen: Seen, facts: Facts) -> Judgement:
    """Say whether the damage was noticed. Pure."""
    if seen.stopped_s is None or seen.resumed_s is None:
        return Judgement(
            Outcome.FAIL,
            f"no attempt trained after it ({seen.cause or seen.end or 'the attempt did not end'})",
            "see: resil why; resil ckpt verify; load with Store.latest(), which falls back to an older checkpoint",
        )
    if unknown := judge_known(seen):
        return unknown
    if not seen.set_aside and (seen.resumed_at or 0) >= (seen.durable or 0):
        return Judgement(
            Outcome.FAIL,
            f"nobody noticed: the next attempt trains on from the damaged checkpoint of step {seen.resumed_at}",
            "load with Store.latest(), which verifies; or see: resil ckpt latest",
        )
    if not seen.resumed_at and not seen.set_aside:
        return Judgement(
            Outcome.FAIL,
            "the next attempt began anew without a look at the checkpoints, although an older one is good",
            "load the newest good checkpoint at the start: Store.latest(), or resil ckpt latest",
        )
    if not seen.resumed_at:
        return Judgement(
            Outcome.FAIL,
            "the next attempt refused it and began anew, although an older checkpoint is good",
            "keep at least two: latest = 2 in [checkpoints]",
        )
    how = "refused by its digest" if seen.set_aside else "passed over"
    return Judgement(Outcome.PASS, f"{how}; {resumed(seen)}")


DRILL = Drill(
    summary="the newest checkpoint is damaged",
    expects="The next attempt notices, sets the checkpoint aside, and goes on at the one before it.",
    outlook=outlook,
    play=play,
    judge=judge,
)
