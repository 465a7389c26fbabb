"""A finding in two words."""

from __future__ import annotations

from resilience.finding import Finding


def outcome(finding: Finding) -> str:
    """The verdict and the fault: `CRITICAL silent`; of what is well, `OK`."""
    return f"{finding.verdict.value} {finding.fault}".rstrip()
