"""One message for many findings, with ids and threads that stay the same, and sentences that stand alone."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.notification import (
    FULL_EVIDENCE_NOTICES,
    MAX_NOTICES,
    Notification,
    compose,
    describe,
    sendable,
    thread_of,
)
from resilience.finding import Verdict
from resilience.records import to_record
from resilience.settings.alert_policy import AlertPolicy
from tests.alerts.test_ledger import NOW, incident

POLICY = AlertPolicy(channels=("email",), group_s=300.0)


def note(subject: str = "/scratch", reason: Reason = Reason.FIRST, **fields: object) -> Notification:
    return Notification(incident=replace(incident(subject), **fields), reason=reason, text=f"{subject} is full")  # type: ignore[arg-type]


def alert_of(*given: Notification, now: float = NOW, host: str = "login1") -> Alert:
    (group,) = compose(given, lambda _: ("email",), now=now, host=host, project="/p")
    return group.alert


def test_a_message_stands_alone_at_three_in_the_morning() -> None:
    alert = alert_of(note(advice="resil watch fs --top", evidence=("/dev/sda1 91%",), run="gpt", count=1))
    (notice,) = alert.notices
    assert (alert.host, alert.project, alert.time, alert.total) == ("login1", "/p", NOW, 1)
    assert (notice.summary, notice.advice, notice.evidence) == (
        "/scratch is full", "resil watch fs --top", ("/dev/sda1 91%",),
    )  # fmt: skip
    assert (notice.check, notice.subject, notice.fault, notice.run) == ("fs", "/scratch", "space", "gpt")
    assert (notice.since, notice.count, notice.verdict) == (NOW, 2, Verdict.WARNING)


@pytest.mark.parametrize(("before", "count"), [("", 1), ("WORSE WARNING", 1), ("REMINDER WARNING", 2)])
def test_a_notification_of_another_kind_that_may_have_been_sent_before_a_crash_counts(before: str, count: int) -> None:
    """Otherwise the third of WORSE (sent, then a crash), BETTER (a crash) and WORSE has the id of the first."""
    again = note(reason=Reason.WORSE, count=1, intended=NOW - 60, intended_as=before).intended(NOW)
    assert (again.incident.count, again.incident.intended, again.incident.intended_as) == (count, NOW, "WORSE WARNING")


def test_the_end_of_a_fault_is_ok_and_needs_no_advice() -> None:
    alert = alert_of(note(reason=Reason.RESOLVED, advice="clean up"))
    assert (alert.verdict, alert.is_resolved) == (Verdict.OK, True)
    assert (alert.notices[0].verdict, alert.notices[0].advice) == (Verdict.OK, "")


def test_the_worst_comes_first_and_names_the_message() -> None:
    alert = alert_of(
        note("/a", Reason.RESOLVED),
        note("/b", Reason.FIRST),
        note("/c", Reason.REMINDER, verdict=Verdict.CRITICAL),
        note("/d", Reason.WORSE, verdict=Verdict.UNKNOWN),
    )
    assert [notice.subject for notice in alert.notices] == ["/c", "/d", "/b", "/a"]
    assert (alert.verdict, alert.reason, alert.total) == (Verdict.CRITICAL, Reason.FIRST, 4)
    assert not alert.is_resolved


def test_a_thousand_jobs_are_one_message_that_counts_them() -> None:
    alert = alert_of(*(note(f"job {n}", evidence=("log line " * 300,) * 100) for n in range(1000)))
    assert (len(alert.notices), alert.total) == (MAX_NOTICES, 1000)
    assert len(json.dumps(to_record(alert, complete=True))) < 100_000


def test_each_check_has_a_message_of_its_own() -> None:
    groups = compose(
        [note("/a"), note("gpt", check="job"), note("/b")],
        lambda _: ("email",),
        now=NOW,
        host="h",
        project="/p",
    )
    assert sorted(group.alert.total for group in groups) == [1, 2]


def test_long_evidence_is_cut_where_it_can_be_seen() -> None:
    (notice,) = alert_of(note(evidence=("x" * 10**7, *map(str, range(100))))).notices
    assert "(10000000 characters)" in notice.evidence[0]
    assert notice.evidence[-1] == "... and 61 more lines"
    assert len(notice.evidence) == 41


def test_in_a_message_of_many_each_has_a_little_evidence() -> None:
    alert = alert_of(*(note(f"/{n}", evidence=tuple("abcdefgh")) for n in range(FULL_EVIDENCE_NOTICES + 1)))
    assert all(notice.evidence == (*"abcd", "... and 4 more lines") for notice in alert.notices)


# ---- ids


@given(st.permutations(range(5)), st.sampled_from(["login1", "login2"]), st.floats(0, 1e6))
def test_the_same_notifications_have_the_same_id_on_any_node_at_any_time_in_any_order(
    order: list[int], host: str, later_s: float
) -> None:
    given = [note(f"/{n}") for n in range(5)]
    assert alert_of(*(given[n] for n in order), now=NOW + later_s, host=host).id == alert_of(*given).id


def test_different_notifications_have_different_ids() -> None:
    variants = [
        note(),
        note(count=1),
        note(reason=Reason.REMINDER),
        note(verdict=Verdict.CRITICAL),
        note(episode="ffffffff"),
        note(reason=Reason.RESOLVED),
        note("/home"),
    ]
    ids = {alert_of(one).id for one in variants} | {alert_of(note(), note("/home")).id}
    assert len(ids) == len(variants) + 1


def test_two_incidents_with_the_same_id_are_both_notified() -> None:
    alert = alert_of(note("/a", episode="3f9a1c04"), note("/b", episode="3f9a1c04"))
    assert {notice.subject for notice in alert.notices} == {"/a", "/b"}


# ---- threads


def after(one: Notification, alert: Alert) -> Notification:
    """What comes next of it."""
    return replace(one, incident=one.sent(alert.thread, [alert.id], NOW), reason=Reason.WORSE)


def test_all_messages_of_one_incident_share_a_thread_named_by_its_id() -> None:
    first = note()
    alert = alert_of(first)
    assert alert.thread == first.incident.episode
    assert alert_of(after(first, alert)).thread == alert.thread
    assert alert_of(replace(after(first, alert), reason=Reason.RESOLVED)).thread == alert.thread


def test_incidents_notified_together_keep_their_thread() -> None:
    given = [note("/a"), note("/b"), note("/c")]
    alert = alert_of(*given)
    assert alert.thread not in {one.incident.episode for one in given}
    later = [after(one, alert) for one in given]
    assert {alert_of(one).thread for one in later} == {alert.thread}
    assert alert_of(*later).thread == alert.thread


def test_incidents_of_different_threads_share_the_thread_of_their_group() -> None:
    a, b = note("/a"), note("/b")
    both = [after(a, alert_of(a)), after(b, alert_of(b))]
    assert thread_of(both, "/p") == thread_of(list(reversed(both)), "/p")
    assert thread_of(both, "/p") not in {one.incident.thread for one in both}
    assert thread_of(both, "/p") != thread_of(both, "/q")
    assert after(a, alert_of(*both)).incident.thread == alert_of(*both).thread


# ---- readers


def test_channels_with_the_same_notifications_get_the_same_message() -> None:
    groups = compose([note("/a"), note("/b")], lambda _: ("email", "slack"), now=NOW, host="h", project="/p")
    assert [group.channels for group in groups] == [("email", "slack")]


def test_channels_with_different_notifications_get_different_messages() -> None:
    groups = compose(
        [note("/a"), note("/b")],
        lambda one: ("email", "list") if one.incident.subject == "/a" else ("email",),
        now=NOW, host="h", project="/p",
    )  # fmt: skip
    assert {(group.channels, group.alert.total) for group in groups} == {(("email",), 2), (("list",), 1)}


def test_a_notification_without_channels_makes_no_message() -> None:
    assert compose([note()], lambda _: (), now=NOW, host="h", project="/p") == ()


# ---- how often


@pytest.mark.parametrize(
    ("one", "last_told", "send"),
    [
        (note(), None, True),
        (note(), NOW - 300, True),
        (note(), NOW - 299, False),
        (note(verdict=Verdict.CRITICAL), NOW - 1, True),
        (note(reason=Reason.WORSE, verdict=Verdict.CRITICAL), NOW - 1, True),
        (note(reason=Reason.REMINDER, verdict=Verdict.CRITICAL), NOW - 1, False),
        (note(reason=Reason.RESOLVED, verdict=Verdict.CRITICAL), NOW - 1, False),
        (note(reason=Reason.BETTER), NOW - 1, False),
        (note(), NOW + 1e9, True),  # the clock was set back: that must not silence it for ever
    ],
)
def test_a_group_waits_between_two_messages_and_a_new_critical_does_not(
    one: Notification, last_told: float | None, send: bool
) -> None:
    last = {} if last_told is None else {"email": last_told}
    assert bool(sendable([one], lambda _: ("email",), last, NOW, POLICY)) is send


def test_a_critical_is_sent_with_the_others_for_its_channels() -> None:
    critical, old, escalated = note("/a", verdict=Verdict.CRITICAL), note("/b"), note("/c", reason=Reason.ESCALATED)
    channels: dict[str, tuple[str, ...]] = {"/a": ("email",), "/b": ("email",), "/c": ("list",)}
    given = [critical, old, escalated]

    def sent(**ago_s: float) -> list[str]:
        last = {channel: NOW - ago for channel, ago in ago_s.items()}
        found = sendable(given, lambda one: channels[one.incident.subject], last, NOW, POLICY)
        return [one.incident.subject for one in found]

    assert sent(email=1.0, list=1.0) == ["/a", "/b"]
    assert sent(email=1.0, list=300.0) == ["/a", "/b", "/c"]
    given.remove(critical)
    assert sent(email=1.0) == ["/c"], "a message to email does not hold back the escalation to list"
    channels["/b"] = ("email", "list")
    assert sent(list=1.0) == [], "the end of an escalated incident waits for each of its channels"


def test_a_thousand_are_composed_in_a_moment() -> None:
    given = [note(f"job {n}") for n in range(1000)]
    began = time.monotonic()
    alert_of(*given)
    assert time.monotonic() - began < 10  # 0.02 s on a quiet core


HOUR = 3600.0


@pytest.mark.parametrize(
    ("reason", "fields", "said"),
    [
        (Reason.FIRST, {}, "91% used"),
        (Reason.WORSE, {"verdict": Verdict.CRITICAL, "told_verdict": Verdict.WARNING}, "91% used (was WARNING)"),
        (Reason.BETTER, {"told_verdict": Verdict.CRITICAL}, "91% used (was CRITICAL)"),
        (Reason.REMINDER, {"told": NOW}, "91% used (still present after 2 h)"),
        (Reason.ESCALATED, {"told": NOW}, "91% used (not acknowledged for 2 h)"),
        (Reason.REMINDER, {"silenced": NOW}, "91% used (silence expired, still present after 2 h)"),
        (Reason.REMINDER, {"flapping": NOW}, "91% used (stopped flapping, still present)"),
        (Reason.RESOLVED, {"told": NOW, "gone": NOW + HOUR}, "resolved after 1 h; was WARNING: 91% used"),
        (
            Reason.RESOLVED,
            {"held": NOW, "gone": NOW + HOUR, "worst": Verdict.UNKNOWN},
            "started and was resolved in the quiet hours, after 1 h; was UNKNOWN: 91% used",
        ),
        (Reason.RESOLVED, {"told": NOW, "gone": NOW + HOUR, "summary": ""}, "resolved after 1 h; was WARNING"),
    ],
)
def test_descriptions(reason: Reason, fields: dict[str, Any], said: str) -> None:
    assert describe(replace(incident(), **fields), reason, NOW + 2 * HOUR, POLICY) == said


def test_a_flapping_fault_is_described_as_flapping() -> None:
    flapping = incident(flaps=(NOW, NOW + 1, NOW + 2, NOW + 3))
    said = describe(flapping, Reason.WORSE, NOW + 60, POLICY, is_flapping=True)
    assert said == "91% used (flapping: came back 4 times in 1 h; next notification when it settles)"
    told = replace(flapping, flapping=NOW)
    assert describe(told, Reason.REMINDER, NOW + 60, POLICY, is_flapping=True) == "91% used (still flapping)"


def test_an_expired_incident_may_persist() -> None:
    said = describe(incident(told=NOW), Reason.RESOLVED, NOW + 2 * 86400, POLICY, expired=True)
    assert said == "no longer checked for 2 d; the problem may persist; was WARNING: 91% used"


def test_a_clock_that_was_set_back_makes_no_negative_times() -> None:
    for reason in Reason:
        assert "-" not in describe(incident(told=NOW), reason, NOW - 86400, POLICY)
