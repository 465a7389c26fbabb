"""Prints what the watchdogs found: one line per finding, worst first, as the Nagios plugin API wants it."""

from __future__ import annotations

from collections.abc import Sequence

from resilience.cli.output import clean
from resilience.model.finding import Figure, Finding, Report
from resilience.model.verdict import Verdict


def show_reports(reports: Sequence[Report], *, explain: bool = False) -> int:
    """Print the findings and return the exit code of the worst verdict."""
    for report in reports:
        for finding in report.findings:
            print(line(report.check, finding))
            if explain:
                for sentence in finding.looked:
                    print(f"    {clean(sentence)}")
    return max((report.verdict for report in reports), default=Verdict.UNKNOWN).exit_code


def line(check: str, finding: Finding) -> str:
    """`FS WARNING - /scratch 91% used | 'used'=91%;85;95`. Pure."""
    text = f"{check.upper()} {finding.verdict.value} - {clean(finding.subject)}: {clean(finding.summary)}"
    return text + (" | " + " ".join(map(performance, finding.figures)) if finding.figures else "")


def performance(figure: Figure) -> str:
    """`'label'=value[unit];[warn];[crit];[min];[max]`. Pure."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.10g}"

    rest = ";".join(number(v) for v in (figure.warn, figure.crit, figure.minimum, figure.maximum))
    return f"'{figure.label}'={number(figure.value)}{figure.unit};{rest}".rstrip(";")
