"""Tells people what the watchdogs found: compares it with the ledger, decides, fills the outbox, remembers.

The order is what makes it safe to be killed: first the ledger says that something is about to be told, then the outbox
has it, then the ledger says that it was told. Whoever comes after a crash tells it again; the same news has the same
id, and the outbox takes it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import partial
from typing import Protocol

from resilience.alerts import notification as grouping
from resilience.alerts.alert import Alert, Reason
from resilience.alerts.incident import Incident, Silence, fingerprint_of
from resilience.alerts.ledger import Ledger, Silences, silencing
from resilience.alerts.notification import Letter, News, sentence
from resilience.alerts.policy import (
    EXPIRES_AFTER_S,
    FORGOTTEN_AFTER_S,
    advance,
    begin,
    decide,
    due_steps,
    ends_unsaid,
    is_flapping,
    not_after,
)
from resilience.errors import StateDirectoryError
from resilience.finding import Finding, Report, Verdict
from resilience.settings.alert_policy import AlertPolicy, parse_escalation

REFRESH_S = 600.0
"""Of very many incidents, one about which nothing is new is written again only after so long: a tick over a thousand
writes nothing. Of few, what people are shown is as fresh as the last tick."""

MANY = 50
"""More than this are very many. Of so much news in one tick, each is remembered with one write."""

ENGINE_FAULTS = frozenset({"settings"})
"""Faults of a watchdog itself: its subject is only named while they are there, so any other word of it ends them."""


class Outgoing(Protocol):
    """What takes messages: the outbox."""

    def put(self, alert: Alert, channel: str, now: float) -> bool:
        """Queue an alert; False when this news is there already. Raise StateDirectoryError if no disk takes it."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """What was told in one tick.

    Attributes:
        letters: the messages, each with the channels that it was queued for now.
        trouble: what went wrong, one sentence each.
    """

    letters: tuple[Letter, ...] = ()
    trouble: tuple[str, ...] = ()


@dataclass(slots=True)
class _Case:
    """One incident in this tick: as it was remembered, as it is, and what was found."""

    before: Incident | None
    incident: Incident
    verdict: Verdict
    silence: Silence | None = None
    expired: bool = False


@dataclass(slots=True)
class Notifier:
    """Tells of what is in one ledger.

    Attributes:
        host: this node. project: the project folder, for the commands in the messages.
        zone: where the quiet hours count; None is the machine's own.
    """

    ledger: Ledger
    silences: Silences
    outbox: Outgoing
    policy: AlertPolicy
    host: str
    project: str
    zone: tzinfo | None = None
    _trouble: list[str] = field(default_factory=list)

    def tell(self, reports: Sequence[Report], now: float) -> Told:
        """Queue what is news in these reports, and remember it.

        Trouble with the disks is told in the answer: what can still be told is told.
        """
        self._trouble = []
        known = self.ledger.incidents(now)
        cases = self._cases(reports, known, now)
        silences = self.silences.all(now)
        for case in cases:
            case.silence = silencing(silences, case.incident, now)
        letters = grouping.compose(
            self._news(cases, known, now), self._channels_of, now=now, host=self.host, project=self.project
        )
        told, sent = self._send(letters, now)
        refresh_s = 0.0 if len(cases) <= MANY else REFRESH_S
        for case in cases:
            incident = told.get(case.incident.fingerprint) or self._unsaid(case, now)
            if case.before is None or _is_news(case.before, incident, refresh_s):
                self._try(partial(self.ledger.keep, incident))
        for incident in known:
            if incident.resolved is not None and now - incident.resolved > FORGOTTEN_AFTER_S:
                self._try(partial(self.ledger.forget, incident))
        self._try(partial(self.silences.prune, now))
        self.ledger.save_copy(now)
        return Told(sent, (*self.ledger.trouble, *self.silences.trouble, *self._trouble))

    # ---- what there is

    def _cases(self, reports: Iterable[Report], known: Sequence[Incident], now: float) -> list[_Case]:
        """Every incident that something is known about in this tick."""
        before = {incident.fingerprint: incident for incident in known}
        cases: dict[str, _Case] = {}
        for report in reports:
            for finding in _worst_of_each(report):
                fingerprint = fingerprint_of(report.check, finding.subject, finding.fault)
                previous = before.get(fingerprint)
                cases[fingerprint] = _Case(previous, self._noted(previous, finding, report.check, now), finding.verdict)
            looked = {finding.subject for finding in report.findings}
            blind = {finding.subject for finding in report.findings if finding.verdict is Verdict.UNKNOWN}
            for incident in known:
                if incident.check != report.check or not incident.is_open or incident.fingerprint in cases:
                    continue
                if incident.subject in blind:
                    # Nobody could look: it lasts, as far as anybody knows. One that seemed over waits.
                    if incident.gone is None:
                        case = _Case(incident, not_after(incident, now), incident.verdict)
                        cases[incident.fingerprint] = case
                elif incident.subject in looked or (looked and incident.fault in ENGINE_FAULTS):
                    case = _Case(incident, advance(incident, Verdict.OK, now, self.policy), Verdict.OK)
                    cases[incident.fingerprint] = case
        for incident in known:
            unseen_s = now - max(incident.looked, incident.seen)
            if incident.is_open and incident.fingerprint not in cases and unseen_s > EXPIRES_AFTER_S:
                cases[incident.fingerprint] = _Case(incident, incident, Verdict.OK, expired=True)
        return list(cases.values())

    def _noted(self, previous: Incident | None, finding: Finding, check: str, now: float) -> Incident:
        if previous is None or not previous.is_open:
            return begin(previous, finding, check, now, self.policy, self.host)
        return replace(
            advance(previous, finding.verdict, now, self.policy),
            summary=finding.summary,
            advice=finding.advice,
            evidence=finding.evidence,
            run=finding.run,
            host=self.host,
        )

    # ---- what of it is news

    def _news(self, cases: Sequence[_Case], known: Sequence[Incident], now: float) -> list[News]:
        groups: dict[str, list[News]] = {}
        for case in cases:
            reason = self._reason(case, now)
            if reason is not Reason.QUIET:
                flaps = is_flapping(case.incident, self.policy)
                words = sentence(case.incident, reason, now, self.policy, is_flapping=flaps, expired=case.expired)
                due = due_steps(case.incident, now, self.policy)
                steps = due if reason is Reason.ESCALATED else case.incident.escalated
                one = News(incident=case.incident, reason=reason, words=words, steps=steps)
                groups.setdefault(case.incident.check, []).append(one)
        last: dict[str, float] = {}
        for incident in known:
            if incident.told is not None:
                last[incident.check] = max(incident.told, last.get(incident.check, incident.told))
        return [
            one
            for check, news in groups.items()
            if grouping.speaks(news, last.get(check), now, self.policy)
            for one in news
        ]

    def _reason(self, case: _Case, now: float) -> Reason:
        if case.expired:
            was_told = case.incident.told is not None or case.incident.intended is not None
            return Reason.RESOLVED if was_told and case.silence is None else Reason.QUIET
        return decide(case.incident, case.verdict, now, self.policy, silenced=case.silence is not None, zone=self.zone)

    def _channels_of(self, news: News) -> tuple[str, ...]:
        """Who is told: the first, and those whom it was escalated to; of an escalation, those who are new."""
        steps = parse_escalation(self.policy.escalation)
        if news.reason is Reason.ESCALATED:
            return tuple(
                dict.fromkeys(n for step in steps[news.incident.escalated : news.steps] for n in step.channels)
            )
        return tuple(
            dict.fromkeys((*self.policy.channels, *(n for step in steps[: news.steps] for n in step.channels)))
        )

    # ---- telling and remembering

    def _send(self, letters: Sequence[Letter], now: float) -> tuple[dict[str, Incident], tuple[Letter, ...]]:
        """Queue the messages; return the incidents that were told, and what was queued now."""
        news = {one.incident.fingerprint: one for letter in letters for one in letter.news}
        for one in news.values():
            # Of a change told of very many, a crash may say too much; each file is a trip to the file server.
            if one.reason is Reason.FIRST or len(news) <= MANY:
                self._try(partial(self.ledger.keep, replace(one.incident, intended=now)))
        failed: set[str] = set()
        threads: dict[str, str] = {}
        sent = []
        for letter in letters:
            queued = []
            for channel in letter.channels:
                try:
                    if self.outbox.put(letter.alert, channel, now):
                        queued.append(channel)
                except StateDirectoryError as error:
                    self._say(f"an alert could not be queued: {error.message}")
                    failed |= {one.incident.fingerprint for one in letter.news}
            for one in letter.news:
                threads.setdefault(one.incident.fingerprint, letter.alert.thread)
            if queued:
                sent.append(replace(letter, channels=tuple(queued)))
        told = {}
        for fingerprint, one in news.items():
            if fingerprint in failed:
                told[fingerprint] = replace(one.incident, intended=now)
                continue
            flaps = is_flapping(one.incident, self.policy)
            told[fingerprint] = grouping.told(one, threads[fingerprint], now, is_flapping=flaps)
        return told, tuple(sent)

    def _unsaid(self, case: _Case, now: float) -> Incident:
        """What is to be remembered of an incident that is not told now."""
        incident, silenced = case.incident, case.silence is not None
        if case.expired:
            was_told = incident.told is not None or incident.intended is not None
            return incident if was_told else replace(incident, resolved=now)
        if case.verdict is Verdict.OK and ends_unsaid(incident, now, self.policy, silenced=silenced):
            return replace(incident, resolved=now)
        if incident.acknowledged_by and not silenced:
            # Whoever has taken it on needs no word that a silence has ended, or that it has settled.
            settled = incident.flapping is not None and not is_flapping(incident, self.policy)
            return replace(incident, silenced=None, flapping=None if settled else incident.flapping)
        if silenced and incident.silenced is None:
            return replace(incident, silenced=now)
        if incident.held is None and case.verdict is not Verdict.OK and self._is_held(case, now):
            return replace(incident, held=now)
        return incident

    def _is_held(self, case: _Case, now: float) -> bool:
        if case.incident.told is not None or case.silence is not None or not self.policy.quiet_hours:
            return False
        by_day = replace(self.policy, quiet_hours="")
        return (
            self._reason(case, now) is Reason.QUIET
            and decide(case.incident, case.verdict, now, by_day, zone=self.zone) is Reason.FIRST
        )

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StateDirectoryError as error:
            self._say(f"the alert state could not be written: {error.message}")

    def _say(self, sentence: str) -> None:
        if sentence not in self._trouble:
            self._trouble.append(sentence)


def _worst_of_each(report: Report) -> Iterable[Finding]:
    """The findings that are faults; of several with the same name, the worst."""
    worst: dict[tuple[str, str], Finding] = {}
    for finding in report.findings:
        key = (finding.subject, finding.fault)
        if finding.verdict is not Verdict.OK and (key not in worst or worst[key].verdict < finding.verdict):
            worst[key] = finding
    return worst.values()


def _is_news(before: Incident, incident: Incident, refresh_s: float) -> bool:
    """Whether there is more to remember than that it was seen once more, a moment ago."""
    if incident.seen - before.seen > refresh_s or incident.looked - before.looked > refresh_s:
        return True
    same = {name: getattr(before, name) for name in ("summary", "advice", "evidence", "host", "seen", "looked")}
    return replace(incident, **same) != before
