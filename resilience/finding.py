"""Findings of a watchdog and their severity: the states of the Nagios plugin API. Pure."""

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
        """Return the exit code of a Nagios plugin: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
        return {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}[self.value]

    @property
    def severity(self) -> int:
        """Return the position in the order of severity: OK 0, WARNING 1, UNKNOWN 2, CRITICAL 3."""
        return list(Verdict).index(self)

    def __lt__(self, other: object) -> bool:
        return self.severity < other.severity if isinstance(other, Verdict) else NotImplemented


class Figure(NamedTuple):
    """One performance datum: `'label'=value[unit];[warn];[crit];[min];[max]`.

    Attributes:
        unit: a unit of the plugin API: empty, `s`, `%`, `B` or `c` (a counter).
        warn: threshold of WARNING, None where unset. `crit` likewise.
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
    """One result of a check for one subject.

    Every probed subject has at least one finding: OK when there is no fault. This distinguishes a fault that is
    resolved from a fault that was not checked.

    Attributes:
        subject: the probed object, with a stable name: `/scratch`, `gpt`, `n01:/tmp` for an object on one node.
        fault: one stable word for the fault: `space`, `inodes`, `stuck`, `held`. Empty for OK. Check, subject and fault
            are the fingerprint of an incident, so a fault never contains figures.
        verdict: the severity.
        summary: one sentence for the user, with figures: "91% used, 3.1 days left at 18.4 TB a day".
        advice: the command to run or the person to ask; empty if no action is needed.
        run: the affected run, or empty.
        figures: performance data.
        evidence: quoted log lines, rows of the queue.
        looked: explanation for `--explain`: what was probed and how, the age of the figures, the reason for the
            verdict.
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
        check: the watchdog's name: the plugin's name, or the name of its table in resil.toml.
        findings: worst first.
        time: start of the probe, seconds since the epoch.
        took_s: duration of the probe.
    """

    check: str
    findings: tuple[Finding, ...]
    time: float
    took_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict of the findings; UNKNOWN without findings."""
        return max((finding.verdict for finding in self.findings), default=Verdict.UNKNOWN)
