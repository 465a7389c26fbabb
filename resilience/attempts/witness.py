"""What the attempts of a run say about nodes. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from resilience.attempts.breaker import (
    EXCLUDED_S,
    MAY_HEAL,
    OF_A_HOST,
    WITNESSES,
    Treatment,
    hosts_of,
    nodes_of,
    treatment_of,
    with_progress,
)
from resilience.attempts.failure import Confidence, FailureClass, Role
from resilience.attempts.ledger import LedgerRow
from resilience.attempts.rules import Rule, all_rules
from resilience.messages import cut
from resilience.nodes.evidence import Evidence, Source, is_node_name
from resilience.settings.sections import ActSettings

MOST_SUSPECTS = 8
"""Of more nodes nobody knows which one it is; and a crash loop on a thousand nodes would fill the folder."""
_XID_RULES = "xid.toml:"
_XID = re.compile(r"Xid \([^)]*\).*?: (\d+)[,\s]")


def evidence_of(rows: Sequence[LedgerRow], policy: ActSettings, run: str, path: str, by: str) -> tuple[Evidence, ...]:
    """Return the evidence in attempts, oldest first: nodes that failures name, Xids, and nodes of several failed
    attempts that none had which made progress.

    `path` is the run directory: names of runs are used twice. A failure of the program says nothing about a node, nor
    does one after a fault that was injected on purpose; only Xids and wrong values are still the hardware's.
    """
    found = []
    for row in rows:
        for node, source, why in (*_named(row, policy), *_xids(row)):
            found.append(_evidence(row, node, source, why, run, path, by))
        found += _corruptions(row, run, path, by)
    fine = with_progress(rows)
    good = {node for row in rows if row.attempt in fine for node in nodes_of(row)}
    failed = [row for row in rows if row.attempt not in fine and not row.injected and _may_be_the_node(row, policy)]
    for count, row in enumerate(failed, 1):
        before = [one for one in failed[:count] if _ended(row) - _ended(one) < EXCLUDED_S]
        counts = Counter(node for one in before for node in nodes_of(one) - good)
        most = max(counts.values(), default=0)
        suspects = [node for node in nodes_of(row) if counts[node] == most]
        if good and most >= WITNESSES and 0 < len(suspects) <= MOST_SUSPECTS:
            why = f"{most} attempts failed on it, and others made progress without it"
            for node in suspects:
                found.append(_evidence(row, node, Source.COMMON, why, run, path, by, share=1 / len(suspects)))
    return tuple(found)


def _named(row: LedgerRow, policy: ActSettings) -> Iterator[tuple[str, Source, str]]:
    failure = row.failure
    if failure is None or failure.confidence is Confidence.GUESS or row.injected:
        return
    if treatment_of(row, policy) in OF_A_HOST or failure.failure is FailureClass.NODE_FAILURE:
        for node in hosts_of(row):
            yield node, Source.NAMED, f"{failure.failure.text}: {failure.reason}"


def _corruptions(row: LedgerRow, run: str, path: str, by: str) -> Iterator[Evidence]:
    """Yield a record for each computation that the hardware got wrong, shared by the nodes that may have done so."""
    for one in row.corruptions:
        if one.among > MOST_SUSPECTS or not is_node_name(one.node):
            continue
        for number in range(min(one.times, 2)):
            about = f"{path} {row.attempt}.{one.step}.{one.rank}.{number}"
            proof = _evidence(row, one.node, Source.SDC, one.why, run, path, by, share=1 / one.among)
            yield replace(proof, time=one.time, about=about)


def _xids(row: LedgerRow) -> Iterator[tuple[str, Source, str]]:
    """Yield one Xid of each kind: lines of one failure repeat each other, and their times are unknown."""
    found: dict[Source, str] = {}
    for quote in row.failure.quotes if row.failure is not None else ():
        if match := _XID.search(quote.text):
            for rule, source in _xid_rules():  # a line that shows an Xid may be quoted for another rule
                if rule.match(quote.text):
                    found.setdefault(source, f"Xid {match[1]}: {quote.text}")
    for source, why in found.items():
        for node in hosts_of(row):
            yield node, source, why


@cache
def _xid_rules() -> tuple[tuple[Rule, Source], ...]:
    """Return the rules for Xids of hardware; those of programs, and mere diagnostics, are no evidence."""
    of_role = {Role.ROOT: Source.XID, Role.CASCADE: Source.SOFT_XID}
    return tuple(
        (rule, of_role[rule.role])
        for rule in all_rules()
        if rule.name.startswith(_XID_RULES) and rule.role in of_role and rule.failure is not FailureClass.GPU_PROGRAM
    )


def _may_be_the_node(row: LedgerRow, policy: ActSettings) -> bool:
    return row.failure is not None and treatment_of(row, policy) in {Treatment.RETRY, *MAY_HEAL}


def _ended(row: LedgerRow) -> float:
    return row.start_time if row.end_time is None else row.end_time


def _evidence(
    row: LedgerRow, node: str, source: Source, why: str, run: str, path: str, by: str, share: float = 1.0
) -> Evidence:
    text, about = f"attempt {row.attempt} of {run}: {cut(why, 300)}", f"{path} {row.attempt}"
    return Evidence(node=node, time=_ended(row), source=source, why=text, about=about, run=run, job=row.job,
                    by=by, share=round(share, 3))  # fmt: skip
