"""What a person is told, and why now. Pure words, and their JSON for the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilience.finding import Verdict


class Reason(StrEnum):
    """Why somebody is told now. QUIET: nobody is."""

    FIRST = "FIRST"
    WORSE = "WORSE"
    BETTER = "BETTER"
    RESOLVED = "RESOLVED"
    REMINDER = "REMINDER"
    ESCALATED = "ESCALATED"
    QUIET = "QUIET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What an alert says about one incident.

    Attributes:
        episode: id of the incident from its first notice to its end; people type it: `resil alert ack 3f9a1c`.
        fingerprint: what makes two findings the same fault, across episodes.
        check, subject, fault, run: as in the finding.
        verdict: how bad it is now; OK when it is resolved.
        since: when the episode began, seconds since the epoch.
        count: how often this incident has been told, this time included.
        acknowledged_by: who has taken it on, or empty.
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
    """One message: about one incident, or about many that are told together.

    Attributes:
        id: the same for the same news, whoever composes it and however often: repeats are recognised by it.
        thread: what belongs together: all alerts of one episode, or of one group, share it. Mail threads by it, Slack
            replies to it, PagerDuty's dedup_key is made of it.
        reason: the most urgent reason of the notices.
        verdict: the worst verdict of the notices.
        time: when it was decided, seconds since the epoch.
        host: the node that decided.
        project: the project folder, for the commands in the message.
        notices: worst first; at most a few dozen.
        total: how many incidents it is about, those left out of `notices` included.
        is_test: sent by `resil alert test`.
        is_digest: stands for messages that could not be delivered in time.
        title: of a message that is about no incident, the daily word that all is well for instance: its one line. Such
            a message has no notices.
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

    @property
    def is_resolved(self) -> bool:
        """Whether everything that it tells of is over."""
        return self.reason is Reason.RESOLVED


def alert_to_json(alert: Alert) -> dict[str, Any]:
    """An alert as JSON's own types."""
    record = {name: getattr(alert, name) for name in Alert.__dataclass_fields__}
    record["verdict"] = alert.verdict.value
    record["notices"] = [
        {name: getattr(notice, name) for name in Notice.__dataclass_fields__} | {"verdict": notice.verdict.value}
        for notice in alert.notices
    ]
    return record


def alert_from_json(record: Mapping[str, Any]) -> Alert:
    """The alert that `alert_to_json` wrote. Raise KeyError, TypeError or ValueError if it is none.

    Keys of a later version are passed over.
    """
    notices = tuple(
        Notice(
            **_known(Notice, notice)
            | {
                "reason": Reason(notice["reason"]),
                "verdict": Verdict(notice["verdict"]),
                "evidence": tuple(notice.get("evidence", ())),
            }
        )
        for notice in record["notices"]
    )
    return Alert(
        **_known(Alert, record)
        | {
            "reason": Reason(record["reason"]),
            "verdict": Verdict(record["verdict"]),
            "notices": notices,
            "body": tuple(map(str, record.get("body", ()))),
        }
    )


def _known(owner: type, record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in owner.__dataclass_fields__ if name in record}  # type: ignore[attr-defined]
