"""The slots of a schedule are those at which Debian's cron would run it, to the minute, in every zone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.cron.table.expression import Schedule, ScheduleError, parse_schedule
from tests.cron.table.debian_cron import DebianCron, between, changes

YEAR = (int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()))
ZONES = (
    "America/New_York",
    "Europe/London",
    "Australia/Lord_Howe",  # its summer time is half an hour
    "Africa/Cairo",  # changes at midnight
    "America/Havana",  # leaves out 00:00, and has it twice
    "Atlantic/Azores",
    "Asia/Kathmandu",  # 5 h 45 min, no summer time
    "UTC",
)
OFTEN = (
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 */2 * * *",
    "* 2 * * *",
    "7-59/10 8-18 * * MON-FRI",
    "*/10 0-3 * * 0",
)
RARE = (
    "30 1 * * *",
    "30 2 * * *",
    "0 0 * * *",
    "15 0 * * *",
    "0,30 2,3 * * *",
    "0 0 1 * 1",
    "0 0 */2 * 1",
    "0 12 1-7 * */7",
    "59 23 31 * *",
    "0 3 * * 5-7",
    "0 0 29 2 *",
    "45 1,23 * 3,4,10,11 *",
)


@pytest.mark.parametrize("zone", ZONES)
def test_a_simulated_year_is_that_of_debians_cron(zone: str) -> None:
    for expression in RARE:
        assert list(between(parse_schedule(expression, zone), *YEAR)) == list(DebianCron(expression, zone).year(*YEAR))
    for expression in OFTEN:
        schedule, cron = parse_schedule(expression, zone), DebianCron(expression, zone)
        if expression != "* * * * *":  # counted below, for one zone
            assert schedule.count(*YEAR) == sum(1 for _ in cron.year(*YEAR)), expression
        for change in (change for change in changes(zone) if YEAR[0] < change < YEAR[1]):
            around = change - 7200, change + 9000
            assert list(between(schedule, *around)) == cron.runs(*around), expression


@pytest.mark.parametrize("zone", ZONES)
def test_a_simulated_year_is_that_of_cronsim_too(zone: str) -> None:
    from cronsim import CronSim

    wrong_in_cronsim = {
        # It goes on by whole hours of UTC, and so steps over 02:00 on the day when clocks go back by half an hour.
        ("Australia/Lord_Howe", "*/10 0-3 * * 0"),
        # It begins a day at a midnight that the clocks leave out.
        ("America/Havana", "*/10 0-3 * * 0"),
        ("Atlantic/Azores", "*/10 0-3 * * 0"),
    }
    for expression in (*RARE, "*/10 0-3 * * 0"):
        if (zone, expression) in wrong_in_cronsim:
            continue
        theirs = CronSim(expression, datetime.fromtimestamp(YEAR[0], ZoneInfo(zone)))
        ours = list(islice(between(parse_schedule(expression, zone), YEAR[0], YEAR[1]), 330))
        assert ours == [int(slot.timestamp()) for slot in islice(theirs, len(ours))], expression


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number, st.sampled_from(["", "/1", "/2", "/7"])).map(
        lambda ends: f"{min(ends[:2])}-{max(ends[:2])}{ends[2]}"
    )
    return st.lists(st.one_of(number.map(str), spans), min_size=1, max_size=3).map(",".join)


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), st.integers(2, max(3, high // 2)).map("*/{}".format), numbers(low, high))


EXPRESSIONS = st.tuples(
    fields(0, 59), st.one_of(fields(0, 23), numbers(0, 3)), fields(1, 31), st.sampled_from(["*", "2-11"]), fields(0, 7)
).map(" ".join)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="20,000 schedules in every zone: set RESIL_SOAK=1")
def test_twenty_thousand_schedules_in_every_zone_run_as_in_debians_cron() -> None:
    zones = sorted(zone for zone in available_timezones() if changes(zone))
    assert len(zones) > 100
    compared = [0]

    @settings(max_examples=20_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(EXPRESSIONS, st.sampled_from(zones), st.integers(0, 99), st.integers(0, 7), st.integers(0, 7))
    def run(expression: str, zone: str, which: int, before_h: int, after_h: int) -> None:
        compared[0] += 1
        compare(expression, zone, which, before_h, after_h)

    run()
    assert compared[0] >= 20_000


@settings(max_examples=90, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    EXPRESSIONS,
    st.sampled_from([zone for zone in ZONES if changes(zone)]),
    st.integers(0, 9),
    st.integers(0, 7),
    st.integers(0, 7),
)
def test_whatever_is_written_runs_as_in_debians_cron_where_clocks_change(
    expression: str, zone: str, which: int, before_h: int, after_h: int
) -> None:
    compare(expression, zone, which, before_h, after_h)


def compare(expression: str, zone: str, which: int, before_h: int, after_h: int) -> None:
    """Hold a schedule against the oracle, forth, back and counted, around one of the zone's changes."""
    try:
        schedule = parse_schedule(expression, zone)
    except ScheduleError:
        return  # 30 February
    change = changes(zone)[which % len(changes(zone))]
    after, until = change - before_h * 3600 - 1, change + after_h * 3600 + 59
    slots = list(between(schedule, after, until))
    assert slots == DebianCron(expression, zone).runs(after, until)
    assert schedule.count(after, until) == len(slots)
    assert list(backwards(schedule, after, until)) == slots[::-1]


def backwards(schedule: Schedule, after: int, until: int) -> Iterator[int]:
    slot = schedule.newest_until(until)
    while slot is not None and slot > after:
        yield slot
        slot = schedule.newest_until(slot - 1)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(
    ("expression", "after", "slots"),
    [
        # Summer time begins: 02:00 is 03:00.
        ("30 2 * * *", "2026-03-08T00:00-05:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
        ("*/30 2 * * *", "2026-03-08T00:00-05:00", ["2026-03-09T02:00-04:00", "2026-03-09T02:30-04:00"]),
        ("30 * * * *", "2026-03-08T01:00-05:00", ["2026-03-08T01:30-05:00", "2026-03-08T03:30-04:00"]),
        # It ends: 02:00 is 01:00 again.
        ("30 1 * * *", "2026-11-01T00:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
        ("30 * * * *", "2026-11-01T01:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-01T01:30-05:00"]),
        # Leap days, and the day that is the first or a Monday.
        ("0 0 29 2 *", "2026-01-01T00:00-05:00", ["2028-02-29T00:00-05:00", "2032-02-29T00:00-05:00"]),
        ("0 0 29 2 *", "2096-03-01T00:00-05:00", ["2104-02-29T00:00-05:00"]),
        ("0 0 1 * 1", "2026-05-28T00:00-04:00", ["2026-06-01T00:00-04:00", "2026-06-08T00:00-04:00"]),
        (
            "0 0 * * 5-7",
            "2026-06-01T00:00-04:00",
            ["2026-06-05T00:00-04:00", "2026-06-06T00:00-04:00", "2026-06-07T00:00-04:00"],
        ),
    ],
)
def test_new_york(expression: str, after: str, slots: list[str]) -> None:
    schedule = parse_schedule(expression, "America/New_York")
    assert list(islice(between(schedule, at(after), 10**11), len(slots))) == [at(slot) for slot in slots]


def test_hourly_entries_run_in_skipped_and_repeated_hours() -> None:
    """Adding to a datetime with a zone repeats the last hour of summer time for ever."""
    schedule = parse_schedule("0 * * * *", "America/New_York")
    for change in changes("America/New_York"):
        slots = list(between(schedule, change - 43200, change + 43200))
        assert {later - slot for slot, later in pairwise(slots)} == {3600}


def test_a_year_of_missed_minutes_is_counted_and_not_walked() -> None:
    schedule = parse_schedule("* * * * *", "Europe/London")
    started = time.process_time()
    assert schedule.count(*YEAR) == 525_600
    assert time.process_time() - started < 1.0  # 2 ms; walking takes 10 s


@pytest.mark.parametrize("expression", ["* * * * *", "0 0 29 2 *", "0 0 1 * 1", "30 2 * * *"])
@pytest.mark.parametrize(
    "t", [-(10**12), -62_135_596_800, -1.5, 0, 2**31, 2**32, 250_000_000_000, 253_402_300_799, 10**15]
)
@pytest.mark.parametrize("zone", ["", "America/New_York"])
def test_no_clock_is_too_wrong(expression: str, t: float, zone: str) -> None:
    schedule = parse_schedule(expression, zone)
    following, newest = schedule.next_after(t), schedule.newest_until(t)
    assert following is None or following > t
    assert newest is None or newest <= t


@pytest.fixture
def machine_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    yield
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("machine_zone")
@pytest.mark.parametrize("value", ["America/New_York", ":America/New_York", "EST5EDT,M3.2.0,M11.1.0"])
def test_without_a_zone_the_machines_own_counts(value: str) -> None:
    os.environ["TZ"] = value
    time.tzset()
    schedule, named = parse_schedule("30 2 * * *"), parse_schedule("30 2 * * *", "America/New_York")
    assert list(between(schedule, *YEAR)) == list(between(named, *YEAR))


@pytest.mark.usefixtures("machine_zone")
def test_without_tz_the_machines_file_counts() -> None:
    os.environ.pop("TZ", None)
    time.tzset()
    slot = parse_schedule("30 2 * * *").next_after(YEAR[0])
    assert slot is not None
    assert time.localtime(slot)[3:5] == (2, 30)
