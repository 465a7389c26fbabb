"""Promises of the breaker over drawn histories: hundreds each time, 100,000 with RESIL_SOAK=1.

A history is drawn attempt by attempt, by a scheduler that obeys the breaker. What each attempt did is known to the test
(a new durable step, failed, ended from outside, neither); the rows show it as a ledger would: with or without a guard,
with ends that are missing, clocks that differ, and the job id of a requeue.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from resilience.attempts.breaker import (
    BACKOFF_S,
    LONGEST_BACKOFF_S,
    SHORT_S,
    TREATMENTS,
    Breaker,
    State,
    Treatment,
    decide,
    looked_at,
)
from resilience.attempts.failure import Confidence, Failure, FailureClass
from resilience.attempts.ledger import LedgerRow
from resilience.runs.attempts import AttemptEnd
from resilience.settings.sections import ActSettings

SOAK = "RESIL_SOAK" in os.environ
HISTORIES = 100_000 if SOAK else 250
CLASSES: list[FailureClass] = [one for one in FailureClass if one is not FailureClass.FINISHED]
OUTSIDE = (AttemptEnd.TERMINATED, AttemptEnd.SUPERSEDED)
DELIBERATE = (FailureClass.STOPPED, FailureClass.CANCELLED)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)] if SOAK else []


def is_outside(row: LedgerRow, policy: ActSettings) -> bool:
    """Return whether nobody may call this end a failure of the training. The rule in words, apart from breaker.py."""
    assert row.failure is not None
    if row.end in OUTSIDE or (row.end is AttemptEnd.LOST and row.failure.failure in ("unknown", "killed")):
        return True
    return policy.treatments.get(row.failure.failure, TREATMENTS[row.failure.failure]) == "neutral"


@dataclass
class Drawn:
    """A run, its settings, and what is true of it.

    Attributes:
        closed: the newest attempt after which a person closed the breaker.
        burnt, outside: since the last progress, or since that: failures, and ends from outside.
        progressed: whether the newest attempt has made progress.
    """

    policy: ActSettings
    rows: list[LedgerRow]
    now: float = 1e6
    closed: int = 0
    burnt: int = 0
    outside: int = 0
    progressed: bool = False
    durable: int | None = None

    def decision(self, later_s: float = 0.0) -> Breaker:
        rows = self.rows[-looked_at(self.policy) :]
        return decide(rows, self.policy, self.now + later_s, closed_after=self.closed)


def draw_policy(dice: random.Random) -> ActSettings:
    treatments = {
        str(one): str(dice.choice([how for how in Treatment if how is not Treatment.END]))
        for one in dice.sample(CLASSES, dice.choice((0, 0, 1, 6)))
    }
    return ActSettings(
        failures=dice.randint(0, 6),
        half_open=dice.randint(0, 6),
        neutral=dice.choice((0, 1, 3, 20)),
        treatments=treatments,
    )


def draw_row(dice: random.Random, run: Drawn, classes: list[FailureClass], *, progress: bool) -> LedgerRow:
    """Draw the next attempt, which makes progress or does not."""
    number, skew_s = len(run.rows) + 1, dice.choice((0.0, 0.0, 0.0, -90.0, 3600.0))
    start, guarded = run.now + dice.uniform(1, 5), run.durable is not None or dice.random() < 0.5
    seconds = dice.uniform(0.1, SHORT_S - 1) if not progress else dice.uniform(SHORT_S + 1, 9e4)
    is_success = progress and dice.random() < 0.1
    end = AttemptEnd.EXITED if is_success else dice.choice((*OUTSIDE, AttemptEnd.LOST, *[AttemptEnd.EXITED] * 5))
    durable, first = run.durable, run.durable or 0
    if guarded and progress and not is_success:
        durable = first + dice.randint(1, 3)
    elif guarded and dice.random() < 0.5:
        durable = None if dice.random() < 0.5 else durable  # an old step that was saved again
    failure = Failure(
        failure=dice.choice(classes),
        confidence=dice.choice(list(Confidence)),
        reason="drawn",
        fingerprint=f"cause {dice.randint(1, 3)}",
        host=dice.choice(("", "n1", "n2")),
    )
    has_end = end is not AttemptEnd.LOST and dice.random() < 0.95
    if not guarded and progress and not is_success:
        has_end = True  # the time is all there is
    return LedgerRow(
        attempt=number,
        job=str(dice.choice((7, 7, number))),
        restart=dice.randint(0, number),
        host=dice.choice(("n1", "n2", "n3")),
        nodes=dice.choice(("", "n1", "n[1-2]")),
        start_time=start + skew_s,
        launch_time=start + skew_s,
        end_time=start + seconds + skew_s if has_end else None,
        end=end,
        exit_code=0 if is_success else dice.choice((None, 1, 137, 143)),
        first_step=first if guarded else None,
        last_step=first + dice.randint(0, 5) if guarded else None,
        durable_step=durable if guarded else None,
        failure=failure,
    )


def histories(seed: int, count: int, most: int = 40) -> Iterator[Drawn]:
    """Yield runs after each of their attempts: of a scheduler that starts one only if the breaker lets it."""
    dice = random.Random(seed)
    for _ in range(count):
        run = Drawn(draw_policy(dice), [])
        classes = dice.sample(CLASSES, dice.choice((1, 2, len(CLASSES))))
        chance = dice.choice((0.0, 0.05, 0.3))
        for _ in range(most):
            if run.decision().state is State.OPEN:
                run.now += dice.choice((0.0, 60.0, 4000.0))
            if run.decision().state is State.OPEN:
                if dice.random() < 0.7:
                    break
                run.closed = len(run.rows)  # a person closes it, and the jobs go on
                run.burnt = run.outside = 0
            run.progressed = dice.random() < chance
            row = draw_row(dice, run, classes, progress=run.progressed)
            run.rows.append(row)
            run.durable = max((one for one in (run.durable, row.durable_step) if one is not None), default=None)
            run.now = max(run.now, row.start_time, row.end_time or 0.0) + dice.choice((0.0, 1.0))
            assert row.failure is not None
            if run.progressed:
                run.burnt = run.outside = 0
            elif not is_outside(row, run.policy):
                run.burnt += 1
            elif row.failure.failure not in DELIBERATE:
                run.outside += 1
            yield run


def test_progress_is_never_held_and_no_budget_is_exceeded() -> None:
    """For all settings, over each history that a scheduler which obeys the breaker can produce:

    - after an attempt that made a new durable step, or trained for five minutes where no guard was ever seen, or exited
      with 0, the breaker is closed;
    - since the last progress, or since a person closed it, at most `failures + half_open` attempts fail, and at most
      `neutral` are ended from outside; with 0 nothing is bounded;
    - with both budgets 0 it never opens;
    - after an attempt that a person closed it for, it is closed.
    """
    for run in histories(20261122, HISTORIES):
        policy, decision = run.policy, run.decision()
        context = f"{policy}\n" + "\n".join(map(str, run.rows[-8:]))
        if run.progressed:
            assert decision.state is State.CLOSED, context
        if policy.failures:
            assert run.burnt <= policy.failures + policy.half_open, context
        if policy.neutral:
            assert run.outside <= policy.neutral, context
        if not policy.failures and not policy.neutral:
            assert decision.state is State.CLOSED, context
        closed = decide(run.rows, policy, run.now, closed_after=len(run.rows))
        assert (closed.state, closed.burnt, closed.outside) == (State.CLOSED, 0, 0), context


def test_a_decision_rests_on_ended_attempts_and_changes_only_by_waiting_for_a_try() -> None:
    """For each such history:

    - an attempt that runs, or of whose end nothing is known, never opens the breaker, nor does it close an open one
      before it has saved;
    - time alone turns an open breaker half open, at `retry_at` and never before, and changes nothing else; that is 10 s
      after the last failure, doubled for each try, at most 300 s;
    - the same job id for all attempts, as of a requeue, changes nothing.
    """
    for run in histories(20261123, HISTORIES // 5, most=12):
        decision = run.decision()
        context = f"{run.policy}\n" + "\n".join(map(str, run.rows[-8:]))
        one_runs = replace(run.rows[-1], attempt=len(run.rows) + 1, failure=None, end=None, end_time=None)
        one_runs = replace(one_runs, durable_step=None, exit_code=None)
        found = decide([*run.rows, one_runs], run.policy, run.now, closed_after=run.closed)
        assert (found.state, found.burnt) == (decision.state, decision.burnt), context
        states = [run.decision(later).state for later in (0.0, 5.0, 700.0, 1e6)]
        assert states == sorted(states, key=[State.OPEN, State.HALF_OPEN, State.CLOSED].index), context
        if decision.retry_at is None:
            assert len(set(states)) == 1, context
        else:
            failed = max(one.attempt for one in run.rows if not is_outside(one, run.policy))
            last = run.rows[failed - 1]
            assert last.failure is not None and last.end_time is not None
            waited_s = BACKOFF_S * 2 ** max(0, decision.burnt - run.policy.failures)
            assert decision.retry_at - last.end_time == pytest.approx(min(LONGEST_BACKOFF_S, waited_s)), context
            assert run.decision(decision.retry_at - run.now - 0.01).state is State.OPEN, context
            assert run.decision(decision.retry_at - run.now).state is State.HALF_OPEN, context
        requeued = [replace(one, job="7", restart=index) for index, one in enumerate(run.rows)]
        assert decide(requeued, run.policy, run.now, closed_after=run.closed) == decide(
            run.rows, run.policy, run.now, closed_after=run.closed
        ), context
