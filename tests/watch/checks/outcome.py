"""A finding as verdict and fault."""

from __future__ import annotations

from resilience.finding import Finding


def outcome(finding: Finding) -> str:
    """Return the verdict and the fault: `CRITICAL no-progress`, or `OK`."""
    return f"{finding.verdict.value} {finding.fault}".rstrip()
