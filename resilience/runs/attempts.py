"""Attempts of a run, their saves, and the stages of a forced end: values and their descriptions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilience.switch import describe_age, printable


class AttemptEnd(StrEnum):
    """Why an attempt ended, according to its own batch shell."""

    FINISHED = "finished"
    """The training ended with exit code 0 and wrote `finished`."""
    EXITED = "exited"
    """The training ended by itself; see the exit code."""
    STOPPED = "stopped"
    """The training was requested to stop (time nearly over, or a kill switch) and did, with 75."""
    SUPERSEDED = "superseded"
    """A newer attempt started; this one was ended without a save."""
    TERMINATED = "terminated"
    """SIGTERM came from the scheduler (time limit, cancel, requeue, preemption) or from the batch shell (a kill switch,
    `stop_after`), and the training ended after it."""
    LOST = "lost"
    """No end was recorded (SIGKILL, a dead node), or SLURM revoked the job under its launch (a dead node)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, read from `attempts/` of the run directory.

    Attributes:
        number: the fencing token, from 1.
        job_id: SLURM_JOB_ID of the job (the raw id).
        label: the displayed id, `12_3`.
        restart: SLURM_RESTART_COUNT, 0 at first.
        host: node of the batch shell.
        pid: of the batch shell.
        start_time: seconds since the epoch.
        end_time: None while it runs, or if no end was recorded; of a lost one, when it last wrote a heartbeat.
        end: None while it runs, or if its end is unknown.
        exit_code: the launch's true exit code; None while unknown.
        why: the reason of the end, by the batch shell and the guards, or empty.
        oom_kills: how many processes of the job the kernel killed for memory meanwhile, on the node of the batch shell;
            None if nothing counted them.
    """

    number: int
    job_id: int
    label: str
    restart: int
    host: str
    pid: int
    start_time: float
    end_time: float | None = None
    end: AttemptEnd | None = None
    exit_code: int | None = None
    why: str = ""
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class LastSave:
    """The saves that the guard of rank 0 journalled.

    Attributes:
        step: of the newest save that is durable; None while none is known.
        time: of that save, in seconds since the epoch, as all times here; 0 when unknown.
        pending_step: of a save that began after it and is not durable yet; None when there is none.
        pending_since: when that began.
        in_flight: whether the training continues meanwhile.
        failed_step: of a save that failed after it; None when there is none.
        why: the error of that save.
        attempt, failed_attempt, pending_attempt: the attempts of these saves, 0 for none.
        failed_time: when that save failed.
        is_whole: whether all journals were read; if not, an older save may be durable although `step` is None.
    """

    step: int | None = None
    time: float = 0.0
    pending_step: int | None = None
    pending_since: float = 0.0
    in_flight: bool = False
    failed_step: int | None = None
    why: str = ""
    attempt: int = 0
    failed_attempt: int = 0
    failed_time: float = 0.0
    is_whole: bool = True
    pending_attempt: int = 0


_NO_PENDING = {"pending_step": None, "pending_since": 0.0, "pending_attempt": 0, "in_flight": False}
_NO_FAILURE = {"failed_step": None, "failed_time": 0.0, "failed_attempt": 0, "why": ""}


def last_save(events: Iterable[Mapping[str, Any]]) -> LastSave | None:
    """Return the state of the saves in rank 0's journal, given in order, of one or several attempts; None if there are
    none."""
    known: dict[str, Any] = {}
    for event in events:
        name, number = event.get("event"), _whole(event.get("step"))
        time, attempt = _seconds(event.get("time")) or 0.0, _whole(event.get("attempt")) or 0
        if name == "start":  # another attempt: a pending save of the previous one never becomes durable
            known |= _NO_PENDING
        elif number is None:
            continue
        elif name == "save_begin":
            known |= _NO_PENDING | {"pending_step": number, "pending_since": time, "pending_attempt": attempt}
        elif name == "save_staged" and number == known.get("pending_step"):
            known["in_flight"] = True
        elif name in ("save", "save_failed"):
            if number == known.get("pending_step"):
                known |= _NO_PENDING
            if name == "save":
                known |= _NO_FAILURE | {"step": number, "time": time, "attempt": attempt}
            else:
                why = printable(str(event.get("error", "")))
                known |= {"failed_step": number, "failed_time": time, "failed_attempt": attempt, "why": why}
    save = LastSave(**known)
    return None if save == LastSave() else save


def describe_save(save: LastSave, now: float, *, is_running: bool) -> str:
    """Return a description: `step 1200, 12 min ago; save of step 1300 is in flight, 40 s ago`.

    `is_running`: whether the attempt of the pending save runs.
    """
    nothing = "nothing yet" if save.is_whole else "no durable save in the newest journals"
    parts = [f"step {save.step}{when(save.time, now)}" if save.step is not None else nothing]
    if save.failed_step is not None:
        parts.append(f"save of step {save.failed_step} failed" + (f": {save.why}" if save.why else ""))
    if save.pending_step is not None and is_running:
        how = "is in flight" if save.in_flight else "has begun"
        parts.append(f"save of step {save.pending_step} {how}{when(save.pending_since, now)}")
    elif save.pending_step is not None:
        parts.append(f"save of step {save.pending_step} was interrupted")
    return "; ".join(parts)


def when(time: float, now: float) -> str:
    """Return `, 12 min ago`; empty for an unknown time."""
    return f",{describe_age(now - time) or ' just now'}" if time else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


class Stage(StrEnum):
    """The stages, in their order (slurm_templates/_attempt.bash, "ending what does not stop")."""

    NOTICED = "noticed"
    """The kill switch was seen; the training may stop at a step."""
    TAKEN = "taken"
    """The guard has requested the training to stop, which may save and end."""
    STACKS = "stacks"
    """The time to stop is over; the stacks of all ranks were requested."""
    TERM = "term"
    """SIGTERM was sent."""
    KILL = "kill"
    """SIGKILL was sent."""


@dataclass(frozen=True, slots=True)
class KillStage:
    """The stage that an attempt is in.

    Attributes:
        stage: the stage.
        since: when it was reached, in seconds since the epoch; None if unknown.
        until: when the next stage is due; None if unknown, or if there is none.
        why: the batch shell's reason: who set the switch and why, or that stop_after is over.
    """

    stage: Stage
    since: float | None
    until: float | None
    why: str


def waits_for(events: Iterable[Mapping[str, Any]], attempt: int) -> tuple[int, ...]:
    """Return the numbers of the attempts whose end an attempt waits for, from the batch shell's journal."""
    found: tuple[int, ...] = ()
    for event in events:
        if event.get("attempt") == attempt and event.get("event") in ("waiting", "attempt_start", "attempt_end"):
            numbers = str(event.get("for", "")).split() if event.get("event") == "waiting" else []
            found = tuple(int(number) for number in numbers if number.isdecimal() and len(number) < 19)
    return found


def kill_stage(events: Iterable[Mapping[str, Any]], attempt: int) -> KillStage | None:
    """Return the stage of an attempt from the batch shell's journal; None if it is not being ended.

    The last event counts: `kill_cleared` and `attempt_end` end the stage. Other events are skipped.
    """
    found: KillStage | None = None
    for event in events:
        name = event.get("event")
        if event.get("attempt") != attempt or not isinstance(name, str):
            continue
        if name in ("kill_cleared", "attempt_end", "attempt_start"):
            found = None
        elif name.startswith("kill_") and name.removeprefix("kill_") in set(Stage):
            since = _seconds(event.get("time"))
            wait_s = _seconds(event.get("kill_wait_s" if name == "kill_term" else "bound_s"))
            until = None if since is None or wait_s is None else since + wait_s
            found = KillStage(Stage(name.removeprefix("kill_")), since, until, printable(str(event.get("why", ""))))
    return found


def describe(stage: KillStage, now: float) -> str:
    """Return what was done, what comes next, and when: `SIGTERM sent 8 s ago, SIGKILL at 10:43:00`."""
    ago = "" if stage.since is None else describe_age(now - stage.since) or " just now"
    at = "" if stage.until is None else f" at {clock_time(stage.until, now)}"
    match stage.stage:
        case Stage.NOTICED:
            return f"noticed{ago}, SIGTERM{at} unless the training stops at a step"
        case Stage.TAKEN:
            return f"the training was requested to stop{ago}, SIGTERM{at} unless it saves and exits"
        case Stage.STACKS:
            return f"the training did not stop in time: requested the stacks of all ranks{ago}, then SIGTERM"
        case Stage.TERM:
            return f"SIGTERM sent{ago}, SIGKILL{at}"
        case Stage.KILL:
            return f"SIGKILL sent{ago}"


def clock_time(moment: float, now: float) -> str:
    """Return `moment` as local time, with the date if that is not the date of `now`. Both in seconds since the
    epoch."""
    from datetime import UTC, datetime  # imported late: 5 ms

    local, today = (datetime.fromtimestamp(seconds, tz=UTC).astimezone() for seconds in (moment, now))
    return local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def _seconds(value: object) -> float | None:
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if is_time else None  # type: ignore[arg-type]
