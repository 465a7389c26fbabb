"""What people write for when an entry runs, and what is said to what cannot be meant."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.cron.table.expression import ALIASES, ScheduleError, ZoneError, parse_schedule
from tests.cron.table.debian_cron import between

# What cron 3.0pl1-162 of Debian 12 said to each (`crontab -n`), 2026-11-20, and what we make of it.
AS_CRON = """
* * * * *
*/5 * * * *
*/59 * * * *
*/100 * * * *
5-5 * * * *
0-59/60 * * * *
1,2,3 * * * *
*/5,7 * * * *
*,5 * * * *
5,* * * * *
01 * * * *
0 */24 * * *
0 0 29 2 *
0 0 1 * 1
0 0 * * 7
0 0 * * 0-7
0 0 * * 5-7
0 0 * * MON-FRI
0 0 * * mon-fri
0 0 * * Mon,Wed
0 0 * * MON-7
0 0 * JAN-MAR *
0 0 * jan,MAR-DEC/2 *
0 0 */31 * *
0 0 * */12 *
0 0 * * */2
0 0 * * */7
0 0 * * 0-6/7
@hourly
@daily
@midnight
@weekly
@monthly
@yearly
@annually
@reboot
"""
REFUSED_BY_CRON_TOO = """
*/0 * * * *
5/10 * * * *
0/15 * * * *
60 * * * *
0 24 * * *
0 0 0 * *
0 0 32 * *
0 0 1 13 *
0 0 1 0 *
0 0 * * 8
0 0 * * MONDAY
0 0 * jan,MAR/2 *
0 0 MON * *
0 0 L * *
0 0 * * 5L
0 0 ? * *
H * * * *
1,,2 * * * *
,1 * * * *
1, * * * *
-1 * * * *
+1 * * * *
1-5/0 * * * *
* * * * */0
*/ * * * *
*/-1 * * * *
1- * * * *
99999999999999999999 * * * *
@HOURLY
@fortnightly
"""
# Cron takes these, and for something else than they say: for nothing at all, or for their first few characters.
MISREAD_BY_CRON = """
5-1 * * * *
0 0 * * 7-1
0 0 * * FRI-SUN
0 0 * * SAT-SUN
0 0 31 2 *
0 0 30 2 *
0 0 31 4,6 *
0 0 * * 1#2
* * * * MON#1
1-2-3 * * * *
1-5/2/3 * * * *
*-5 * * * *
1.5 * * * *
10~20 * * * *
"""


def lines(block: str) -> list[str]:
    return block.strip().splitlines()


@pytest.mark.parametrize("text", lines(AS_CRON))
def test_expressions_that_cron_accepts_are_accepted(text: str) -> None:
    assert parse_schedule(text).text == text


@pytest.mark.parametrize("text", lines(REFUSED_BY_CRON_TOO) + lines(MISREAD_BY_CRON))
def test_expressions_that_cron_rejects_or_misreads_are_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse_schedule(text)
    assert refused.value.message
    assert refused.value.hint


def test_the_recorded_verdicts_are_those_of_the_cron_installed_here(tmp_path: Path) -> None:
    crontab = shutil.which("crontab")
    usage = (
        subprocess.run([crontab, "-h"], capture_output=True, text=True, check=False, timeout=60) if crontab else None
    )
    # Elsewhere (cronie) -n is no dry run, but changes something.
    if crontab is None or usage is None or "-n" not in usage.stderr or "dry run" not in usage.stderr:
        pytest.skip("no crontab here that only checks a table: the recorded verdicts stand")
    table = tmp_path / "table"

    def complaint(texts: list[str]) -> str:
        table.write_text("".join(f"{text} true\n" for text in texts))
        checked = subprocess.run([crontab, "-n", table], capture_output=True, text=True, check=False, timeout=60)
        return checked.stderr if checked.returncode else ""

    assert complaint(lines(AS_CRON) + lines(MISREAD_BY_CRON)) == ""
    for text in lines(REFUSED_BY_CRON_TOO):  # it stops at the first
        assert "bad" in complaint([text]), text


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("5-1 * * * *", "minute: the range '5-1' ends before it begins", "5-59,0-1"),
        ("0 22-6 * * *", "hour: the range '22-6' ends before it begins", "22-23,0-6"),
        ("0 0 * * FRI-SUN", "day of the week: the range 'FRI-SUN'", "5-7"),
        ("0 0 * * SAT-TUE", "day of the week: the range 'SAT-TUE'", "SAT-sat,sun-TUE"),
        ("0/15 * * * *", "minute: '0/15' has a step but no range", "0-59/15"),
        ("*/0 * * * *", "minute: '*/0' has a step of 0", "*/5"),
        ("60 * * * *", "minute: 60 is not between 0 and 59", "0 to 59"),
        ("0 0 * MAI *", "month: 'MAI' is not a month", "JAN to DEC"),
        ("0 0 L * *", "day of the month: 'L' is not a day of the month", "1 to 31"),
        ("0 0 * * 5L", "day of the week: '5L' in '5L' is invalid", "cron does not support"),
        ("1,,2 * * * *", "minute: '' in '1,,2'", "comma"),
        ("0 0 31 2 *", "'31 2 *' never matches", "28-31"),
        ("* * * *", "'* * * *' has 4 fields instead of five", "30 4 * * *"),
        ("0 0 0 * * *", "has 6 fields", "minute, hour"),
        ("", "'' has 0 fields", "minute, hour"),
        ("@HOURLY", "'@HOURLY' is not a schedule", "did you mean @hourly?"),
        ("@fortnightly", "'@fortnightly' is not a schedule", "did you mean @"),
        ("@hourly x", "'@hourly x' is not a schedule", "@hourly"),
        ("@xyzzy", "'@xyzzy' is not a schedule", "there are: @yearly"),
        ("@every", "@every", "@every 90s"),
        ("@every 90", "'90' is not a duration", "@every 90s"),
        ("@every 0s", "is not a whole number of seconds", "@every 1s"),
        ("@every 9999d", "longer than ten years", "@every 10m"),
        ("@every 1.5s", "is not a whole number of seconds", "@every 1s"),
        ("\u0661 * * * *", "minute: '\u0661' in '\u0661' is invalid", "1-5"),
    ],
)
def test_an_invalid_schedule_is_reported_with_a_hint(text: str, reason: str, hint: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse_schedule(text)
    assert reason in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_means_its_five_fields(alias: str) -> None:
    start = 1767225600
    by_name, by_fields = parse_schedule(alias, "UTC"), parse_schedule(ALIASES[alias], "UTC")
    assert by_name.next_after(start) == by_fields.next_after(start)


def test_every_runs_at_multiples_of_its_interval_since_the_epoch() -> None:
    schedule = parse_schedule("@every 90s")
    assert list(between(schedule, 0, 360)) == [90, 180, 270, 360]
    assert schedule.newest_until(359.9) == 270
    assert schedule.count(0, 10**11) == 10**11 // 90
    assert schedule.period_s(17) == 90
    assert parse_schedule("@every 1h30m").every_s == 5400


def test_a_reboot_is_at_no_time_of_the_day() -> None:
    schedule = parse_schedule("@reboot")
    assert schedule.is_reboot
    assert schedule.next_after(0) is None
    assert schedule.newest_until(10**9) is None
    assert schedule.count(0, 10**9) == 0
    assert schedule.period_s(0) == float("inf")


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Pariss", "did you mean Europe/Paris?"),
        ("paris", "did you mean Europe/Paris?"),
        ("europe/paris", "did you mean Europe/Paris?"),
        ("New York", "did you mean America/New_York?"),
        ("America", "IANA"),
        ("../../etc/passwd", "IANA"),
        ("/etc/localtime", "IANA"),
        ("zone.tab", "IANA"),
        ("Mars/Olympus\0", "IANA"),
    ],
)
def test_an_unknown_zone_is_reported(zone: str, hint: str) -> None:
    with pytest.raises(ZoneError) as refused:
        parse_schedule("0 0 * * *", zone)
    assert "unknown time zone" in refused.value.message
    assert hint in refused.value.hint or "did you mean" in refused.value.hint


WORDS = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="*/0123456789-,@L#WSUNmonJANevry ", max_size=12),
    st.sampled_from(["*", "*/5", "1-5", "MON", "@every", "@reboot", "90s", "9" * 400]),
)


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(WORDS, min_size=1, max_size=6).map(" ".join), st.one_of(st.just(""), st.just("UTC"), st.text(max_size=9))
)
def test_any_text_is_a_schedule_or_an_error(text: str, zone: str) -> None:
    try:
        schedule = parse_schedule(text, zone)
    except (ScheduleError, ZoneError) as error:
        assert error.message
        assert error.hint
    else:
        slot = schedule.next_after(1767225600.5)
        assert schedule.is_reboot or (slot is not None and slot > 1767225600)
        assert parse_schedule(schedule.text, schedule.zone) == schedule
