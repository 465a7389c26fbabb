"""What the watchdogs found, as the Nagios plugin API wants it, and as people read it."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from resilience.cli import show_watch
from resilience.cli.show_watch import lines, performance, rows_for_people, show_reports, to_json
from resilience.finding import Figure, Finding, Report, Verdict

# https://www.monitoring-plugins.org/doc/guidelines.html#AEN201, its rules 1 to 8
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_RANGE = rf"(?:{_NUMBER})?"
DATUM = re.compile(rf"'(?:[^'=]|'')+'=(?:U|{_NUMBER})(?:s|%|B|c)?(?:;{_RANGE}){{0,4}}")


def finding(subject: str, verdict: Verdict = Verdict.OK, **fields: Any) -> Finding:
    return Finding(subject=subject, verdict=verdict, **{"summary": f"{verdict.value.lower()} here", **fields})


FULL = finding(
    "/scratch", Verdict.CRITICAL, summary="97% used", fault="space", advice="resil watch fs --top /scratch",
    figures=(Figure(label="used", value=97.0, unit="%", warn=85, crit=95, minimum=0, maximum=100),),
    evidence=tuple(f"line {n}" for n in range(8)), looked=("statvfs, just now",),
)  # fmt: skip
WELL = finding("/home", figures=(Figure(label="used", value=13_194_139_533_312, unit="B"),))
REPORTS = [
    Report(check="fs", findings=(FULL, WELL), time=5.0, took_s=0.12345),
    Report(check="log", findings=(finding("gpt", Verdict.UNKNOWN),), time=5.0),
]


def test_the_first_line_is_the_worst_finding_and_has_all_performance_data() -> None:
    first, *rest = lines(REPORTS[:1])
    assert first == (
        "FS CRITICAL - /scratch: 97% used (worst of 2) | '/scratch used'=97%;85;95;0;100 '/home used'=13194139533312B"
    )
    assert rest == [
        "  > line 0", "  > line 1", "  > line 2", "  > line 3", "  > line 4", "  try: resil watch fs --top /scratch",
        "FS OK - /home: ok here",
    ]  # fmt: skip


def test_two_findings_about_one_subject_have_its_figures_once() -> None:
    figures = (Figure(label="running", value=1),)
    found = (finding("gpt", Verdict.CRITICAL, fault="a", figures=figures), finding("gpt", fault="b", figures=figures))
    assert lines([Report(check="job", findings=found, time=5.0)])[0].endswith("(worst of 2) | 'gpt running'=1")


def test_all_watchdogs_together_begin_with_a_line_over_all() -> None:
    first, *rest = lines(REPORTS, everything=True)
    text, _, data = first.partition(" | ")
    assert text == "RESIL CRITICAL - 1 critical, 1 unknown, 1 ok in 2 watchdogs; worst: fs /scratch: 97% used"
    assert data.startswith("'fs /scratch used'=97%;85;95;0;100 '")
    assert [row for row in rest if not row.startswith("  ")] == [
        "FS CRITICAL - /scratch: 97% used", "LOG UNKNOWN - gpt: unknown here", "FS OK - /home: ok here",
    ]  # fmt: skip


def test_explaining_tells_how_it_is_known_and_all_evidence() -> None:
    shown = lines(REPORTS[:1], explain=True)
    assert "  > line 7" in shown and "  statvfs, just now" in shown


def test_one_finding_is_one_line() -> None:
    assert lines([Report(check="a", findings=(finding("x"),), time=0.0)]) == ["A OK - x: ok here"]


def test_nobody_who_looked_is_unknown() -> None:
    assert lines([]) == ["RESIL UNKNOWN - no watchdog has looked"]


def test_text_from_outside_neither_steers_the_terminal_nor_begins_performance_data_nor_a_line() -> None:
    nasty = "a|b\n\x1b[2Jc\r\u202e"
    report = Report(
        check="fs", time=0.0,
        findings=(finding(nasty, Verdict.CRITICAL, summary=nasty, advice=nasty, evidence=(nasty,), looked=(nasty,)),),
    )  # fmt: skip
    shown = lines([report], explain=True)
    assert len(shown) == 4
    assert not set("".join(shown)) & set("|\n\r\x1b\u202e")


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(label="used", value=1), "'/s used'=1"),
        (Figure(label="used", value=0.25, unit="s"), "'/s used'=0.25s"),
        (Figure(label="used", value=1e15, unit="B"), "'/s used'=1000000000000000B"),
        (Figure(label="used", value=1e-7), "'/s used'=0"),
        (Figure(label="used", value=-3.5, crit=0, maximum=10.0), "'/s used'=-3.5;;0;;10"),
        (Figure(label="used", value=float("nan"), unit="B", warn=1), "'/s used'=U;1"),
        (Figure(label="used", value=float("inf"), warn=float("inf")), "'/s used'=U"),
        (Figure(label="a=b's|\x1b", value=1), "'/s a:b''s¦?'=1"),
        (Figure(label="/s free", value=1), "'/s free'=1"),
    ],
)
def test_performance_data_are_as_the_plugin_api_has_them(figure: Figure, text: str) -> None:
    assert performance(finding("/s"), figure) == text
    assert DATUM.fullmatch(text)


def test_the_label_of_a_figure_does_not_depend_on_how_many_there_are() -> None:
    alone = performance(FULL, FULL.figures[0])
    assert alone in lines(REPORTS[:1])[0]


def test_on_a_terminal_it_is_a_table_and_the_verdicts_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = rows_for_people(REPORTS)
    plain = [re.sub("\x1b\\[[0-9]*m", "", row) for row in shown]
    assert plain[0].split() == ["VERDICT", "WATCHDOG", "SUBJECT", "WHAT"]
    assert plain[1] == "CRITICAL  fs        /scratch  97% used" and "\x1b[31mCRITICAL\x1b[0m" in shown[1]
    assert plain[7].strip() == "try: resil watch fs --top /scratch"
    assert plain[7].index("try") == plain[0].index("SUBJECT")
    assert not any("|" in row for row in plain)


def test_of_ten_thousand_that_are_well_a_terminal_shows_a_few_and_says_so() -> None:
    findings = (FULL, *(finding(f"/{n}") for n in range(10_000)))
    shown = rows_for_people([Report(check="fs", findings=findings, time=0.0)])
    assert len(shown) < 40 and "and 9980 more that are OK" in shown[-1]
    assert len(lines([Report(check="fs", findings=findings, time=0.0)])) > 10_000  # a pipe gets all


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_is_the_worst_verdicts(
    capsys: pytest.CaptureFixture[str], verdict: Verdict, as_json: bool
) -> None:
    reports = [Report(check="a", findings=(finding("x"), finding("y", verdict)), time=0.0)]
    assert show_reports(reports, as_json=as_json) == verdict.exit_code
    assert show_reports([], as_json=as_json) == 3
    assert capsys.readouterr().err == ""


def test_json_has_everything_and_is_json_whatever_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    odd = finding("x\x1b|", figures=(Figure(label="a", value=float("inf")),))
    show_reports([*REPORTS, Report(check="odd", findings=(odd,), time=1.0)], as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert (found["schema"], found["kind"], found["verdict"], found["exit_code"]) == ("resil/1", "watch", "CRITICAL", 2)
    assert found["reports"][0]["findings"][0] | {"figures": []} == {
        "subject": "/scratch", "verdict": "CRITICAL", "summary": "97% used", "fault": "space", "run": "",
        "advice": "resil watch fs --top /scratch", "figures": [], "looked": ["statvfs, just now"],
        "evidence": [f"line {n}" for n in range(8)],
    }  # fmt: skip
    assert found["reports"][2]["findings"][0]["figures"][0]["value"] is None
    assert to_json([])["exit_code"] == 3


def test_the_table_of_a_finding_without_a_watchdogs_answer_still_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_watch.show_reports([], everything=True) == 3
    assert capsys.readouterr().out == "RESIL UNKNOWN - nothing in 0 watchdogs\n"
