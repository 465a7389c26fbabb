"""Whatever happens in whatever order, all_recipients hears of every fault and of its end, and of nothing twice."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.incident import Silence
from resilience.alerts.ledger import Ledger, Silences
from resilience.alerts.notifier import Notifier
from resilience.finding import Finding, Report, Verdict
from resilience.settings.alert_policy import AlertPolicy
from resilience.system.fallback_directory import FallbackDirectory
from tests.alerts.memory_outbox import Killed, MemoryOutbox

OK, WARNING, UNKNOWN, CRITICAL = Verdict
START = 1_800_000_000.0
SUBJECTS = ("/a", "/b", "/c")
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@dataclass
class Fuse:
    """Counts what is written, and kills the writer, or only fails, at a number."""

    kill_at: int = -1
    count: int = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed


@dataclass
class MemoryDirectory:
    """A FallbackDirectory in memory, for speed; `tests/system/test_fallback_directory.py` has the real one."""

    fuse: Fuse
    files: dict[str, bytes] = field(default_factory=dict)
    error: str = ""
    primary: Path = Path("/incidents")

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.files))

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def read_owned(self, name: str) -> tuple[bytes, int] | None:
        content = self.read(name)
        return None if content is None else (content, os.getuid())

    def write(self, name: str, content: bytes, *, durable: bool = True) -> None:
        self.fuse.step()
        self.files[name] = content

    def create(self, name: str, content: bytes) -> bool:
        if name in self.files:
            return False
        self.write(name, content)
        return True

    def remove(self, name: str) -> None:
        self.fuse.step()
        self.files.pop(name, None)


def is_new_critical(alert: Alert) -> bool:
    return any(n.verdict is CRITICAL and n.reason in (Reason.FIRST, Reason.WORSE) for n in alert.notices)


class Nights(RuleBasedStateMachine):
    """Ticks with any findings, acknowledgements, silences, clock steps, crashes, full disks."""

    @initialize(
        policy=st.builds(
            AlertPolicy,
            channels=st.just(("email",)),
            escalation=st.sampled_from([(), ("1h: list",)]),
            reminder_s=st.sampled_from([0.0, 2 * HOUR]),
            group_s=st.sampled_from([0.0, 300.0]),
            unknown_for_s=st.sampled_from([0.0, 180.0]),
            quiet_hours=st.sampled_from(["", "22:00-07:00"]),
            flap_count=st.sampled_from([0, 3]),
            resolve_after_s=st.sampled_from([0.0, 120.0]),
        )
    )
    def begin(self, policy: AlertPolicy) -> None:
        self.policy = policy
        self.now = START
        self.fuse = Fuse()
        self.incidents = MemoryDirectory(self.fuse)
        self.silence_files = MemoryDirectory(Fuse())
        self.post = MemoryOutbox(before=self.fuse.step)
        self.looked: dict[str, Verdict] = {}
        self.acknowledged: set[str] = set()
        self.until: dict[str, float] = {}
        self.disturbed = False  # since the last quiet stretch: a crash, a full disk, a clock that stepped
        self.checked = 0

    # ---- what happens

    def ledger(self) -> Ledger:
        directory: FallbackDirectory = self.incidents  # type: ignore[assignment]
        return Ledger(directory)

    def look(self, found: dict[str, Verdict]) -> None:
        self.looked.update(found)
        findings = []
        for subject, verdict in found.items():
            fault = {OK: "", UNKNOWN: "probe"}.get(verdict, "space")
            findings.append(Finding(subject=subject, verdict=verdict, fault=fault, summary=f"{subject} is {verdict}"))
        silences: FallbackDirectory = self.silence_files  # type: ignore[assignment]
        notifier = Notifier(
            ledger=self.ledger(), silences=Silences(silences), outbox=self.post, policy=self.policy,
            host="login1", project="/p", zone=UTC,
        )  # fmt: skip
        self.fuse.count = 0
        try:
            notifier.notify([Report(check="fs", findings=tuple(findings), time=self.now)], self.now)
        except Killed:
            self.disturbed = True
        finally:
            self.fuse.kill_at = -1

    @rule(
        found=st.dictionaries(st.sampled_from(SUBJECTS), st.sampled_from(list(Verdict)), min_size=1),
        after_s=st.sampled_from([1.0, MINUTE, 5 * MINUTE, HOUR, 9 * HOUR]),
    )
    def tick(self, found: dict[str, Verdict], after_s: float) -> None:
        self.now += after_s
        self.look(found)

    @rule(after_s=st.sampled_from([MINUTE, 5 * MINUTE, HOUR]), times=st.integers(1, 5))
    def nothing_changes(self, after_s: float, times: int) -> None:
        for _ in range(times):
            self.now += after_s
            self.look(dict(self.looked))

    @precondition(lambda self: self.looked)
    @rule(step=st.integers(1, 8), found=st.dictionaries(st.sampled_from(SUBJECTS), st.sampled_from(list(Verdict))))
    def killed_in_a_tick(self, step: int, found: dict[str, Verdict]) -> None:
        self.now += MINUTE
        self.fuse.kill_at = step
        self.look(dict(self.looked) | found)

    @rule(found=st.dictionaries(st.sampled_from(SUBJECTS), st.sampled_from(list(Verdict)), min_size=1))
    def no_disk_takes_messages(self, found: dict[str, Verdict]) -> None:
        self.now += MINUTE
        self.post.full = {"email", "list"}
        self.disturbed = True
        self.look(found)
        self.post.full = set()

    @rule(step_s=st.sampled_from([-DAY, -HOUR, -10.0, 3 * HOUR, 3 * DAY]))
    def the_clock_steps(self, step_s: float) -> None:
        self.now += step_s
        self.disturbed = True

    @rule(subject=st.sampled_from(SUBJECTS))
    def somebody_acknowledges(self, subject: str) -> None:
        for incident in self.ledger().incidents():
            if incident.subject == subject and incident.is_open:
                self.ledger().acknowledge(incident, "ada", "", self.now)
                self.acknowledged.add(incident.episode)

    @rule(subject=st.sampled_from(SUBJECTS), for_s=st.sampled_from([10 * MINUTE, 4 * HOUR]))
    def somebody_silences(self, subject: str, for_s: float) -> None:
        directory: FallbackDirectory = self.silence_files  # type: ignore[assignment]
        until = self.now + for_s
        Silences(directory).add(Silence(id=f"{len(self.silence_files.files):08x}", until=until, subject=subject))
        self.until[subject] = max(until, self.until.get(subject, 0.0))

    # ---- what holds

    @invariant()
    def what_was_said_makes_sense(self) -> None:
        if not hasattr(self, "post"):
            return
        for time, channel, alert in self.post.order[self.checked :]:
            for notice in alert.notices:
                # A full disk or a crash must not make anything up.
                if notice.reason is Reason.RESOLVED:
                    assert notice.verdict is OK
                    if "no longer checked" in notice.summary:
                        continue
                    assert self.looked[notice.subject] is not UNKNOWN
                    assert notice.fault == "probe" or self.looked[notice.subject] is OK
                else:
                    assert notice.verdict is not OK
                    assert self.policy.quiet_hours == "" or notice.verdict is CRITICAL or not self.is_night(time)
                if notice.reason in (Reason.REMINDER, Reason.ESCALATED) and not self.disturbed:
                    assert notice.episode not in self.acknowledged
                assert time >= self.until.get(notice.subject, 0.0) or self.disturbed
                assert (channel == "list") or notice.reason is not Reason.ESCALATED
            if not self.disturbed and not is_new_critical(alert):
                others = [t for t, to, a in self.post.order if to == channel and a.id != alert.id and t <= time]
                assert all(not 0 < time - t < self.policy.group_s for t in others)
        self.checked = len(self.post.order)

    @invariant()
    def escalations_are_in_time(self) -> None:
        """In the tick in which a step is due, unless a silence or the limit of its channel holds it back."""
        if not hasattr(self, "post") or self.disturbed or not self.policy.escalation or self.policy.quiet_hours:
            return
        recent = [t for t, to, _ in self.post.order if to == "list" and 0 <= self.now - t <= self.policy.group_s]
        for incident in () if recent else self.ledger().incidents():
            is_due = incident.first_told is not None and incident.looked - incident.first_told >= HOUR
            is_present = incident.is_open and incident.gone is None and incident.flapping is None
            if is_due and is_present and incident.verdict is not UNKNOWN and incident.silenced is None:
                # WORSE and BETTER come first, and may wait for the limit of another channel.
                has_other_news = incident.told == incident.looked or incident.told_verdict is not incident.verdict
                assert incident.escalated or incident.acknowledged_by or has_other_news, incident

    def is_night(self, time: float) -> bool:
        hour = time % DAY / HOUR
        return hour >= 22 or hour < 7

    @invariant()
    def nothing_is_told_twice(self) -> None:
        if not hasattr(self, "post") or self.disturbed:
            return
        for channel in ("email", "list"):
            said = [
                (n.episode, n.fingerprint, n.count) for _, c, a in self.post.order if c == channel for n in a.notices
            ]
            assert len(said) == len(set(said))

    def teardown(self) -> None:
        """Finally, by day and without silences: persisting faults are notified, and then their resolution."""
        if not hasattr(self, "post"):
            return
        self.now = max(self.now, START, *self.until.values(), *(t for t, _, _ in self.post.order)) + DAY
        self.now += (12 * HOUR - self.now) % DAY
        self.disturbed = True
        for _ in range(3):  # notified, however long it was delayed
            self.look(dict.fromkeys(SUBJECTS, OK) | self.looked)
            self.now += 15 * MINUTE
        known = self.state_that_people_know()
        for subject, verdict in self.looked.items():
            if verdict in (WARNING, CRITICAL):
                last = known[subject, "space"]
                assert last.verdict is verdict, (subject, verdict, last)
        for _ in range(2 * 4):
            self.look(dict.fromkeys(SUBJECTS, OK))
            self.now += 15 * MINUTE
        for last in self.state_that_people_know().values():
            assert last.reason is Reason.RESOLVED, last
        assert not any(incident.is_open for incident in self.ledger().incidents())

    def state_that_people_know(self) -> dict[tuple[str, str], Notice]:
        """What was last said of each fault."""
        return {(n.subject, n.fault): n for _, _, alert in self.post.order for n in alert.notices}


TestNights = Nights.TestCase
TestNights.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
