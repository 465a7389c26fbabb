"""Composes the ledger of time of a run from its folded attempts: one partition of the wall clock, and figures. Pure.

Each moment is given to one attempt, also where several overlap; the time between attempts is explained; and steps that
a later start did again are taken from the earlier attempt.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from resilience.report.fold import DIGITS, RUNNING, Durations
from resilience.report.goodput import AttemptTime, Category, ClassTime, Goodput, GpuHours, Span

LOST = (Category.REDONE, Category.HANG, Category.TAIL)
"""What the end of an attempt costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One attempt, folded.

    Attributes:
        attempt: its number; later ones have larger numbers.
        job: displayed id of the job.
        ended: the class of its end.
        start_ms, end_ms: of `spans`, which leave no gap.
        launch_ms: when the training was launched; None: it was not, or nothing tells.
        queued_ms: when its job was submitted or requeued; None: unknown.
        held_until_ms: the jobs after it were held until then; None: they were not.
        gpus: of the job; None: unknown.
    """

    attempt: int
    job: str
    ended: str
    start_ms: int
    end_ms: int
    spans: Sequence[Span]
    launch_ms: int | None = None
    queued_ms: int | None = None
    held_until_ms: int | None = None
    gpus: int | None = None


def compose(
    run: str,
    lives: Sequence[Life],
    *,
    end_ms: int,
    waits: Category = Category.QUEUE,
    since_ms: int | None = None,
    durable_step: int | None = None,
    durations: Durations | None = None,
    notes: Iterable[str] = (),
) -> Goodput:
    """Return the ledger of a run with at least one attempt.

    Args:
        run: its name.
        lives: in the order of their numbers.
        end_ms: of the ledger, unless an attempt ends later.
        waits: the category of the time from the last attempt to `end_ms`.
        since_ms: earlier time is left out, after all of it was judged.
        durable_step: where a run that is over, and not finished, would resume; None: its last steps are kept.
        durations: steps by the class of their duration.
        notes: what is not known.
    """
    spans = list(_partition(lives, end_ms, waits))
    spans = redo(spans, durable_step)
    at = max(end_ms, max((life.end_ms for life in lives), default=0))  # if no time has passed at all
    start, end = (spans[0].start_ms, spans[-1].end_ms) if spans else (at, at)
    if since_ms is not None:
        start = min(max(start, since_ms), end)
        spans = [part for span in spans if (part := clip(span, start, end)) is not None]
    sums: dict[int | None, Counter[Category]] = defaultdict(Counter)
    steps: Counter[tuple[int | None, Category]] = Counter()
    for span in spans:
        sums[span.attempt][span.category] += span.ms
        if span.first_step is not None and span.last_step is not None:
            steps[span.attempt, span.category] += span.last_step - span.first_step
    by_attempt = tuple(
        AttemptTime(
            attempt=life.attempt,
            job=life.job,
            ended=life.ended,
            start_ms=max(life.start_ms, start),
            end_ms=life.end_ms,
            gpus=life.gpus,
            steps=steps[life.attempt, Category.PRODUCTIVE],
            redone_steps=steps[life.attempt, Category.REDONE],
            ms=_in_order(sums[life.attempt]),
        )
        for life in lives
        if life.end_ms > start or life.start_ms == life.end_ms >= start
    )
    totals = sum(sums.values(), Counter())
    productive, attempts_ms = totals[Category.PRODUCTIVE], totals.total() - sums[None].total()
    kept = sum(number for (_, category), number in steps.items() if category is Category.PRODUCTIVE)
    step_s = _median_s(durations or Counter())
    return Goodput(
        run=run,
        start_ms=start,
        end_ms=end,
        is_running=bool(lives) and lives[-1].ended == RUNNING,
        spans=tuple(spans),
        ms={category: totals[category] for category in Category},
        by_attempt=by_attempt,
        by_class=_by_class(by_attempt),
        ettr=productive / (end - start) if end > start else None,
        ettr_without_queue=productive / attempts_ms if attempts_ms else None,
        effective_time=kept * step_s * 1000 / attempts_ms if step_s is not None and attempts_ms else None,
        kept_steps=kept,
        step_s=step_s,
        gpu_hours=_gpu_hours(by_attempt),
        notes=tuple(notes),
    )


# ---- one partition -------------------------------------------------------------------------------------------------


def _partition(lives: Sequence[Life], end_ms: int, waits: Category) -> Iterator[Span]:
    at: int | None = None
    before: Life | None = None
    positions: Counter[int] = Counter()
    for begin, end, life in _owned(lives):
        if at is None:
            at = begin if life.queued_ms is None else min(begin, life.queued_ms)
        yield from _between(at, begin, before, life)
        number = positions[life.attempt]
        while number < len(life.spans) and life.spans[number].start_ms < end:
            if (part := clip(life.spans[number], begin, end)) is not None:
                yield part
            if life.spans[number].end_ms > end:
                break
            number += 1
        positions[life.attempt] = number
        at, before = end, life
    if before is not None and at is not None and end_ms > at:
        yield from _until(at, end_ms, before.held_until_ms, waits)


def _owned(lives: Sequence[Life]) -> Iterator[tuple[int, int, Life]]:
    """Yield the attempt that each moment belongs to: the newest that was launched, or, if none was, the oldest."""
    changes = sorted({one for life in lives for one in (life.start_ms, life.end_ms, life.launch_ms) if one is not None})
    waiting, alive = sorted(lives, key=lambda one: (-one.start_ms, -one.attempt)), list[Life]()
    since, owner = 0, None
    for begin, end in pairwise(changes):
        while waiting and waiting[-1].start_ms <= begin:
            alive.append(waiting.pop())
        alive = [one for one in alive if one.end_ms > begin]
        launched = [one for one in alive if one.launch_ms is not None and one.launch_ms <= begin]
        new = max(launched, key=_number) if launched else min(alive, key=_number) if alive else None
        if new is not owner:
            if owner is not None:
                yield since, begin, owner
            since, owner = begin, new
        if end == changes[-1] and owner is not None:
            yield since, end, owner


def _number(life: Life) -> int:
    return life.attempt


def _between(begin: int, end: int, before: Life | None, after: Life) -> Iterator[Span]:
    """Yield what happened between two attempts."""
    queued = after.queued_ms
    if queued is None:
        yield from _until(begin, end, before.held_until_ms if before else None, Category.UNKNOWN)
        return
    submitted = min(max(begin, queued), end)
    if submitted > begin:
        yield Span(None, Category.HELD, begin, submitted)
    yield from _until(submitted, end, before.held_until_ms if before else None, Category.QUEUE)


def _until(begin: int, end: int, held_until: int | None, category: Category) -> Iterator[Span]:
    """Yield the time in which jobs were held, then the rest of it in a category."""
    middle = begin if held_until is None else min(max(begin, held_until), end)
    for one, start, stop in ((Category.HELD, begin, middle), (category, middle, end)):
        if start < stop:
            yield Span(None, one, start, stop)


def clip(span: Span, start_ms: int, end_ms: int) -> Span | None:
    """Return the part of a span between two moments, with the steps of that part; None if there is none."""
    begin, end = max(span.start_ms, start_ms), min(span.end_ms, end_ms)
    if begin >= end or (begin, end) == (span.start_ms, span.end_ms):
        return span if begin < end else None
    if span.first_step is None or span.last_step is None:
        return replace(span, start_ms=begin, end_ms=end)
    first, last = (
        span.first_step + (span.last_step - span.first_step) * (at - span.start_ms) // span.ms for at in (begin, end)
    )
    return replace(span, start_ms=begin, end_ms=end, first_step=first, last_step=last)


# ---- steps that were lost ------------------------------------------------------------------------------------------


def redo(spans: Sequence[Span], durable_step: int | None = None) -> list[Span]:
    """Return spans in order with the productive time of steps that a later span does again as redone time.

    `durable_step`: steps after it are lost although nothing has done them again.
    """
    kept_to: dict[int, int] = {}
    chain: list[int] = []

    def lose(after: int) -> None:
        while chain and kept_to[chain[-1]] > after:
            if (spans[chain[-1]].first_step or 0) < after:
                kept_to[chain[-1]] = after
                break
            kept_to[chain.pop()] = -1

    for number, span in enumerate(spans):
        if span.category is Category.PRODUCTIVE and span.first_step is not None and span.last_step is not None:
            lose(span.first_step)
            kept_to[number] = span.last_step
            chain.append(number)
    if durable_step is not None:
        lose(durable_step)
    found = []
    for number, span in enumerate(spans):
        first, last, kept = span.first_step, span.last_step, kept_to.get(number)
        if kept is None or first is None or last is None or kept == last:
            found.append(span)
            continue
        kept = max(first, kept)
        middle = span.start_ms + (span.ms * (kept - first) // (last - first) if last > first else 0)
        parts = (
            replace(span, end_ms=middle, last_step=kept),
            replace(span, category=Category.REDONE, start_ms=middle, first_step=kept),
        )
        found += [one for one in parts if one.ms]
    return found


# ---- sums ----------------------------------------------------------------------------------------------------------


def _in_order(sums: Mapping[Category, int]) -> dict[Category, int]:
    return {category: sums[category] for category in Category if sums.get(category)}


def _by_class(attempts: Iterable[AttemptTime]) -> tuple[ClassTime, ...]:
    sums: dict[str, Counter[Category]] = defaultdict(Counter)
    count: Counter[str] = Counter()
    for one in attempts:
        count[one.ended] += 1
        sums[one.ended].update(one.ms)
    found = [
        ClassTime(ended=ended, attempts=count[ended], lost_ms=sum(ms[one] for one in LOST), ms=_in_order(ms))
        for ended, ms in sums.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.lost_ms, -one.attempts, one.ended)))


def _gpu_hours(attempts: Iterable[AttemptTime]) -> GpuHours | None:
    allocated = productive = unknown = 0
    is_known = False
    for one in attempts:
        if one.gpus is None:
            unknown += 1
            continue
        is_known = True
        allocated += one.gpus * (one.end_ms - one.start_ms)
        productive += one.gpus * one.ms.get(Category.PRODUCTIVE, 0)
    if not is_known:
        return None
    hour = 3_600_000
    return GpuHours(allocated=allocated / hour, productive=productive / hour, unknown_attempts=unknown)


def _median_s(durations: Durations) -> float | None:
    """Return the median duration of a step in seconds."""
    seen, total = 0, durations.total()
    for kind in sorted(durations):
        seen += durations[kind]
        if 2 * seen >= total:
            return math.exp(kind / DIGITS) / 1000
    return None
