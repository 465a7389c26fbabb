"""Whether to speak of an incident, and why: a table for every combination."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.alerts.alert import Reason
from resilience.alerts.incident import Incident
from resilience.alerts.policy import (
    acted,
    advance,
    assess,
    check_policy,
    decide,
    due_act,
    due_steps,
    in_quiet_hours,
    is_flapping,
    open_incident,
    resolves_silently,
    usable,
)
from resilience.errors import SettingsError
from resilience.finding import Finding, Verdict
from resilience.settings.alert_policy import AlertPolicy

OK, WARNING, UNKNOWN, CRITICAL = Verdict
NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC).timestamp()
NIGHT = datetime(2026, 6, 15, 23, 30, tzinfo=UTC).timestamp()
MORNING = datetime(2026, 6, 16, 7, 0, tzinfo=UTC).timestamp()
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
POLICY = AlertPolicy(channels=("email",), reminder_s=4 * HOUR, unknown_for_s=180.0)
QUIET = replace(POLICY, quiet_hours="22:00-07:00")
BERLIN = ZoneInfo("Europe/Berlin")


def open_since(seconds: float, verdict: Verdict = WARNING, now: float = NOW, **fields: Any) -> Incident:
    """An incident that was opened this long ago and not notified."""
    finding = Finding(subject="/scratch", fault="space", verdict=verdict, summary="91% used")
    return replace(open_incident(None, finding, "fs", now - seconds, POLICY), **fields)


def told_since(seconds: float, verdict: Verdict = WARNING, now: float = NOW, **fields: Any) -> Incident:
    """An incident that was notified once, this long ago."""
    time = now - seconds
    told = {"told": time, "first_told": time, "told_verdict": verdict, "count": 1}
    return open_since(seconds, verdict, now, **(told | fields))


# ---- what is done about the run

ACTS = replace(POLICY, act=("1d: cancel", "6h: hold"))


@pytest.mark.parametrize(
    ("since_s", "fields", "due"),
    [
        (5 * HOUR, {}, ""),
        (6 * HOUR, {}, "hold"),
        (7 * HOUR, {"acted": 1}, ""),
        (25 * HOUR, {"acted": 1}, "cancel"),
        (25 * HOUR, {}, "cancel"),
        (25 * HOUR, {"acted": 2}, ""),
        (7 * HOUR, {"run": ""}, ""),
        (7 * HOUR, {"acknowledged_by": "ada"}, ""),
        (7 * HOUR, {"first_told": None}, ""),
        (7 * HOUR, {"verdict": WARNING}, ""),
        (7 * HOUR, {"verdict": UNKNOWN}, ""),
        (7 * HOUR, {"gone": NOW}, ""),
        (7 * HOUR, {"resolved": NOW}, ""),
        (7 * HOUR, {"seen": NOW - 60}, ""),  # this tick could not look
    ],
)
def test_a_deed_is_due_once_for_a_run_whose_critical_incident_nobody_acknowledged(
    since_s: float, fields: dict[str, Any], due: str
) -> None:
    incident = replace(told_since(since_s, CRITICAL, run="gpt", seen=NOW), **fields)
    assert due_act(incident, NOW, ACTS) == due
    done = acted(incident, "its jobs were cancelled", NOW, ACTS)
    assert due_act(done, NOW, ACTS) == ""
    if due:
        assert decide(done, CRITICAL, NOW, ACTS) is Reason.REMINDER, "people are told"
        told = replace(done, told=NOW)
        assert decide(told, CRITICAL, NOW + 60, ACTS) is Reason.QUIET, "once"


# ---- what has no incident yet


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [(OK, Reason.QUIET), (WARNING, Reason.FIRST), (CRITICAL, Reason.FIRST), (UNKNOWN, Reason.QUIET)],
)
@pytest.mark.parametrize("previous", [None, told_since(DAY, resolved=NOW - 60.0)])
def test_a_new_fault_is_notified_immediately_but_not_a_single_unknown(
    previous: Incident | None, verdict: Verdict, reason: Reason
) -> None:
    assert decide(previous, verdict, NOW, POLICY) is reason


@pytest.mark.parametrize(
    ("lasted_s", "reason"), [(0.0, Reason.QUIET), (179.9, Reason.QUIET), (180.0, Reason.FIRST), (1e6, Reason.FIRST)]
)
def test_an_unknown_must_last(lasted_s: float, reason: Reason) -> None:
    assert decide(open_since(lasted_s, UNKNOWN), UNKNOWN, NOW, POLICY) is reason


def test_an_unknown_that_came_back_must_last_anew() -> None:
    assert decide(open_since(DAY, UNKNOWN, gone=NOW - 60), UNKNOWN, NOW, POLICY) is Reason.QUIET


def test_without_unknown_for_s_an_unknown_is_notified_immediately() -> None:
    assert decide(None, UNKNOWN, NOW, replace(POLICY, unknown_for_s=0.0)) is Reason.FIRST


def test_a_fault_that_ended_before_its_notification_is_never_notified() -> None:
    incident = open_since(60.0, UNKNOWN)
    assert decide(incident, OK, NOW, POLICY) is Reason.QUIET
    assert resolves_silently(advance(incident, OK, NOW, POLICY), NOW, POLICY, silenced=False)


# ---- every pair of a notified verdict and a current one

PAIRS = {
    (WARNING, OK): Reason.RESOLVED,
    (WARNING, WARNING): Reason.QUIET,
    (WARNING, UNKNOWN): Reason.WORSE,
    (WARNING, CRITICAL): Reason.WORSE,
    (UNKNOWN, OK): Reason.RESOLVED,
    (UNKNOWN, WARNING): Reason.BETTER,
    (UNKNOWN, UNKNOWN): Reason.QUIET,
    (UNKNOWN, CRITICAL): Reason.WORSE,
    (CRITICAL, OK): Reason.RESOLVED,
    (CRITICAL, WARNING): Reason.BETTER,
    (CRITICAL, UNKNOWN): Reason.QUIET,  # a failed check is no improvement
    (CRITICAL, CRITICAL): Reason.QUIET,
}


@pytest.mark.parametrize(("told", "found"), PAIRS)
def test_reasons_of_each_change(told: Verdict, found: Verdict) -> None:
    incident = told_since(HOUR, told)
    if found is UNKNOWN:
        incident = replace(incident, verdict=UNKNOWN, changed=NOW - 300)
    assert decide(incident, found, NOW, POLICY) is PAIRS[told, found]


def test_an_unknown_on_top_of_a_warning_must_last_as_well() -> None:
    assert decide(told_since(HOUR), UNKNOWN, NOW, POLICY) is Reason.QUIET


@pytest.mark.parametrize(("told", "found"), PAIRS)
def test_a_silence_mutes_every_notification(told: Verdict, found: Verdict) -> None:
    incident = told_since(5 * DAY, told)
    assert decide(incident, found, NOW, replace(POLICY, escalation=("1h: list",)), silenced=True) is Reason.QUIET


@pytest.mark.parametrize("verdict", [WARNING, CRITICAL])
def test_a_first_notification_is_sent_when_the_silence_expires(verdict: Verdict) -> None:
    assert decide(None, verdict, NOW, POLICY, silenced=True) is Reason.QUIET
    assert decide(open_since(HOUR, verdict), verdict, NOW, POLICY, silenced=True) is Reason.QUIET
    assert decide(open_since(HOUR, verdict), verdict, NOW, POLICY) is Reason.FIRST


def test_a_persisting_fault_is_notified_when_the_silence_expires() -> None:
    never = replace(POLICY, reminder_s=0.0)
    incident = told_since(HOUR, silenced=NOW - 600)
    assert decide(incident, WARNING, NOW, never) is Reason.REMINDER
    assert decide(replace(incident, acknowledged_by="ada"), WARNING, NOW, never) is Reason.QUIET


def test_a_resolution_during_a_silence_is_notified_when_the_silence_expires() -> None:
    incident = advance(told_since(HOUR), OK, NOW, POLICY)
    assert decide(incident, OK, NOW, POLICY, silenced=True) is Reason.QUIET
    assert not resolves_silently(incident, NOW, POLICY, silenced=True)
    assert decide(incident, OK, NOW + HOUR, POLICY) is Reason.RESOLVED


@pytest.mark.parametrize(("told", "found"), PAIRS)
def test_an_acknowledgement_stops_reminders_and_escalation_and_nothing_else(told: Verdict, found: Verdict) -> None:
    policy = replace(POLICY, escalation=("1h: list",), reminder_s=MINUTE)
    incident = told_since(5 * DAY, told, acknowledged_by="ada")
    if found is UNKNOWN:
        incident = replace(incident, verdict=UNKNOWN, changed=NOW - 300)
    assert decide(incident, found, NOW, policy) is PAIRS[told, found]


# ---- reminders and escalation


@pytest.mark.parametrize(
    ("since_s", "reminder_s", "reason"),
    [
        (4 * HOUR - 1, 4 * HOUR, Reason.QUIET),
        (4 * HOUR, 4 * HOUR, Reason.REMINDER),
        (400 * DAY, 0.0, Reason.QUIET),
        (400 * DAY, 4 * HOUR, Reason.REMINDER),
    ],
)
def test_a_persisting_fault_has_reminders(since_s: float, reminder_s: float, reason: Reason) -> None:
    assert decide(told_since(since_s), WARNING, NOW, replace(POLICY, reminder_s=reminder_s)) is reason


@pytest.mark.parametrize(
    ("since_s", "told_steps", "reason"),
    [
        (HOUR - 1, 0, Reason.QUIET),
        (HOUR, 0, Reason.ESCALATED),
        (HOUR, 1, Reason.QUIET),
        (2 * HOUR, 1, Reason.ESCALATED),
        (3 * HOUR, 2, Reason.QUIET),
    ],
)
def test_each_escalation_step_is_notified_once(since_s: float, told_steps: int, reason: Reason) -> None:
    policy = replace(POLICY, escalation=("1h: list", "2h: boss"))
    assert decide(told_since(since_s, escalated=told_steps), WARNING, NOW, policy) is reason


def test_steps_that_are_due_together_are_counted_together() -> None:
    policy = replace(POLICY, escalation=("1h: list", "2h: boss", "1d: all"))
    assert due_steps(told_since(3 * HOUR), NOW, policy) == 2


def test_a_notified_step_is_not_repeated_when_the_settings_have_fewer() -> None:
    policy = replace(POLICY, escalation=("1h: list",))
    assert decide(told_since(3 * HOUR, escalated=3), WARNING, NOW, policy) is Reason.QUIET


def test_an_escalation_counts_from_the_first_notification() -> None:
    policy = replace(POLICY, escalation=("1h: list",))
    incident = told_since(2 * HOUR, told=NOW - 60)
    assert decide(incident, WARNING, NOW, policy) is Reason.ESCALATED


# ---- quiet hours


@pytest.mark.parametrize(
    ("incident", "found", "reason"),
    [
        (None, WARNING, Reason.QUIET),
        (None, CRITICAL, Reason.FIRST),
        (open_since(HOUR, UNKNOWN, NIGHT), UNKNOWN, Reason.QUIET),
        (told_since(HOUR, WARNING, NIGHT), CRITICAL, Reason.WORSE),
        (told_since(HOUR, WARNING, NIGHT), OK, Reason.QUIET),
        (told_since(HOUR, CRITICAL, NIGHT), OK, Reason.RESOLVED),
        (told_since(HOUR, CRITICAL, NIGHT), WARNING, Reason.QUIET),
        (told_since(5 * HOUR, WARNING, NIGHT), WARNING, Reason.QUIET),
        (told_since(5 * HOUR, CRITICAL, NIGHT), CRITICAL, Reason.REMINDER),
    ],
)
def test_in_quiet_hours_only_critical_and_its_resolution_are_notified(
    incident: Incident | None, found: Verdict, reason: Reason
) -> None:
    assert decide(incident, found, NIGHT, QUIET, zone=UTC) is reason


def test_a_notification_delayed_by_quiet_hours_is_sent_in_the_morning() -> None:
    assert decide(open_since(7.5 * HOUR, WARNING, MORNING), WARNING, MORNING, QUIET, zone=UTC) is Reason.FIRST
    assert decide(told_since(9.5 * HOUR, CRITICAL, MORNING), WARNING, MORNING, QUIET, zone=UTC) is Reason.BETTER


def test_a_fault_resolved_in_quiet_hours_is_notified_once_in_the_morning() -> None:
    incident = advance(open_since(HOUR, WARNING, NIGHT, held=NIGHT - HOUR), OK, NIGHT, QUIET)
    assert decide(incident, OK, NIGHT, QUIET, zone=UTC) is Reason.QUIET
    assert not resolves_silently(incident, NIGHT, QUIET, silenced=False)
    assert decide(incident, OK, MORNING, QUIET, zone=UTC) is Reason.RESOLVED


@pytest.mark.parametrize(
    ("local", "quiet"),
    [
        ("2026-06-15T21:59", False),
        ("2026-06-15T22:00", True),
        ("2026-06-16T06:59", True),
        ("2026-06-16T07:00", False),
        ("2026-03-29T03:30", True),  # the night that has no 02:30
        ("2026-03-29T06:59", True),
        ("2026-03-29T07:00", False),
        ("2026-10-25T02:30", True),  # the night that has two
        ("2026-10-25T06:59", True),
        ("2026-10-25T07:00", False),
    ],
)
def test_quiet_hours_use_local_time(local: str, quiet: bool) -> None:
    moment = datetime.fromisoformat(local).replace(tzinfo=BERLIN).timestamp()
    assert in_quiet_hours(QUIET, moment, BERLIN) is quiet


def test_a_night_in_which_the_clocks_change_is_quiet_without_a_gap() -> None:
    start = datetime(2026, 10, 24, 22, 0, tzinfo=BERLIN).timestamp()
    quiet = [in_quiet_hours(QUIET, start + minute * 60, BERLIN) for minute in range(11 * 60)]
    assert quiet == [True] * (10 * 60) + [False] * 60  # ten hours, not nine


def test_the_zone_of_the_machine_counts_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    moment = datetime(2026, 6, 15, 16, 0, tzinfo=UTC).timestamp()
    answers = {}
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        answers[zone] = in_quiet_hours(QUIET, moment)
    monkeypatch.undo()
    time.tzset()
    assert answers == {"UTC": False, "Asia/Tokyo": True}


# ---- the end of it


@pytest.mark.parametrize(("gone_s", "reason"), [(0.0, Reason.QUIET), (299.0, Reason.QUIET), (300.0, Reason.RESOLVED)])
def test_a_fault_must_be_gone_as_long_as_the_settings_say(gone_s: float, reason: Reason) -> None:
    policy = replace(POLICY, resolve_after_s=300.0)
    incident = told_since(HOUR, gone=NOW - gone_s)
    assert decide(incident, OK, NOW, policy) is reason


def test_a_fault_that_returns_before_its_resolution_is_the_same_incident() -> None:
    policy = replace(POLICY, resolve_after_s=300.0)
    incident = told_since(HOUR, gone=NOW - 200)
    assert decide(incident, WARNING, NOW, policy) is Reason.QUIET
    assert advance(incident, WARNING, NOW, policy).gone is None


# ---- what is saved when nothing is sent


@pytest.mark.parametrize(
    ("incident", "verdict", "options", "reason", "saved"),
    [
        (open_since(60.0), WARNING, {}, Reason.FIRST, {"held": None, "resolved": None}),
        (open_since(60.0, gone=NOW), OK, {}, Reason.QUIET, {"resolved": NOW}),
        (told_since(HOUR), WARNING, {"silenced": True}, Reason.QUIET, {"silenced": NOW}),
        (told_since(HOUR, silenced=NOW - 60), WARNING, {"silenced": True}, Reason.QUIET, {"silenced": NOW - 60}),
        (told_since(HOUR, silenced=NOW - 60, acknowledged_by="ada"), WARNING, {}, Reason.QUIET, {"silenced": None}),
        (told_since(HOUR), OK, {"expired": True}, Reason.RESOLVED, {"resolved": None}),
        (told_since(HOUR), OK, {"expired": True, "silenced": True}, Reason.QUIET, {"resolved": None}),
        (open_since(HOUR), OK, {"expired": True}, Reason.QUIET, {"resolved": NOW}),
    ],
)
def test_the_reason_comes_with_the_incident_to_save(
    incident: Incident, verdict: Verdict, options: dict[str, bool], reason: Reason, saved: dict[str, float | None]
) -> None:
    found, after = assess(incident, verdict, NOW, QUIET, zone=UTC, **options)
    assert (found, {name: getattr(after, name) for name in saved}) == (reason, saved)


@pytest.mark.parametrize(("verdict", "lasted_s", "held"), [(WARNING, 0.0, True), (UNKNOWN, 60.0, False)])
def test_a_fault_is_held_when_only_quiet_hours_keep_it_back(verdict: Verdict, lasted_s: float, held: bool) -> None:
    reason, after = assess(open_since(lasted_s, verdict, NIGHT), verdict, NIGHT, QUIET, zone=UTC)
    assert reason is Reason.QUIET and (after.held == NIGHT) is held


# ---- flapping


def flapped(count: int, **fields: Any) -> Incident:
    return told_since(2 * HOUR, flaps=tuple(NOW - 60.0 * (count - n) for n in range(count)), **fields)


def test_flapping_is_notified_once_until_it_settles() -> None:
    back = replace(flapped(3), gone=NOW - 30)
    assert decide(back, WARNING, NOW, POLICY) is Reason.WORSE
    told = replace(advance(back, WARNING, NOW, POLICY), flapping=NOW, told=NOW)
    for minute in range(1, 59):
        now = NOW + minute * MINUTE
        assert decide(told, OK if minute % 2 else WARNING, now, POLICY) is Reason.QUIET
        told = advance(told, OK if minute % 2 else WARNING, now, POLICY)


def test_a_flapping_fault_that_persists_is_notified_when_it_settles() -> None:
    told = flapped(4, flapping=NOW, told=NOW)
    assert decide(told, WARNING, NOW + 3500, POLICY) is Reason.QUIET
    assert decide(told, WARNING, NOW + 3601, POLICY) is Reason.REMINDER


def test_a_flapping_fault_that_is_gone_is_resolved_when_it_settles() -> None:
    told = flapped(4, flapping=NOW, told=NOW, gone=NOW + 10)
    assert decide(told, OK, NOW + 3500, POLICY) is Reason.QUIET
    assert decide(told, OK, NOW + 3601, POLICY) is Reason.RESOLVED


def test_a_flapping_fault_that_becomes_critical_is_notified() -> None:
    assert decide(flapped(4, flapping=NOW, told=NOW), CRITICAL, NOW + 60, POLICY) is Reason.WORSE


def test_going_up_and_down_between_two_verdicts_is_flapping_too() -> None:
    incident, told, now = told_since(HOUR), [], NOW
    for number in range(60):
        now += MINUTE
        verdict = CRITICAL if number % 2 else WARNING
        reason = decide(incident, verdict, now, POLICY)
        incident = advance(incident, verdict, now, POLICY)
        if reason is not Reason.QUIET:
            told.append(reason)
            flaps = is_flapping(incident, POLICY)
            incident = replace(incident, told=now, told_verdict=verdict, flapping=now if flaps else None)
    assert len(told) <= 2 * POLICY.flap_count + 2
    assert told.count(Reason.WORSE) <= POLICY.flap_count + 1


def test_an_unknown_between_two_warnings_is_no_flap() -> None:
    incident = told_since(HOUR)
    for number in range(10):
        incident = advance(incident, UNKNOWN if number % 2 == 0 else WARNING, NOW + number, POLICY)
    assert incident.flaps == ()


def test_a_fault_that_comes_back_as_a_new_incident_is_a_flap() -> None:
    previous = told_since(HOUR, resolved=NOW - 60)
    finding = Finding(subject="/scratch", fault="space", verdict=WARNING, summary="91% used")
    assert open_incident(previous, finding, "fs", NOW, POLICY).flaps == (NOW,)


def test_a_fault_that_comes_back_each_second_does_not_grow_its_file() -> None:
    incident = told_since(HOUR)
    for second in range(100):
        incident = advance(incident, OK if second % 2 else WARNING, NOW + second, POLICY)
    assert len(incident.flaps) == POLICY.flap_count


def test_flapping_detection_can_be_disabled() -> None:
    assert not is_flapping(flapped(50), replace(POLICY, flap_count=0))


def test_old_flaps_do_not_count_and_are_removed() -> None:
    incident = told_since(DAY, flaps=(NOW - 5 * HOUR, NOW - 4 * HOUR, NOW - 3 * HOUR, NOW - 60))
    assert advance(incident, WARNING, NOW, POLICY).flaps == (NOW - 60,)


# ---- clocks that are wrong


@pytest.mark.parametrize("back_s", [1.0, HOUR, 400 * DAY])
@pytest.mark.parametrize("found", [WARNING, CRITICAL, OK])
def test_a_clock_that_is_set_back_causes_no_notification(back_s: float, found: Verdict) -> None:
    incident = told_since(60.0)
    policy = replace(POLICY, escalation=("1h: list",), quiet_hours="")
    assert decide(incident, found, NOW - back_s, policy) is decide(incident, found, NOW, policy)


def test_after_a_clock_was_set_back_reminders_continue() -> None:
    now = NOW - 400 * DAY
    incident = advance(told_since(60.0), WARNING, now, POLICY)
    assert decide(incident, WARNING, now + 4 * HOUR, POLICY) is Reason.REMINDER


def test_after_a_clock_was_set_back_an_unknown_and_a_resolution_are_notified() -> None:
    now = NOW - 400 * DAY
    unknown = advance(open_since(60.0, UNKNOWN), UNKNOWN, now, POLICY)
    assert decide(unknown, UNKNOWN, now + 180, POLICY) is Reason.FIRST
    gone = advance(told_since(60.0, gone=NOW), OK, now, replace(POLICY, resolve_after_s=60.0))
    assert decide(gone, OK, now + 60, replace(POLICY, resolve_after_s=60.0)) is Reason.RESOLVED


def test_a_clock_that_jumps_ahead_reminds_once() -> None:
    policy = replace(POLICY, escalation=("1h: list", "2h: boss"))
    now = NOW + 400 * DAY
    incident = told_since(60.0)
    told = []
    for _ in range(5):
        reason = decide(incident, WARNING, now, policy)
        incident = advance(incident, WARNING, now, policy)
        if reason is not Reason.QUIET:
            told.append(reason)
            incident = replace(incident, told=now, escalated=due_steps(incident, now, policy))
    assert told == [Reason.ESCALATED]


# ---- crashes


def test_after_a_crash_the_first_notification_is_repeated() -> None:
    assert decide(open_since(60.0, intended=NOW - 60), WARNING, NOW, POLICY) is Reason.FIRST


def test_the_resolution_of_a_possibly_notified_fault_is_notified() -> None:
    assert decide(open_since(60.0, intended=NOW - 60), OK, NOW, POLICY) is Reason.RESOLVED


@pytest.mark.parametrize(("told", "found"), [pair for pair, reason in PAIRS.items() if reason is Reason.QUIET])
def test_after_a_crash_during_a_change_the_current_state_is_notified(told: Verdict, found: Verdict) -> None:
    incident = told_since(HOUR, told, intended=NOW - 60, acknowledged_by="ada")
    assert decide(incident, found, NOW, POLICY) is Reason.REMINDER


# ---- what holds for all of it

incidents = st.one_of(
    st.none(),
    st.builds(
        lambda opened, verdict, fields: replace(open_since(opened, verdict), **fields),
        st.floats(0, 1e6),
        st.sampled_from([WARNING, UNKNOWN, CRITICAL]),
        st.fixed_dictionaries(
            {},
            optional={
                "told": st.floats(NOW - 1e6, NOW + 1e6),
                "first_told": st.floats(NOW - 1e6, NOW + 1e6),
                "told_verdict": st.sampled_from([WARNING, UNKNOWN, CRITICAL]),
                "gone": st.none() | st.floats(NOW - 1e6, NOW + 1e6),
                "acknowledged_by": st.sampled_from(["", "ada"]),
                "flaps": st.lists(st.floats(NOW - 5000, NOW + 5000), max_size=6).map(tuple),
                "flapping": st.none() | st.floats(NOW - 5000, NOW + 5000),
                "escalated": st.integers(0, 3),
                "intended": st.none() | st.just(NOW),
                "held": st.none() | st.just(NOW),
                "silenced": st.none() | st.just(NOW),
                "resolved": st.none() | st.just(NOW),
            },
        ),
    ),
)
policies = st.builds(
    AlertPolicy,
    channels=st.just(("email",)),
    escalation=st.sampled_from([(), ("1h: list",), ("1h: list", "2h: boss")]),
    reminder_s=st.sampled_from([0.0, 60.0, 14400.0]),
    unknown_for_s=st.sampled_from([0.0, 180.0]),
    quiet_hours=st.sampled_from(["", "22:00-07:00", "11:00-13:00"]),
    flap_count=st.integers(0, 5),
    resolve_after_s=st.sampled_from([0.0, 300.0]),
)


@given(incidents, st.sampled_from(list(Verdict)), policies, st.booleans())
def test_a_decision_is_the_same_if_the_check_was_applied_already(
    incident: Incident | None, verdict: Verdict, policy: AlertPolicy, silenced: bool
) -> None:
    reason = decide(incident, verdict, NOW, policy, silenced=silenced, zone=UTC)
    if incident is not None and incident.is_open:
        noted = advance(incident, verdict, NOW, policy)
        assert advance(noted, verdict, NOW, policy) == noted
        assert decide(noted, verdict, NOW, policy, silenced=silenced, zone=UTC) is reason
    if silenced:
        assert reason is Reason.QUIET
    if verdict is OK:
        assert reason in (Reason.QUIET, Reason.RESOLVED)
    else:
        assert reason is not Reason.RESOLVED
    if reason in (Reason.REMINDER, Reason.ESCALATED):
        assert incident is not None
        assert not incident.acknowledged_by or incident.intended is not None
    if policy.quiet_hours == "11:00-13:00" and reason not in (Reason.QUIET, Reason.RESOLVED):
        assert verdict is CRITICAL


# ---- policies that cannot be meant


@pytest.mark.parametrize(
    ("policy", "said", "hint"),
    [
        (AlertPolicy(channels=("emial",)), "'emial'", "did you mean email?"),
        (AlertPolicy(channels=("zzz",)), "'zzz'", "there are: email, slack"),
        (AlertPolicy(channels=("email",), escalation=("1h: slakc",)), "'slakc'", "did you mean slack?"),
        (AlertPolicy(escalation=("1h: slack",)), "no channels", "channels = "),
        (AlertPolicy(channels=("email",), quiet_hours="late"), "'late'", "22:00-07:00"),
        (AlertPolicy(channels=("email",), escalation=("later: slack",)), "'later'", "1h: list"),
    ],
)
def test_an_invalid_policy_is_rejected_with_a_hint(policy: AlertPolicy, said: str, hint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_policy(policy, ("email", "slack"))
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_a_misspelled_step_does_not_prevent_other_notifications() -> None:
    policy = AlertPolicy(channels=("email",), escalation=("later: slack", "1h: list"), quiet_hours="late")
    rest, errors = usable(policy)
    assert rest == AlertPolicy(channels=("email",), escalation=("1h: list",))
    assert len(errors) == 2
    assert usable(rest) == (rest, ())


def test_the_reasons_are_all_in_use() -> None:
    """Every reason is the result for some incident."""
    policy = replace(POLICY, escalation=("1h: list",))
    previous = [
        None,
        told_since(60.0),
        told_since(2 * HOUR),
        told_since(5 * HOUR, escalated=1),
        told_since(60.0, CRITICAL),
    ]
    said = {decide(incident, verdict, NOW, policy) for incident, verdict in product(previous, Verdict)}
    assert said == set(Reason)
