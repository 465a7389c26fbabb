"""Anomalies of the loss and of the gradient norm in the guards' journals: not finite, a spike, a plateau, and whether
they are resolved. Pure.

A training lasts from one `start` of rank 0 to the next: an attempt, or one of several launches in it. An anomaly
persists until a later training, which starts from a checkpoint before it, has passed its step.
Format: docs/reference/run-directory.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from resilience.finding import Verdict
from resilience.messages import plural
from resilience.watch.checks._log.reading import LogReading

NONFINITE, SPIKE, PLATEAU = "nonfinite", "spike", "plateau"
GRAD_NONFINITE, GRAD_SPIKE = "grad-norm-nonfinite", "grad-norm-spike"
KINDS = {NONFINITE: "loss-nonfinite", SPIKE: "loss-spike", PLATEAU: "loss-plateau"}
KINDS |= {GRAD_NONFINITE: GRAD_NONFINITE, GRAD_SPIKE: GRAD_SPIKE}
"""The fault of each kind."""
REPORTED_S = 3600.0
"""A loss that has become finite again is reported for this long: cron's drop-ins probe every quarter of an hour."""
MOST_IN_A_ROW = 5
"""The most attempts that are read to count how often the same step has stopped the run."""
MOST_JOURNALS = 100
"""The most journals read of one job, of its lowest ranks: ranks other than 0 have one only after an anomaly."""
_BEGINS = {"loss_nonfinite": NONFINITE, "loss_spike": SPIKE, "loss_plateau": PLATEAU}
_BEGINS |= {"grad_norm_nonfinite": GRAD_NONFINITE, "grad_norm_spike": GRAD_SPIKE}
_ENDS = {"loss_finite": NONFINITE, "loss_normal": SPIKE, "loss_level": SPIKE, "loss_improved": PLATEAU}
_ENDS |= {"grad_norm_finite": GRAD_NONFINITE, "grad_norm_normal": GRAD_SPIKE, "grad_norm_level": GRAD_SPIKE}
_TRIGGERS = {NONFINITE: "'loss'", GRAD_NONFINITE: "'grad_norm'"}
_ORDINALS = ("", "", "the second", "the third", "the fourth", "at least the fifth")


class Event(NamedTuple):
    """One line of a rank's journal; `fields` has all of it."""

    attempt: int
    time: float
    rank: int
    name: str
    step: int
    fields: dict[str, Any]


class Loss(NamedTuple):
    """A loss anomaly of one training, over its ranks.

    Attributes:
        kind: one of KINDS.
        attempt: the training's attempt, 0 for none; `job` its job, as in the names of journals.
        time: when it was detected, in seconds since the epoch by the clock of that node.
        step: the first step at which a rank detected it; `rank` is the lowest such rank, `others` counts the others.
        value: the loss for display.
        until: when it ended by itself, by the clock of that node; 0 while it persists.
        stopped: whether the guard stopped the training because of it.
        times: number of consecutive trainings that it stopped at this step.
    """

    kind: str
    attempt: int
    job: str
    time: float
    step: int
    rank: int
    others: int
    value: str
    until: float = 0.0
    stopped: bool = False
    times: int = 1


class Training:
    """The journals of one training.

    Attributes:
        attempt: its attempt, 0 for none; `began`: when rank 0's guard started, 0 if unknown.
        reached: the greatest step known to be done; -1 if none is.
        stops: the decision to stop because of an anomaly, by its kind.
    """

    def __init__(self, job: str, first: Event) -> None:
        self.attempt = first.attempt
        self.began = first.time if first.name == "start" else 0.0
        self.reached = self._base = -1
        self.stops: dict[str, Event] = {}
        self._job = job
        self._seen: dict[tuple[str, int], tuple[Event, float]] = {}

    def take(self, event: Event) -> None:
        """Process the next event."""
        name, fields = event.name, event.fields
        if kind := _BEGINS.get(name):
            self._seen[kind, event.rank] = (event, 0.0)
        elif kind := _ENDS.get(name):
            begin, _ = self._seen.get((kind, event.rank), (event, 0.0))
            self._seen[kind, event.rank] = (begin, event.time)
        elif name in ("start", "resume"):
            self._base = event.step
        else:
            self.reached = max(self.reached, event.step)
            # Compared as text: a damaged line may contain anything.
            if fields.get("exit_code") == 1:
                triggers = str(fields.get("triggers"))
                self.stops |= {kind: event for kind, name in _TRIGGERS.items() if name in triggers}

    def losses(self) -> Iterator[Loss]:
        """Yield one anomaly of each kind: one that persists, else the last one that ended."""
        for kind in KINDS:
            stop = self.stops.get(kind)
            seen = [pair for (of, _), pair in self._seen.items() if of == kind]
            if stop is not None and not self._seen:  # the journal of the rank that detected it was not read
                seen = [(stop, 0.0)]
            lasting = [pair for pair in seen if not pair[1]]
            if seen:
                first = min((begin for begin, _ in lasting or seen), key=lambda begin: (begin.step, begin.rank))
                over = 0.0 if lasting or stop is not None else max(end for _, end in seen)
                others = len(lasting or seen) - 1
                yield Loss(
                    kind, self.attempt, self._job, first.time, first.step, first.rank, others, _value(first.fields),
                    over, stop is not None,
                )  # fmt: skip

    def has_passed(self, loss: Loss) -> bool:
        """Return whether this training started after the anomaly and has passed its step."""
        is_later = self.attempt > loss.attempt or self.began > loss.time
        return is_later and self.reached > max(loss.step, self._base)


def _value(fields: dict[str, Any]) -> str:
    """Return the loss for display: `NaN`; for a spike `7.9 from a median of 2.01`."""
    if "best" in fields:
        return f"{fields['best']:.4g} at step {fields.get('best_step')}" if isinstance(fields["best"], float) else ""
    figures = (fields.get("loss", fields.get("grad_norm", "not finite")), fields.get("median"))
    texts = [f"{one:.4g}" if isinstance(one, float) else str(one)[:20] for one in figures if one is not None]
    return "".join(filter(str.isprintable, " from a median of ".join(texts)))


def parse_events(raw: bytes) -> list[Event]:
    """Return the events with a step at the end of a journal. Truncated and damaged lines are skipped."""
    events = []
    for line in raw.split(b"\n"):
        try:
            fields = json.loads(line)
            attempt, rank, step = int(fields.get("attempt") or 0), int(fields.get("rank", 0)), int(fields["step"])
            events.append(Event(attempt, float(fields["time"]), rank, str(fields["event"]), step, fields))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return events


def trainings_of(job: str, events: Iterable[Event]) -> list[Training]:
    """Return the trainings in a job's events of all ranks, oldest first."""
    found: list[Training] = []
    for event in sorted(events, key=lambda event: event[:3]):
        if not found or event.attempt != found[-1].attempt or event.name == "start":
            found.append(Training(job, event))
        found[-1].take(event)
    return found


def unresolved(trainings: Sequence[Training], before: Iterable[Loss] = ()) -> tuple[Loss, ...]:
    """Return the unresolved anomalies of these trainings, oldest first: at most one of each kind.

    `before` is the previous result: its anomalies persist if their journal could not be read, or not as far back.
    """
    found = [loss for training in trainings for loss in training.losses()]
    known = {loss[:3] for loss in found}
    kept = [loss for loss in before if loss[:3] not in known]
    left = [loss for loss in (*kept, *found) if not any(training.has_passed(loss) for training in trainings)]
    # A persisting anomaly takes precedence over one that ended by itself.
    newest = {loss.kind: loss for loss in sorted(left, key=lambda loss: not loss.until)}
    return tuple(loss._replace(times=max(loss.times, _in_a_row(trainings, loss))) for loss in newest.values())


def _in_a_row(trainings: Sequence[Training], last: Loss) -> int:
    count = 0
    for training in reversed(trainings):
        if any(loss.stopped and loss.step == last.step for loss in training.losses()):
            count += 1
        elif training.reached > last.step:
            break
    return count if last.stopped else 1


def losses_of(reading: LogReading | None) -> tuple[Loss, ...]:
    """Return the losses of a reading; those of another version of resil are skipped."""
    return tuple(Loss(*one) for one in reading.losses if len(one) == len(Loss._fields)) if reading is not None else ()


def loss_faults(reading: LogReading, now: float) -> Iterator[tuple[Verdict, str, str, str]]:
    """Yield (verdict, fault, summary, advice) for each loss anomaly of a reading."""
    for loss in losses_of(reading):
        at_least = "at least " if loss.others + 1 >= MOST_JOURNALS else ""
        others = f" and {at_least}{plural(loss.others, 'other')}" if loss.others else ""
        where = f"step {loss.step}" + (f" on rank {loss.rank}{others}" if loss.rank or others else "")
        rest = f"; {reading.over}" if reading.over else ""
        if reading.attempt > loss.attempt:
            rest = f" in attempt {loss.attempt}; attempt {reading.attempt} has not trained past that step yet"
        advice = (
            f"read the log: resil logs {reading.run}; consider resuming from a checkpoint before step {loss.step} "
            "and skipping the data after it, or lowering the learning rate"
        )
        fault, shown = KINDS[loss.kind], "the gradient norm" if loss.kind.startswith("grad") else "the loss"
        if loss.kind == PLATEAU and not loss.until:
            text = f"the loss has no new best any more, up to step {loss.step}: its lowest median is {loss.value}{rest}"
            yield Verdict.WARNING, fault, text, f"compare it with earlier runs: resil logs {reading.run}"
        elif loss.kind in (SPIKE, GRAD_SPIKE) and not loss.until:
            text = f"{shown} rose to {loss.value} at {where} and has not come down{rest}"
            yield Verdict.WARNING, fault, text, advice
        elif loss.kind not in (NONFINITE, GRAD_NONFINITE):
            continue
        elif loss.stopped:
            row = f" for {_ORDINALS[min(loss.times, MOST_IN_A_ROW)]} time in a row," if loss.times > 1 else ""
            text = f"{shown} is {loss.value}{row} at {where}: the guard has stopped the training{rest}"
            yield Verdict.CRITICAL, fault, text, advice
        elif not loss.until:
            yield Verdict.CRITICAL, fault, f"{shown} is {loss.value} since {where}{rest}", advice
        elif now - loss.until <= REPORTED_S:
            yield Verdict.WARNING, fault, f"{shown} was {loss.value} at {where} and is finite again", ""
