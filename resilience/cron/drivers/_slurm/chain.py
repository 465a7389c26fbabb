"""Which jobs of the scheduler should wait in the queue, and so what to submit and what to cancel. Pure.

The chain is declared, not driven: whoever looks (a job that begins or ends, `resil cron install`, a training's batch
shell) compares what the queue has with what it should have, and makes good the difference. So nothing depends on a
single sbatch, and looking once too often does nothing.

A job is known by its token, `<installation>-<kind><seed>.<number>`, which is made of what the job is for and not of
chance: two who see the same gap make the same token, and one whose sbatch was sent and never answered finds its job
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

SUCCESSORS = 2
"""So many jobs wait behind the one that runs: one may be lost before its first line (a node that dies as it starts
there), and the chain goes on."""

_TOKEN = re.compile(r"(?P<installation>[A-Za-z0-9]+)-(?P<kind>[dp])(?P<seed>\d+)\.(?P<number>\w+)", re.ASCII)


class Mode(StrEnum):
    """How a job of the scheduler works."""

    DAEMON = "daemon"
    """Ticks on and on, until shortly before its time limit."""
    PULSE = "pulse"
    """Ticks once."""


class Token(NamedTuple):
    """What a token says.

    Attributes:
        installation: the word of the installation.
        mode: what the job is.
        seed: of a pulse its slot (seconds since the epoch); of a daemon the id of the job that submitted it, 0 for
            one that was submitted from outside.
        number: tells those of one seed apart.
    """

    installation: str
    mode: Mode
    seed: int
    number: str

    def __str__(self) -> str:
        return f"{self.installation}-{self.mode[0]}{self.seed}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """What a token says, or None if it is none of a scheduler's job."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            return None
        mode = Mode.DAEMON if found["kind"] == "d" else Mode.PULSE
        return cls(found["installation"], mode, int(found["seed"]), found["number"])


class Seen(NamedTuple):
    """One job of the scheduler as the queue shows it.

    Attributes:
        job_id: its id; smaller ones came first.
        token: what its comment carries.
        is_alive: it waits, runs or is about to; an ended one only keeps its token from being used again.
        is_waiting: it has not begun.
    """

    job_id: int
    token: Token
    is_alive: bool
    is_waiting: bool


class Wish(NamedTuple):
    """A job that should wait in the queue.

    Attributes:
        begin: it must not start before, seconds since the epoch; None: as soon as no other one runs.
    """

    token: Token
    begin: int | None


class Surplus(NamedTuple):
    """A job that should not wait in the queue, and why."""

    job_id: int
    why: str


class Plan(NamedTuple):
    """What to do.

    Attributes:
        submit: in this order.
        cancel: only what waits; empty as long as there is something to submit, so that the queue is never emptier than
            before.
        waiting: how many right ones wait already.
        reason: one sentence.
    """

    submit: tuple[Wish, ...]
    cancel: tuple[Surplus, ...]
    waiting: int
    reason: str


def next_slots(now: float, pulse_s: float, count: int) -> tuple[int, ...]:
    """The next multiples of `pulse_s` since the epoch: aligned to the wall clock, whatever delayed the one before.

    For instance, every 15 minutes: 12:00, 12:15, wherever a zone is whole quarters of an hour away from UTC.
    """
    period = max(1, round(pulse_s))
    first = (int(now) // period + 1) * period
    return tuple(range(first, first + count * period, period))


def plan_chain(
    seen: Sequence[Seen], now: float, *, installation: str, mode: Mode, pulse_s: float, own: int = 0, slot: int = 0
) -> Plan:
    """Compare the queue with what it should have.

    Args:
        seen: the jobs of this person that carry this project's name, ended ones too.
        installation: the word of the installation that counts.
        own: the id of the job that asks, which does not count; 0 from outside.
        slot: of a pulse that asks: its slot; it may have begun a moment before by its node's clock.
    """
    others = [one for one in sorted(seen, key=lambda one: one.job_id) if one.is_alive and one.job_id != own]
    waiting = [one for one in others if one.is_waiting and one.token.installation == installation]
    right = [one for one in waiting if one.token.mode is mode]
    if mode is Mode.DAEMON:
        right, surplus, wishes = _daemons(right, seen, installation, own)
    else:
        alone = own == 0 and not any(one.token.installation == installation for one in others)
        right, surplus, wishes = _pulses(
            right, seen, max(now, slot), installation, pulse_s, inside=own > 0, alone=alone
        )
    surplus += [Surplus(one.job_id, f"it is a {one.token.mode}") for one in waiting if one.token.mode is not mode]
    submit = tuple(wishes)
    there = f"{len(right)} of {SUCCESSORS} wait"
    if submit:
        return Plan(submit, (), len(right), f"{there}: submitting {', '.join(str(wish.token) for wish in submit)}")
    return Plan((), tuple(surplus), len(right), f"{there}" + (f", {len(surplus)} too many" if surplus else ""))


def _daemons(
    waiting: Sequence[Seen], seen: Sequence[Seen], installation: str, own: int
) -> tuple[list[Seen], list[Surplus], list[Wish]]:
    kept = list(waiting[:SUCCESSORS])
    surplus = [Surplus(one.job_id, "enough wait before it") for one in waiting[SUCCESSORS:]]
    fresh = _unused(seen, installation, Mode.DAEMON, own)
    return kept, surplus, [Wish(next(fresh), None) for _ in range(SUCCESSORS - len(kept))]


def _pulses(
    waiting: Sequence[Seen],
    seen: Sequence[Seen],
    now: float,
    installation: str,
    pulse_s: float,
    *,
    inside: bool,
    alone: bool,
) -> tuple[list[Seen], list[Surplus], list[Wish]]:
    """Of each slot one pulse.

    Seen from a pulse that runs, one whose slot is past has nothing left to do: this one does it. From outside it is the
    head of the queue, and has waited long for that.
    """
    by_slot: dict[int, Seen] = {}
    surplus = []
    for one in waiting:
        if one.token.seed in by_slot:
            surplus.append(Surplus(one.job_id, f"job {by_slot[one.token.seed].job_id} has the same slot"))
        else:
            by_slot[one.token.seed] = one
    wanted = next_slots(now, pulse_s, SUCCESSORS)
    if inside:
        kept = [by_slot.pop(slot) for slot in wanted if slot in by_slot]
        surplus += [Surplus(one.job_id, "its slot is past, or is none any more") for one in by_slot.values()]
        missing = [slot for slot in wanted if slot not in {one.token.seed for one in kept}]
    else:
        kept = list(by_slot.values())[:SUCCESSORS]
        surplus += [Surplus(one.job_id, "enough wait before it") for one in list(by_slot.values())[SUCCESSORS:]]
        # Nothing at all is there: the first one comes at once, and need not wait for its slot.
        period = wanted[1] - wanted[0]
        missing = [slot for slot in ([wanted[0] - period] if alone else []) + list(wanted) if slot not in by_slot]
        missing = missing[: SUCCESSORS - len(kept)]
    wishes = [
        Wish(next(_unused(seen, installation, Mode.PULSE, slot)), slot if slot > now else None) for slot in missing
    ]
    return kept, surplus, wishes


def _unused(seen: Iterable[Seen], installation: str, mode: Mode, seed: int) -> Iterator[Token]:
    """Tokens of a seed that no job carries, ended ones included: theirs would be found, and nothing be submitted."""
    used = {one.token for one in seen}
    number = 1
    while True:
        token = Token(installation, mode, seed, str(number))
        if token not in used:
            yield token
        number += 1
