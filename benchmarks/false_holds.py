"""How often the breaker holds a run that would have gone on, and how much a run burns that would not. Simulated.

Attempts are drawn one after another with published rates of failures, and `decide` is called after each with the rows
that a ledger would show. A hold counts if a person must end it; where `decide` lets a job try after the back-off, the
simulated scheduler waits, and starts one. Pure: no process, no clock, no file.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from itertools import count

from benchmarks.measure import Claim, Options, Report
from resilience.attempts.breaker import State, decide, looked_at
from resilience.attempts.failure import Confidence, Failure, FailureClass
from resilience.attempts.ledger import LedgerRow
from resilience.runs.attempts import AttemptEnd
from resilience.settings.sections import ActSettings

DAY_S, MINUTE_S = 86400.0, 60.0
POLICY = ActSettings(enabled=True)
C = FailureClass
LLAMA3 = 419 / 54 / 2048
"""Unexpected interruptions per node-day: 419 in 54 days on 2,048 nodes of 8 GPUs. Llama 3, arXiv 2407.21783, 3.3.4."""
RSC_1, RSC_2 = 6.50e-3, 2.34e-3
"""Failures per node-day of two research clusters. Kokolis et al., arXiv 2410.21680."""
CAUSES = {
    C.GPU_FAULT: 148 + 72 + 19 + 17 + 6,  # faulty GPU, HBM3, SRAM, system processor, thermal interface
    C.NODE_FAILURE: 32 + 3 + 3 + 2 + 2 + 2 + 2,  # host maintenance, SSD, power, chassis, I/O board, CPU, system memory
    C.NETWORK: 35 + 7,  # switch or cable, NIC
    C.COLLECTIVE_TIMEOUT: 7,  # NCCL watchdog
    C.NAN_LOSS: 6,  # silent data corruption
    C.EXCEPTION: 54 + 2,  # software bug, dependency
}
"""The same 419 by their causes: Table 5 there."""
MISTAKEN = 23 / 351
"""Share of causes that the classification takes for another one: docs/measured/2026-11-23-classification.md."""
MISTAKES = {C.UNKNOWN: 5, C.HOST_OOM: 1, C.IO_ERROR: 1}
"""What it said there of network, collectives, NaN and exceptions instead. (Of GPU faults it mistook none.)"""
STEPS_PER_MINUTE = 6


@dataclass(frozen=True)
class Profile:
    """A cluster, and a training on it.

    Attributes:
        start: minutes from the start of a job to its first step: least, most. Meta's u0 is 5 to 20 (arXiv 2410.21680).
        save: minutes between checkpoints.
        walltime: hours.
        rate: failures per node-day.
        preempted: mean hours until a job is preempted; 0: never. No figure is published: ours.
        saves_last: whether the guard saves before the time limit and a preemption.
    """

    name: str
    nodes: int
    start: tuple[float, float]
    save: float
    walltime: float
    rate: float
    preempted: float = 0.0
    saves_last: bool = True


PROFILES = (
    Profile("small lab, preempted each 3 h", 1, (1, 3), 30, 24, RSC_1, preempted=3),
    Profile("the same, killed without a save", 1, (1, 3), 30, 24, RSC_1, preempted=3, saves_last=False),
    Profile("64 nodes", 64, (5, 20), 30, 48, RSC_1),
    Profile("64 nodes, the rates of RSC-2", 64, (5, 20), 60, 168, RSC_2),
    Profile("2,000 nodes, saved each 10 min", 2000, (5, 20), 10, 168, LLAMA3),
    Profile("2,000 nodes, saved each 30 min", 2000, (5, 20), 30, 168, LLAMA3),
    Profile("the same, twice the failures", 2000, (5, 20), 30, 168, 2 * LLAMA3),
    Profile("1 h walltime, saved each 50 min", 4, (2, 6), 50, 1, RSC_1, saves_last=False),
)


@dataclass
class Tally:
    """What a simulation has counted.

    Attributes:
        waits: breakers that opened and let a job try.
        held: of those, and of the others, how many a person had to close.
        in_shell: the same of a batch shell that nobody helps: it knows no causes.
    """

    attempts: int = 0
    failed: int = 0
    waits: int = 0
    held: int = 0
    in_shell: int = 0
    waited_s: float = 0.0


def simulate(profile: Profile, days: float, dice: random.Random, policy: ActSettings = POLICY) -> Tally:
    """Simulate a training without a fault of its own."""
    tally, rows, now, closed, shell, durable = Tally(), list[LedgerRow](), 0.0, 0, 0, 0
    while now < days * DAY_S:
        row = _attempt(profile, dice, tally.attempts + 1, now, durable)
        tally.attempts += 1
        rows = [*rows, row][-looked_at(policy) :]
        now = (row.end_time or now) + dice.expovariate(1 / (5 * MINUTE_S))  # in the queue
        progressed, durable = (row.durable_step or 0) > durable, max(durable, row.durable_step or 0)
        failed = row.end is AttemptEnd.EXITED and not progressed
        tally.failed += row.end is AttemptEnd.EXITED
        shell = 0 if progressed else shell + failed
        if policy.failures and shell >= policy.failures:
            tally.in_shell, shell = tally.in_shell + 1, 0
        decision = decide(rows, policy, now, closed_after=closed)
        if decision.state is State.OPEN:
            tally.waits += 1
            if decision.retry_at is not None:
                tally.waited_s += decision.retry_at - now
                now = decision.retry_at
            else:
                tally.held, closed, now = tally.held + 1, row.attempt, now + DAY_S / 2
    return tally


def _attempt(profile: Profile, dice: random.Random, number: int, now: float, durable: int) -> LedgerRow:
    """Draw an attempt up to the first of: a failure, a preemption, its time limit."""
    start_min, hours = dice.uniform(*profile.start), profile.walltime
    until = {"walltime": hours * 60, "failure": dice.expovariate(profile.nodes * profile.rate / 1440)}
    if profile.preempted:
        until["preempted"] = dice.expovariate(1 / profile.preempted / 60)
    why = min(until, key=until.__getitem__)
    lasted = until[why]
    trained = max(0.0, lasted - start_min)
    step = durable + int(trained * STEPS_PER_MINUTE)
    saved = durable + int(trained // profile.save * profile.save * STEPS_PER_MINUTE)
    end, cause, confidence = AttemptEnd.TERMINATED, C(why) if why != "failure" else C.UNKNOWN, Confidence.CERTAIN
    if why == "failure":
        cause = dice.choices(list(CAUSES), list(CAUSES.values()))[0]
        end = AttemptEnd.LOST if cause is C.NODE_FAILURE else AttemptEnd.EXITED
        confidence = Confidence.LIKELY
        if end is AttemptEnd.EXITED and dice.random() < MISTAKEN:
            cause, confidence = dice.choices(list(MISTAKES), list(MISTAKES.values()))[0], Confidence.LIKELY
    elif profile.saves_last and trained:
        saved, end = step, AttemptEnd.STOPPED
    return LedgerRow(
        attempt=number,
        job=str(number),
        host="n0",
        nodes="n0" if profile.nodes == 1 else f"n[0-{min(profile.nodes, 8) - 1}]",  # all of them take long to expand
        start_time=now,
        launch_time=now,
        end_time=now + lasted * MINUTE_S,
        end=end,
        exit_code=1,
        first_step=durable,
        last_step=step,
        durable_step=saved if saved > durable else None,
        failure=Failure(failure=cause, confidence=confidence, reason="drawn", fingerprint=f"{cause} {number}"),
    )


# ---- causes that last ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lasting:
    """A cause that ends each attempt until it is gone.

    Attributes:
        each: minutes from the start of an attempt to its failure.
        causes: in turn.
        at: the step at which they fail; None: each time another one.
        lasts: minutes; infinite for a fault of the training itself.
        guarded: whether the guard begins.
        host: that each of them names; once it is excluded the training goes on elsewhere.
    """

    name: str
    each: float
    causes: tuple[FailureClass, ...]
    at: int | None = 0
    lasts: float = float("inf")
    guarded: bool = True
    host: str = ""


LASTING = (
    Lasting("exits with 1 after a second", 1 / 60, (C.UNKNOWN,)),
    Lasting("a module is missing", 0.2, (C.MISSING_MODULE,)),
    Lasting("its own exception at the same step", 20, (C.EXCEPTION,), at=77),
    Lasting("its own exception, each time at another step", 20, (C.EXCEPTION,), at=None),
    Lasting("NaN at the same step", 20, (C.NAN_LOSS,), at=77),
    Lasting("the disk is full at each save", 30, (C.DISK_FULL,)),
    Lasting("causes that alternate", 10, (C.NETWORK, C.UNKNOWN, C.GPU_FAULT), at=None),
    Lasting("a broken GPU on a node that is used again", 2, (C.GPU_FAULT,), host="n7"),
    Lasting("ranks wait 30 min for each other", 30, (C.RENDEZVOUS,), guarded=False),
    Lasting("the time limit comes before the first save", 60, (C.WALLTIME,), at=None),
    Lasting("the file system hangs for 5 min", 1, (C.IO_ERROR,), lasts=5),
    Lasting("the file system hangs for 30 min", 1, (C.IO_ERROR,), lasts=30),
    Lasting("the network is down for 30 min", 15, (C.NETWORK,), lasts=30),
)


def outlive(case: Lasting, policy: ActSettings = POLICY) -> tuple[int, float, str]:
    """Return how many attempts failed, the minutes until the last of them ended, and what follows."""
    good = LedgerRow(
        attempt=1, job="1", start_time=-7200.0, launch_time=-7200.0, end_time=0.0, end=AttemptEnd.STOPPED, first_step=0,
        last_step=50, durable_step=50, failure=Failure(failure=C.STOPPED, confidence=Confidence.CERTAIN, reason=""),
    )  # fmt: skip
    rows, now, ended = [good], 0.0, 0.0
    for number in count(2):
        decision = decide(rows[-looked_at(policy) :], policy, now)
        if decision.state is State.OPEN and decision.retry_at is None:
            return number - 2, ended / MINUTE_S, "held"
        now = max(now, decision.retry_at or 0.0)
        if now >= case.lasts * MINUTE_S or number > 500:
            return number - 2, ended / MINUTE_S, "it trains again" if number <= 500 else "without end"
        if case.host and case.host in decision.elsewhere:
            return number - 2, ended / MINUTE_S, "it trains elsewhere"
        cause = case.causes[number % len(case.causes)]
        step = None if not case.guarded else 50 + number if case.at is None else case.at
        start, now = now, now + case.each * MINUTE_S
        end = AttemptEnd.TERMINATED if cause is C.WALLTIME else AttemptEnd.EXITED
        likely = Confidence.LIKELY
        failure = Failure(failure=cause, confidence=likely, reason="", fingerprint=str(cause), host=case.host)
        rows.append(
            LedgerRow(
                attempt=number, job=str(number), start_time=start, launch_time=start, end_time=now, end=end,
                first_step=50 if case.guarded else None, last_step=step, failure=failure, nodes="n[0-7]",
            )
        )  # fmt: skip
        ended = now
    raise AssertionError("unreachable")


def run(options: Options) -> Report:
    """Simulate each profile for 1,000 days, several times, and each lasting cause once."""
    times, days = 1 if options.quick else 3, 1000.0
    claims, notes = [], []
    for profile in PROFILES:
        tallies = [simulate(profile, days, random.Random(seed)) for seed in range(times)]
        mean = {one.name: sum(getattr(tally, one.name) for tally in tallies) / times for one in fields(Tally)}
        claims.append(Claim(f"{profile.name}: false holds in {days:,.0f} days", mean["held"], 1.0, "holds"))
        notes.append(
            f"{profile.name}: {mean['attempts']:.0f} attempts, {mean['failed']:.0f} of them failures; "
            f"{mean['in_shell']:.1f} holds by a batch shell that no watchdog helps; "
            f"{mean['waits'] - mean['held']:.1f} times a job waited for a try, {mean['waited_s']:.0f} s in all"
        )
    for case in LASTING:
        found = []
        for half_open in (POLICY.half_open, 3, 9):
            burnt, minutes, then = outlive(case, replace(POLICY, half_open=half_open))
            found.append(f"{burnt} in {minutes:.1f} min, then {then}")
        same = f"half_open = 3: {found[1]}; 9: {found[2]}" if len(set(found)) > 1 else "whatever half_open is"
        notes.append(f"{case.name}: attempts burnt: {found[0]} ({same})")
    title = f"{times} times {days:,.0f} simulated days of each healthy training; causes that last"
    return Report(title, claims=tuple(claims), notes=tuple(notes))
