"""The page of a report: escaping, text equivalents, runs of which little is known; its numbers are those of JSON."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from html.parser import HTMLParser
from typing import Any

import pytest

from resilience.attempts.failure import Confidence, Failure, FailureClass
from resilience.attempts.ledger import LedgerRow
from resilience.cli.output import plain
from resilience.quantities import format_duration
from resilience.report.contents import IncidentLine, Outcome, Report, StepLine, attempt_lines, step_lines, told
from resilience.report.goodput import Category, Span
from resilience.report.page import render
from tests.report.simulated import BEGIN, simulated

HOSTILE = (
    '</script></style></title><script>alert(1)</script><img src=x onerror=alert(2)>"\' onload="x" {{ 7*7 }}'
    "\x1b[31m\u202e&amp;"
)
FIXED = {"state", "verdict", "every", "subject"}
"""Fields of words that are ours, some of which choose a mark of the page."""


class Page(HTMLParser):
    """The elements of a page with their attributes, the texts of some, and its numbers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.numbers: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        self._open.append(tag)
        if tag == "data":
            self.numbers.append((found["data-of"], found["value"], ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "data":
            path, value, shown = self.numbers[-1]
            self.numbers[-1] = (path, value, shown + data)
        if inside not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


def shown(report: Report) -> tuple[str, Page]:
    text = render(report, plain(report))
    return text, Page(text)


def embedded(text: str) -> Any:
    return json.loads(text.split('id="resil-report">')[1].split("</script>")[0])


def hostile(value: Any, name: str = "") -> Any:
    """The same value with every text of a run replaced."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: hostile(getattr(value, one.name), one.name) for one in fields(value)})
    if isinstance(value, Enum) or (isinstance(value, str) and name in FIXED):
        return value
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, tuple):
        return tuple(hostile(item) for item in value)
    return value


def test_nothing_that_comes_from_a_run_becomes_markup() -> None:
    usual = replace(simulated(12), losses=())
    text, page = shown(hostile(usual))
    _, expected = shown(usual)
    names = {name for name, _ in expected.elements}
    assert {name for name, _ in page.elements} == names, "no new kind of element"
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert sum(name == "script" for name, _ in page.elements) == 1, "the JSON"
    assert "49" not in re.findall(r"alert.2.>.{0,20}?(\d\d)", page.text), "no template of a run is evaluated"
    assert "\x1b" not in text and "\u202e" not in text.split("<script")[0]
    assert "alert(1)" in page.text, "it is shown, as text"


def test_the_page_carries_its_json_whatever_is_in_it() -> None:
    report = hostile(simulated(3))
    assert embedded(shown(report)[0]) == json.loads(json.dumps(plain(report)))


@pytest.mark.parametrize(
    "report", [simulated(12), simulated(60), Report(run="gpt", made_at=BEGIN, state="not started")]
)
def test_the_page_needs_nothing_from_elsewhere(report: Report) -> None:
    text, page = shown(report)
    for name, attributes in page.elements:
        assert "src" not in attributes and name not in ("iframe", "object", "embed", "form")
        assert attributes.get("href", "#").startswith(("#", "data:,"))
    assert not re.search(r"@import|url\((?!#)", text), "no style loads anything"
    assert "default-src 'none'" in text


def at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document[int(part)] if part.isdecimal() else document[part]
    return document


@pytest.mark.parametrize("attempts", [1, 12, 60])
def test_numbers_on_the_page_are_those_of_the_json(attempts: int) -> None:
    report = simulated(attempts)
    text, page = shown(report)
    document = embedded(text)
    assert document == json.loads(json.dumps(plain(report)))
    assert len(page.numbers) > 10
    for path, value, said in page.numbers:
        known = at(document, path)
        assert value == str(known), path
        if path.endswith("_ms") or ".ms." in path:
            known /= 1000
        if path.endswith(("_ms", "_s", "seconds")) or ".ms." in path:
            assert said == (format_duration(known) if not 0 < known < 0.1 else said), path
        elif path.endswith(("ettr", "ettr_without_queue")):
            assert said.replace("\xa0", " ") == f"{100 * known:.1f} %"
        else:
            assert said.replace(",", "") == str(known), path


def test_durations_on_the_page_are_rounded_as_those_of_the_commands() -> None:
    report = simulated(3)
    assert report.time is not None
    time = replace(report.time, ms={**report.time.ms, Category.START_UP: 16_541})
    numbers = {path: text for path, _, text in shown(replace(report, time=time))[1].numbers}
    assert numbers["time.ms.start_up"] == format_duration(16.541) == "17 s"


def test_the_categories_on_the_page_sum_to_its_wall_clock() -> None:
    report = simulated(12)
    _, page = shown(report)
    numbers = {path: int(value) for path, value, _ in page.numbers if path.startswith("time.ms.")}
    assert report.time is not None and sum(numbers.values()) == report.time.wall_ms


@pytest.mark.parametrize("attempts", [2, 12, 60])
def test_every_chart_has_a_name_and_its_section_a_text(attempts: int) -> None:
    text, page = shown(simulated(attempts))
    charts = [attributes for _, attributes in page.elements if attributes.get("class") == "chart"]
    assert len(charts) == 4
    for chart in charts:
        assert chart["role"] == "img" and len(chart["aria-label"]) > 20
    for section in text.split("<section ")[1:]:
        if 'class="chart"' in section.split("</section>")[0]:
            assert "<table" in section or "<p" in section
    assert not [name for name, _ in page.elements if name == "title"][1:], "nothing is said only to a mouse"


def test_scrolling_tables_can_be_reached_by_keyboard() -> None:
    _, page = shown(simulated(12))
    tables = [attributes for _, attributes in page.elements if attributes.get("class") == "table"]
    assert tables and all(one["tabindex"] == "0" and one["aria-label"] for one in tables)


def test_an_empty_run_has_a_page_too() -> None:
    _, page = shown(Report(run="gpt", made_at=BEGIN, state="not started", missing=("no sacct here",)))
    assert "Not started" in page.text and "nothing to draw" in page.text and "no sacct here" in page.text


def test_a_run_that_has_just_begun_has_a_page() -> None:
    report = simulated(1, is_finished=False)
    attempt = replace(report.attempts[0], end_time=None, outcome=Outcome.RUNNING, first_step=None, last_step=None)
    _, page = shown(replace(report, attempts=(attempt,), steps=(), time=None, losses=(), checkpoints=(), nodes=()))
    assert "No step is known" in page.text and "No time has passed" in page.text


def test_three_weeks_with_400_attempts_are_less_than_a_megabyte() -> None:
    report = simulated(400)
    long = tuple(replace(one, reason="r" * 160, quote="q" * 200) for one in report.attempts)
    text, page = shown(replace(report, attempts=long))
    assert len(text.encode()) < 1_000_000
    assert sum(attributes.get("id", "").startswith("a") for name, attributes in page.elements if name == "tr") == 400


# ---- values --------------------------------------------------------------------------------------------------------


def incident(messages: int, times: int = 1) -> IncidentLine:
    return IncidentLine(
        episode="1",
        check="fs",
        subject="/",
        fault="full",
        verdict="CRITICAL",
        summary="",
        opened=1.0,
        messages=messages,
        times=times,
    )


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([1], "told once"),
        ([1, 1], "each told once"),
        ([1, 3], "1 told again while it lasted"),
        ([0, 1], "1 not told to anybody"),
        ([0, 0], "not told to anybody"),
        ([2, 0, 1], "1 told again while it lasted, 1 not told to anybody"),
    ],
)
def test_how_often_incidents_were_told(messages: list[int], expected: str) -> None:
    assert told([incident(one) for one in messages]) == expected


def test_the_headline_is_one_sentence() -> None:
    report = replace(simulated(2, seed=5), incidents=(incident(1),))
    assert re.fullmatch(
        r"finished; 2 attempts, (none|1 of them) failed; 1 incident, told once; \d\d\.\d % of the time trained",
        report.headline,
    )
    assert Report(run="gpt", made_at=1.0, state="not started").headline == "not started"


def test_incidents_that_newer_ones_of_the_same_fault_replaced_are_counted() -> None:
    report = replace(simulated(2, seed=5), incidents=(incident(1, 12), incident(1)))
    assert "; 13 incidents of 2 faults, the newest: each told once; " in report.headline
    assert "the newest of 12" in shown(report)[1].text


def test_only_a_failure_that_another_node_may_heal_is_held_against_its_node() -> None:
    expected = {
        FailureClass.IO_ERROR: "n2",
        FailureClass.GPU_FAULT: "n2",
        FailureClass.COLLECTIVE_TIMEOUT: "n2",
        FailureClass.SEGFAULT: "n2",
        FailureClass.EXCEPTION: "",
        FailureClass.GPU_OOM: "",
        FailureClass.DISK_FULL: "",
        FailureClass.NODE_FAILURE: "",
    }
    rows = [
        LedgerRow(
            attempt=number,
            job=str(number),
            start_time=BEGIN,
            failure=Failure(failure=name, confidence=Confidence.CERTAIN, reason="the log says", rank=0, host="n2"),
        )
        for number, name in enumerate(expected, 1)
    ]
    assert [one.blamed for one in attempt_lines(rows, {})] == [*expected.values()]


def test_a_restart_is_a_step_back_in_the_chart_and_pauses_of_saves_are_no_lines_of_their_own() -> None:
    spans = [
        Span(1, Category.PRODUCTIVE, 0, 1000, 0, 10),
        Span(1, Category.SAVE_STALL, 1000, 1100),
        Span(1, Category.REDONE, 1100, 2000, 10, 19),
        Span(None, Category.QUEUE, 2000, 9000),
        Span(2, Category.PRODUCTIVE, 9000, 10000, 10, 20),
    ]
    lines = step_lines(spans)
    assert [(one.attempt, one.first_step, one.last_step, one.is_redone) for one in lines] == [
        (1, 0, 10, False),
        (1, 10, 19, True),
        (2, 10, 20, False),
    ]
    many = [Span(1, Category.PRODUCTIVE, 1000 * i, 1000 * i + 900, i, i + 1) for i in range(30_000)]
    reduced = step_lines(many)
    assert len(reduced) <= 3000 and reduced[0].first_step == 0 and reduced[-1].last_step == 30_000
    assert isinstance(reduced[0], StepLine)


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_on_their_paper(scheme: str) -> None:
    text, _ = shown(Report(run="gpt", made_at=BEGIN, state="not started"))
    roots = re.findall(r":root \{ (color-scheme: light dark; )?(--.*?)\}", text, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", roots[0 if scheme == "light" else 1][1]))
    for paper in ("paper", "soft"):
        for ink in ("ink", "dim", "link"):
            low, high = sorted((luminance(colours[paper]), luminance(colours[ink])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, paper, ink)
