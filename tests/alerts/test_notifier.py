"""What people are told of a fault from its beginning to its end, and that no crash loses any of it."""

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
from resilience.alerts.policy import EXPIRES_AFTER_S, FORGOTTEN_AFTER_S
from resilience.finding import Finding, Report, Verdict
from resilience.settings.alert_policy import AlertPolicy
from resilience.system.fallback_directory import FallbackDirectory
from tests.alerts.memory_outbox import Killed, MemoryOutbox
from tests.guard.disks import fill, make_read_only, small_disk
from tests.system.writer import writer

OK, WARNING, UNKNOWN, CRITICAL = Verdict
NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC).timestamp()
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
POLICY = AlertPolicy(channels=("email",), group_s=0.0, reminder_s=4 * HOUR, flap_count=0)


def finding(verdict: Verdict, subject: str = "/scratch", fault: str = "space", **fields: Any) -> Finding:
    fault = "" if verdict is OK else fault
    return Finding(subject=subject, verdict=verdict, fault=fault, **({"summary": "91% used"} | fields))


def report(*findings: Finding, check: str = "fs") -> Report:
    return Report(check=check, findings=findings, time=NOW)


@dataclass
class Story:
    """Ticks of a notifier whose state lies in a directory; `now` goes on."""

    directory: Path
    policy: AlertPolicy = POLICY
    now: float = NOW
    post: MemoryOutbox = field(default_factory=MemoryOutbox)
    fallback: Path | None = None
    host: str = "login1"
    last: Notified = field(default_factory=Notified)

    @property
    def ledger(self) -> Ledger:
        return Ledger(FallbackDirectory(self.directory / "incidents", self.fallback))

    @property
    def silences(self) -> Silences:
        return Silences(FallbackDirectory(self.directory / "silences", None))

    def tick(self, *findings: Finding, after_s: float = 0.0, check: str = "fs") -> list[Notice]:
        """Tell of one report; return what was said."""
        return self.reports(report(*findings, check=check), after_s=after_s)

    def reports(self, *reports: Report, after_s: float = 0.0) -> list[Notice]:
        self.now += after_s
        before = len(self.post.order)
        notifier = Notifier(
            ledger=self.ledger, silences=self.silences, outbox=self.post, policy=self.policy,
            host=self.host, project="/p", zone=UTC,
        )  # fmt: skip
        self.last = notifier.notify(reports, self.now)
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
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


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
def test_a_story(story: Story, name: str) -> None:
    changes, steps = STORIES[name]
    story.policy = replace(POLICY, **changes)
    for number, (after_s, verdict, reason) in enumerate(steps):
        if isinstance(verdict, str):
            story.silences.add(Silence(id="12ab34cd", until=story.now + HOUR, check="fs"))
            continue
        fault = "probe" if verdict is UNKNOWN else "space"
        said = story.tick(finding(verdict, fault=fault), after_s=after_s)
        assert reasons(said) == ([reason] if reason else []), number
    assert story.ledger.incidents()[0].is_open is (verdict is not OK)


# ---- one fault


def test_a_fault_is_sent_once_and_its_end_too(story: Story) -> None:
    assert story.tick(finding(OK)) == []
    assert reasons(story.tick(finding(WARNING))) == [Reason.FIRST]
    for _ in range(60):
        assert story.tick(finding(WARNING), after_s=MINUTE) == []
    (end,) = story.tick(finding(OK), after_s=MINUTE)
    assert (end.reason, end.verdict) == (Reason.RESOLVED, OK)
    assert end.summary == "over after 1 h 1 min; it was WARNING: 91% used"
    assert story.tick(finding(OK), after_s=MINUTE) == []
    assert not story.only().is_open


def test_a_message_can_be_understood_at_night(story: Story) -> None:
    fault = finding(CRITICAL, summary="99% used", advice="resil watch fs --top", evidence=("df",), run="gpt")
    (notice,) = story.tick(fault)
    alert = story.post.alerts[0]
    assert (alert.host, alert.project) == ("login1", "/p")
    assert (notice.check, notice.subject, notice.run, notice.since) == ("fs", "/scratch", "gpt", NOW)
    assert (notice.summary, notice.advice, notice.evidence) == ("99% used", "resil watch fs --top", ("df",))
    assert story.only().episode == notice.episode


def test_worse_and_better_are_sent_each_once_in_one_thread(story: Story) -> None:
    said = [
        notice.reason
        for verdict in (WARNING, WARNING, CRITICAL, CRITICAL, WARNING, WARNING, OK, OK)
        for notice in story.tick(finding(verdict), after_s=MINUTE)
    ]
    assert said == [Reason.FIRST, Reason.WORSE, Reason.BETTER, Reason.RESOLVED]
    assert len({alert.thread for alert in story.post.alerts}) == 1
    assert [notice.count for notice in story.post.notices()] == [1, 2, 3, 4]
    assert story.post.notices()[1].summary == "91% used (was WARNING)"


def test_a_failed_probe_ends_nothing(story: Story) -> None:
    story.tick(finding(CRITICAL))
    for _ in range(30):
        said = story.tick(finding(UNKNOWN, fault="probe"), after_s=MINUTE)
        assert Reason.RESOLVED not in reasons(said)
    assert sum(incident.is_open for incident in story.ledger.incidents()) == 2
    assert reasons(story.tick(finding(OK), after_s=MINUTE)) == [Reason.RESOLVED, Reason.RESOLVED]


def test_while_probes_fail_reminders_go_on(story: Story) -> None:
    story.tick(finding(CRITICAL))
    story.tick(finding(UNKNOWN, fault="probe"), after_s=MINUTE)
    assert Reason.REMINDER in reasons(story.tick(finding(UNKNOWN, fault="probe"), after_s=5 * HOUR))


def test_a_subject_that_was_not_probed_is_not_over(story: Story) -> None:
    story.tick(finding(WARNING), finding(OK, "/home"))
    assert story.tick(finding(OK, "/home"), after_s=MINUTE) == []
    assert story.tick(finding(OK), after_s=MINUTE, check="inodes") == []
    assert story.reports() == []
    assert story.only().is_open


def test_each_fault_of_a_subject_has_a_life_of_its_own(story: Story) -> None:
    story.tick(finding(WARNING, fault="space"), finding(CRITICAL, fault="inodes"))
    (end,) = story.tick(finding(WARNING, fault="space"), after_s=MINUTE)
    assert (end.fault, end.reason) == ("inodes", Reason.RESOLVED)
    (end,) = story.tick(finding(OK), after_s=MINUTE)
    assert (end.fault, end.reason) == ("space", Reason.RESOLVED)


def test_the_same_fault_found_twice_in_one_probe_is_one_and_the_worse_counts(story: Story) -> None:
    (notice,) = story.tick(finding(WARNING), finding(CRITICAL, summary="99% used"))
    assert (notice.verdict, notice.summary) == (CRITICAL, "99% used")


def test_a_watchdog_whose_settings_were_mended_says_so(story: Story) -> None:
    bad = finding(UNKNOWN, "fs", "settings")
    story.tick(bad)
    assert reasons(story.tick(bad, after_s=10 * MINUTE)) == [Reason.FIRST]
    assert reasons(story.tick(finding(OK), after_s=MINUTE)) == [Reason.RESOLVED]


def test_a_fault_that_comes_back_is_a_new_incident(story: Story) -> None:
    (first,) = story.tick(finding(WARNING))
    story.tick(finding(OK), after_s=MINUTE)
    (again,) = story.tick(finding(WARNING), after_s=MINUTE)
    assert again.reason is Reason.FIRST
    assert again.episode != first.episode
    assert again.fingerprint == first.fingerprint


# ---- people


def test_an_acknowledgement_stops_the_reminders_and_its_end_is_sent(story: Story) -> None:
    story.policy = replace(POLICY, escalation=("1h: list",))
    (first,) = story.tick(finding(WARNING))
    story.ledger.acknowledge(first.episode, "ada", "on it", story.now)
    assert [story.tick(finding(WARNING), after_s=HOUR) for _ in range(30)] == [[]] * 30
    (worse,) = story.tick(finding(CRITICAL), after_s=MINUTE)
    assert (worse.reason, worse.acknowledged_by) == (Reason.WORSE, "ada")
    assert reasons(story.tick(finding(OK), after_s=MINUTE)) == [Reason.RESOLVED]
    assert {channel for _, channel, _ in story.post.order} == {"email"}


def test_an_hour_later_the_list_is_notified_and_then_everything_that_follows(story: Story) -> None:
    story.policy = replace(POLICY, escalation=("1h: list", "2h: boss, list"))
    for _ in range(5 * 60):
        story.tick(finding(WARNING), after_s=MINUTE)
    story.tick(finding(OK), after_s=MINUTE)
    assert reasons(story.post.notices("email")) == [Reason.FIRST, Reason.RESOLVED]
    assert reasons(story.post.notices("list")) == [Reason.ESCALATED, Reason.ESCALATED, Reason.RESOLVED]
    assert reasons(story.post.notices("boss")) == [Reason.ESCALATED, Reason.RESOLVED]
    assert "nobody has acknowledged it" in story.post.notices("list")[0].summary


def test_a_silence_keeps_what_it_covers_quiet_and_forgets_nothing(story: Story) -> None:
    story.silences.add(Silence(id="12ab34cd", until=NOW + HOUR, check="fs", subject="/scr*"))
    said = story.tick(finding(CRITICAL), finding(CRITICAL, "/home"))
    assert [notice.subject for notice in said] == ["/home"]
    story.tick(finding(CRITICAL), finding(OK, "/home"), after_s=30 * MINUTE)
    (first,) = story.tick(finding(CRITICAL), finding(OK, "/home"), after_s=31 * MINUTE)
    assert (first.reason, first.subject, first.since) == (Reason.FIRST, "/scratch", NOW)


def test_a_silence_that_ended_long_ago_is_forgotten(story: Story) -> None:
    story.silences.add(Silence(id="12ab34cd", until=NOW + HOUR, check="fs"))
    story.tick(finding(OK), after_s=7 * DAY)
    assert story.silences.directory.names() == ("12ab34cd.json",)
    story.tick(finding(OK), after_s=2 * HOUR)
    assert story.silences.directory.names() == ()


# ---- nights


def test_a_night_s_warnings_are_sent_in_the_morning_in_one_message(story: Story) -> None:
    story.policy = replace(POLICY, quiet_hours="22:00-07:00")
    story.now = datetime(2026, 6, 15, 23, 0, tzinfo=UTC).timestamp()
    assert story.tick(finding(WARNING, "/a"), finding(WARNING, "/b"), finding(UNKNOWN, "/c", "probe")) == []
    assert story.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(OK, "/c"), after_s=HOUR) == []
    assert story.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(OK, "/c"), after_s=6 * HOUR) == []
    said = story.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(OK, "/c"), after_s=HOUR)
    assert [(n.subject, n.reason) for n in said] == [("/b", Reason.FIRST), ("/a", Reason.RESOLVED)]
    assert said[1].summary == "came and went in the quiet hours, after 1 h; it was WARNING: 91% used"
    assert len(story.post.order) == 1
    assert story.tick(finding(OK, "/a"), finding(WARNING, "/b"), after_s=MINUTE) == []


# ---- much


def test_a_thousand_jobs_are_one_message_and_so_are_their_ends(story: Story) -> None:
    jobs = [f"job {n}" for n in range(1000)]
    began = time.process_time()
    story.tick(*(finding(CRITICAL, job) for job in jobs), check="job")
    took_s = time.process_time() - began
    assert [alert.total for alert in story.post.alerts] == [1000]
    story.tick(*(finding(CRITICAL, job) for job in jobs), check="job", after_s=MINUTE)
    story.tick(*(finding(OK, job) for job in jobs), check="job", after_s=MINUTE)
    assert [alert.total for alert in story.post.alerts] == [1000, 1000]
    assert took_s < 5  # of the processor; 0.4 s on a quiet core


def test_of_very_many_each_end_is_sent_once_though_the_notifier_was_killed(story: Story) -> None:
    jobs = [f"job {n}" for n in range(60)]
    story.tick(*(finding(CRITICAL, job) for job in jobs))
    story.killed_tick(*(finding(OK, job) for job in jobs))
    story.tick(*(finding(OK, job) for job in jobs), after_s=MINUTE)
    sent = [(alert.reason, alert.total) for alert in story.post.alerts]
    assert sent == [(Reason.FIRST, 60), (Reason.RESOLVED, 60)]


def test_a_tick_over_very_many_in_which_nothing_changes_writes_nothing(story: Story) -> None:
    def written() -> set[tuple[str, int]]:
        return {(path.name, path.stat().st_mtime_ns) for path in (story.directory / "incidents").iterdir()}

    def found(summary: str) -> list[Finding]:
        return [finding(WARNING, f"job {n}", summary=summary) for n in range(MANY + 1)]

    story.tick(*found("91.1% used"))
    before = written()
    story.tick(*found("91.2% used"), after_s=MINUTE)
    assert written() == before
    story.tick(*found("91.3% used"), after_s=REFRESH_S)
    assert not written() & before
    assert {incident.summary for incident in story.ledger.incidents()} == {"91.3% used"}


def test_what_people_are_shown_of_a_few_is_as_fresh_as_the_last_tick(story: Story) -> None:
    story.tick(finding(WARNING, summary="91.1% used"))
    assert story.tick(finding(WARNING, summary="94.9% used"), after_s=MINUTE) == []
    assert (story.only().summary, story.only().seen) == ("94.9% used", story.now)
    story.tick(finding(UNKNOWN, fault="hung"), after_s=MINUTE)  # nobody could look
    assert {incident.fault: story.now - incident.seen for incident in story.ledger.incidents()}["space"] == MINUTE


def test_a_group_speaks_once_in_its_time_and_says_everything_then(story: Story) -> None:
    story.policy = replace(POLICY, group_s=300.0)
    assert len(story.tick(finding(WARNING, "/a"))) == 1
    assert story.tick(finding(WARNING, "/a"), finding(WARNING, "/b"), after_s=MINUTE) == []
    assert story.tick(finding(OK, "/a"), finding(WARNING, "/b"), after_s=MINUTE) == []
    said = story.tick(finding(OK, "/a"), finding(WARNING, "/b"), finding(WARNING, "/c"), after_s=3 * MINUTE)
    assert {(n.subject, n.reason) for n in said} == {
        ("/a", Reason.RESOLVED), ("/b", Reason.FIRST), ("/c", Reason.FIRST),
    }  # fmt: skip
    assert len(story.post.order) == 2


def test_a_new_critical_waits_for_nobody(story: Story) -> None:
    story.policy = replace(POLICY, group_s=300.0)
    story.tick(finding(WARNING, "/a"))
    (said,) = story.tick(finding(WARNING, "/a"), finding(CRITICAL, "/b"), after_s=1.0)
    assert said.subject == "/b"


def test_another_check_is_another_group(story: Story) -> None:
    story.policy = replace(POLICY, group_s=300.0)
    story.tick(finding(WARNING))
    assert len(story.tick(finding(WARNING, "gpt"), check="job", after_s=1.0)) == 1


def test_a_fault_that_comes_and_goes_each_minute_is_sent_a_few_times_a_day(story: Story) -> None:
    story.policy = AlertPolicy(channels=("email",))
    for minute in range(24 * 60):
        story.tick(finding(OK if minute % 2 else WARNING), after_s=MINUTE)
    assert len(story.post.order) <= 12
    assert any("flapping" in notice.summary for notice in story.post.notices())
    said = [notice for _ in range(70) for notice in story.tick(finding(OK), after_s=MINUTE)]
    assert reasons(said) == [Reason.RESOLVED]


# ---- time


def test_a_clock_that_steps_sends_nothing_twice(story: Story) -> None:
    story.tick(finding(WARNING))
    for step_s in (-HOUR, -DAY, 2 * DAY - 30 * MINUTE, -DAY, MINUTE):
        said = story.tick(finding(WARNING), after_s=step_s)
        assert reasons(said) in ([], [Reason.REMINDER])
    assert len(story.post.order) <= 3
    story.policy = replace(POLICY, reminder_s=HOUR)
    assert Reason.REMINDER in reasons([n for _ in range(3) for n in story.tick(finding(WARNING), after_s=HOUR)])


def test_an_incident_that_is_not_probed_any_more_is_closed_with_a_word(story: Story) -> None:
    story.tick(finding(WARNING))
    assert story.tick(finding(OK, "/home"), after_s=2 * DAY) == []
    assert story.only().is_stale(story.now)
    (end,) = story.tick(finding(OK, "/home"), after_s=EXPIRES_AFTER_S - DAY)
    assert end.reason is Reason.RESOLVED
    assert end.summary.startswith("closed after 15 d without a check")
    assert not story.only().is_open


def test_what_ended_long_ago_is_forgotten(story: Story) -> None:
    story.tick(finding(WARNING))
    story.tick(finding(OK), after_s=MINUTE)
    story.tick(finding(OK), after_s=FORGOTTEN_AFTER_S)
    assert len(story.ledger.incidents()) == 1
    story.tick(finding(OK), after_s=MINUTE + 1)
    assert story.ledger.incidents() == ()


def test_two_nodes_that_see_the_same_send_it_once(story: Story) -> None:
    other = replace(story, host="login2")
    for verdict in (OK, WARNING, WARNING, CRITICAL, OK, OK):
        story.tick(finding(verdict), after_s=MINUTE)
        other.now = story.now + 7.0
        other.tick(finding(verdict))
    assert reasons(story.post.notices()) == [Reason.FIRST, Reason.WORSE, Reason.RESOLVED]


# ---- crashes and disks


def test_a_channel_whose_message_finds_no_room_gets_it_later_and_the_others_get_it_once(story: Story) -> None:
    story.policy = replace(POLICY, channels=("email", "slack"))
    story.post.full = {"slack"}
    story.tick(finding(WARNING))
    assert "could not be queued" in story.last.errors[0]
    story.tick(finding(WARNING), after_s=MINUTE)
    story.post.full = set()
    story.tick(finding(WARNING), after_s=MINUTE)
    story.tick(finding(WARNING), after_s=MINUTE)
    assert [channel for _, channel, _ in story.post.order] == ["email", "slack"]


def test_a_fault_whose_first_message_was_cut_short_has_its_end_sent(story: Story) -> None:
    """It may have been told: whoever heard of it hears of its end."""
    story.policy = replace(POLICY, channels=("email", "slack"))
    story.post.full = {"slack"}
    story.tick(finding(WARNING))
    story.post.full = set()
    story.tick(finding(OK), after_s=MINUTE)
    assert reasons(story.post.notices("email")) == [Reason.FIRST, Reason.RESOLVED]


def test_a_damaged_incident_is_set_aside_reported_and_sent_afresh(story: Story) -> None:
    story.tick(finding(WARNING))
    (path,) = (story.directory / "incidents").glob("*.json")
    path.write_bytes(b'{"episode": "3f')
    said = story.tick(finding(WARNING), after_s=2 * HOUR)
    assert reasons(said) == [Reason.FIRST]
    assert "set aside" in story.last.errors[0]


def test_a_full_disk_changes_nothing_that_is_sent(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        story = Story(disk, fallback=tmp_path / "fallback" / "incidents")
        story.tick(finding(WARNING))
        ballast = fill(disk)
        for verdict in (WARNING, CRITICAL, CRITICAL):
            story.tick(finding(verdict), finding(verdict, "/other", evidence=("x" * 4000,)), after_s=MINUTE)
        ballast.unlink()
        assert story.ledger.directory.flush_fallback() >= 1
        story.fallback = None
        story.tick(finding(OK), finding(OK, "/other"), after_s=MINUTE)
    told = [(notice.subject, notice.reason) for notice in story.post.notices()]
    each = (Reason.FIRST, Reason.WORSE, Reason.RESOLVED)
    assert sorted(told) == sorted((subject, reason) for subject in ("/scratch", "/other") for reason in each)


def test_where_nothing_can_be_remembered_people_are_notified_nevertheless(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        make_read_only(disk, True)
        story = Story(disk)
        assert reasons(story.tick(finding(CRITICAL))) == [Reason.FIRST]
        assert "could not be written" in story.last.errors[0]
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
"""System calls that change what lies on the disk; killed at one, it has not happened yet."""


def waiting(directory: Path) -> list[Notice]:
    outbox = Outbox(FallbackDirectory(directory / "outbox", None))
    return [notice for entry in outbox.pending() for notice in entry.alert.notices]


"""System calls that change what lies on the disk; killed at one, it has not happened yet."""


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
    """The first word, a change and the end, each killed in the middle: afterwards each was sent, and sent once."""
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
    both.wait(60)
    start = time.time()
    for number in range(ROUNDS):
        while time.time() < start + number * 0.1:
            time.sleep(0.0005)
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
    assert len(ended) == len(episodes) - 3  # the last ones go on
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
def test_whatever_happens_next_people_know_what_is_there_after_a_crash(
    story: Story, before: list[Verdict], at_the_crash: Verdict, after: Verdict, last: tuple[Reason, Verdict]
) -> None:
    """Killed between the outbox and the ledger: the last that was said is true, and nothing is said twice."""
    for verdict in before:
        story.tick(finding(verdict))
    story.killed_tick(finding(at_the_crash))
    for _ in range(3):
        story.tick(finding(after), after_s=MINUTE)
    said = story.post.notices()
    assert (said[-1].reason, said[-1].verdict) == last
    assert len({(n.reason, n.verdict, n.count) for n in said}) == len(said)
    assert len(said) <= len(before) + 2
