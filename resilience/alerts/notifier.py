"""Turns the watchdogs' findings into notifications: compares with the ledger, fills the outbox, updates the ledger.

The order of writes makes a kill at any moment safe: first the ledger records that a notification is about to be sent,
then the message is queued in the outbox, then the ledger records that it was sent. After a crash the next process sends
the notification again, with the same id, and the outbox drops the duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import partial
from typing import Protocol

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.incident import Incident, fingerprint_of, matching_silence
from resilience.alerts.ledger import Ledger, Silences
from resilience.alerts.notification import Notification, NotificationGroup, compose, sendable
from resilience.alerts.policy import (
    RESOLVED_RETENTION_S,
    acted,
    advance,
    assess,
    cap_times,
    due_act,
    open_incident,
)
from resilience.errors import ResilError, StateDirectoryError
from resilience.finding import Finding, Report, Verdict
from resilience.settings.alert_policy import AlertPolicy, parse_escalation

REFRESH_S = 600.0
"""With more than MANY incidents, an unchanged one is saved again only after this long, so that a tick over a thousand
writes nothing. With fewer, each tick saves its latest findings."""

MANY = 50
"""With more notifications than this in one tick, each is recorded with one write."""

ENGINE_FAULTS = frozenset({"settings"})
"""Faults of a watchdog itself. Their subject is only reported while they last, so any other finding resolves them."""


class AlertQueue(Protocol):
    """Queues messages: the outbox."""

    def put(self, alert: Alert, channel: str, now: float) -> bool:
        """Queue an alert; return False for a duplicate. Raise StateDirectoryError if no disk accepts the message."""
        ...


@dataclass(frozen=True, slots=True)
class Notified:
    """Result of one tick.

    Attributes:
        groups: the messages, each with the channels for which it was queued in this tick.
        errors: one sentence each.
    """

    groups: tuple[NotificationGroup, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    """One incident in this tick: its saved state, its new state, and the current verdict."""

    before: Incident | None
    incident: Incident
    verdict: Verdict
    expired: bool = False


@dataclass(slots=True)
class Notifier:
    """Sends the notifications of the incidents in one ledger.

    Attributes:
        host: this node.
        project: the project directory, for the commands in the messages.
        zone: time zone of the quiet hours; None for the machine's own.
        act: does what [alert] act says about the run of an incident, and returns that as words.
    """

    ledger: Ledger
    silences: Silences
    outbox: AlertQueue
    policy: AlertPolicy
    host: str
    project: str
    zone: tzinfo | None = None
    act: Callable[[Incident, str], str] | None = None
    _errors: list[str] = field(default_factory=list)

    def notify(self, reports: Sequence[Report], now: float, *, source: str = "") -> Notified:
        """Queue the notifications for these reports and update the ledger.

        `source`: identifies the watch whose reports have all its subjects: an incident that the same source found, and
        whose subject is missing from MAX_MISSED of its reports, is closed. Empty for reports of some subjects.

        Disk errors are part of the result and do not prevent the other notifications.
        """
        self._errors = []
        known = self.ledger.incidents(now)
        cases = self._cases(reports, known, now, source)
        silences = self.silences.active(now)
        incidents: dict[str, Incident] = {}
        notifications = []
        for case in cases:
            silenced = matching_silence(silences, case.incident, now) is not None
            incident = case.incident if silenced else self._acted(case.incident, now)
            reason, incidents[incident.fingerprint] = assess(
                incident, case.verdict, now, self.policy, silenced=silenced, expired=case.expired, zone=self.zone
            )
            if reason is not Reason.QUIET:
                notifications.append(Notification.of(incident, reason, now, self.policy, expired=case.expired))
        due = tuple(one.intended(now) for one in self._due(notifications, known, now))
        due = tuple(one if one.incident.episode else self._open(one) for one in due)
        groups = compose(due, self._channels_of, now=now, host=self.host, project=self.project)
        notified, queued = self._send(groups, now)
        incidents |= notified
        refresh_s = 0.0 if len(cases) <= MANY else REFRESH_S
        for case in cases:
            incident = incidents[case.incident.fingerprint]
            if not incident.episode:
                self.ledger.open(incident)
            elif case.before is None or _has_changed(case.before, incident, refresh_s):
                self._try(partial(self.ledger.save, incident))
        for incident in known:
            if incident.resolved is not None and now - incident.resolved > RESOLVED_RETENTION_S:
                self._try(partial(self.ledger.remove, incident))
        self._try(partial(self.silences.prune, now))
        self.ledger.save_copy(now)
        return Notified(queued, (*self.ledger.errors, *self.silences.errors, *self._errors))

    def _cases(self, reports: Iterable[Report], known: Sequence[Incident], now: float, source: str) -> list[_Case]:
        """Return every incident that has a verdict in this tick, or whose subject is no longer checked.

        A check that failed for one subject may not have found the others, and counts as missed for none.
        """
        before = {incident.fingerprint: incident for incident in known}
        cases: dict[str, _Case] = {}
        missed: dict[str, Incident] = {}
        for report in reports:
            for finding in _worst_findings(report):
                fingerprint = fingerprint_of(report.check, finding.subject, finding.fault)
                previous = before.get(fingerprint)
                if previous is not None and _is_outdated(report, previous, now):
                    continue
                cases[fingerprint] = _Case(
                    previous, self._found(previous, finding, report.check, now, source), finding.verdict
                )
            checked = {finding.subject for finding in report.findings}
            unknown = {finding.subject for finding in report.findings if finding.verdict is Verdict.UNKNOWN}
            for incident in known:
                if incident.check != report.check or not incident.is_open or incident.fingerprint in cases:
                    continue
                if incident.subject in unknown:
                    # The check failed, so a fault is assumed to persist; one that was gone keeps its state.
                    if incident.gone is None:
                        case = _Case(incident, cap_times(incident, now), incident.verdict)
                        cases[incident.fingerprint] = case
                elif incident.subject in checked or (checked and incident.fault in ENGINE_FAULTS):
                    case = _Case(incident, advance(incident, Verdict.OK, now, self.policy), Verdict.OK)
                    cases[incident.fingerprint] = case
                elif source and incident.source == source and checked and not unknown:
                    missed[incident.fingerprint] = replace(incident, missed=incident.missed + 1)
        for saved in known:
            if saved.fingerprint not in cases:
                incident = missed.get(saved.fingerprint, saved)
                if incident.is_expired(now):
                    cases[incident.fingerprint] = _Case(saved, incident, Verdict.OK, expired=True)
                elif incident is not saved:
                    self._try(partial(self.ledger.save, incident))
        return list(cases.values())

    def _found(self, previous: Incident | None, finding: Finding, check: str, now: float, source: str) -> Incident:
        if previous is None or not previous.is_open:
            return replace(open_incident(previous, finding, check, now, self.policy, self.host), source=source)
        return replace(
            advance(previous, finding.verdict, now, self.policy),
            summary=finding.summary,
            advice=finding.advice,
            evidence=finding.evidence,
            run=finding.run,
            host=self.host,
            source=source,
        )

    def _acted(self, incident: Incident, now: float) -> Incident:
        """Act upon the run of an incident if that is due. If it fails, the next tick tries again."""
        due = due_act(incident, now, self.policy)
        if not due or self.act is None:
            return incident
        try:
            return acted(incident, self.act(incident, due), now, self.policy)
        except ResilError as error:
            self._report(f"cannot {due} the jobs of run {incident.run}: {error.message}; the next tick tries again")
            return incident

    def _due(
        self, notifications: Iterable[Notification], known: Iterable[Incident], now: float
    ) -> tuple[Notification, ...]:
        """Return the notifications that may be sent now (`sendable`)."""
        checks: dict[str, list[Notification]] = {}
        for one in notifications:
            checks.setdefault(one.incident.check, []).append(one)
        last: dict[str, dict[str, float]] = {check: {} for check in checks}
        every_step = len(parse_escalation(self.policy.escalation))
        for incident in known:
            sent = last.get(incident.check, {})
            for told, steps in ((incident.told, incident.escalated), (incident.told_before, every_step)):
                if told is not None:
                    sent |= {channel: max(told, sent.get(channel, told)) for channel in self._channels(steps)}
        return tuple(
            one
            for check, group in checks.items()
            for one in sendable(group, self._channels_of, last[check], now, self.policy)
        )

    def _open(self, notification: Notification) -> Notification:
        """Return the notification of a new incident with the incident's id, which the ledger records first."""
        return replace(notification, incident=self.ledger.open(notification.incident))

    def _channels_of(self, notification: Notification) -> tuple[str, ...]:
        """Return the channels of a notification: the default ones and those of the escalation steps so far.

        An ESCALATED notification only goes to the channels of the new steps.
        """
        if notification.reason is Reason.ESCALATED:
            return self._channels(notification.steps, since=notification.incident.escalated)
        return self._channels(notification.steps)

    def _channels(self, steps: int, *, since: int | None = None) -> tuple[str, ...]:
        """Return the default channels and those of the first `steps` escalation steps; or of the steps from `since`."""
        escalation = parse_escalation(self.policy.escalation)[since or 0 : steps]
        first = self.policy.channels if since is None else ()
        return tuple(dict.fromkeys((*first, *(channel for step in escalation for channel in step.channels))))

    def _send(
        self, groups: Sequence[NotificationGroup], now: float
    ) -> tuple[dict[str, Incident], tuple[NotificationGroup, ...]]:
        """Queue the messages; return the notified incidents by fingerprint, and the messages that were queued."""
        unique = {one.incident.fingerprint: one for group in groups for one in group.notifications}
        for one in unique.values():
            # With very many notifications, duplicates after a crash cost less than a write to the file server for each.
            if one.reason is Reason.FIRST or len(unique) <= MANY:
                self._try(partial(self.ledger.save, one.incident))
        failed: set[str] = set()
        threads: dict[str, str] = {}
        messages: dict[str, list[str]] = {}
        sent = []
        for group in groups:
            queued = []
            for channel in group.channels:
                try:
                    if self.outbox.put(group.alert, channel, now):
                        queued.append(channel)
                except StateDirectoryError as error:
                    self._report(f"cannot queue an alert: {error.message}")
                    failed |= {one.incident.fingerprint for one in group.notifications}
            for one in group.notifications:
                threads.setdefault(one.incident.fingerprint, group.alert.thread)
                messages.setdefault(one.incident.fingerprint, []).append(group.alert.id)
            if queued:
                sent.append(replace(group, channels=tuple(queued)))
        notified = {
            fingerprint: one.incident
            if fingerprint in failed
            else one.sent(threads[fingerprint], messages[fingerprint], now)
            for fingerprint, one in unique.items()
        }
        return notified, tuple(sent)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StateDirectoryError as error:
            self._report(f"cannot write the alert state: {error.message}")

    def _report(self, sentence: str) -> None:
        if sentence not in self._errors:
            self._errors.append(sentence)


def _worst_findings(report: Report) -> Iterable[Finding]:
    """Return the findings that are faults; of several with the same subject and fault, the worst."""
    worst: dict[tuple[str, str], Finding] = {}
    for finding in report.findings:
        key = (finding.subject, finding.fault)
        if finding.verdict is not Verdict.OK and (key not in worst or worst[key].verdict < finding.verdict):
            worst[key] = finding
    return worst.values()


def _is_outdated(report: Report, previous: Incident, now: float) -> bool:
    """Return True if an incident was resolved since the check began: another watchdog, which looked later, was faster.
    Only what was resolved meanwhile counts: a clock that is behind delays a notification by one tick at most."""
    return previous.resolved is not None and report.time < previous.resolved <= now


def _has_changed(before: Incident, incident: Incident, refresh_s: float) -> bool:
    """Return True if an incident changed by more than a recent check with the same verdict."""
    if incident.seen - before.seen > refresh_s or incident.looked - before.looked > refresh_s:
        return True
    names = ("summary", "advice", "evidence", "host", "source", "seen", "looked", "every_s")
    same = {name: getattr(before, name) for name in names}
    return replace(incident, **same) != before
