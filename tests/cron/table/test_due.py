"""What is due: each slot once, what was missed once, and no storm whatever the clock does."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.cron.records import Due, Entry, EntryOptions, Kind, Table
from resilience.cron.table.crontab_file import parse_crontab
from resilience.cron.table.due import due, next_due, next_start, start_of
from resilience.settings.cron_settings import CronSettings

NOON = 1767268800  # 2026-01-01 12:00 UTC
MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400
TICK_S = 60.0


def entry(schedule: str = "@hourly", name: str = "cron.hourly/backup", **options: object) -> Entry:
    return Entry(
        name=name,
        place=f"cron/{name}",
        schedule=schedule,
        zone="UTC",
        kind=Kind.RUN,
        argv=("true",),
        options=EntryOptions(**options),  # type: ignore[arg-type]
    )


def slots(found: Iterable[Due]) -> list[int]:
    return [one.slot for one in found]


def ask(one: Entry, last: int | None, now: float, **more: object) -> tuple[Due, ...]:
    known = {} if last is None else {one.key: last}
    return due(Table((one,)), known, now, **{"tick_s": TICK_S, **more})  # type: ignore[arg-type]


def test_a_new_entry_has_no_past() -> None:
    assert ask(entry(), None, NOON) == ()
    assert ask(entry("* * * * *"), None, NOON + 1) == ()


def test_a_slot_is_due_from_its_second_on_and_not_before() -> None:
    assert ask(entry(), NOON - HOUR, NOON - 0.01) == ()
    (one,) = ask(entry(), NOON - HOUR, NOON)
    assert (one.slot, one.start, one.passed_over, one.reason) == (NOON, NOON, 0, "on time")


def test_a_slot_that_was_taken_is_not_due_again() -> None:
    assert ask(entry(), NOON, NOON) == ()
    assert ask(entry(), NOON, NOON + 3599) == ()


@pytest.mark.parametrize(
    ("catch_up", "expected", "passed_over"),
    [
        (0, [], 0),
        (1, [NOON], 7),
        (3, [NOON - 2 * HOUR, NOON - HOUR, NOON], 5),
        (8, [NOON - hours * HOUR for hours in range(7, -1, -1)], 0),
        (100, [NOON - hours * HOUR for hours in range(7, -1, -1)], 0),
    ],
)
def test_slots_missed_in_a_night_run_late_as_configured(catch_up: int, expected: list[int], passed_over: int) -> None:
    found = ask(entry(catch_up=catch_up), NOON - 8 * HOUR, NOON + 1800)
    assert slots(found) == expected
    assert [one.passed_over for one in found] == [passed_over, *[0] * (len(expected) - 1)][: len(expected)]
    assert not found or found[-1].reason == "30 min late"


def test_without_catching_up_a_slot_is_run_if_its_tick_was_only_busy() -> None:
    assert slots(ask(entry(catch_up=0), NOON - HOUR, NOON + 2 * TICK_S)) == [NOON]
    assert slots(ask(entry(catch_up=0), NOON - HOUR, NOON + 2 * TICK_S + 1)) == []
    assert slots(ask(entry(catch_up=0), NOON - HOUR, NOON + 1700, tick_s=900.0)) == [NOON]


def test_missed_slots_are_counted_with_the_next_slot_that_runs() -> None:
    (one,) = ask(entry(catch_up=0), NOON - 5 * HOUR, NOON)
    assert (one.slot, one.passed_over) == (NOON, 4)


def test_due_slots_are_ordered_by_their_start() -> None:
    first, second = entry("0 * * * *", "cron.hourly/b"), entry("30 * * * *", "cron.hourly/a")
    twin = replace(second, name="cron.hourly/c")
    last = dict.fromkeys((first.key, second.key, twin.key), NOON - HOUR)
    found = due(Table((twin, first, second)), last, NOON + 1900, tick_s=TICK_S)
    assert [(one.entry.name, one.slot - NOON) for one in found] == [
        ("cron.hourly/b", 0),
        ("cron.hourly/a", 1800),
        ("cron.hourly/c", 1800),
    ]


# ---- jitter ---------------------------------------------------------------------------------------------------


def test_jitter_is_always_the_same_for_one_and_spread_over_many() -> None:
    one = entry(jitter_s=300)
    delays = {start_of(one, NOON + hour * HOUR, "1000:/data") - (NOON + hour * HOUR) for hour in range(24)}
    assert len(delays) == 1
    users = [start_of(one, NOON, f"{uid}:/data/{uid}") - NOON for uid in range(1000, 1100)]
    assert all(0 <= delay < 300 for delay in users)
    assert len({int(delay) for delay in users}) > 60  # a hundred users do not come in the same second
    assert max(users.count(delay) for delay in users) <= 5


@pytest.mark.parametrize("schedule", ["* * * * *", "@every 1s", "*/5 * * * *", "59,0 * * * *", "@hourly"])
def test_jitter_never_reaches_the_next_slot(schedule: str) -> None:
    for name in map(str, range(50)):
        one = entry(schedule, name, jitter_s=90)
        following = next_start(entry(schedule, name), NOON, NOON)
        assert following is not None
        assert NOON <= start_of(one, NOON) < following


def test_with_jitter_a_slot_waits_for_its_start_and_an_older_one_does_not_come_back() -> None:
    one = entry(jitter_s=600)
    start = start_of(one, NOON, "me")
    assert NOON < start < NOON + 600
    assert ask(one, NOON - HOUR, start - 1, salt="me") == ()
    assert slots(ask(one, NOON - 2 * HOUR, start - 1, salt="me")) == [NOON - HOUR]
    (found,) = ask(one, NOON - HOUR, start, salt="me")
    assert (found.slot, found.start, found.reason) == (NOON, start, "on time")


def test_slots_that_follow_each_other_closely_are_all_seen() -> None:
    one = entry("@every 1s", jitter_s=9)
    share_s = start_of(one, NOON) - NOON
    assert 0 < share_s < 1
    (found,) = ask(one, NOON - 5, NOON + share_s / 2)
    assert (found.slot, found.passed_over) == (NOON - 1, 3)


def test_the_next_start_counts_the_jitter() -> None:
    one = entry(jitter_s=600)
    start = start_of(one, NOON, "me")
    assert next_start(one, NOON - HOUR, NOON - 5, salt="me") == start
    assert next_start(one, NOON - HOUR, NOON + 0.5, salt="me") == start  # its slot is there, and its start is not
    assert next_start(one, NOON, NOON + 0.5, salt="me") == start + HOUR
    assert next_due(Table((one, entry("@daily", "x"))), {}, NOON - 5, salt="me") == start
    assert next_due(Table(), {}, NOON) is None
    assert next_due(Table((entry("@reboot"),)), {}, NOON) is None


# ---- reboot ---------------------------------------------------------------------------------------------------


def test_a_reboot_entry_runs_once_in_each_life_of_the_scheduler() -> None:
    one = entry("@reboot", "crontab/hello")
    assert ask(one, NOON - DAY, NOON) == ()  # nobody said when the scheduler began
    (found,) = ask(one, NOON - DAY, NOON + 30, started=NOON + 0.5)
    assert (found.slot, found.start) == (NOON, NOON)
    assert ask(one, NOON, NOON + 90, started=NOON + 0.5) == ()
    assert slots(ask(one, NOON, NOON + DAY, started=NOON + DAY - 1.0)) == [NOON + DAY - 1]


def test_a_reboot_entry_written_later_waits_for_the_next_start() -> None:
    one = entry("@reboot", "crontab/hello")
    assert slots(ask(one, None, NOON + 1, started=NOON)) == [NOON]
    assert ask(one, None, NOON + HOUR, started=NOON) == ()
    assert ask(one, NOON + HOUR, NOON + HOUR + 60, started=NOON) == ()


# ---- a clock that jumps ---------------------------------------------------------------------------------------


def supervise(one: Entry, clock: Iterable[float], last: int) -> list[list[int]]:
    """Tick at these times, as a scheduler does: what is due is taken."""
    runs = []
    for now in clock:
        found = slots(ask(one, last, now))
        runs.append(found)
        last = max([last, *found])
    return runs


@pytest.mark.parametrize("jump_s", [HOUR, 8 * HOUR, DAY, YEAR, 30 * YEAR, -HOUR, -8 * HOUR, -YEAR, -NOON])
@pytest.mark.parametrize("schedule", ["* * * * *", "*/15 * * * *", "@hourly", "@daily", "@every 90s"])
def test_no_jump_of_the_clock_makes_a_storm(schedule: str, jump_s: int) -> None:
    before = [NOON + 30 + 60 * n for n in range(90)]
    after = [before[-1] + jump_s + 60 * n for n in range(30)]
    one = entry(schedule)
    runs = supervise(one, [*before, *after], NOON)
    assert all(len(found) <= 1 for found in runs)
    ran = [slot for found in runs for slot in found]
    assert len(ran) == len(set(ran))
    if jump_s <= -HOUR and abs(jump_s) > len(after) * 60:
        assert not live_slots(runs[len(before) :]), "those slots have run before"
    elif schedule != "@daily" or jump_s >= DAY:
        assert runs[len(before)], "what was slept through is made up for at once"


def live_slots(runs: list[list[int]]) -> list[int]:
    return [slot for found in runs for slot in found]


def test_a_clock_set_back_by_an_hour_runs_nothing_twice_and_continues_after_it() -> None:
    one = entry("*/15 * * * *")
    forth = [NOON + 60 * n for n in range(60)]
    back = [now - HOUR for now in forth] + forth + [now + HOUR for now in forth]
    runs = live_slots(supervise(one, [*forth, *back], NOON - 900))
    assert runs == [NOON + 900 * n for n in range(8)]


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(st.integers(1, 200), st.integers(-2 * YEAR, 2 * YEAR), st.sampled_from([-HOUR, HOUR, 8 * HOUR])),
        min_size=5,
        max_size=25,
    ),
    st.sampled_from(["* * * * *", "*/7 * * * *", "@hourly", "30 2 * * *", "@every 70s"]),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([0.0, 20.0, 400.0]),
)
def test_whatever_the_clock_does_no_slot_runs_twice_early_or_in_a_storm(
    steps: list[int], schedule: str, catch_up: int, jitter_s: float
) -> None:
    one = entry(schedule, catch_up=catch_up, jitter_s=jitter_s)
    now, last, taken = float(NOON), NOON, set[int]()
    for step in steps:
        now += step
        found = ask(one, last, now, salt="me")
        assert len(found) <= max(1, catch_up)
        assert slots(found) == sorted(slots(found))
        for each in found:
            assert last < each.slot <= each.start <= now
            assert each.slot not in taken
        if found:
            between = found[0].passed_over
            whole = ask(replace(one, options=replace(one.options, catch_up=100)), last, now, salt="me")
            assert len(whole) == 100 or between + len(found) == len(whole)
        taken.update(slots(found))
        last = max([last, *taken])


def test_a_year_of_missed_minutes_is_one_run_and_costs_little() -> None:
    one = entry("* * * * *")
    started = time.process_time()
    (found,) = ask(one, NOON - YEAR, NOON)
    assert (found.slot, found.passed_over) == (NOON, 525_599)
    assert time.process_time() - started < 0.5  # about 1 ms; 10 s slot by slot
    (found,) = ask(one, -(10**10), NOON)  # a clock that began in another century
    assert found.slot == NOON


def test_a_thousand_entries_are_read_and_asked_in_a_fraction_of_a_second() -> None:
    lines = [f"{n % 60} {n // 60} {1 + n % 28} 1-6,{7 + n % 6} * run {n}  # resil: jitter=9s\n" for n in range(1000)]
    started = time.process_time()
    table = parse_crontab("".join(lines), "cron/crontab", CronSettings())
    last = {one.key: NOON for one in table.entries}
    assert due(table, last, NOON + 30, tick_s=TICK_S) == ()
    assert len(last) == 1000 and next_due(table, last, NOON + 30) is not None
    assert time.process_time() - started < 0.6  # 0.06 s
