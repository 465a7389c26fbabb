"""Alerts: the messages that people receive, and the reason for each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilience.finding import Verdict


class Reason(StrEnum):
    """Why people are notified now, the most urgent reason first. QUIET: nobody is notified."""

    FIRST = "FIRST"
    WORSE = "WORSE"
    ESCALATED = "ESCALATED"
    REMINDER = "REMINDER"
    BETTER = "BETTER"
    RESOLVED = "RESOLVED"
    QUIET = "QUIET"


URGENCY = tuple(Reason)
"""The most urgent reason first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One incident in an alert.

    Attributes:
        episode: id of the incident from its first notice to its end; people type it: `resil alert ack 3f9a1c`.
        fingerprint: identifies the fault across incidents.
        check, subject, fault, run: as in the finding.
        verdict: the present verdict; OK when the incident is resolved.
        since: when the incident began, seconds since the epoch.
        count: number of notifications about this incident, this one included.
        acknowledged_by: the person who acknowledged the incident, or empty.
    """

    episode: str
    fingerprint: str
    reason: Reason
    check: str
    subject: str
    fault: str
    verdict: Verdict
    summary: str
    since: float
    advice: str = ""
    run: str = ""
    evidence: tuple[str, ...] = ()
    count: int = 1
    acknowledged_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One message about one incident, about several, or about none.

    Attributes:
        id: the same for the same content, on every node and each time, so that repeats are recognised.
        thread: shared by all alerts of one incident, or of one group. Mail threads by it, Slack replies to it,
            PagerDuty's dedup_key is made of it.
        reason: the most urgent reason of the notices.
        verdict: the worst verdict of the notices.
        time: when the alert was composed, seconds since the epoch.
        host: the node that composed the alert.
        project: the project directory, for the commands in the message.
        notices: worst first; at most a few dozen.
        total: number of incidents, those left out of `notices` included.
        is_test: sent by `resil alert test`.
        is_digest: stands for messages that could not be delivered in time.
        title: the headline of a message about no incident, the daily report of cron for instance. Such a message has no
            notices.
        body: the lines below the title.
    """

    id: str
    thread: str
    reason: Reason
    verdict: Verdict
    time: float
    host: str
    project: str
    notices: tuple[Notice, ...]
    total: int = 1
    is_test: bool = False
    is_digest: bool = False
    title: str = ""
    body: tuple[str, ...] = ()

    @classmethod
    def of(cls, *notices: Notice, id: str, most: int | None = None, **fields: Any) -> Alert:
        """The alert about these notices, of which the first `most` are shown.

        Reason, verdict, total and thread are derived from the notices and the id unless `fields` give them.
        """
        derived: dict[str, Any] = {
            "thread": id,
            "reason": min((notice.reason for notice in notices), key=URGENCY.index, default=Reason.FIRST),
            "verdict": max((notice.verdict for notice in notices), default=Verdict.OK),
            "total": len(notices),
        }
        return cls(id=id, notices=notices[:most], **derived | fields)

    @property
    def is_resolved(self) -> bool:
        """Whether every incident in the alert is resolved."""
        return self.reason is Reason.RESOLVED
