"""Alerts as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.finding import Verdict
from resilience.records import from_record, to_record

NOTICE = Notice(
    episode="3f9a1c04", fingerprint="f", reason=Reason.WORSE, check="fs", subject="/scratch", fault="space",
    verdict=Verdict.CRITICAL, summary="full", since=1.0, advice="df", run="gpt", evidence=("a", "b"), count=2,
    acknowledged_by="ada",
)  # fmt: skip
ALERT = Alert(
    id="i", thread="t", reason=Reason.WORSE, verdict=Verdict.CRITICAL, time=2.0, host="n", project="/p",
    notices=(NOTICE,), total=7, is_test=True, is_digest=True,
)  # fmt: skip


def test_every_field_survives_json() -> None:
    assert from_record(Alert, json.loads(json.dumps(to_record(ALERT, complete=True))), strict=True) == ALERT


def test_keys_of_a_later_version_are_passed_over() -> None:
    record = to_record(ALERT, complete=True) | {"mood": 1}
    record["notices"][0]["colour"] = "red"
    assert from_record(Alert, record, strict=True) == ALERT


@pytest.mark.parametrize(
    "harm", [{"reason": "LOUD"}, {"verdict": "BAD"}, {"notices": 3}, {"notices": [{}]}, {"notices": None}]
)
def test_a_record_that_is_no_alert_is_rejected(harm: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_record(Alert, to_record(ALERT, complete=True) | harm, strict=True)


@pytest.mark.parametrize("reason", list(Reason))
def test_an_alert_is_resolved_if_all_its_incidents_are(reason: Reason) -> None:
    record = to_record(ALERT, complete=True) | {"reason": reason}
    assert from_record(Alert, record, strict=True).is_resolved is (reason is Reason.RESOLVED)
