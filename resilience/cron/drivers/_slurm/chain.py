"""Decides which jobs of the scheduler should be queued, and so what to submit and what to cancel. Pure.

The chain is declarative: each caller (a job that starts or ends, `resil cron install`, a training's batch shell)
compares the queue with the wanted state and submits the difference. So nothing depends on a single sbatch, and an extra
comparison does nothing.

The token of a job, `<installation>-<kind><seed>.<number>`, is derived from the purpose of the job and not random: two
callers that see the same gap use the same token, and a caller whose sbatch got no answer finds its job again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

SUCCESSORS = 2
"""Number of jobs queued behind the running one: one may be lost before its first line (a node that fails at job start),
and the chain continues."""

_TOKEN = re.compile(r"(?P<installation>[A-Za-z0-9]+)-(?P<kind>[dp])(?P<seed>\d+)\.(?P<number>\w+)", re.ASCII)


class Mode(StrEnum):
    """How a job of the scheduler works."""

    DAEMON = "daemon"
    """Ticks in a loop until shortly before its time limit."""
    PULSE = "pulse"
    """Ticks once."""


class Token(NamedTuple):
    """Parsed token of a job.

    Attributes:
        installation: token of the installation.
        mode: mode of the job.
        seed: for a pulse its slot (seconds since the epoch); for a daemon the id of the job that submitted it, or 0.
        number: distinguishes jobs with the same seed.
    """

    installation: str
    mode: Mode
    seed: int
    number: str

    def __str__(self) -> str:
        return f"{self.installation}-{self.mode[0]}{self.seed}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """Return the parsed token, or None if it does not belong to a scheduler's job."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            return None
        mode = Mode.DAEMON if found["kind"] == "d" else Mode.PULSE
        return cls(found["installation"], mode, int(found["seed"]), found["number"])


class QueuedJob(NamedTuple):
    """A job of the scheduler in the queue.

    Attributes:
        job_id: its id; earlier jobs have smaller ids.
        token: from its comment.
        is_alive: pending, running or about to run; a finished job only reserves its token.
        is_waiting: whether it has not started.
    """

    job_id: int
    token: Token
    is_alive: bool
    is_waiting: bool


class JobRequest(NamedTuple):
    """A job to submit.

    Attributes:
        begin: earliest start, seconds since the epoch; None: as soon as no other job of the chain runs.
    """

    token: Token
    begin: int | None


class Surplus(NamedTuple):
    """A job to cancel, and why."""

    job_id: int
    why: str


class Plan(NamedTuple):
    """Difference between the queue and the wanted state.

    Attributes:
        submit: jobs to submit, in this order.
        cancel: pending jobs to cancel; empty as long as there are jobs to submit, so that the queue never gets emptier.
        waiting: number of correct jobs already pending.
        reason: one sentence.
    """

    submit: tuple[JobRequest, ...]
    cancel: tuple[Surplus, ...]
    waiting: int
    reason: str


def next_slots(now: float, pulse_s: float, count: int) -> tuple[int, ...]:
    """Return the next multiples of `pulse_s` since the epoch: aligned to the wall clock, whatever delayed the previous
    one.

    For instance, with 15 minutes: 12:00, 12:15, in any zone whose offset is a multiple of 15 minutes.
    """
    period = max(1, round(pulse_s))
    first = (int(now) // period + 1) * period
    return tuple(range(first, first + count * period, period))


def plan_chain(
    seen: Sequence[QueuedJob], now: float, *, installation: str, mode: Mode, pulse_s: float, own: int = 0, slot: int = 0
) -> Plan:
    """Compare the queue with the wanted state.

    Args:
        seen: jobs of this user with this project's job name, including finished ones.
        installation: token of the current installation.
        own: id of the calling job, which does not count; 0 for a call from outside.
        slot: slot of the calling pulse, which may have started slightly early by its node's clock.
    """
    others = [one for one in sorted(seen, key=lambda one: one.job_id) if one.is_alive and one.job_id != own]
    waiting = [one for one in others if one.is_waiting and one.token.installation == installation]
    right = [one for one in waiting if one.token.mode is mode]
    if mode is Mode.DAEMON:
        right, surplus, requests = _daemons(right, seen, installation, own)
    else:
        alone = own == 0 and not any(one.token.installation == installation for one in others)
        right, surplus, requests = _pulses(
            right, seen, max(now, slot), installation, pulse_s, inside=own > 0, alone=alone
        )
    surplus += [Surplus(one.job_id, f"it is a {one.token.mode}") for one in waiting if one.token.mode is not mode]
    submit = tuple(requests)
    there = f"{len(right)} of {SUCCESSORS} wait"
    if submit:
        return Plan(
            submit, (), len(right), f"{there}: submitting {', '.join(str(request.token) for request in submit)}"
        )
    return Plan((), tuple(surplus), len(right), f"{there}" + (f", {len(surplus)} too many" if surplus else ""))


def _daemons(
    waiting: Sequence[QueuedJob], seen: Sequence[QueuedJob], installation: str, own: int
) -> tuple[list[QueuedJob], list[Surplus], list[JobRequest]]:
    kept = list(waiting[:SUCCESSORS])
    surplus = [Surplus(one.job_id, "enough jobs are queued before it") for one in waiting[SUCCESSORS:]]
    fresh = _unused(seen, installation, Mode.DAEMON, own)
    return kept, surplus, [JobRequest(next(fresh), None) for _ in range(SUCCESSORS - len(kept))]


def _pulses(
    waiting: Sequence[QueuedJob],
    seen: Sequence[QueuedJob],
    now: float,
    installation: str,
    pulse_s: float,
    *,
    inside: bool,
    alone: bool,
) -> tuple[list[QueuedJob], list[Surplus], list[JobRequest]]:
    """Plan one pulse per slot.

    For a running pulse, a pulse whose slot is past is redundant. For a call from outside it is the head of the queue,
    and has already waited long.
    """
    by_slot: dict[int, QueuedJob] = {}
    surplus = []
    for one in waiting:
        if one.token.seed in by_slot:
            surplus.append(Surplus(one.job_id, f"job {by_slot[one.token.seed].job_id} has the same slot"))
        else:
            by_slot[one.token.seed] = one
    wanted = next_slots(now, pulse_s, SUCCESSORS)
    if inside:
        kept = [by_slot.pop(slot) for slot in wanted if slot in by_slot]
        surplus += [Surplus(one.job_id, "its slot is past or no longer valid") for one in by_slot.values()]
        missing = [slot for slot in wanted if slot not in {one.token.seed for one in kept}]
    else:
        kept = list(by_slot.values())[:SUCCESSORS]
        surplus += [
            Surplus(one.job_id, "enough jobs are queued before it") for one in list(by_slot.values())[SUCCESSORS:]
        ]
        # The queue is empty: the first pulse starts at once instead of at its slot.
        period = wanted[1] - wanted[0]
        missing = [slot for slot in ([wanted[0] - period] if alone else []) + list(wanted) if slot not in by_slot]
        missing = missing[: SUCCESSORS - len(kept)]
    requests = [
        JobRequest(next(_unused(seen, installation, Mode.PULSE, slot)), slot if slot > now else None)
        for slot in missing
    ]
    return kept, surplus, requests


def _unused(seen: Iterable[QueuedJob], installation: str, mode: Mode, seed: int) -> Iterator[Token]:
    """Yield tokens of a seed that no job has, including finished ones: submit would find those, and queue nothing."""
    used = {one.token for one in seen}
    number = 1
    while True:
        token = Token(installation, mode, seed, str(number))
        if token not in used:
            yield token
        number += 1
