"""What the whole test suite shares: a plain word, at the end, about tests on real components that did not run."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once which real-component tests were skipped, why, and how to get them."""
    from tests.slurm import accounting, host

    skipped = [report for report in terminalreporter.getreports("skipped") if "slurm" in report.keywords]
    for more, how in (((), host.HOW_TO_GET), (accounting.PROGRAMS, accounting.HOW_TO_GET)):
        if skipped and (reasons := host.requirements(more)):
            terminalreporter.section("skipped: real SLURM")
            terminalreporter.line(f"{len(skipped)} tests under tests/slurm did not run: {'; '.join(reasons)}.")
            terminalreporter.line(f"To get them: {how}.")
            return
