"""Findings of a watchdog and how bad they are: the states of the Nagios plugin API. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import total_ordering
from typing import NamedTuple


@total_ordering
class Verdict(Enum):
    """The result of a check."""

    OK = "OK"
    WARNING = "WARNING"
    UNKNOWN = "UNKNOWN"
    CRITICAL = "CRITICAL"

    @property
    def exit_code(self) -> int:
        """The exit code of a Nagios plugin: 0, 1, 3 for UNKNOWN, 2 for CRITICAL."""
        return {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}[self.value]

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        order = list(Verdict)
        return order.index(self) < order.index(other)


class Figure(NamedTuple):
    """One performance datum: `'label'=value[unit];[warn];[crit];[min];[max]`.

    Attributes:
        unit: a unit of the plugin API: empty, `s`, `%`, `B` or `c` (a counter).
        warn: the figure beyond which it is a WARNING, None where none is set. The others likewise.
    """

    label: str
    value: float
    unit: str = ""
    warn: float | None = None
    crit: float | None = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check has to say about one subject.

    Every subject that was looked at has at least one finding: an OK one when nothing is wrong. That is how a fault that
    went away is told from one that nobody looked for.

    Attributes:
        subject: what was looked at, the same text each time: `/scratch`, `gpt`, `n01:/tmp` where only that node has it.
        fault: one stable word for what is wrong: `space`, `inodes`, `stuck`, `held`. Empty when it is OK. With the
            check and the subject it makes the fingerprint of an incident, so figures never belong in it.
        verdict: how bad it is.
        summary: one sentence for a person, with figures: "91% used, 3.1 days left at 18.4 TB a day".
        advice: the command to run or the person to ask; empty when there is nothing to do.
        run: the run it is about, or empty.
        figures: performance data.
        evidence: what a person at 3 a.m. wants to see: quoted log lines, rows of the queue.
        looked: how it is known, for `--explain`: what was looked at, how, how old the figure is, why this verdict.
    """

    subject: str
    verdict: Verdict
    summary: str
    fault: str = ""
    advice: str = ""
    run: str = ""
    figures: tuple[Figure, ...] = ()
    evidence: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of one watchdog in one tick.

    Attributes:
        check: the watchdog's name: the plugin's, or the one that its table in resil.toml has.
        findings: worst first.
        time: when it began to look, seconds since the epoch.
        took_s: how long that took.
    """

    check: str
    findings: tuple[Finding, ...]
    time: float
    took_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings. Nothing looked at is UNKNOWN: silence is no good news."""
        return max((finding.verdict for finding in self.findings), default=Verdict.UNKNOWN)
