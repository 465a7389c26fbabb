"""The words of drills: what the settings say, what was measured, and verdicts; and what several drills say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What a drill found. UNKNOWN: it could not look, which proves nothing."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the settings say about a run, as far as drills need it.

    Attributes:
        run: name of the real run.
        command: what trains; empty: not set.
        template: what launches it.
        environment: names of the variables in [environment].
        scheduler: `slurm` or `local`.
        store: the directory of checkpoints in [checkpoints]; empty: not set.
        is_own_store: whether the training saves with a Store, and no framework names the checkpoints.
        successors: how the next job gets into the queue, in words; empty: by nobody.
        walltime_s: the time limit of a job; None: none, or unknown.
        lead_s: how long before it the batch shell gets the warning signal.
        watches_walltime: whether the guard looks at the time limit itself.
        has_guard: whether the guard is on.
        channels: who is told.
        quiet_hours: when only the worst is told; empty: never.
        checks: the watchdogs that `resil watch --all` runs.
        hang_s: after how long without progress a training counts as hung; None: learned from its steps.
        floor_s: the least of that.
        on_hang: what is done then.
        acts: whether resil may act at all: [act] enabled.
        unknown_for_s: how long a check must fail before it is told.
    """

    run: str
    command: str = ""
    template: str = "python"
    environment: tuple[str, ...] = ()
    scheduler: str = "slurm"
    store: str = ""
    is_own_store: bool = True
    successors: str = ""
    walltime_s: float | None = None
    lead_s: float = 300.0
    watches_walltime: bool = True
    has_guard: bool = True
    channels: tuple[str, ...] = ()
    quiet_hours: str = ""
    checks: tuple[str, ...] = ()
    hang_s: float | None = None
    floor_s: float = 120.0
    on_hang: str = "tell"
    acts: bool = False
    unknown_for_s: float = 180.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What would happen with these settings, before anything is broken.

    Attributes:
        would: one sentence.
        missing: what to change first, a sentence each; empty: nothing is known to be missing.
    """

    would: str
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a drill measured. Seconds count from the fault.

    Attributes:
        done: what was done to the training, in words; empty: the drill did not come so far.
        step: the newest step of the training then, and `durable` that of the newest durable checkpoint.
        ranks: how many ranks had a heartbeat then.
        told_s: until the first message about it; None: there was none. `told` is its text.
        stopped_s: until the attempt ended; None: it did not. `end` says how, `cause` why, as `resil why` does.
        saved_at: the step of a save between the fault and the end; None: there was none.
        resumed_s: until the next attempt trained; None: none did. `resumed_at`: the step it went on from.
        last_step: the last step of the attempt that the fault struck; None: unknown.
        lost_bytes: checkpoints that were set aside, and saves that were never finished.
        set_aside: names of checkpoints that the next attempt refused.
        went_on: whether the training made steps while the fault lasted, and after it.
        left_alone: whether no job was queued, held or cancelled meanwhile.
        saved_again: whether a save became durable after the fault was over.
        notes: further facts, a sentence each.
    """

    done: str = ""
    step: int = 0
    durable: int | None = None
    ranks: int = 0
    told_s: float | None = None
    told: str = ""
    stopped_s: float | None = None
    end: str = ""
    cause: str = ""
    saved_at: int | None = None
    resumed_s: float | None = None
    resumed_at: int | None = None
    last_step: int | None = None
    lost_bytes: int = 0
    set_aside: tuple[str, ...] = ()
    went_on: bool = False
    left_alone: bool = True
    saved_again: bool = False
    notes: tuple[str, ...] = ()

    @property
    def redone(self) -> int | None:
        """Return how many steps were done again; None if unknown, or if nothing was resumed."""
        if self.last_step is None or self.resumed_at is None:
            return None
        return max(0, self.last_step - self.resumed_at)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of a drill: with a reason, and what to change; `advice` is empty if nothing needs to."""

    outcome: Outcome
    reason: str
    advice: str = ""


# ---- what several drills say -----------------------------------------------------------------------------------------


def missing_settings(facts: Facts, *needs: str, told_by: tuple[str, ...] = ()) -> list[str]:
    """Return what to change first, a sentence each, if a drill needs `guard`, `store` or `successor`, or that these
    watchdogs tell somebody. Pure."""
    sentences = {
        "guard": "" if facts.has_guard else "the guard is off: remove RESIL_GUARD=off",
        "store": ""
        if facts.store
        else "[checkpoints] path is not set: your checkpoints are neither found nor verified",
        "successor": ""
        if facts.successors
        else "no setting queues the next job: resil submit --array 10, or keep_queued = 1 and enabled = true in [act]",
    }
    found = [sentences[need] for need in needs if sentences[need]]
    if told_by and not facts.channels:
        found.append("nobody would be told: set channels in [alert], then resil alert test")
    left_out = [check for check in told_by if facts.checks and check not in facts.checks]
    return found + [f"resil watch --all leaves out {check}: add it to checks in [watch]" for check in left_out]


def judge_resumed(seen: Seen, facts: Facts) -> Judgement | None:
    """Return the verdict about an attempt that ended and the next one; None if the next one went on as it should. Pure.

    It should go on at the newest durable checkpoint.
    """
    if seen.stopped_s is None:
        return Judgement(
            Outcome.FAIL,
            "the job went on without the rank: the others wait for it, and the job counts as running",
            "let the launcher end all ranks: srun --kill-on-bad-exit=1, or torchrun; set on_hang in [watch.log]",
        )
    if seen.resumed_s is None:
        return Judgement(
            Outcome.FAIL,
            f"the attempt ended ({seen.cause or seen.end}), and no attempt trained after it",
            "see why: resil why; keep a job queued: --array 10, or keep_queued in [act]",
        )
    return judge_earlier(seen) or judge_known(seen)


def judge_earlier(seen: Seen) -> Judgement | None:
    """Return the verdict about a next attempt that began before the newest durable checkpoint; else None. Pure."""
    if seen.resumed_at is None or seen.durable is None or seen.resumed_at >= seen.durable:
        return None
    return Judgement(
        Outcome.FAIL,
        f"the next attempt began at step {seen.resumed_at}, although step {seen.durable} was saved",
        "load the newest good checkpoint at the start: Store.latest(), or resil ckpt latest",
    )


def judge_known(seen: Seen) -> Judgement | None:
    """Return the verdict if it is unknown where the next attempt went on, or where it should have; else None. Pure."""
    if seen.resumed_at is not None and (seen.durable is not None or seen.saved_at is not None):
        return None
    what = "at which step it began" if seen.resumed_at is None else "which checkpoint it should have gone on from"
    return Judgement(
        Outcome.UNKNOWN,
        f"the next attempt trained, but {what} is not known",
        "tell the guard of each step and save: for batch in guard.steps(loader, save=...)",
    )


def resumed(seen: Seen) -> str:
    """Return where and when the next attempt went on, as a clause. Pure."""
    step = "an unknown step" if seen.resumed_at is None else f"step {seen.resumed_at}"
    redone = "" if seen.redone is None else f", {seen.redone} steps again"
    return f"the next attempt went on at {step} after {seen.resumed_s or 0:.0f} s{redone}"
