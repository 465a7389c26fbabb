"""An alert in words: one line, a items_of, and cuts that can be seen."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channel_health import NodeState, failure_alert
from resilience.alerts.message import (
    clean_line,
    clean_lines,
    cut,
    footer,
    headline,
    is_command,
    items_of,
    left_out,
    moment,
    plain_text,
    state_word,
)
from resilience.finding import Verdict
from tests.alerts.channels.alerts import HOSTILE, NOW, a_notice, a_thousand, an_alert, hostile, resolved


@pytest.mark.parametrize(
    ("alert", "line"),
    [
        (an_alert(), "CRITICAL: /scratch: 98% used, 3.1 days left at 18.4 TB a day (3f9a1c)"),
        (resolved(), "RESOLVED: /scratch: 41% used (3f9a1c)"),
        (an_alert(reason=Reason.WORSE), "CRITICAL (worse): /scratch: 98% used"),
        (an_alert(a_notice(verdict=Verdict.WARNING), reason=Reason.BETTER), "WARNING (better): /scratch"),
        (an_alert(reason=Reason.REMINDER), "CRITICAL (reminder): "),
        (an_alert(reason=Reason.ESCALATED), "CRITICAL (escalated): "),
        (an_alert(is_test=True), "TEST: /scratch"),
        (an_alert(is_digest=True, total=12), "DIGEST, CRITICAL: 12 incidents, first /scratch: "),
        (an_alert(a_notice(), a_notice("b")), "CRITICAL: 2 incidents, first /scratch: "),
        (an_alert(a_notice(summary="x" * 1000)), "CRITICAL: /scratch: xxx"),
    ],
)
def test_the_headline_says_it_all(alert: Alert, line: str) -> None:
    assert headline(alert).startswith(line)
    id_to_acknowledge = alert.id if alert.total > 1 else "3f9a1c"
    assert headline(alert).endswith(f"({id_to_acknowledge})") and len(headline(alert)) <= 180


def test_an_alert_without_notices_has_a_headline_too() -> None:
    empty = Alert(id="x", thread="x", reason=Reason.FIRST, verdict=Verdict.WARNING, time=0, host="h", project="",
                  notices=(), total=7)  # fmt: skip
    assert headline(empty) == "WARNING: 7 incidents" and "WARNING: 7 incidents" in plain_text(empty)


def test_an_item_has_problem_place_time_advice_and_how_to_acknowledge() -> None:
    rows = dict(items_of(an_alert())[0].rows)
    assert rows["Problem"].startswith("98% used") and rows["Where"] == "/scratch (check fs, seen on login1)"
    assert "(for 2 h 5 min)" in rows["Since"] and rows["Advice"] == "resil watch fs --top"
    assert rows["Acknowledge"] == "cd '/home/ada/my gpt' && resil alert ack 3f9a1c"


def test_a_message_about_a_fault_without_advice_has_a_command_to_run_too() -> None:
    rows = dict(items_of(an_alert(a_notice(advice="")))[0].rows)
    assert "Advice" not in rows and rows["Details"] == "cd '/home/ada/my gpt' && resil alert show 3f9a1c"


def test_what_began_a_moment_ago_was_just_noticed() -> None:
    assert "(just noticed)" in dict(items_of(an_alert(a_notice(since=NOW - 2)))[0].rows)["Since"]


def test_only_incidents_offer_acknowledgement() -> None:
    alert = failure_alert(
        "slack",
        NodeState(failures=3, error="revoked"),
        incident_id="1a2b3c",
        now=NOW,
        host="n1",
        project="/p",
        waiting=2,
    )
    assert not {"Acknowledge", "Details"} & set(dict(items_of(alert)[0].rows))


@pytest.mark.parametrize(
    ("advice", "is_one"),
    [
        ("resil watch fs --top", True),
        ("is its file system mounted on this node?", False),
        ("resil is not there; ask the administrators", False),
    ],
)
def test_only_what_can_be_pasted_is_shown_as_a_command(advice: str, is_one: bool) -> None:
    assert is_command("Advice", advice) is is_one


def test_a_resolved_or_acknowledged_incident_offers_no_acknowledgement() -> None:
    over = dict(items_of(resolved())[0].rows)
    assert "Acknowledge" not in over and "lasted 2 h 5 min" in over["Since"]
    taken = dict(items_of(an_alert(a_notice(acknowledged_by="ada")))[0].rows)
    assert taken["Acknowledged"] == "by ada" and "Acknowledge" not in taken
    assert "Acknowledge" not in dict(items_of(an_alert(is_test=True))[0].rows)


def test_incidents_left_out_are_counted() -> None:
    assert len(items_of(a_thousand())) == 25
    assert left_out(a_thousand()).startswith("And 975 more: cd '/home/ada/my gpt' && resil alert list")
    assert left_out(an_alert()) == ""
    assert left_out(an_alert(total=5)).startswith("And 4 more")


def test_times_are_local_with_their_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert moment(1_800_000_000) == "2027-01-15 09:00:00 +0100"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert moment(float("inf")) == moment(1e30) == "an unknown time"


def test_one_command_acknowledges_all_incidents_of_a_message_until_they_are_over() -> None:
    command = "acknowledge all: cd '/home/ada/my gpt' && resil alert ack 3f9a1c-1"
    assert command in footer(an_alert(a_notice(), a_notice()))
    assert "acknowledge all" not in footer(an_alert()) + footer(an_alert(a_notice(), reason=Reason.RESOLVED, total=2))


def test_a_test_and_a_digest_say_so() -> None:
    assert "nothing is wrong" in footer(an_alert(is_test=True))
    assert "could not be delivered in time" in footer(an_alert(is_digest=True))
    assert state_word(an_alert(is_test=True)) == "TEST"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_are_neutralised(text: str) -> None:
    alert = hostile(text)
    assert headline(alert).isprintable() and "\u202e" not in headline(alert)
    shown = plain_text(alert)
    shown.encode()  # no lone surrogates
    assert all(c.isprintable() or c == "\n" for c in shown.replace("\u00a0", " "))
    assert len(shown) < 50_000


@settings(deadline=None)
@given(st.text(), st.integers(0, 200))
def test_a_cut_is_never_longer_than_asked(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= max(limit, 1)
    if len(text) <= limit:
        assert cut(text, limit) == text


def test_truncation_shows_how_much_is_missing() -> None:
    assert cut("x" * 100, 30) == "x" * 17 + " … (83 more)"


@settings(deadline=None)
@given(st.text(alphabet=st.characters()), st.integers(1, 100))
def test_a_clean_line_is_one_line_that_can_be_shown(text: str, limit: int) -> None:
    line = clean_line(text, limit)
    assert "\n" not in line and "\r" not in line and "\0" not in line and len(line) <= limit
    line.encode()


@settings(deadline=None)
@given(st.lists(st.text(), max_size=50))
def test_evidence_is_bounded(texts: list[str]) -> None:
    lines = clean_lines(tuple(texts))
    assert len(lines) <= 21 and all(len(line) <= 300 for line in lines)
    "\n".join(lines).encode()


def test_long_evidence_keeps_its_beginning_and_its_end() -> None:
    lines = clean_lines(tuple(f"line {number}" for number in range(60)))
    assert lines[0] == "line 0" and lines[-1] == "line 59" and "40 lines left out" in lines[10]
