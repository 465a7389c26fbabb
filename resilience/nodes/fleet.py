"""Judges nodes by rules, by each other and by what nodes of their kind had before. Pure.

The rules are SuperBench's (microsoft/superbenchmark, docs/user-tutorial/data-diagnosis.md), in a grammar instead of
Python that is evaluated: a comparison with a number, or with `%` the variance (value - base) / base.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from statistics import median
from typing import Any, NamedTuple

from resilience.errors import UsageError
from resilience.messages import plural
from resilience.nodes.checks import Check, Expected, Fault, Outcome
from resilience.quantities import format_bytes, format_duration, parse_in_unit

LEAST_VALUES = 3
"""A base needs as many values: of two nodes, none says which one is wrong."""

MOST_VOTES = 3
"""Values of one host in the history: a slow node that gets one job after the other would become what is normal."""

LEAST_SHARE = 0.6
"""If fewer values than this agree with their base, there is none: half of the fleet may be bad."""


NO_ANSWER = "answer"
"""In place of a check: the node gave no readings at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """What one node answered. Plain values: JSON.

    Attributes:
        host: its name.
        kind: processor and memory, and so on: only nodes of one kind are compared. Empty: unknown.
        readings: by check; None: nothing of the kind is there.
        errors: by check, why a probe gave no reading.
        hung: the checks among them that did not end in time.
    """

    host: str
    kind: str = ""
    readings: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    hung: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The result for one node.

    Attributes:
        host: its name.
        faults: by check; empty where there is none. A check of hardware that is not there is left out.
        readings: by check, what was read.
    """

    host: str
    faults: Mapping[str, tuple[Fault, ...]]
    readings: Mapping[str, Mapping[str, Any] | None]

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome."""
        outcomes = (f.outcome for found in self.faults.values() for f in found)
        return max(outcomes, default=Outcome.PASS, key=list(Outcome).index)

    @property
    def why(self) -> str:
        """Return what makes it fail in one sentence, or what is told."""
        worst = [f"{name}: {f.why}" for name, found in self.faults.items() for f in found if f.outcome is self.outcome]
        return "; ".join(worst)


class Rule(NamedTuple):
    """A comparison; a value for which it is true is bad. `is_relative`: of the variance, 1.0 is 100 %."""

    op: str
    limit: float
    is_relative: bool

    def is_broken(self, value: float, base: float | None) -> bool:
        """Return whether a value is bad; a relative rule without a base says nothing."""
        if self.is_relative:
            if not base:
                return False
            value = (value - base) / base
        return {"<": value < self.limit, ">": value > self.limit, "==": value == self.limit, "!=": value != self.limit}[
            self.op
        ]


def parse_rule(name: str, text: str) -> Rule:
    """Return a rule. For instance, `< -5%`, `> 100%`, `< 64GiB` for a name that ends with `_bytes`, `!= 8`.

    Raise UsageError for another text.
    """
    match = re.fullmatch(r"\s*(<|>|==|!=)\s*(.*?)(%?)\s*", text)
    if match:
        try:
            if match[3]:
                return Rule(match[1], float(match[2]) / 100, True)
            return Rule(match[1], parse_in_unit(name if name.endswith(("_bytes", "_s")) else "", match[2]), False)
        except ValueError:
            pass
    raise UsageError(f"{text!r} is no rule for {name}", hint="for instance '< -10%' against other nodes, or '> 5'")


def base_of(values: Sequence[float], rule: Rule) -> float | None:
    """Return what is normal for a figure, or None.

    SuperBench's baseline: the mean of the values that do not break the rule against it, until none is dropped. The
    first base is the median, because the mean of few values follows one that is far off.
    """
    if len(values) < LEAST_VALUES:
        return None
    base, kept = float(median(values)), list(values)
    for _ in range(len(values)):
        good = [value for value in kept if not rule.is_broken(value, base)]
        if len(good) < LEAST_SHARE * len(values):
            return None
        base = sum(good) / len(good)
        if len(good) == len(kept):
            break
        kept = good
    return base


def judge_nodes(
    everyone: Sequence[NodeReading],
    checks: Mapping[str, Check],
    expected: Expected,
    rules: Mapping[str, str],
    history: Sequence[Mapping[str, Any]] = (),
) -> tuple[NodeReport, ...]:
    """Return a report of each node.

    `rules`: of the user, by `check.figure`; `history`: earlier figures, of `figures_of`. Raise UsageError for a rule
    that is none.
    """
    found: dict[str, dict[str, tuple[Fault, ...]]] = {node.host: {} for node in everyone}
    for node in everyone:
        if NO_ANSWER in node.errors:
            found[node.host][NO_ANSWER] = (Fault(Outcome.FAIL, node.errors[NO_ANSWER]),)
    nodes = [node for node in everyone if NO_ANSWER not in node.errors]
    for name, check in checks.items():
        parsed = {key: parse_rule(key, text) for key, text in check.rules.items()}
        parsed |= {
            key.partition(".")[2]: parse_rule(key, text) for key, text in rules.items() if key.startswith(f"{name}.")
        }
        usual = _usual_texts(name, check, nodes)
        peers = sum(node.readings.get(name) is not None for node in nodes)
        bases: dict[tuple[str, str], float | None] = {}
        for node in nodes:
            faults = list[Fault]()
            if (error := node.errors.get(name)) is not None:
                faults.append(Fault(Outcome.FAIL if name in node.hung else Outcome.WARN, error))
            reading = node.readings.get(name)
            if reading is not None:
                faults += check.judge(reading, expected)
                for key, value in _figures(reading).items():
                    if (rule := parsed.get(key) or parsed.get("*")) is None:
                        continue
                    if rule.is_relative and (key, node.kind) not in bases:
                        bases[key, node.kind] = base_of(_values(name, key, node.kind, nodes, history), rule)
                    faults += _by_rule(rule, key, value, bases.get((key, node.kind)))
                faults += _different(reading, usual)
            elif error is None and 2 * peers > len(nodes):
                faults.append(
                    Fault(Outcome.FAIL, f"nothing of the kind is there, but on {plural(peers, 'other node')}")
                )
            if faults or reading is not None:
                found[node.host][name] = tuple(faults)
    return tuple(NodeReport(host=one.host, faults=found[one.host], readings=one.readings) for one in everyone)


def _by_rule(rule: Rule, key: str, value: float, base: float | None) -> Iterable[Fault]:
    if rule.is_broken(value, base):
        name = key if key.startswith("/") else key.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
        text = f"{name} is {_amount(key, value)}"
        limit = f"{rule.op} {_amount(key, rule.limit)}"
        if base is not None:
            text, limit = f"{text}, {_amount(key, base)} is normal", f"{rule.op} {100 * rule.limit:g}%"
        yield Fault(Outcome.FAIL, f"{text} (rule: {limit})")


def _amount(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith("_s"):
        return format_duration(value) if value >= 60 else f"{value:.3g} s"
    return f"{value:.3g} MB/s" if key.startswith("/") else f"{value:.3g}"


class _Usual(NamedTuple):
    """The text of a key that most nodes have, on how many nodes, and what another one is."""

    text: str
    nodes: int
    outcome: Outcome


def _usual_texts(name: str, check: Check, nodes: Sequence[NodeReading]) -> dict[str, _Usual]:
    """Return the texts that most nodes have; nobody is wrong where there is no majority."""
    readings = [reading for node in nodes if (reading := node.readings.get(name)) is not None]
    found = {}
    for key in sorted({key for reading in readings for key in reading}):
        outcome = check.equal.get(key) or check.equal.get("*")
        texts = [reading.get(key, "") for reading in readings]
        if outcome is None or not all(isinstance(text, str) for text in texts):
            continue
        text, count = Counter(texts).most_common(1)[0]
        if 2 * count > len(texts):
            found[key] = _Usual(text, count, outcome)
    return found


def _different(own: Mapping[str, Any], usual: Mapping[str, _Usual]) -> Iterable[Fault]:
    """Yield the texts that differ from those of most nodes."""
    for key, (text, count, outcome) in usual.items():
        if own.get(key, "") == text:
            continue
        if key.startswith("$"):
            how = "not set here" if not own.get(key) else "different here" if text else "set here only"
            yield Fault(outcome, f"{key} is {how}")
        elif key.startswith("/"):  # `/data is on`, or the error of a directory
            here, there = own.get(key) or "unknown", text or "unknown"
            yield Fault(outcome, f"{key} {here}; on {plural(count, 'node')}: {there}")
        else:
            yield Fault(
                outcome, f"{key} is {own.get(key) or 'not there'}, {text or 'not there'} on {plural(count, 'node')}"
            )


def _values(
    name: str, key: str, kind: str, nodes: Sequence[NodeReading], history: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Return the values of a figure: of these nodes, and the last few of each host in the history."""
    found = [_figures(node.readings.get(name) or {}).get(key) for node in nodes if node.kind == kind]
    votes = Counter[str]()
    for line in reversed(history):
        host, figures = str(line.get("host")), line.get("figures")
        if line.get("kind") == kind and isinstance(figures, dict) and votes[host] < MOST_VOTES:
            votes[host] += 1
            found.append(figures.get(f"{name}.{key}"))
    return [value for value in found if isinstance(value, int | float)]


def _figures(reading: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in reading.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def figures_of(node: NodeReading) -> dict[str, Any]:
    """Return the line of the history: the figures of a node."""
    figures = {f"{n}.{k}": v for n, reading in node.readings.items() for k, v in _figures(reading or {}).items()}
    return {"host": node.host, "kind": node.kind, "figures": figures}


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the patterns; all without a pattern. Raise UsageError if none matches."""
    names = sorted(names)
    found = [name for name in names if not patterns or any(fnmatch(name, pattern) for pattern in patterns)]
    if not found:
        raise UsageError(f"no check matches {', '.join(patterns)}", hint=f"the checks are {', '.join(names)}")
    return found


def with_faults(reports: Iterable[NodeReport], check: str, faults: Mapping[str, Fault]) -> tuple[NodeReport, ...]:
    """Return the reports with the faults, by host, that one more check has found."""
    return tuple(
        replace(one, faults={**one.faults, check: (faults[one.host],)}) if one.host in faults else one
        for one in reports
    )
