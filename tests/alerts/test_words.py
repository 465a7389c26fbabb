"""Each sentence stands alone: what is wrong, for how long, and why it is told now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilience.alerts.alert import Reason
from resilience.alerts.notification import sentence
from resilience.finding import Verdict
from resilience.settings.alert_policy import AlertPolicy
from tests.alerts.test_ledger import NOW, incident

POLICY = AlertPolicy()
HOUR = 3600.0


@pytest.mark.parametrize(
    ("reason", "fields", "said"),
    [
        (Reason.FIRST, {}, "91% used"),
        (Reason.WORSE, {"verdict": Verdict.CRITICAL, "told_verdict": Verdict.WARNING}, "91% used (was WARNING)"),
        (Reason.BETTER, {"told_verdict": Verdict.CRITICAL}, "91% used (was CRITICAL)"),
        (Reason.REMINDER, {"told": NOW}, "91% used (still there after 2 h)"),
        (Reason.ESCALATED, {"told": NOW}, "91% used (for 2 h, and nobody has acknowledged it)"),
        (Reason.REMINDER, {"silenced": NOW}, "91% used (a silence has ended, and it is still there after 2 h)"),
        (Reason.REMINDER, {"flapping": NOW}, "91% used (it flapped, and is now there to stay)"),
        (Reason.RESOLVED, {"told": NOW, "gone": NOW + HOUR}, "over after 1 h; it was WARNING: 91% used"),
        (
            Reason.RESOLVED,
            {"held": NOW, "gone": NOW + HOUR, "worst": Verdict.UNKNOWN},
            "came and went in the quiet hours, after 1 h; it was UNKNOWN: 91% used",
        ),
        (Reason.RESOLVED, {"told": NOW, "gone": NOW + HOUR, "summary": ""}, "over after 1 h; it was WARNING"),
    ],
)
def test_what_is_said(reason: Reason, fields: dict[str, Any], said: str) -> None:
    assert sentence(replace(incident(), **fields), reason, NOW + 2 * HOUR, POLICY) == said


def test_what_flaps_is_said_to_flap_and_how() -> None:
    flapping = incident(flaps=(NOW, NOW + 1, NOW + 2, NOW + 3))
    said = sentence(flapping, Reason.WORSE, NOW + 60, POLICY, is_flapping=True)
    assert said == "91% used (flapping: it came back 4 times in 1 h; told again when it has settled)"
    told = replace(flapping, flapping=NOW)
    assert sentence(told, Reason.REMINDER, NOW + 60, POLICY, is_flapping=True) == "91% used (still flapping)"


def test_what_nobody_looked_at_may_still_be_there() -> None:
    said = sentence(incident(told=NOW), Reason.RESOLVED, NOW + 14 * 86400, POLICY, expired=True)
    assert said == "closed, because nobody has looked for 14 d: it may still be there; it was WARNING: 91% used"


def test_a_clock_that_was_set_back_makes_no_negative_times() -> None:
    for reason in Reason:
        assert "-" not in sentence(incident(told=NOW), reason, NOW - 86400, POLICY)
