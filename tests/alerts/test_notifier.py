"""Notifications of a fault from its first finding to its resolution; no crash loses one."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from resilience.alerts.alert import Notice, Reason
from resilience.alerts.incident import Incident, Silence
from resilience.alerts.ledger import Ledger, Silences
from resilience.alerts.notifier import MANY, REFRESH_S, Notified, Notifier
from resilience.alerts.outbox import Outbox
from resilience.alerts.policy import RESOLVED_RETENTION_S
from resilience.finding import Finding, Report, Verdict
from resilience.settings.alert_policy import AlertPolicy
from resilience.system.fallback_directory import FallbackDirectory
from tests.alerts.memory_outbox import Killed, MemoryOutbox
from tests.lab.disks import fill, make_read_only, small_disk
from tests.system.writer import writer

OK, WARNING, UNKNOWN, CRITICAL = Verdict
NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC).timestamp()
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
POLICY = AlertPolicy(channels=("email",), group_s=0.0, reminder_s=4 * HOUR, flap_count=0)


def finding(verdict: Verdict, subject: str = "/scratch", fault: str = "space", **fields: Any) -> Finding:
    fault = "" if verdict is OK else fault
    return Finding(subject=subject, verdict=verdict, fault=fault, **({"summary": "91% used"} | fields))


def report(*findings: Finding, check: str = "fs", time: float = NOW) -> Report:
    return Report(check=check, findings=findings, time=time)


@dataclass
class Scenario:
    """Ticks of a notifier with its state in a directory; each tick advances `now`."""

    directory: Path
    policy: AlertPolicy = POLICY
    now: float = NOW
    post: MemoryOutbox = field(default_factory=MemoryOutbox)
    fallback: Path | None = None
    host: str = "login1"
    source: str = ""
    last: Notified = field(default_factory=Notified)

    @property
    def ledger(self) -> Ledger:
        return Ledger(FallbackDirectory(self.directory / "incidents", self.fallback))

    @property
    def silences(self) -> Silences:
        return Silences(FallbackDirectory(self.directory / "silences", None))

    def tick(self, *findings: Finding, after_s: float = 0.0, check: str = "fs") -> list[Notice]:
        """Tell of one report; return what was said."""
        return self.reports(report(*findings, check=check, time=self.now + after_s), after_s=after_s)

    def reports(self, *reports: Report, after_s: float = 0.0) -> list[Notice]:
        self.now += after_s
        before = len(self.post.order)
        notifier = Notifier(
            ledger=self.ledger, silences=self.silences, outbox=self.post, policy=self.policy,
            host=self.host, project="/p", zone=UTC,
        )  # fmt: skip
        self.last = notifier.notify(reports, self.now, source=self.source)
        return [notice for alert in self.post.alerts[before:] for notice in alert.notices]

    def killed_tick(self, *findings: Finding) -> None:
        """A minute later, killed between the outbox and the ledger."""

        def kill() -> None:
            raise Killed

        self.post.after = kill
        with pytest.raises(Killed):
            self.tick(*findings, after_s=MINUTE)
        self.post.after = lambda: None

    def only(self) -> Incident:
        (incident,) = self.ledger.incidents()
        return incident


def reasons(notices: Sequence[Notice]) -> list[Reason]:
    return [notice.reason for notice in notices]


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path)


SILENCE = "a person silences the check for an hour"
NIGHT = datetime(2026, 6, 15, 23, 0, tzinfo=UTC).timestamp()
STORIES: dict[str, tuple[dict[str, Any], list[tuple[float, Verdict | str, Reason | None]]]] = {
    "a missed answer is no news, and many are": (
        {},
        [(0, UNKNOWN, None), (MINUTE, OK, None), (MINUTE, UNKNOWN, None), (2 * MINUTE, UNKNOWN, None),
         (2 * MINUTE, UNKNOWN, Reason.FIRST)],
    ),
    "a fault must be gone for a while": (
        {"resolve_after_s": 600.0},
        [(0, WARNING, Reason.FIRST), (MINUTE, OK, None), (MINUTE, WARNING, None), (MINUTE, OK, None),
         (11 * MINUTE, OK, Reason.RESOLVED)],
    ),
    "without an acknowledgement people are reminded": (
        {},
        [(0, WARNING, Reason.FIRST)] + [(HOUR, WARNING, Reason.REMINDER if n % 4 == 0 else None) for n in range(1, 25)],
    ),
    "after a silence people hear once that the fault is still there": (
        {"reminder_s": 0.0},
        [(0, WARNING, Reason.FIRST), (0, SILENCE, None), (MINUTE, WARNING, None), (HOUR, WARNING, Reason.REMINDER),
         (HOUR, WARNING, None)],
    ),
    "a fault that came and went in a silence is never sent": (
        {}, [(0, SILENCE, None), (0, WARNING, None), (MINUTE, OK, None), (2 * HOUR, OK, None)],
    ),
    "an end in a silence is sent after it": (
        {}, [(0, WARNING, Reason.FIRST), (0, SILENCE, None), (MINUTE, OK, None), (HOUR, OK, Reason.RESOLVED)],
    ),
    "a CRITICAL of the night is sent at once, and so is its end": (
        {"quiet_hours": "22:00-07:00"},
        [(NIGHT - NOW, CRITICAL, Reason.FIRST), (HOUR, OK, Reason.RESOLVED)],
    ),
}  # fmt: skip
"""By name: changes of the policy, and what happens: seconds later, the verdict, the reason of the notification."""


@pytest.mark.parametrize("name", STORIES)
def test_scenarios(scenario: Scenario, name: str) -> None:
    changes, steps = STORIES[name]
    scenario.policy = replace(POLICY, **changes)
    for number, (after_s, verdict, reason) in enumerate(steps):
        if isinstance(verdict, str):
            scenario.silences.add(Silence(id="12ab34cd", until=scenario.now + HOUR, check="fs"))
            continue
        fault = "probe" if verdict is UNKNOWN else "space"
        said = scenario.tick(finding(verdict, fault=fault), after_s=after_s)
        assert reasons(said) == ([reason] if reason else []), number
    assert scenario.ledger.incidents()[0].is_open is (verdict is not OK)


# ---- one fault


def test_a_fault_is_sent_once_and_its_end_too(scenario: Scenario) -> None:
    assert scenario.tick(finding(OK)) == []
    assert reasons(scenario.tick(finding(WARNING))) == [Reason.FIRST]
    for _ in range(60):
        assert scenario.tick(finding(WARNING), after_s=MINUTE) == []
    (end,) = scenario.tick(finding(OK), after_s=MINUTE)
    assert (end.reason, end.verdict) == (Reason.RESOLVED, OK)
    assert end.summary == "resolved after 1 h 1 min; was WARNING: 91% used"
    assert scenario.tick(finding(OK), after_s=MINUTE) == []
    assert not scenario.only().is_open


def test_a_message_can_be_understood_at_night(scenario: Scenario) -> None:
    fault = finding(CRITICAL, summary="99% used", advice="resil watch fs --top", evidence=("df",), run="gpt")
    (notice,) = scenario.tick(fault)
    alert = scenario.post.alerts[0]
    assert (alert.host, alert.project) == ("login1", "/p")
    assert (notice.check, notice.subject, notice.run, notice.since) == ("fs", "/scratch", "gpt", NOW)
    assert (notice.summary, notice.advice, notice.evidence) == ("99% used", "resil watch fs --top", ("df",))
    assert scenario.only().episode == notice.episode


def test_worse_and_better_are_sent_each_once_in_one_thread(scenario: Scenario) -> None:
    said = [
        notice.reason
        for verdict in (WARNING, WARNING, CRITICAL, CRITICAL, WARNING, WARNING, OK, OK)
        for notice in scenario.tick(finding(verdict), after_s=MINUTE)
    ]
    assert said == [Reason.FIRST, Reason.WORSE, Reason.BETTER, Reason.RESOLVED]
    assert len({alert.thread for alert in scenario.post.alerts}) == 1
    assert [notice.count for notice in scenario.post.notices()] == [1, 2, 3, 4]
    assert scenario.post.notices()[1].summary == "91% used (was WARNING)"


def test_a_failed_probe_ends_nothing(scenario: Scenario) -> None:
    scenario.tick(finding(CRITICAL))
    for _ in range(30):
        said = scenario.tick(finding(UNKNOWN, fault="probe"), after_s=MINUTE)
        assert Reason.RESOLVED not in reasons(said)
    assert sum(incident.is_open for incident in scenario.ledger.incidents()) == 2
    assert reasons(scenario.tick(finding(OK), after_s=MINUTE)) == [Reason.RESOLVED, Reason.RESOLVED]


def test_while_probes_fail_reminders_go_on(scenario: Scenario) -> None:
    scenario.tick(finding(CRITICAL))
    scenario.tick(finding(UNKNOWN, fault="probe"), after_s=MINUTE)
    assert Reason.REMINDER in reasons(scenario.tick(finding(UNKNOWN, fault="probe"), after_s=5 * HOUR))


def test_a_subject_that_was_not_probed_is_not_over(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING), finding(OK, "/home"))
    assert scenario.tick(finding(OK, "/home"), after_s=MINUTE) == []
    assert scenario.tick(finding(OK), after_s=MINUTE, check="inodes") == []
    assert scenario.reports() == []
    assert scenario.only().is_open


def test_each_fault_of_a_subject_has_an_incident_of_its_own(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING, fault="space"), finding(CRITICAL, fault="inodes"))
    (end,) = scenario.tick(finding(WARNING, fault="space"), after_s=MINUTE)
    assert (end.fault, end.reason) == ("inodes", Reason.RESOLVED)
    (end,) = scenario.tick(finding(OK), after_s=MINUTE)
    assert (end.fault, end.reason) == ("space", Reason.RESOLVED)


def test_the_same_fault_found_twice_in_one_probe_is_one_and_the_worse_counts(scenario: Scenario) -> None:
    (notice,) = scenario.tick(finding(WARNING), finding(CRITICAL, summary="99% used"))
    assert (notice.verdict, notice.summary) == (CRITICAL, "99% used")


def test_a_fixed_settings_error_is_resolved(scenario: Scenario) -> None:
    bad = finding(UNKNOWN, "fs", "settings")
    scenario.tick(bad)
    assert reasons(scenario.tick(bad, after_s=10 * MINUTE)) == [Reason.FIRST]
    assert reasons(scenario.tick(finding(OK), after_s=MINUTE)) == [Reason.RESOLVED]


def test_a_fault_that_comes_back_is_a_new_incident(scenario: Scenario) -> None:
    (first,) = scenario.tick(finding(WARNING))
    scenario.tick(finding(OK), after_s=MINUTE)
    (again,) = scenario.tick(finding(WARNING), after_s=MINUTE)
    assert again.reason is Reason.FIRST
    assert again.episode != first.episode
    assert again.fingerprint == first.fingerprint


# ---- acknowledgements, escalation and silences


def test_a_watchdog_that_looked_before_the_end_and_speaks_after_it_opens_nothing(scenario: Scenario) -> None:
    scenario.tick(finding(CRITICAL))
    seen = report(finding(CRITICAL), time=scenario.now + MINUTE)  # one watchdog has looked, and takes long to tell
    assert reasons(scenario.tick(finding(OK), after_s=MINUTE + 2)) == [Reason.RESOLVED], "another has looked later"
    assert scenario.reports(seen, after_s=1) == [] and scenario.only().number == 1
    assert reasons(scenario.tick(finding(CRITICAL), after_s=MINUTE)) == [Reason.FIRST], "it is back"


def test_a_clock_that_is_behind_hides_no_fault_that_is_back(scenario: Scenario) -> None:
    scenario.tick(finding(CRITICAL))
    scenario.tick(finding(OK), after_s=HOUR)
    scenario.now -= HOUR / 2
    assert reasons(scenario.tick(finding(CRITICAL))) == [Reason.FIRST]


def test_an_acknowledgement_stops_reminders_but_not_the_resolution(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, escalation=("1h: list",))
    (first,) = scenario.tick(finding(WARNING))
    scenario.ledger.acknowledge(scenario.ledger.find(first.episode), "ada", "on it", scenario.now)
    assert [scenario.tick(finding(WARNING), after_s=HOUR) for _ in range(30)] == [[]] * 30
    (worse,) = scenario.tick(finding(CRITICAL), after_s=MINUTE)
    assert (worse.reason, worse.acknowledged_by) == (Reason.WORSE, "ada")
    assert reasons(scenario.tick(finding(OK), after_s=MINUTE)) == [Reason.RESOLVED]
    assert {channel for _, channel, _ in scenario.post.order} == {"email"}


def test_an_escalated_channel_gets_all_later_notifications(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, escalation=("1h: list", "2h: boss, list"))
    for _ in range(5 * 60):
        scenario.tick(finding(WARNING), after_s=MINUTE)
    scenario.tick(finding(OK), after_s=MINUTE)
    assert reasons(scenario.post.notices("email")) == [Reason.FIRST, Reason.RESOLVED]
    assert reasons(scenario.post.notices("list")) == [Reason.ESCALATED, Reason.ESCALATED, Reason.RESOLVED]
    assert reasons(scenario.post.notices("boss")) == [Reason.ESCALATED, Reason.RESOLVED]
    assert "not acknowledged for" in scenario.post.notices("list")[0].summary


def test_a_silence_mutes_matching_incidents_which_are_still_recorded(scenario: Scenario) -> None:
    scenario.silences.add(Silence(id="12ab34cd", until=NOW + HOUR, check="fs", subject="/scr*"))
    said = scenario.tick(finding(CRITICAL), finding(CRITICAL, "/home"))
    assert [notice.subject for notice in said] == ["/home"]
    scenario.tick(finding(CRITICAL), finding(OK, "/home"), after_s=30 * MINUTE)
    (first,) = scenario.tick(finding(CRITICAL), finding(OK, "/home"), after_s=31 * MINUTE)
    assert (first.reason, first.subject, first.since) == (Reason.FIRST, "/scratch", NOW)


def test_a_silence_that_expired_long_ago_is_removed(scenario: Scenario) -> None:
    scenario.silences.add(Silence(id="12ab34cd", until=NOW + HOUR, check="fs"))
    scenario.tick(finding(OK), after_s=7 * DAY)
    assert scenario.silences.directory.names() == ("12ab34cd.json",)
    scenario.tick(finding(OK), after_s=2 * HOUR)
    assert scenario.silences.directory.names() == ()


# ---- nights


def test_a_night_s_warnings_are_sent_in_the_morning_in_one_message(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, quiet_hours="22:00-07:00")
    scenario.now = datetime(2026, 6, 15, 23, 0, tzinfo=UTC).timestamp()
    assert scenario.tick(finding(WARNING, "/a"), finding(WARNING, "/b"), finding(UNKNOWN, "/c", "probe")) == []
    assert scenario.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(OK, "/c"), after_s=HOUR) == []
    assert scenario.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(OK, "/c"), after_s=6 * HOUR) == []
    said = scenario.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(OK, "/c"), after_s=HOUR)
    assert [(n.subject, n.reason) for n in said] == [("/b", Reason.FIRST), ("/a", Reason.RESOLVED)]
    assert said[1].summary == "started and was resolved in the quiet hours, after 1 h; was WARNING: 91% used"
    assert len(scenario.post.order) == 1
    assert scenario.tick(finding(OK, "/a"), finding(WARNING, "/b"), after_s=MINUTE) == []


# ---- much


def test_a_thousand_jobs_are_one_message_and_so_are_their_ends(scenario: Scenario) -> None:
    jobs = [f"job {n}" for n in range(1000)]
    began = time.process_time()
    scenario.tick(*(finding(CRITICAL, job) for job in jobs), check="job")
    took_s = time.process_time() - began
    assert [alert.total for alert in scenario.post.alerts] == [1000]
    scenario.tick(*(finding(CRITICAL, job) for job in jobs), check="job", after_s=MINUTE)
    scenario.tick(*(finding(OK, job) for job in jobs), check="job", after_s=MINUTE)
    assert [alert.total for alert in scenario.post.alerts] == [1000, 1000]
    assert took_s < 5  # of the processor; 0.4 s on a quiet core


def test_of_very_many_each_end_is_sent_once_though_the_notifier_was_killed(scenario: Scenario) -> None:
    jobs = [f"job {n}" for n in range(60)]
    scenario.tick(*(finding(CRITICAL, job) for job in jobs))
    scenario.killed_tick(*(finding(OK, job) for job in jobs))
    scenario.tick(*(finding(OK, job) for job in jobs), after_s=MINUTE)
    sent = [(alert.reason, alert.total) for alert in scenario.post.alerts]
    assert sent == [(Reason.FIRST, 60), (Reason.RESOLVED, 60)]


def test_a_tick_over_very_many_in_which_nothing_changes_writes_nothing(scenario: Scenario) -> None:
    def written() -> set[tuple[str, int]]:
        return {(path.name, path.stat().st_mtime_ns) for path in (scenario.directory / "incidents").iterdir()}

    def found(summary: str) -> list[Finding]:
        return [finding(WARNING, f"job {n}", summary=summary) for n in range(MANY + 1)]

    scenario.tick(*found("91.1% used"))
    before = written()
    scenario.tick(*found("91.2% used"), after_s=MINUTE)
    assert written() == before
    scenario.tick(*found("91.3% used"), after_s=REFRESH_S)
    assert not written() & before
    assert {incident.summary for incident in scenario.ledger.incidents()} == {"91.3% used"}


def test_with_few_incidents_the_ledger_has_the_findings_of_the_last_tick(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING, summary="91.1% used"))
    assert scenario.tick(finding(WARNING, summary="94.9% used"), after_s=MINUTE) == []
    assert (scenario.only().summary, scenario.only().seen) == ("94.9% used", scenario.now)
    scenario.tick(finding(UNKNOWN, fault="hung"), after_s=MINUTE)  # the check failed
    assert {incident.fault: scenario.now - incident.seen for incident in scenario.ledger.incidents()}["space"] == MINUTE


def test_a_group_is_notified_once_per_interval_with_everything_due(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, group_s=300.0)
    assert len(scenario.tick(finding(WARNING, "/a"))) == 1
    assert scenario.tick(finding(WARNING, "/a"), finding(WARNING, "/b"), after_s=MINUTE) == []
    assert scenario.tick(finding(OK, "/a"), finding(WARNING, "/b"), after_s=MINUTE) == []
    said = scenario.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(WARNING, "/c"), after_s=3 * MINUTE)
    assert {(n.subject, n.reason) for n in said} == {
        ("/a", Reason.RESOLVED), ("/b", Reason.FIRST), ("/c", Reason.FIRST),
    }  # fmt: skip
    assert len(scenario.post.order) == 2


def test_a_new_critical_is_sent_immediately(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, group_s=300.0)
    scenario.tick(finding(WARNING, "/a"))
    (said,) = scenario.tick(finding(WARNING, "/a"), finding(CRITICAL, "/b"), after_s=1.0)
    assert said.subject == "/b"


def test_another_check_is_another_group(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, group_s=300.0)
    scenario.tick(finding(WARNING))
    assert len(scenario.tick(finding(WARNING, "gpt"), check="job", after_s=1.0)) == 1


def test_a_fault_that_comes_and_goes_each_minute_is_sent_a_few_times_a_day(scenario: Scenario) -> None:
    scenario.policy = AlertPolicy(channels=("email",))
    for minute in range(24 * 60):
        scenario.tick(finding(OK if minute % 2 else WARNING), after_s=MINUTE)
    assert len(scenario.post.order) <= 12
    assert any("flapping" in notice.summary for notice in scenario.post.notices())
    said = [notice for _ in range(70) for notice in scenario.tick(finding(OK), after_s=MINUTE)]
    assert reasons(said) == [Reason.RESOLVED]


# ---- time


def test_a_clock_that_steps_sends_nothing_twice(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING))
    for step_s in (-HOUR, -DAY, 2 * DAY - 30 * MINUTE, -DAY, MINUTE):
        said = scenario.tick(finding(WARNING), after_s=step_s)
        assert reasons(said) in ([], [Reason.REMINDER])
    assert len(scenario.post.order) <= 3
    scenario.policy = replace(POLICY, reminder_s=HOUR)
    assert Reason.REMINDER in reasons([n for _ in range(3) for n in scenario.tick(finding(WARNING), after_s=HOUR)])


def test_an_incident_that_no_watch_checks_for_a_day_is_closed_with_a_notification(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING))
    assert scenario.tick(finding(OK, "/home"), after_s=DAY) == []
    (end,) = scenario.tick(finding(OK, "/home"), after_s=MINUTE)
    assert end.reason is Reason.RESOLVED
    assert end.summary.startswith("no longer checked for 1 d; the problem may persist; was WARNING")
    assert not scenario.only().is_open


def test_an_incident_of_a_weekly_check_stays_open_from_week_to_week(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING))
    scenario.tick(finding(WARNING), after_s=DAY)
    scenario.tick(finding(WARNING), after_s=7 * DAY)
    for _ in range(20):
        assert scenario.tick(finding(OK, "/home"), after_s=DAY) == []
    assert scenario.only().is_open


def test_an_incident_whose_subject_is_gone_from_three_checks_is_closed(scenario: Scenario) -> None:
    scenario.source = "login1:/p"
    scenario.tick(finding(WARNING))
    assert scenario.tick(finding(OK, "/home"), after_s=MINUTE) == []
    assert scenario.tick(finding(OK, "/home"), after_s=MINUTE) == []
    assert scenario.only().is_open
    (end,) = scenario.tick(finding(OK, "/home"), after_s=MINUTE)
    assert end.reason is Reason.RESOLVED
    assert end.summary.startswith("no longer checked for 3 min; the problem may persist; was WARNING")
    assert not scenario.only().is_open
    (again,) = scenario.tick(finding(WARNING), after_s=MINUTE)
    assert again.reason is Reason.FIRST and again.episode != end.episode


def test_an_incident_that_was_never_notified_is_closed_without_a_notification(scenario: Scenario) -> None:
    scenario.source = "login1:/p"
    scenario.policy = replace(POLICY, unknown_for_s=HOUR)
    sent = scenario.tick(finding(UNKNOWN))
    for _ in range(3):
        sent += scenario.tick(finding(OK, "/home"), after_s=MINUTE)
    assert sent == [] and not scenario.only().is_open


@pytest.mark.parametrize(
    ("source", "others"),
    [
        ("login1:/p", ()),
        ("login2:/p", (finding(OK, "/home"),)),  # another node may have other file systems
        ("login1:/q", (finding(OK, "/home"),)),  # another project of the same state directory
        ("login1:/p fs paths=['/home']", (finding(OK, "/home"),)),  # another line of the crontab
        ("", (finding(OK, "/home"),)),
        ("login1:/p", (finding(OK, "/home"), finding(UNKNOWN, "/data", "stuck"))),  # could not look at all of them
    ],
)
def test_checks_that_may_not_include_the_subject_close_nothing(
    scenario: Scenario, source: str, others: tuple[Finding, ...]
) -> None:
    for first in ("login1:/p", "") if not source else ("login1:/p",):
        scenario.source = first
        scenario.tick(finding(WARNING), after_s=MINUTE)
        scenario.source = source
        for _ in range(10):
            scenario.tick(*others, after_s=MINUTE)
        assert next(i for i in scenario.ledger.incidents() if i.subject == "/scratch").is_open


def test_a_subject_that_comes_back_in_time_stays_the_same_incident(scenario: Scenario) -> None:
    scenario.source = "login1:/p"
    scenario.tick(finding(WARNING))
    for _ in range(5):
        scenario.tick(finding(OK, "/home"), after_s=MINUTE)
        scenario.tick(finding(OK, "/home"), after_s=MINUTE)
        scenario.tick(finding(WARNING), after_s=MINUTE)
    assert reasons(scenario.post.notices()) == [Reason.FIRST]


def test_the_end_of_the_checks_waits_for_the_end_of_the_quiet_hours(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, quiet_hours="22:00-07:00")
    scenario.source = "login1:/p"
    scenario.now = NIGHT - 2 * HOUR
    scenario.tick(finding(WARNING))
    scenario.now = NIGHT
    for _ in range(4):
        assert scenario.tick(finding(OK, "/home"), after_s=MINUTE) == []
    (end,) = scenario.tick(finding(OK, "/home"), after_s=9 * HOUR)
    assert end.summary.startswith("no longer checked for")


def test_an_incident_resolved_long_ago_is_removed(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING))
    scenario.tick(finding(OK), after_s=MINUTE)
    scenario.tick(finding(OK), after_s=RESOLVED_RETENTION_S)
    assert len(scenario.ledger.incidents()) == 1
    scenario.tick(finding(OK), after_s=MINUTE + 1)
    assert scenario.ledger.incidents() == ()


def test_two_nodes_that_see_the_same_send_it_once(scenario: Scenario) -> None:
    other = replace(scenario, host="login2")
    for verdict in (OK, WARNING, WARNING, CRITICAL, OK, OK):
        scenario.tick(finding(verdict), after_s=MINUTE)
        other.now = scenario.now + 7.0
        other.tick(finding(verdict))
    assert reasons(scenario.post.notices()) == [Reason.FIRST, Reason.WORSE, Reason.RESOLVED]


# ---- crashes and disks


def test_a_message_that_cannot_be_queued_is_queued_later_and_other_channels_get_it_once(scenario: Scenario) -> None:
    scenario.policy = replace(POLICY, channels=("email", "slack"))
    scenario.post.full = {"slack"}
    scenario.tick(finding(WARNING))
    assert "cannot queue an alert" in scenario.last.errors[0]
    scenario.tick(finding(WARNING), after_s=MINUTE)
    scenario.post.full = set()
    scenario.tick(finding(WARNING), after_s=MINUTE)
    scenario.tick(finding(WARNING), after_s=MINUTE)
    assert [channel for _, channel, _ in scenario.post.order] == ["email", "slack"]


def test_the_resolution_of_a_fault_with_an_interrupted_first_notification_is_sent(scenario: Scenario) -> None:
    """The first notification may have been sent, so the resolution is."""
    scenario.policy = replace(POLICY, channels=("email", "slack"))
    scenario.post.full = {"slack"}
    scenario.tick(finding(WARNING))
    scenario.post.full = set()
    scenario.tick(finding(OK), after_s=MINUTE)
    assert reasons(scenario.post.notices("email")) == [Reason.FIRST, Reason.RESOLVED]


def test_a_damaged_incident_is_quarantined_reported_and_notified_again(scenario: Scenario) -> None:
    scenario.tick(finding(WARNING))
    (path,) = (scenario.directory / "incidents").glob("*.json")
    path.write_bytes(b'{"episode": "3f')
    said = scenario.tick(finding(WARNING), after_s=2 * HOUR)
    assert reasons(said) == [Reason.FIRST]
    assert "moved to" in scenario.last.errors[0]


def test_a_full_disk_changes_nothing_that_is_sent(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        scenario = Scenario(disk, fallback=tmp_path / "fallback" / "incidents")
        scenario.tick(finding(WARNING))
        ballast = fill(disk)
        for verdict in (WARNING, CRITICAL, CRITICAL):
            scenario.tick(finding(verdict), finding(verdict, "/other", evidence=("x" * 4000,)), after_s=MINUTE)
        ballast.unlink()
        assert scenario.ledger.directory.flush_fallback() >= 1
        scenario.fallback = None
        scenario.tick(finding(OK), finding(OK, "/other"), after_s=MINUTE)
    told = [(notice.subject, notice.reason) for notice in scenario.post.notices()]
    each = (Reason.FIRST, Reason.WORSE, Reason.RESOLVED)
    assert sorted(told) == sorted((subject, reason) for subject in ("/scratch", "/other") for reason in each)


def test_without_a_writable_ledger_notifications_are_still_sent(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        make_read_only(disk, True)
        scenario = Scenario(disk)
        assert reasons(scenario.tick(finding(CRITICAL))) == [Reason.FIRST]
        assert "cannot write the alert state" in scenario.last.errors[0]
        make_read_only(disk, False)


def tick(
    directory: Path, verdict: Verdict, now: float, host: str = "login1", subjects: Sequence[str] = ("/scratch",)
) -> Notified:
    """One tick of a notifier with a real outbox."""
    state = FallbackDirectory(directory / "incidents", None)
    notifier = Notifier(
        ledger=Ledger(state), silences=Silences(state.sibling("silences")), outbox=Outbox(state.sibling("outbox")),
        policy=POLICY, host=host, project="/p",
    )  # fmt: skip
    found = tuple(finding(verdict, subject) for subject in subjects)
    return notifier.notify([Report(check="fs", findings=found, time=now)], now)


STEPS = {"write", "rename", "exit_group"}
"""System calls that change the disk; a process killed at one has not executed it."""


def waiting(directory: Path) -> list[Notice]:
    outbox = Outbox(FallbackDirectory(directory / "outbox", None))
    return [notice for entry in outbox.pending() for notice in entry.alert.notices]


@pytest.mark.parametrize(
    ("before", "found", "sent"),
    [
        ([], WARNING, [Reason.FIRST]),
        ([WARNING], CRITICAL, [Reason.FIRST, Reason.WORSE]),
        ([WARNING], OK, [Reason.FIRST, Reason.RESOLVED]),
    ],
)
def test_killed_at_any_system_call_nothing_is_lost_and_nothing_sent_twice(
    tmp_path: Path, before: list[Verdict], found: Verdict, sent: list[Reason]
) -> None:
    """First notification, change and resolution, each killed midway: afterwards each was sent exactly once."""
    directory = tmp_path / "state"

    def prepare() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        for verdict in before:
            assert tick(directory, verdict, NOW).groups

    preload = "from tests.alerts.test_notifier import CRITICAL, OK, WARNING, tick"
    with writer(tmp_path / "strace", preload) as process:
        request = f"tick(Path({str(directory)!r}), {found.value}, {NOW + 60})"
        prepare()
        calls = process.run(request).calls
        assert reasons(waiting(directory)) == sent
        points = [(name, calls[: index + 1].count(name)) for index, name in enumerate(calls) if name in STEPS]
        points = points[-1 - 3 * 2 :]  # two files of the ledger and one of the outbox; what comes before only reads
        states = set()
        for name, count in points:
            prepare()
            assert process.run(request, f"{name}:signal=KILL:when={count}").code != 0
            states.add(
                (len(waiting(directory)), tuple(p.read_bytes() for p in sorted((directory / "incidents").glob("*"))))
            )
            for later_s in (120, 180):
                assert tick(directory, found, NOW + later_s).errors == ()
            assert reasons(waiting(directory)) == sent, (name, count)
        assert len(states) >= 3  # before the intent, before the message, after it


ROUNDS = 12


def tick_in_a_process(directory: Path, host: str, both: Barrier) -> None:
    for number in range(ROUNDS):
        both.wait(60)  # the rounds begin together on both, on a busy machine too
        verdict = (OK, WARNING, CRITICAL)[number % 3]
        done = tick(directory, verdict, NOW + number * 60, host, ("/a", "/b", "/c"))
        assert not done.errors, done.errors


def test_two_watchdogs_at_once_send_each_thing_once_and_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    both = context.Barrier(2)
    nodes = [context.Process(target=tick_in_a_process, args=(tmp_path, host, both)) for host in ("login1", "login2")]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(120)
    assert [node.exitcode for node in nodes] == [0, 0]
    sent = Counter((notice.subject, notice.episode, notice.reason) for notice in waiting(tmp_path))
    episodes = {(subject, episode) for subject, episode, _ in sent}
    assert len(episodes) == 3 * ROUNDS // 3
    for subject, episode in episodes:
        assert sent[subject, episode, Reason.FIRST] in (1, 2)
        assert sent[subject, episode, Reason.WORSE] in (1, 2)
    ended = [count for (_, _, reason), count in sent.items() if reason is Reason.RESOLVED]
    assert len(ended) == len(episodes) - 3  # the last ones are still open
    assert set(ended) == {1}


@pytest.mark.parametrize(
    ("before", "at_the_crash", "after", "last"),
    [
        ([], WARNING, WARNING, (Reason.FIRST, WARNING)),
        ([], WARNING, CRITICAL, (Reason.FIRST, CRITICAL)),
        ([], CRITICAL, WARNING, (Reason.FIRST, WARNING)),
        ([], WARNING, OK, (Reason.RESOLVED, OK)),
        ([WARNING], CRITICAL, CRITICAL, (Reason.WORSE, CRITICAL)),
        ([WARNING], CRITICAL, WARNING, (Reason.REMINDER, WARNING)),
        ([WARNING], CRITICAL, OK, (Reason.RESOLVED, OK)),
        ([CRITICAL], WARNING, CRITICAL, (Reason.REMINDER, CRITICAL)),
        ([WARNING], OK, WARNING, (Reason.REMINDER, WARNING)),
        ([WARNING], OK, OK, (Reason.RESOLVED, OK)),
    ],
)
def test_after_a_crash_the_current_state_is_notified_whatever_happens_next(
    scenario: Scenario, before: list[Verdict], at_the_crash: Verdict, after: Verdict, last: tuple[Reason, Verdict]
) -> None:
    """Killed between the outbox and the ledger: the last that was said is true, and nothing is said twice."""
    for verdict in before:
        scenario.tick(finding(verdict))
    scenario.killed_tick(finding(at_the_crash))
    for _ in range(3):
        scenario.tick(finding(after), after_s=MINUTE)
    said = scenario.post.notices()
    assert (said[-1].reason, said[-1].verdict) == last
    assert len({(n.reason, n.verdict, n.count) for n in said}) == len(said)
    assert len(said) <= len(before) + 2
