"""Steps of an escalation and quiet hours, as people write them."""

from __future__ import annotations

import pytest

from resilience.errors import SettingsError
from resilience.settings.alert_policy import (
    EscalationStep,
    QuietHours,
    parse_acts,
    parse_escalation,
    parse_quiet_hours,
)


def test_steps_are_sorted_by_delay() -> None:
    assert parse_escalation(("4h: oncall, slack", "1h30m:list")) == (
        EscalationStep(5400.0, ("list",)),
        EscalationStep(14400.0, ("oncall", "slack")),
    )


def test_a_channel_listed_twice_is_notified_once() -> None:
    assert parse_escalation(("1h: a, b, a",)) == (EscalationStep(3600.0, ("a", "b")),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("list", "names no channel"),
        ("1h", "names no channel"),
        ("1h:", "names no channel"),
        ("1h: ,", "names no channel"),
        ("soon: list", "'soon' is not a duration"),
        ("60: list", "'60' is not a duration"),
        (": list", "is not a duration"),
        ("-1h: list", "is not a duration"),
        ("0s: list", "has no delay"),
    ],
)
def test_an_invalid_step_is_rejected_with_an_example(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_escalation(("2h: list", text))
    assert said in refused.value.message
    assert repr(text) in refused.value.message
    assert refused.value.hint


def test_deeds_are_sorted_by_delay_and_others_are_rejected() -> None:
    assert parse_acts(("1d: cancel", "6h:hold")) == ((21600.0, "hold"), (86400.0, "cancel"))
    for text, said in (("6h: kill", "neither hold nor cancel"), ("6h: hold, cancel", "neither"), ("hold", "no deed"),
                       ("0s: hold", "no delay")):  # fmt: skip
        with pytest.raises(SettingsError, match=said) as refused:
            parse_acts((text,))
        assert repr(text) in refused.value.message and "6h: hold" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("", None),
        ("  ", None),
        ("22:00-07:00", QuietHours(1320, 420)),
        ("22:30 - 7:05", QuietHours(1350, 425)),
        ("22-7", QuietHours(1320, 420)),
        ("1:00–6:00", QuietHours(60, 360)),
        ("20:00-24:00", QuietHours(1200, 0)),
    ],
)
def test_quiet_hours_are_parsed(text: str, hours: QuietHours | None) -> None:
    assert parse_quiet_hours(text) == hours


@pytest.mark.parametrize(
    "text", ["night", "22:00", "22:00-", "25:00-07:00", "22:60-07:00", "22:00-24:30", "7-7", "0-24", "10pm-6am"]
)
def test_invalid_quiet_hours_are_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_quiet_hours(text)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("hours", "minute", "quiet"),
    [
        (QuietHours(1320, 420), 1319, False),
        (QuietHours(1320, 420), 1320, True),
        (QuietHours(1320, 420), 0, True),
        (QuietHours(1320, 420), 419, True),
        (QuietHours(1320, 420), 420, False),
        (QuietHours(60, 360), 59, False),
        (QuietHours(60, 360), 60, True),
        (QuietHours(60, 360), 360, False),
        (QuietHours(1200, 0), 1439, True),
        (QuietHours(1200, 0), 0, False),
    ],
)
def test_quiet_hours_span_midnight_and_exclude_their_end(hours: QuietHours, minute: int, quiet: bool) -> None:
    assert hours.cover(minute) is quiet
