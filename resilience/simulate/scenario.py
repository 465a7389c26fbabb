"""What is simulated: a run, and what happens to it. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from resilience.attempts.breaker import OF_A_HOST, TREATMENTS
from resilience.attempts.failure import FailureClass
from resilience.cadence import AUTO, Costs, Every, Mtbf, known_mtbf
from resilience.settings.sections import ActSettings

DAY_S = 86_400.0


class Failure(NamedTuple):
    """Something that ends an attempt.

    Attributes:
        at: seconds since the start.
        kind: the class.
        node: on which it happens; empty: on none in particular.
        lasts_s: for how long attempts with that node, or all, fail again. Of a node that the scheduler has lost, or of
            a preemption: for how long the scheduler does not offer it. 0: a restart heals it.
        share: how probably it hits the run.
    """

    at: float
    kind: FailureClass
    node: str = ""
    lasts_s: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How often failures of a class come."""

    kind: FailureClass
    per_node_day: float
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Failures at random (Poisson), each node like the others."""

    rates: tuple[Rate, ...] = ()

    def mtbf_s(self, nodes: int) -> float:
        """Return the mean time between failures of a job."""
        per_day = nodes * sum(rate.per_node_day for rate in self.rates)
        return DAY_S / per_day if per_day else math.inf

    def arrivals(self, nodes: int, rng: random.Random) -> Iterator[Failure]:
        """Yield failures in the order of their times, without end unless there are none."""
        weights = list(itertools.accumulate(rate.per_node_day for rate in self.rates))
        have_nodes = [is_of_a_node(rate.kind) for rate in self.rates]
        mtbf_s, at, place, random = self.mtbf_s(nodes), 0.0, 0, rng.random
        while mtbf_s < math.inf:
            at -= math.log(1.0 - random()) * mtbf_s
            if len(weights) > 1:
                place = min(bisect.bisect(weights, random() * weights[-1]), len(weights) - 1)
            rate = self.rates[place]
            yield Failure(at, rate.kind, f"n{int(random() * nodes)}" if have_nodes[place] else "", rate.lasts_s)


@dataclass(frozen=True, slots=True)
class Trace:
    """Failures that have happened, in the order of their times, in `length_s`. After its end it begins again.

    `is_from_start`: replayed from its beginning; else from a place that the generator chooses, each time another one.
    """

    failures: tuple[Failure, ...]
    length_s: float
    is_from_start: bool = False

    def mtbf_s(self, nodes: int) -> float:
        """Return the mean time between failures of a job."""
        count = sum(one.share for one in self.failures)
        return self.length_s / count if count else math.inf

    def arrivals(self, nodes: int, rng: random.Random) -> Iterator[Failure]:
        """Yield failures in the order of their times, without end unless there are none."""
        begin = 0.0 if self.is_from_start else rng.random() * self.length_s
        for turn in itertools.count() if self.failures else ():
            for one in self.failures:
                if turn or one.at >= begin:
                    yield one._replace(at=one.at + turn * self.length_s - begin)


def is_of_a_node(kind: FailureClass) -> bool:
    """Return whether failures of a class have a node that causes them."""
    return kind is FailureClass.NODE_FAILURE or TREATMENTS[kind] in OF_A_HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run and its surroundings.

    Attributes:
        work_s: the training without any loss.
        nodes: of the launch; each job has `spares` more.
        costs: of saves and restarts.
        every: how often it saves: `auto`, or a number of seconds.
        source: its failures.
        queue_s: waits of a job from when it may start, each as probable as the others.
        walltime_s: time limit of a job.
        policy: of the breaker; also whether jobs are kept queued.
        array: how many tasks a person queues at once.
        person_s: how long after an alert a person closes the breaker, or queues tasks again.
    """

    work_s: float
    nodes: int = 1
    gpus_per_node: int = 8
    costs: Costs
    every: Every = AUTO
    redo_max_s: float = 0.0
    source: Rates | Trace = Rates()
    queue_s: tuple[float, ...] = (0.0,)
    walltime_s: float = math.inf
    spares: int = 0
    policy: ActSettings = field(default_factory=ActSettings)
    array: int = 10
    person_s: float = DAY_S / 2

    @property
    def mtbf(self) -> Mtbf:
        """Return how often failures end an attempt."""
        return known_mtbf(self.source.mtbf_s(self.nodes))

    @property
    def mean_wait_s(self) -> float:
        return sum(self.queue_s) / len(self.queue_s)


def random_waits(mean_s: float, count: int = 100) -> tuple[float, ...]:
    """Return waits that are distributed exponentially, by their quantiles."""
    waits = [-math.log(1 - (number + 0.5) / count) for number in range(count)]
    return tuple(mean_s * wait * count / sum(waits) for wait in waits) if mean_s else (0.0,)
