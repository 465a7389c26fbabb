"""Alerts: the messages that channels send, and the reason for each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilience.finding import Verdict


class Reason(StrEnum):
    """Reason for a notification, the most urgent first. QUIET: no notification."""

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
        episode: id of the incident, as users type it: `resil alert ack 3f9a1c`.
        fingerprint: identifies the fault across incidents.
        check, subject, fault, run: as in the finding.
        verdict: current verdict; OK once the incident is resolved.
        since: when the incident began, seconds since the epoch.
        count: number of notifications of this incident, including this one.
        acknowledged_by: the user who acknowledged the incident, or empty.
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

    @property
    def is_over(self) -> bool:
        """Return True if the incident is resolved."""
        return self.reason is Reason.RESOLVED or self.verdict is Verdict.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One message about one incident, about several, or about none.

    Attributes:
        id: derived from the content alone, so every node gives the same alert the same id and duplicates are detected.
        thread: shared by all alerts of one incident or one group. Mail programs thread by it, Slack replies to it, and
            PagerDuty's dedup_key is derived from it.
        reason: the most urgent reason of the notices.
        verdict: the worst verdict of the notices.
        time: when the alert was composed, seconds since the epoch.
        host: the node that composed the alert.
        project: the project directory, for the commands in the message.
        notices: worst first; at most a few dozen.
        total: number of incidents, including those left out of `notices`.
        is_test: sent by `resil alert test`.
        is_digest: replaces messages that could not be delivered in time.
        title: headline of an announcement, a message about no incident such as cron's daily report. An announcement
            has no notices.
        body: lines below the title.
        files: absolute paths of files that go with it where the channel can: pictures (`.png`) are shown.
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
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, *notices: Notice, id: str, most: int | None = None, **fields: Any) -> Alert:
        """Return the alert for these notices, limited to the first `most`.

        Reason, verdict, total and thread are derived from the notices and the id unless given in `fields`.
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
        """Return True if every incident in the alert is resolved."""
        return self.reason is Reason.RESOLVED
