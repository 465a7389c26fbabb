"""Where failures come from: bundled rates, a CSV of rates or of failures, a published trace of GPUs, a ledger. Pure.

Formats, told apart by their first line (`#` begins a comment):
  class,failures,node_days[,repair]   rates: so many failures of a class were seen in so many node-days
  time,node,class[,repair]            failures; a row without a class tells only for how long the trace lasts
  ,Time,GPUs                          how many GPUs a training had, as published with PCcheck (ASPLOS 2025)
  MILLISECONDS,add|remove,NODE        the same by nodes, as published with Bamboo (NSDI 2023)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from resilience.attempts.breaker import Treatment, treatment_of, with_progress
from resilience.attempts.failure import FailureClass
from resilience.attempts.ledger import LedgerRow
from resilience.errors import QuantityError, UsageError
from resilience.messages import cut, suggest
from resilience.quantities import parse_in_unit, parse_number
from resilience.settings.sections import ActSettings
from resilience.simulate.scenario import Failure, Rate, Rates, Trace

BUNDLED = {
    "llama3": "Llama 3 405B, 419 interruptions in 54 days on 16,384 GPUs (arXiv:2407.21783, table 5)",
    "rsc-1": "Meta's RSC-1, 6.50 in 1,000 node-days (Kokolis et al., HPCA 2025, arXiv:2410.21680)",
    "rsc-2": "Meta's RSC-2, 2.34 in 1,000 node-days (Kokolis et al., HPCA 2025, arXiv:2410.21680)",
}
"""What comes with resil, with its source."""
_NO_FAILURE = {FailureClass.FINISHED, FailureClass.STOPPED, FailureClass.WALLTIME}
_NODES = ["ms", "event", "node"]
EPOCH_S = 1e9
"""Times from here on are dates: the first one is the begin of the trace. Others count from its begin."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many GPUs there were: `(seconds since the first row, GPUs)`, in the order of their times."""

    points: tuple[tuple[float, int], ...]

    @property
    def length_s(self) -> float:
        return self.points[-1][0] if self.points else 0.0

    @property
    def most(self) -> int:
        return max(gpus for _, gpus in self.points)


def bundled(name: str) -> Rates:
    """Return the rates that come with resil."""
    found = parse_failures(files(__package__).joinpath("data", f"{name}.csv").read_text(encoding="utf-8"), name)
    assert isinstance(found, Rates)
    return found


def parse_failures(text: str, name: str, gpus_per_node: int = 8) -> Rates | Trace | Capacity:
    """Return what a CSV says; `name` is that of its file. Raise UsageError, with the line, if it cannot be used."""
    lines = [(number, line) for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]
    try:
        rows = [[cell.strip() for cell in next(csv.reader([line]))] for _, line in lines]
    except csv.Error as error:
        raise UsageError(f"{name} is no CSV: {error}") from None
    head = [cell.lower() for cell in rows[0]] if rows else []
    if len(head) == 3 and head[1] in ("add", "remove"):  # no header
        head = _NODES
        lines.insert(0, (0, ""))
        rows.insert(0, head)
    read = next((read for needed, read in _FORMATS if {*needed} <= {*head}), None)
    if read is None:
        begins = f"begins with {cut(lines[0][1], 80)!r}: that is no format that resil reads" if rows else "is empty"
        hint = "time,node,class or class,failures,node_days as the first line"
        raise UsageError(f"{name} {begins}", hint=hint)
    found = []
    for (number, _), row in zip(lines[1:], rows[1:], strict=True):
        try:
            found.append(read(dict(zip(head, row, strict=False))))
        except (ValueError, KeyError, OverflowError) as error:
            what = f"there is no column {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{name}, line {number}: {what}", hint=getattr(error, "hint", "")) from None
    if read is _rate:
        return _rates(found)
    ordered = sorted(found, key=lambda one: one[0])
    trace = _trace(ordered) if read is _failure else _capacity(ordered, gpus_per_node)
    if trace.length_s <= 0:
        hint = "add a row with the time of its end, and no class" if read is _failure else ""
        raise UsageError(f"{name} has no length", hint=hint)
    return trace


def _rate(row: Mapping[str, str]) -> Rate:
    failures, days = parse_number(row["failures"]), parse_number(row["node_days"])
    if failures < 0 or days <= 0:
        raise QuantityError("failures are at least 0, and node_days more than that")
    return Rate(_kind(row["class"]), failures / days, _repair_s(row))


def _rates(rates: Sequence[Rate]) -> Rates:
    """Return rates with those that differ in nothing else added up."""
    found: dict[tuple[FailureClass, float], float] = {}
    for one in rates:
        found[one.kind, one.lasts_s] = found.get((one.kind, one.lasts_s), 0.0) + one.per_node_day
    return Rates(tuple(Rate(kind, rate, lasts_s) for (kind, lasts_s), rate in found.items() if rate))


def _failure(row: Mapping[str, str]) -> Failure:
    kind = _kind(row["class"]) if row["class"] else FailureClass.UNKNOWN
    return Failure(_time(row["time"]), kind, row["node"], _repair_s(row), share=float(bool(row["class"])))


def _trace(rows: Sequence[Failure]) -> Trace:
    begin = rows[0].at if rows and rows[0].at >= EPOCH_S else 0.0
    length_s = rows[-1].at - begin if rows else 0.0
    return Trace(tuple(one._replace(at=one.at - begin) for one in rows if one.share), length_s)


def _gpus(row: Mapping[str, str]) -> tuple[float, int, str]:
    gpus = parse_number(row["gpus"])
    if gpus < 0 or gpus != int(gpus):
        raise QuantityError(f"{row['gpus']!r} GPUs: it must be a whole number, not below 0")
    return parse_number(row["time"]), int(gpus), ""


def _node(row: Mapping[str, str]) -> tuple[float, int, str]:
    if row["event"] not in ("add", "remove"):
        raise QuantityError(f"{row['event']!r} is neither add nor remove")
    return parse_number(row["ms"]) / 1000, int(row["event"] == "add"), row["node"]


def _capacity(rows: Sequence[tuple[float, int, str]], gpus_per_node: int) -> Capacity:
    found: dict[float, int] = {}
    there: set[str] = set()
    for at, count, node in rows:
        if node:
            (there.add if count else there.discard)(node)
            count = gpus_per_node * len(there)
        found[at - rows[0][0]] = count
    return Capacity(tuple(found.items()))


_FORMATS: tuple[tuple[Sequence[str], Callable[[Mapping[str, str]], Any]], ...] = (
    (("class", "failures", "node_days"), _rate),
    (("time", "node", "class"), _failure),
    (("time", "gpus"), _gpus),
    (_NODES, _node),
)


def _kind(word: str) -> FailureClass:
    known = sorted(set(FailureClass) - _NO_FAILURE)
    if word not in known:
        raise QuantityError(f"{word!r} is no class of failures", hint=suggest(word, known))
    return FailureClass(word)


def _repair_s(row: Mapping[str, str]) -> float:
    return _seconds(row["repair"]) if row.get("repair") else 0.0


def _seconds(text: str) -> float:
    seconds = parse_in_unit("_s", text)
    if seconds < 0:
        raise QuantityError(f"{text!r} is negative")
    return seconds


def _time(text: str) -> float:
    """Return a time in seconds: since the epoch if it is a date."""
    try:
        return _seconds(text)
    except QuantityError:
        with suppress(ValueError):
            return datetime.fromisoformat(text).timestamp()
        raise


# ---- GPUs that come and go ------------------------------------------------------------------------------------------


def preemptions(capacity: Capacity, nodes: int, gpus_per_node: int) -> Trace:
    """Return what the GPUs of a trace mean for a job of `nodes`, which needs all of them.

    When GPUs go, they may be of a node of the job: as probable as for the others. If too few are left, it is hit, and
    waits until there are enough. Raise UsageError if there never are.
    """
    need = nodes * gpus_per_node
    if capacity.most < need:
        raise UsageError(
            f"the trace has at most {capacity.most} GPUs, and the job needs {need}",
            hint=f"--nodes {max(1, capacity.most // gpus_per_node)} --gpus-per-node {gpus_per_node}",
        )
    found, before = [], need
    for number, (at, gpus) in enumerate(capacity.points):
        if gpus < min(before, need):
            later = (time for time, count in capacity.points[number:] if count >= need)
            until = next(later, capacity.length_s)
            found.append(Failure(at, FailureClass.PREEMPTED, lasts_s=until - at))
        elif gpus < before:
            found.append(Failure(at, FailureClass.PREEMPTED, share=_share(before, gpus, nodes, gpus_per_node)))
        before = gpus
    return Trace(tuple(found), capacity.length_s, is_from_start=True)


def _share(before: int, after: int, nodes: int, gpus_per_node: int) -> float:
    """Return the probability that nodes that go are among those of the job."""
    there, gone = math.ceil(before / gpus_per_node), math.ceil((before - after) / gpus_per_node)
    free = there - nodes
    return 1.0 if gone > free else 1 - math.comb(free, gone) / math.comb(there, gone)


# ---- the past of a run ----------------------------------------------------------------------------------------------


def trace_of_ledger(rows: Sequence[LedgerRow], now: float, policy: ActSettings) -> Trace | None:
    """Return the failures of a run, from its attempts; None if it has not run for any time.

    Attempts that failed one after another by the same cause, without progress, are one cause that lasted so long. What
    people and time limits ended is no failure.
    """
    if not rows:
        return None
    begin, progressed = rows[0].start_time, with_progress(rows)
    end = max((row.end_time if row.end_time is not None else row.start_time for row in rows), default=begin)
    if rows[-1].failure is None:
        end = max(end, now)
    found: list[Failure] = []
    cause = ""
    for row in rows:
        failure, at = row.failure, row.end_time
        is_failure = failure is not None and failure.failure not in {*_NO_FAILURE, FailureClass.CANCELLED}
        if failure is None or at is None or not is_failure:
            cause = ""
        elif cause == failure.fingerprint and found and row.attempt not in progressed:
            found[-1] = found[-1]._replace(lasts_s=at - begin - found[-1].at)
        else:
            neutral = treatment_of(row, policy) is Treatment.NEUTRAL
            kind = failure.failure
            if neutral and kind is not FailureClass.NODE_FAILURE:
                kind = FailureClass.PREEMPTED
            found.append(Failure(max(0.0, at - begin), kind, failure.host.partition(".")[0]))
            cause = failure.fingerprint
    return Trace(tuple(sorted(found)), end - begin) if end > begin else None
