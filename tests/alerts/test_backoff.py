"""When a channel is tried again, and when the others hear of it."""

from __future__ import annotations

import random

import pytest

from resilience.alerts.channel_health import (
    ASKED_CAP_S,
    CAP_S,
    LEAST_S,
    Health,
    News,
    Standing,
    after_failure,
    asked_wait_s,
    decide_news,
    delay_s,
    from_record,
    is_hopeless,
    is_paused,
    to_record,
)
from tests.fakes import NOW

DAY = 86400.0


@pytest.mark.parametrize(
    ("failures", "bound"), [(0, 30), (1, 30), (2, 60), (3, 120), (5, 480), (6, CAP_S), (1000, CAP_S), (10**9, CAP_S)]
)
def test_the_bound_doubles_with_each_failure_and_is_capped(failures: int, bound: float) -> None:
    assert delay_s(failures, 1.0) == bound
    assert delay_s(failures, 0.0) == LEAST_S, "never at once"


def test_a_thousand_nodes_do_not_come_back_in_step() -> None:
    chance = random.Random(1)
    waits = sorted(delay_s(6, chance.random()) for _ in range(1000))
    for tenth in range(10):
        inside = [w for w in waits if tenth * CAP_S / 10 <= w < (tenth + 1) * CAP_S / 10]
        assert 60 < len(inside) < 140


@pytest.mark.parametrize(
    ("asked", "waits"),
    [(0.0, LEAST_S), (-5.0, LEAST_S), (120.0, 120.0), (1e12, ASKED_CAP_S), (float("inf"), ASKED_CAP_S)],
)
def test_what_a_server_asks_for_is_heeded_within_reason(asked: float, waits: float) -> None:
    assert asked_wait_s(asked) == waits


def test_a_server_that_asks_for_no_number_is_asked_again_soon() -> None:
    assert asked_wait_s(float("nan")) == LEAST_S


def test_failures_in_a_row_count_from_the_first() -> None:
    health = Health()
    for minute in range(4):
        health = after_failure(health, NOW + 60 * minute, 0.5, error="down")
    assert (health.failures, health.since, health.error) == (4, NOW, "down")
    assert health.retry_at == NOW + 180 + 120


def test_a_paused_channel_is_left_alone_unless_somebody_is_impatient() -> None:
    health = Health(failures=1, retry_at=NOW + 10)
    assert is_paused(health, Standing(), NOW, patient=True)
    assert not is_paused(health, Standing(), NOW, patient=False)
    assert not is_paused(health, Standing(), NOW + 10, patient=True)


def test_nobody_is_impatient_enough_to_pass_over_what_a_server_asked_for() -> None:
    assert is_paused(Health(), Standing(asked_until=NOW + 60), NOW, patient=False)


def test_a_pause_that_a_wrong_clock_wrote_is_not_believed() -> None:
    assert not is_paused(Health(failures=1, retry_at=NOW + 10 * DAY), Standing(), NOW, patient=True)
    assert not is_paused(Health(), Standing(asked_until=NOW + 10 * DAY), NOW, patient=True)


LONG = Health(failures=5, since=NOW - 1000, error="down")


@pytest.mark.parametrize(
    ("health", "standing", "news"),
    [
        (Health(), Standing(), News.NONE),
        (Health(failures=1, since=NOW), Standing(), News.NONE),  # one failure is no news
        (Health(failures=9, since=NOW - 60), Standing(), News.NONE),  # nor are many in a minute
        (LONG, Standing(), News.BROKEN),
        (LONG, Standing(last_ok=NOW - 500), News.NONE),  # another node delivers: this one has no way out
        (LONG, Standing(last_ok=NOW - 2000), News.BROKEN),
        (LONG, Standing(told_at=NOW - 3600), News.NONE),  # once a day
        (LONG, Standing(told_at=NOW - DAY - 1), News.BROKEN),
        (LONG, Standing(told_at=NOW - DAY - 1, episode="e"), News.NONE),  # still the same breakdown
        (Health(failures=1, since=NOW, is_fault=True), Standing(), News.BROKEN),  # no waiting will help
        (Health(failures=1, since=NOW, is_fault=True), Standing(last_ok=NOW), News.BROKEN),
        (Health(), Standing(episode="e", told_at=NOW - 60, last_ok=NOW), News.MENDED),
        (Health(), Standing(episode="e", told_at=NOW, last_ok=NOW - 60), News.NONE),  # nothing was delivered since
    ],
)
def test_the_other_channels_hear_of_a_breakdown_once_and_of_its_end(
    health: Health, standing: Standing, news: News
) -> None:
    assert decide_news(health, standing, NOW) is news


@pytest.mark.parametrize(
    ("tries", "queued", "last_ok", "hopeless"),
    [
        (500, NOW - 3 * DAY, 0.0, False),  # an outage: nothing goes through
        (500, NOW - 3 * DAY, NOW - 4 * DAY, False),
        (500, NOW - 3 * DAY, NOW - DAY, True),  # others went through
        (2, NOW - 3 * DAY, NOW - DAY, False),
        (500, NOW - 3600, NOW, False),
    ],
)
def test_only_a_message_that_alone_is_not_taken_is_given_up(
    tries: int, queued: float, last_ok: float, hopeless: bool
) -> None:
    assert is_hopeless(tries, queued, Standing(last_ok=last_ok), NOW) is hopeless


def test_what_is_remembered_comes_back() -> None:
    assert from_record(Health, to_record(LONG)) == LONG
    standing = Standing(last_ok=NOW, told_to=("slack", "list"), episode="e")
    assert from_record(Standing, {**to_record(standing), "told_to": ["slack", "list"]}) == standing


@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), True, [1]])
def test_nonsense_in_what_is_remembered_is_the_default(value: object) -> None:
    assert from_record(Health, {"failures": value, "since": value, "is_fault": 1, "x": 2}).failures in (0, True)
    assert from_record(Standing, {"last_ok": value, "told_to": value}) == Standing()
