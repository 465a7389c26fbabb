"""An incident's ids and its file; the incidents that a silence covers, and that it always ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.alerts.incident import (
    STALE_AFTER_S,
    Incident,
    Silence,
    fingerprint_of,
    next_incident_id,
    read_incident,
)
from resilience.errors import UsageError
from resilience.finding import Verdict
from resilience.records import from_record, to_record
from tests.alerts.test_ledger import incident

FULL = Incident(
    episode="3f9a1c04",
    fingerprint="0123456789abcdef",
    number=3,
    check="fs",
    subject="/scratch",
    fault="space",
    run="gpt",
    verdict=Verdict.WARNING,
    worst=Verdict.CRITICAL,
    summary="91% used",
    advice="resil watch fs --top /scratch",
    evidence=("tmpfs 64k", "inodes 3%"),
    host="login1",
    opened=10.0,
    changed=20.0,
    seen=40.0,
    looked=41.0,
    gone=50.0,
    resolved=51.0,
    told=30.0,
    first_told=11.0,
    told_verdict=Verdict.CRITICAL,
    count=4,
    acknowledged_by="ada",
    acknowledged_at=31.0,
    acknowledged_note="on it",
    escalated=1,
    flaps=(12.0, 13.0),
    flapping=13.0,
    thread="3f9a1c04",
    intended=33.0,
    held=9.0,
    silenced=8.0,
)
BARE = Incident(
    episode="3f9a1c04", fingerprint="f", check="fs", subject="/x", fault="space", verdict=Verdict.WARNING,
    worst=Verdict.WARNING, summary="s", opened=1.0, changed=1.0, seen=1.0, looked=1.0,
)  # fmt: skip


@pytest.mark.parametrize("incident", [FULL, BARE])
def test_every_field_survives_json(incident: Incident) -> None:
    assert read_incident(json.loads(json.dumps(to_record(incident, complete=True)))) == incident


def test_an_incident_written_by_a_later_version_is_read() -> None:
    assert read_incident(to_record(FULL, complete=True) | {"mood": "calm"}) == FULL


@pytest.mark.parametrize(
    "harm",
    [
        {"verdict": "FINE"},
        {"verdict": None},
        {"told_verdict": "?"},
        {"opened": "long ago"},
        {"opened": float("inf")},
        {"told": float("nan")},
        {"flaps": [float("nan")]},
        {"told": {}},
        {"count": "x"},
        {"flaps": 3},
        {"flaps": ["x"]},
        {"subject": 7},
        {"run": None},
        {"evidence": 5},
    ],
)
def test_a_record_that_is_no_incident_is_rejected(harm: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_incident(to_record(FULL, complete=True) | harm)


@pytest.mark.parametrize(
    "name", ["episode", "fingerprint", "check", "subject", "fault", "summary", "verdict", "opened"]
)
def test_a_record_without_id_or_verdict_is_rejected(name: str) -> None:
    record = to_record(FULL, complete=True)
    del record[name]
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_incident(record)


@given(st.text(), st.text(), st.text(), st.text())
def test_the_parts_of_a_fingerprint_do_not_run_into_one_another(a: str, b: str, c: str, d: str) -> None:
    if "\0" not in a + b + c + d and (a, b) != (c, d):
        assert fingerprint_of(a, b, "") != fingerprint_of(c, d, "")


def test_a_subject_that_is_no_text_has_a_fingerprint() -> None:
    assert len(fingerprint_of("fs", "/data/\udcff", "space")) == 16


def test_two_nodes_that_see_a_fault_come_back_give_it_the_same_id() -> None:
    assert next_incident_id("3f9a1c04", 2) == next_incident_id("3f9a1c04", 2)
    assert next_incident_id("3f9a1c04", 2) != next_incident_id("77e0d2b1", 2)


def test_an_id_is_short_enough_to_be_typed() -> None:
    assert len(next_incident_id("f", 1)) == 8
    assert set(next_incident_id("f", 1)) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("looked", "resolved", "now", "stale"),
    [
        (0.0, None, STALE_AFTER_S, False),
        (0.0, None, STALE_AFTER_S + 1, True),
        (10.0, None, STALE_AFTER_S + 5, False),
        (0.0, 1.0, STALE_AFTER_S + 1, False),
    ],
)
def test_an_open_incident_without_checks_is_stale(
    looked: float, resolved: float | None, now: float, stale: bool
) -> None:
    assert replace(BARE, seen=0.0, looked=looked, resolved=resolved).is_stale(now) is stale


FS: dict[str, Any] = {"check": "fs", "subject": "/scratch", "run": "gpt", "fault": "space", "episode": "3f9a1c04"}


@pytest.mark.parametrize(
    ("given", "covers"),
    [
        ({"check": "fs"}, True),
        ({"check": "job"}, False),
        ({"check": "*"}, True),
        ({"subject": "/scr*"}, True),
        ({"subject": "/scr"}, False),
        ({"run": "g?t"}, True),
        ({"run": "bert"}, False),
        ({"fault": "space"}, True),
        ({"check": "fs", "subject": "/home"}, False),
        ({"check": "fs", "subject": "/scratch", "run": "gpt"}, True),
        ({"episode": "3f9a"}, True),
        ({"episode": "3f9b"}, False),
    ],
)
def test_a_silence_matches_if_all_patterns_match(given: dict[str, Any], covers: bool) -> None:
    assert Silence(id="1", until=1.0, **given).matches(replace(incident(), **FS)) is covers


def test_a_subject_with_brackets_in_its_name_is_itself() -> None:
    silence = Silence(id="1", until=1.0, subject="/logs/[main]")
    assert silence.matches(incident("/logs/[main]"))
    assert silence.matches(incident("/logs/m"))


def test_a_silence_without_a_pattern_is_rejected() -> None:
    with pytest.raises(UsageError) as refused:
        Silence(id="1", until=1.0)
    assert "--check '*'" in refused.value.hint


@pytest.mark.parametrize("until", [5.0, 4.0, float("inf"), float("nan")])
def test_a_silence_ends_and_later_than_it_begins(until: float) -> None:
    with pytest.raises(UsageError):
        Silence(id="1", since=5.0, until=until, check="fs")


def test_a_silence_ends_at_its_end() -> None:
    silence = Silence(id="1", until=10.0, check="fs")
    assert not silence.is_expired(9.9)
    assert silence.is_expired(10.0)


def test_every_field_of_a_silence_survives_json() -> None:
    silence = Silence(
        id="12ab34cd", until=10.0, since=1.0, by="ada", why="move",
        check="fs", subject="/s", run="r", fault="f", episode="3",
    )  # fmt: skip
    record = json.loads(json.dumps(to_record(silence, complete=True)))
    assert from_record(Silence, record | {"later": 1}, strict=True) == silence


@pytest.mark.parametrize("harm", [{"until": None}, {"until": "soon"}, {"check": 3}, {"check": ""}, {"since": 99.0}])
def test_a_record_that_is_no_silence_is_rejected(harm: dict[str, Any]) -> None:
    record = to_record(Silence(id="1", until=10.0, check="fs"), complete=True)
    with pytest.raises((UsageError, TypeError, ValueError)):
        from_record(Silence, record | harm, strict=True)
