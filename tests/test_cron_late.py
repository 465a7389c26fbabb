"""When a scheduler is late, and when it is dead."""

from __future__ import annotations

import pytest

from resilience import cron_late

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("pause_s", "late_s", "patience_s"),
    [(60, 0, 180), (10, 0, 180), (900, 0, 1800), (3600, 0, 7200), (60, 30, 30), (900, 60, 60), (0, 0, 180)],
)
def test_patience_is_two_pauses_and_at_least_three_minutes_unless_it_is_set(
    pause_s: float, late_s: float, patience_s: float
) -> None:
    assert cron_late.patience_s(pause_s, late_s) == patience_s


def test_a_tick_is_late_only_beyond_its_patience() -> None:
    time, expected = NOW, NOW + 900
    assert not cron_late.is_late(time, expected, NOW + 900 + 1800)
    assert cron_late.is_late(time, expected, NOW + 900 + 1801)


def test_a_sign_of_life_that_expects_the_next_in_a_year_silences_nobody_for_longer_than_a_day() -> None:
    assert cron_late.is_late(NOW, NOW + 365 * 86400, NOW + 4 * 86400)
    assert not cron_late.is_late(NOW, NOW + 365 * 86400, NOW + 86400)


def test_one_that_expects_the_next_in_the_past_is_judged_by_the_least_patience() -> None:
    assert not cron_late.is_late(NOW, NOW - 500, NOW + 180)
    assert cron_late.is_late(NOW, NOW - 500, NOW + 181)


@pytest.mark.parametrize(
    "record",
    [{}, {"time": 1.0}, {"time": "1", "expected": 2.0}, {"time": True, "expected": 2}, {"time": 1e300, "expected": 2},
     {"time": float("nan"), "expected": 2.0}, {"time": float("inf"), "expected": 2.0}, {"time": None, "expected": 1}],
)  # fmt: skip
def test_a_damaged_sign_of_life_has_no_times(record: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        cron_late.times_of(record)


def test_what_was_installed_and_has_not_ticked_yet_is_given_its_first_pause() -> None:
    assert cron_late.first_times({"time": NOW, "mode": "pulse"}, 60, 900) == (NOW, NOW + 900)
    assert cron_late.first_times({"time": NOW, "mode": "daemon"}, 60, 900) == (NOW, NOW + 60)


def test_nobody_waits_for_what_was_uninstalled_but_for_a_loop_in_tmux() -> None:
    assert not cron_late.is_awaited("crontab", is_installed=False)
    assert not cron_late.is_awaited("slurm", is_installed=False)
    assert cron_late.is_awaited("foreground", is_installed=False)
    assert cron_late.is_awaited("", is_installed=False)
    assert not cron_late.is_awaited("foreground", is_installed=False, is_last=True)
    assert cron_late.is_awaited("foreground", is_installed=True, is_last=True)
    assert cron_late.is_awaited("crontab", is_installed=True)
