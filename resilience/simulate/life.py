"""One life of a simulated run, from its first submission to its end. Pure.

Saves are not events: what an attempt has trained, saved and lost follows from when it ends. The events are those that
decide: the start of a job, a failure, the end of a cause, a time limit, a person who acts.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from resilience.attempts.breaker import EXCLUDED_S, State, decide, host_at_fault, looked_at
from resilience.attempts.failure import Confidence, FailureClass
from resilience.attempts.failure import Failure as Classified
from resilience.attempts.ledger import LedgerRow
from resilience.cadence import decide as decide_cadence
from resilience.cadence import measured_mtbf
from resilience.runs.attempts import AttemptEnd
from resilience.simulate.scenario import Failure, Rates, Scenario

LONGEST = 10
"""A life ends when it has taken so many times its work, and MOST_S more: such a run does not finish."""
MOST_S = 30 * 86_400.0
MOST_ATTEMPTS = 10_000
FAILS_S = 60.0
"""An attempt whose cause still lasts takes at least this long to fail again."""
FIRST_S = 3600.0
"""The interval of `auto` is decided anew when the observed time has grown by half: its optimum, which grows with the
root of that, has then changed by about what its hysteresis allows. Not before this time."""
SCHEDULER_KNOWS = (FailureClass.NODE_FAILURE, FailureClass.PREEMPTED)
_ENDS = {FailureClass.NODE_FAILURE: AttemptEnd.LOST, FailureClass.PREEMPTED: AttemptEnd.TERMINATED}
_NEVER = Failure(math.inf, FailureClass.UNKNOWN)
_OUT_OF_TIME = Failure(math.inf, FailureClass.WALLTIME)


@dataclass(slots=True)
class Life:
    """Where the time of a life went, in seconds: the parts sum up to `wall_s`.

    Attributes:
        trained_s: steps that count: saved, or never lost.
        redone_s: steps that were lost, and done again.
        restart_s: from the start of an attempt to its first step.
        save_s: waiting for saves, also at the end of a job.
        queue_s: waiting for a job.
        held_s: waiting for a person, or for the breaker.
        attempts, jobs: how many began.
        burnt: jobs that ended without a new checkpoint that is durable.
        is_finished: whether the work was done.
    """

    trained_s: float = 0.0
    redone_s: float = 0.0
    restart_s: float = 0.0
    save_s: float = 0.0
    queue_s: float = 0.0
    held_s: float = 0.0
    wall_s: float = 0.0
    attempts: int = 0
    jobs: int = 0
    burnt: int = 0
    is_finished: bool = False

    @property
    def running_s(self) -> float:
        """Return how long it had nodes."""
        return self.trained_s + self.redone_s + self.restart_s + self.save_s


class _Row(NamedTuple):
    """What is kept of an attempt until the breaker asks for it."""

    attempt: int
    start_time: float
    end_time: float
    failure: Failure
    before_s: float
    trained_s: float
    redone_s: float


def live(scenario: Scenario, seed: str, *, until_s: float = math.inf, is_always_asked: bool = False) -> Life:
    """Return one life. The same seed gives the same life.

    Args:
        until_s: look no further; what is trained by then counts.
        is_always_asked: ask the breaker after each attempt, and about all: also where that changes nothing. For tests.
    """
    return _Run(scenario, random.Random(seed), until_s, is_always_asked).live()


class _Run:
    def __init__(self, scenario: Scenario, rng: random.Random, until_s: float, is_always_asked: bool) -> None:
        self.given, self.rng, self.until_s, self.is_always_asked = scenario, rng, until_s, is_always_asked
        self.life, self.now = Life(), 0.0
        self.arrivals = scenario.source.arrivals(scenario.nodes, rng)
        self.next = next(self.arrivals, _NEVER)
        self.lasting: list[tuple[float, int, Failure]] = []  # a heap, by the end of the cause
        self.away: dict[str, float] = {}  # nodes that the scheduler does not offer, and until when
        self.swapped: set[str] = set()  # nodes that a spare has replaced in this job
        self.excluded: frozenset[str] = frozenset()
        self.named: dict[str, float] = {}  # nodes that failures have named, and when they did last
        self.no_start_until = 0.0
        self.rows: deque[_Row | LedgerRow] = deque(maxlen=looked_at(scenario.policy))
        self.closed_after = self.progressed = 0
        costs = scenario.costs
        self.observed_s, self.failures, self.interval_s = 0.0, 0, scenario.every.seconds
        self.shortest_s = max(costs.stall_s + max(costs.step_s, 1e-3), costs.durable_s / costs.in_flight)
        self.tasks = scenario.array

    def live(self) -> Life:
        given, life = self.given, self.life
        horizon_s = min(self.until_s, LONGEST * given.work_s + MOST_S)
        while not life.is_finished and self.now < horizon_s and life.attempts < MOST_ATTEMPTS:
            self._wait(horizon_s)
            if self.now >= horizon_s:
                break
            life.jobs += 1
            self.swapped.clear()
            end_of_job, spares, before_s = self.now + given.walltime_s, given.spares, life.trained_s
            while True:
                cause = self._attempt(end_of_job, horizon_s)
                if cause is None or not self._may_relaunch(cause, spares, end_of_job):
                    break
                spares -= 1
                self.swapped.add(cause.node)
            life.burnt += cause is not None and life.trained_s <= before_s
        life.wall_s = self.now
        return life

    # ---- between attempts -------------------------------------------------------------------------------------------

    def _wait(self, horizon_s: float) -> None:
        """Wait for the next job, and for a person if none is queued."""
        given = self.given
        if not self.tasks and not given.policy.keep_queued:
            self._hold(self.now + given.person_s, horizon_s)
            self.tasks = given.array
        self.tasks = max(0, self.tasks - 1)
        latest = max(horizon_s, self.now)
        start = min(self.now + given.queue_s[int(self.rng.random() * len(given.queue_s))], latest)
        self._pass_until(start)
        while start < min(self.no_start_until, latest):
            start = min(self.no_start_until, latest)
            self._pass_until(start)
        self.life.queue_s += start - self.now
        self.now = start

    def _hold(self, until: float, horizon_s: float) -> None:
        until = min(until, max(horizon_s, self.now))
        self.life.held_s += until - self.now
        self.now = until

    def _pass_until(self, time: float) -> None:
        """Let the failures before `time` pass: nothing trains, but their causes may last."""
        while self.next.at < time:
            self._begin_cause(self._take())

    def _take(self) -> Failure:
        """Take the next failure out of the stream."""
        taken, self.next = self.next, next(self.arrivals, _NEVER)
        return taken

    def _begin_cause(self, cause: Failure) -> None:
        until = cause.at + cause.lasts_s
        if cause.lasts_s <= 0:
            return
        if cause.kind not in SCHEDULER_KNOWS:
            heappush(self.lasting, (until, self.life.attempts, cause))
        elif cause.node:
            self.away[cause.node] = until
        else:
            self.no_start_until = max(self.no_start_until, until)

    def _has(self, node: str) -> bool:
        """Return whether the job has this node; all have none in particular."""
        if not node or not (self.excluded or self.swapped or self.away):
            return True
        return not (node in self.excluded or node in self.swapped or self.away.get(node, 0.0) > self.now)

    # ---- an attempt -------------------------------------------------------------------------------------------------

    def _attempt(self, end_of_job: float, horizon_s: float) -> Failure | None:
        """Start, and train until something ends the attempt. Return that; None: the end of the life."""
        life, start = self.life, self.now
        life.attempts += 1
        before_s = life.trained_s
        cause = self._cause_of_end(start, min(end_of_job, horizon_s))
        end, trained_s, redone_s, save_s = self._train(
            start, min(cause.at, horizon_s), end_of_job, cause.at <= horizon_s
        )
        life.restart_s += end - start - trained_s - redone_s - save_s
        life.redone_s += redone_s
        life.save_s += save_s
        life.trained_s += trained_s
        self.observed_s += end - start
        self.now = end
        if life.is_finished or (end >= horizon_s and end < min(cause.at, end_of_job)):
            return None
        if cause.at > end:
            cause = _OUT_OF_TIME._replace(at=end)
        elif end - start > self.given.costs.restart_s:
            self.failures += 1
        self.rows.append(_Row(life.attempts, start, end, cause, before_s, trained_s, redone_s))
        self._ask_breaker(cause, horizon_s, is_progress=_ms(life.trained_s) > _ms(before_s))
        return cause

    def _cause_of_end(self, start: float, end: float) -> Failure:
        """Return the failure that will end this attempt, unless it ends before; one after `end` does not matter."""
        self._pass_until(start)
        while self.lasting and self.lasting[0][0] <= start:
            heappop(self.lasting)
        restart_s = self.given.costs.restart_s
        fails_at = start + max(FAILS_S, restart_s)
        for until, _, cause in self.lasting:
            if until > start + restart_s and fails_at < min(self.next.at, end) and self._has(cause.node):
                return cause._replace(at=fails_at, lasts_s=0.0)
        while self.next.at < end:
            cause = self.next
            if not self._has(cause.node) and isinstance(self.given.source, Rates):  # then it is its replacement
                self.next = cause = cause._replace(node=f"{cause.node}r")
            if (cause.share >= 1 or self.rng.random() < cause.share) and self._has(cause.node):
                return cause
            self._take()
        return self.next

    def _train(
        self, start: float, fails_at: float, end_of_job: float, is_failure: bool
    ) -> tuple[float, float, float, float]:
        """Return when the attempt ends, and the seconds trained for good, trained in vain, and spent on saves.

        It ends at `fails_at`: by a failure, or because nobody looks further. Before the end of a job the training
        saves, and waits until that is durable. Saves of an earlier interval count as durable when the interval changes.
        """
        given, costs = self.given, self.given.costs
        at, left_s = start + costs.restart_s, given.work_s - self.life.trained_s
        end, last_save = min(fails_at, end_of_job), end_of_job - costs.durable_s
        trained_s = save_s = 0.0
        while True:
            observed_s = self.observed_s + at - start
            period_s = self._interval_s(observed_s)
            train_s = max(period_s - costs.stall_s, 1e-3)
            saves = max(0, math.ceil(left_s / train_s) - 1)
            finish = at + left_s + saves * costs.stall_s + costs.durable_s
            whole = saves
            if given.every.is_auto:
                whole = min(saves, math.ceil(max(FIRST_S, observed_s / 2) / period_s))
            changed = at + whole * period_s
            if finish <= end:
                self.life.is_finished = True
                return finish, trained_s + left_s, 0.0, save_s + saves * costs.stall_s + costs.durable_s
            if whole >= saves or changed >= min(fails_at, last_save):
                break
            trained_s += whole * train_s
            save_s += whole * costs.stall_s
            left_s -= whole * train_s
            at = changed
        lived_s = end - at
        if lived_s <= 0:
            return end, trained_s, 0.0, save_s
        steps_s = max(0.0, min(lived_s, last_save - at))
        cycles = int(steps_s / period_s)
        done_s = min(left_s, cycles * train_s + min(steps_s - cycles * period_s, train_s))
        kept_s = done_s
        if is_failure and fails_at <= end_of_job:
            begun = min(int((steps_s + costs.stall_s) / period_s), saves)
            durable = int(max(0.0, lived_s - costs.lag_s) / period_s)
            kept_s = min(done_s, min(begun, durable) * train_s)
        return end, trained_s + kept_s, done_s - kept_s, save_s + lived_s - done_s

    def _interval_s(self, observed_s: float) -> float:
        """Return from the start of a save to that of the next, as the guard decides it (guard/triggers/cadence.py).

        More saves in flight than allowed are skipped, so that they come no faster than the file system takes them.
        """
        if self.given.every.is_auto:
            mtbf, redo_max_s = measured_mtbf(self.failures, observed_s), self.given.redo_max_s
            current_s = self.interval_s or None
            self.interval_s = decide_cadence(
                self.given.costs, mtbf, redo_max_s=redo_max_s, current_s=current_s
            ).interval_s
        return max(self.interval_s, self.shortest_s)

    # ---- what follows ------------------------------------------------------------------------------------------------

    def _ask_breaker(self, cause: Failure, horizon_s: float, *, is_progress: bool) -> None:
        """Ask the breaker what follows, and let a person act where it asks for one.

        Where the attempt has made progress and no node was named before, it says that all may run: that is not asked.
        """
        given = self.given
        if cause is self.next:
            self._take()
            self._begin_cause(cause)
        if is_progress:
            self.progressed = self.life.attempts
        is_named = self.now - self.named.get(cause.node, -math.inf) < EXCLUDED_S
        if cause.node:
            self.named[cause.node] = self.now
        is_known = is_progress and not self.excluded and not is_named and given.nodes > 1
        if (is_known and not self.is_always_asked) or not (given.policy.failures or given.policy.neutral):
            return
        if given.nodes > 1 and not self.is_always_asked:  # of one node, the breaker also compares with earlier ones
            self._forget_rows()
        rows = [_ledger_row(one, given.nodes) for one in self.rows]
        self.rows = deque(rows, self.rows.maxlen)  # each is made once
        found = decide(rows, given.policy, self.now, closed_after=self.closed_after)
        self.excluded = frozenset(found.elsewhere)
        if found.state is not State.OPEN:
            return
        if found.retry_at is not None:
            self._hold(found.retry_at, horizon_s)
            return
        self.closed_after = self.life.attempts
        ends = [until for until, _, one in self.lasting if self._has(one.node)]
        self._hold(max([self.now + given.person_s, *ends]), horizon_s)

    def _forget_rows(self) -> None:
        """Forget attempts that change no decision: before the last progress, and too old to count against a node."""
        while self.rows[0].attempt < self.progressed and self.now - (self.rows[0].end_time or 0.0) >= EXCLUDED_S:
            self.rows.popleft()

    def _may_relaunch(self, cause: Failure, spares: int, end_of_job: float) -> bool:
        """Return whether the batch shell launches again in the same job: another node than the bad one is there."""
        if not spares or not cause.node or self.now != cause.at or self.now >= end_of_job:
            return False
        is_lost = cause.kind is FailureClass.NODE_FAILURE
        return is_lost or bool(host_at_fault(_classified(cause), self.given.policy))


def _ms(trained_s: float) -> int:
    """Return the step of a simulated run: it makes one in each millisecond."""
    return int(1000 * trained_s)


def _classified(cause: Failure) -> Classified:
    return Classified(
        failure=cause.kind,
        confidence=Confidence.LIKELY,
        reason=cause.kind.text,
        fingerprint=f"{cause.kind} {cause.node}",
        host=cause.node,
    )


def _ledger_row(row: _Row | LedgerRow, nodes: int) -> LedgerRow:
    """Return what the ledger of a real run would say. Of its nodes only the one that failed makes a difference."""
    if isinstance(row, LedgerRow):
        return row
    kind, node = row.failure.kind, row.failure.node or "n0"
    is_out_of_time = kind is FailureClass.WALLTIME
    return LedgerRow(
        attempt=row.attempt,
        job=str(row.attempt),
        host=node if nodes == 1 else "others",
        nodes=node if nodes == 1 else f"{node},others",
        start_time=row.start_time,
        launch_time=row.start_time,
        end_time=row.end_time,
        end=AttemptEnd.STOPPED if is_out_of_time else _ENDS.get(kind, AttemptEnd.EXITED),
        exit_code=75 if is_out_of_time else 1,
        first_step=_ms(row.before_s),
        last_step=_ms(row.before_s + row.trained_s + row.redone_s),
        durable_step=_ms(row.before_s + row.trained_s) if row.trained_s > 0 else None,
        failure=_classified(row.failure),
    )
