"""Prints what the watchdogs found: as the Nagios plugin API wants it, as a table for people, or as JSON.

Source: https://www.monitoring-plugins.org/doc/guidelines.html ("Plugin Output for Nagios", "Performance data"): the
first line has the verdict and all performance data; what follows is for people. Here it is the worst finding's line,
and each finding has a line of its own, so nothing is said twice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from resilience.cli.output import clean, paint, print_json, table
from resilience.finding import Figure, Finding, Report, Verdict

_COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.UNKNOWN: "blue", Verdict.CRITICAL: "red"}
EVIDENCE_LINES = 5
"""So many lines of evidence are shown below a bad finding; `--explain` and `--json` have all."""

OK_ROWS = 20
"""On a terminal, so many findings that are well are shown; of ten thousand logs nobody reads the rest."""


def show_reports(
    reports: Sequence[Report], *, explain: bool = False, as_json: bool = False, everything: bool = False
) -> int:
    """Print the findings and return the exit code of the worst verdict; `everything` stands for `--all`."""
    worst = max((report.verdict for report in reports), default=Verdict.UNKNOWN)
    if as_json:
        print_json("watch", to_json(reports))
    elif sys.stdout.isatty():
        for text in rows_for_people(reports, explain=explain):
            print(text)
    else:
        for text in lines(reports, explain=explain, everything=everything):
            print(text)
    return worst.exit_code


def lines(reports: Sequence[Report], *, explain: bool = False, everything: bool = False) -> list[str]:
    """The lines for programs, for cron's mail and for pipes, worst first. Pure."""
    found = sorted(((r.check, f) for r in reports for f in r.findings), key=lambda pair: pair[1].verdict, reverse=True)
    told = (performance(f, fig, check if everything else "") for check, f in found for fig in f.figures)
    data = " ".join(dict.fromkeys(told))  # two findings about one subject have the same figures
    worst = max((report.verdict for report in reports), default=Verdict.UNKNOWN)
    shown = []
    if everything:
        shown.append(f"RESIL {worst.value} - {_counted(reports, found)}" + (f" | {data}" if data else ""))
    elif not found:
        shown.append(f"RESIL {worst.value} - no watchdog has looked")
    for number, (check, finding) in enumerate(found):
        text = line(check, finding)
        if number == 0 and not everything:
            what = f"all {len(found)} are OK" if worst is Verdict.OK else f"worst of {len(found)}"
            text += f" ({what})" if len(found) > 1 else ""
            text += f" | {data}" if data else ""
        shown.append(text)
        shown += [f"  {text}" for text in _details(finding, explain=explain)]
    return shown


def _counted(reports: Sequence[Report], found: Sequence[tuple[str, Finding]]) -> str:
    """`1 critical, 12 ok in 4 watchdogs; worst: fs /scratch: 97% used`. Pure."""
    verdicts = [finding.verdict for _, finding in found]
    counts = [
        f"{verdicts.count(verdict)} {verdict.value.lower()}" for verdict in reversed(Verdict) if verdict in verdicts
    ]
    watchdogs = f"{len(reports)} watchdog{'' if len(reports) == 1 else 's'}"
    text = f"{', '.join(counts) or 'nothing'} in {watchdogs}"
    if found and found[0][1].verdict is not Verdict.OK:
        text += f"; worst: {found[0][0]} {_said(found[0][1])}"
    return text


def line(check: str, finding: Finding) -> str:
    """`FS WARNING - /scratch: 91% used`. Pure."""
    return f"{_barless(check).upper()} {finding.verdict.value} - {_said(finding)}"


def _said(finding: Finding) -> str:
    return _barless(f"{finding.subject}: {finding.summary}")


def _barless(text: str) -> str:
    """Text without what would begin performance data, or a new line."""
    return clean(text).replace("|", "¦")


def _details(finding: Finding, *, explain: bool) -> list[str]:
    """What stands below a finding: what to do, evidence, and how it is known."""
    shown = []
    if finding.verdict is not Verdict.OK:
        evidence = finding.evidence if explain else finding.evidence[:EVIDENCE_LINES]
        shown += [f"> {_barless(text)}" for text in evidence]
        if finding.advice:
            shown.append(f"try: {_barless(finding.advice)}")
    return shown + ([_barless(text) for text in finding.looked] if explain else [])


def performance(finding: Finding, figure: Figure, check: str = "") -> str:
    """`'label'=value[unit];[warn];[crit];[min];[max]`. Pure.

    The label has the subject, so that it is the same however many there are. `=` may not stand in it, and a quote is
    doubled. A figure that is no number is `U`, undetermined.
    """
    label = figure.label if finding.subject in figure.label else f"{finding.subject} {figure.label}"
    label = _barless(f"{check} {label}".strip()).replace("=", ":").replace("'", "''")

    def number(value: float | None) -> str:
        if value is None:
            return ""
        if value != value or value in (float("inf"), -float("inf")):
            return "U"
        return f"{value:.6f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"  # no exponent: [-0-9.] only

    value = number(figure.value)
    rest = ";".join(
        "" if number(v) == "U" else number(v) for v in (figure.warn, figure.crit, figure.minimum, figure.maximum)
    )
    return f"'{label}'={value}{figure.unit if value != 'U' else ''};{rest}".rstrip(";")


def rows_for_people(reports: Sequence[Report], *, explain: bool = False) -> list[str]:
    """A table, for a terminal: worst first, what to do below each."""
    found = sorted(((r.check, f) for r in reports for f in r.findings), key=lambda pair: pair[1].verdict, reverse=True)
    well = [pair for pair in found if pair[1].verdict is Verdict.OK]
    hidden = 0 if explain else max(0, len(well) - OK_ROWS)
    found = found[: len(found) - hidden]
    headers = ("VERDICT", "WATCHDOG", "SUBJECT", "WHAT")
    cells = [(f.verdict.value, check, f.subject, f.summary) for check, f in found]
    head, *rows = table(headers, cells)
    indent = " " * (head.find("SUBJECT") - head.find("VERDICT"))
    shown = [head]
    for (_, finding), row in zip(found, rows, strict=True):
        word = finding.verdict.value
        shown.append(paint(word, _COLOURS[finding.verdict]) + row.removeprefix(word))
        shown += [paint(f"{indent}{text}", "dim") for text in _details(finding, explain=explain)]
    if hidden:
        shown.append(paint(f"and {hidden} more that are OK (all of them: --explain, --json)", "dim"))
    return shown


def to_json(reports: Sequence[Report]) -> dict[str, Any]:
    """The reports as JSON's own types. Pure."""
    worst = max((report.verdict for report in reports), default=Verdict.UNKNOWN)
    return {
        "verdict": worst.value,
        "exit_code": worst.exit_code,
        "reports": [
            {
                "check": report.check,
                "verdict": report.verdict.value,
                "time": report.time,
                "took_s": round(report.took_s, 3),
                "findings": [_finding(finding) for finding in report.findings],
            }
            for report in reports
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(finding, name) for name in Finding.__dataclass_fields__}
    record["verdict"] = finding.verdict.value
    record["figures"] = [
        {name: _finite(getattr(figure, name)) for name in Figure._fields} for figure in finding.figures
    ]
    return record


def _finite(value: Any) -> Any:
    """JSON has no word for infinity."""
    is_finite = not isinstance(value, float) or (value == value and abs(value) != float("inf"))
    return value if is_finite else None
