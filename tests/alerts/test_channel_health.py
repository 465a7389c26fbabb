"""When a channel is retried, and when other channels are notified of its failure."""

from __future__ import annotations

import random

import pytest

from resilience.alerts.alert import Reason
from resilience.alerts.channel_health import (
    CAP_S,
    MIN_WAIT_S,
    RETRY_AFTER_CAP_S,
    NodeState,
    SharedState,
    after_failure,
    backoff_s,
    decide_reason,
    is_paused,
    retry_after_wait_s,
    should_give_up,
)
from resilience.records import from_record, to_record
from tests.lab.fakes import NOW

DAY = 86400.0


@pytest.mark.parametrize(
    ("failures", "bound"), [(0, 30), (1, 30), (2, 60), (3, 120), (5, 480), (6, CAP_S), (1000, CAP_S), (10**9, CAP_S)]
)
def test_the_bound_doubles_with_each_failure_and_is_capped(failures: int, bound: float) -> None:
    assert backoff_s(failures, 1.0) == bound
    assert backoff_s(failures, 0.0) == MIN_WAIT_S, "never at once"


def test_a_thousand_nodes_do_not_retry_in_step() -> None:
    chance = random.Random(1)
    waits = sorted(backoff_s(6, chance.random()) for _ in range(1000))
    for tenth in range(10):
        inside = [w for w in waits if tenth * CAP_S / 10 <= w < (tenth + 1) * CAP_S / 10]
        assert 60 < len(inside) < 140


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (0.0, MIN_WAIT_S),
        (-5.0, MIN_WAIT_S),
        (120.0, 120.0),
        (1e12, RETRY_AFTER_CAP_S),
        (float("inf"), RETRY_AFTER_CAP_S),
    ],
)
def test_retry_after_is_respected_within_limits(asked: float, waits: float) -> None:
    assert retry_after_wait_s(asked) == waits


def test_an_invalid_retry_after_is_retried_soon() -> None:
    assert retry_after_wait_s(float("nan")) == MIN_WAIT_S


def test_failures_in_a_row_count_from_the_first() -> None:
    health = NodeState()
    for minute in range(4):
        health = after_failure(health, NOW + 60 * minute, 0.5, error="down")
    assert (health.failures, health.since, health.error) == (4, NOW, "down")
    assert health.retry_at == NOW + 180 + 120


def test_a_paused_channel_is_skipped_unless_back_off_is_ignored() -> None:
    health = NodeState(failures=1, retry_at=NOW + 10)
    assert is_paused(health, SharedState(), NOW, patient=True)
    assert not is_paused(health, SharedState(), NOW, patient=False)
    assert not is_paused(health, SharedState(), NOW + 10, patient=True)


def test_retry_after_is_respected_even_if_back_off_is_ignored() -> None:
    assert is_paused(NodeState(), SharedState(asked_until=NOW + 60), NOW, patient=False)


def test_a_pause_from_a_wrong_clock_is_ignored() -> None:
    assert not is_paused(NodeState(failures=1, retry_at=NOW + 10 * DAY), SharedState(), NOW, patient=True)
    assert not is_paused(NodeState(), SharedState(asked_until=NOW + 10 * DAY), NOW, patient=True)


LONG = NodeState(failures=5, since=NOW - 1000, error="down")


@pytest.mark.parametrize(
    ("node", "shared", "reason"),
    [
        (NodeState(), SharedState(), Reason.QUIET),
        (NodeState(failures=1, since=NOW), SharedState(), Reason.QUIET),  # a single failure is not notified
        (NodeState(failures=9, since=NOW - 60), SharedState(), Reason.QUIET),  # nor are many in a minute
        (LONG, SharedState(), Reason.FIRST),
        (LONG, SharedState(last_ok=NOW - 500), Reason.QUIET),  # another node delivers: this one has no way out
        (LONG, SharedState(last_ok=NOW - 2000), Reason.FIRST),
        (LONG, SharedState(told_at=NOW - 3600), Reason.QUIET),  # once a day
        (LONG, SharedState(told_at=NOW - DAY - 1), Reason.FIRST),
        (LONG, SharedState(told_at=NOW - DAY - 1, episode="e"), Reason.QUIET),  # still the same breakdown
        (NodeState(failures=1, since=NOW, is_fault=True), SharedState(), Reason.FIRST),  # no waiting will help
        (NodeState(failures=1, since=NOW, is_fault=True), SharedState(last_ok=NOW), Reason.FIRST),
        (NodeState(), SharedState(episode="e", told_at=NOW - 60, last_ok=NOW), Reason.RESOLVED),
        (NodeState(), SharedState(episode="e", told_at=NOW, last_ok=NOW - 60), Reason.QUIET),  # nothing delivered since
    ],
)
def test_other_channels_are_notified_of_a_failure_once_and_of_its_resolution(
    node: NodeState, shared: SharedState, reason: Reason
) -> None:
    assert decide_reason(node, shared, NOW) is reason


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
def test_only_a_message_that_alone_keeps_failing_is_given_up(
    tries: int, queued: float, last_ok: float, hopeless: bool
) -> None:
    assert should_give_up(tries, queued, SharedState(last_ok=last_ok), NOW) is hopeless


def test_saved_state_is_loaded() -> None:
    assert from_record(NodeState, to_record(LONG, complete=True), strict=True) == LONG
    standing = SharedState(last_ok=NOW, told_to=("slack", "list"), episode="e")
    assert from_record(SharedState, to_record(standing, complete=True), strict=True) == standing


@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), True, [1]])
def test_damaged_state_is_the_default(value: object) -> None:
    assert from_record(
        NodeState, {"failures": value, "since": value, "is_fault": 1, "x": 2}, strict=True, lenient=True
    ).failures in (0, True)
    assert from_record(SharedState, {"last_ok": value, "told_to": value}, strict=True, lenient=True) == SharedState()
