"""Schedules, options and moments are said as people say them."""

from __future__ import annotations

import pytest

from resilience.cron.records import EntryOptions, Overlap
from resilience.cron.words import schedule_in_words, slot_text, unusual_options
from tests.lab.fakes import NOW

SLOT = int(NOW // 3600 * 3600)


@pytest.mark.parametrize(
    ("schedule", "zone", "words"),
    [
        ("@hourly", "", "every hour"),
        ("@daily", "", "every day at 00:00"),
        ("@every 90s", "", "every 90s"),
        ("@reboot", "", "once after each boot"),
        ("30 2 * * 1", "", "at 02:30 on Monday"),
        ("*/5 * * * *", "", "every 5 minutes"),
        ("*/7 * * * *", "", "every seventh minute of every hour"),
        ("30  2 * * 1", "Europe/Paris", "at 02:30 on Monday (Europe/Paris)"),
        ("0 0 31 2 *", "", "0 0 31 2 *"),
        ("nonsense", "", "nonsense"),
    ],
)
def test_a_schedule_is_shown_in_words(schedule: str, zone: str, words: str) -> None:
    assert schedule_in_words(schedule, zone) == words


def test_options_that_are_as_usual_are_not_named() -> None:
    usual = EntryOptions(timeout_s=600.0, jitter_s=20.0)
    assert unusual_options(usual, usual) == {}
    asked = EntryOptions(
        timeout_s=5400.0, catch_up=3, overlap=Overlap.REPLACE, jitter_s=0, ok=(0, 1, 2, 75), rerun=True
    )
    assert unusual_options(asked, usual) == {
        "timeout": "1h30m",
        "catch_up": "all<=3",
        "overlap": "replace",
        "jitter": "0s",
        "ok": "0-2,75",
        "rerun": "",
    }
    assert unusual_options(EntryOptions(catch_up=0), EntryOptions()) == {"catch_up": "none"}


def test_a_moment_of_today_is_its_time_alone() -> None:
    assert ":" in slot_text(NOW, NOW) and len(slot_text(SLOT, SLOT)) == 5
    assert len(slot_text(SLOT, NOW + 3 * 86400)) == 12, "another day is named"
    assert slot_text(SLOT, NOW + 700 * 86400).startswith("20"), "another year as well"
    assert len(slot_text(SLOT + 7, SLOT)) == 8, "seconds where there are some"
