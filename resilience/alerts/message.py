"""The text of an alert for all channels: headline, sections with advice, and visible truncation. Pure.

Texts come from job names, log lines and programs' output and are not trusted: characters that control a terminal, break
a header or reverse a line (https://www.unicode.org/reports/tr36, bidirectional text spoofing) are replaced here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.quantities import format_duration
from resilience.records import to_record

MAX_NOTICES = 25
"""Maximum number of incidents shown in full; the others are counted."""

BODY_LINES, BODY_WIDTH = 400, 1000
"""Limits of an announcement's body in plain text."""

EVIDENCE_LINES = 20
EVIDENCE_WIDTH = 300

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)
"""Controls, bidirectional controls, lone surrogates and noncharacters."""

_BLANKS = re.compile(r"\s+")
_COMMAND = re.compile(r"(resil|cd) [^;?]*")
_JUST_NOTICED_S = 60.0

SELF_CHECK = "alert"
"""The check of alerts about alerting itself, such as a failing channel: not an incident of a watchdog."""

_REASON_SUFFIXES = {
    Reason.WORSE: " (worse)",
    Reason.BETTER: " (better)",
    Reason.REMINDER: " (reminder)",
    Reason.ESCALATED: " (escalated)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The text about one incident.

    Attributes:
        title: `CRITICAL: /scratch: 98% used (3f9a1c)`.
        rows: label and value: Problem, Where, Since, Advice, Details, Acknowledge.
        evidence: lines of evidence, truncated where they are long.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    evidence: tuple[str, ...]


def cut(text: str, limit: int, *, missing: int = 0) -> str:
    """Return at most `limit` characters of a text, with the number of characters left out.

    `missing` characters were left out by the caller already.
    """
    whole = len(text) + missing
    if whole <= limit:
        return text
    # The number of characters left out has at most as many digits as the length, so the result is within the limit.
    room = min(len(text), limit - len(f" … ({whole} more)"))
    if room < 1:
        return text[: max(0, limit - 1)] + "…"
    return f"{text[:room]} … ({whole - room} more)"


def clean_line(text: str, limit: int = 500) -> str:
    """Return a text as one line without control characters, since a job's name may become part of a header.

    For example, "gpt\\r\\nBcc: x" gives "gpt Bcc: x".
    """
    shown = text[: 4 * limit + 100]  # the rest may be megabytes
    line = _UNPRINTABLE.sub("?", _BLANKS.sub(" ", shown).strip())
    return cut(line, limit, missing=len(text) - len(shown))


def clean_lines(texts: tuple[str, ...], *, lines: int = EVIDENCE_LINES, width: int = EVIDENCE_WIDTH) -> tuple[str, ...]:
    """Return evidence as printable lines; of more than `lines`, the first half and the last."""
    room = lines * (width + 1) * 4
    split = [line for text in texts[: 4 * lines] for line in (text[:room].splitlines() or [""])]
    shown = [cut(_UNPRINTABLE.sub("?", line[: 4 * width].expandtabs(4)).rstrip(), width) for line in split[: 8 * lines]]
    left_out = sum(len(text) > room for text in texts[: 4 * lines]) + max(0, len(texts) - 4 * lines)
    if len(shown) > lines:
        half = lines // 2
        return (*shown[:half], f"… ({len(split) - lines} lines left out)", *shown[len(shown) - (lines - half) :])
    return (*shown, f"… ({left_out} texts cut)") if left_out else tuple(shown)


def state_of(alert: Alert) -> str:
    """Return the verdict that selects colours: OK once every incident in the alert is resolved."""
    return "OK" if alert.is_resolved else alert.verdict.value


def colour_of(alert: Alert) -> str:
    """Return the colour of an alert in HTML notation."""
    return {"CRITICAL": "#d93025", "UNKNOWN": "#8e6bbf", "WARNING": "#e37400", "OK": "#1e8e3e"}[state_of(alert)]


def state_word(alert: Alert) -> str:
    """Return the state in capitals: `CRITICAL`, `RESOLVED`, `WARNING (better)`, `TEST`, `INFO`."""
    if alert.is_test:
        return "TEST"
    if alert.title:
        return "INFO"
    if alert.is_resolved:
        return "RESOLVED"
    word = alert.verdict.value + _REASON_SUFFIXES.get(alert.reason, "")
    return f"DIGEST, {word}" if alert.is_digest else word


def headline(alert: Alert, limit: int = 180) -> str:
    """Return the alert as one line with the id to acknowledge it: `CRITICAL: /scratch: 98% used (3f9a1c)`."""
    if alert.title:
        return clean_line(alert.title, limit)
    word = state_word(alert)
    if not alert.notices:
        return clean_line(f"{word}: {alert.total} incidents", limit)
    first = alert.notices[0]
    mark = f" ({typed_id(alert)})"
    many = f"{alert.total} incidents, first " if alert.total > 1 else ""
    line = f"{word}: {many}{clean_line(first.subject, 80)}: {clean_line(first.summary, 300)}"
    return cut(line, limit - len(mark)) + mark


def items_of(alert: Alert) -> tuple[Item, ...]:
    """Return a section for each incident shown in full: problem, place, time, advice and how to acknowledge.

    An announcement is one section with its title and body.
    """
    if alert.title:
        return (_announcement(alert),)
    return tuple(_item(alert, notice) for notice in alert.notices[:MAX_NOTICES])


def left_out(alert: Alert) -> str:
    """Return a sentence about the incidents that are only counted, or an empty text."""
    count = max(alert.total, len(alert.notices)) - min(len(alert.notices), MAX_NOTICES)
    return f"And {count} more: {in_project(alert, 'resil alert list')}" if count > 0 else ""


def in_project(alert: Alert, command: str) -> str:
    """Return a command that can be pasted into a shell in any directory."""
    return f"cd {shlex.quote(clean_line(alert.project, 400))} && {command}" if alert.project else command


def plain_text(alert: Alert, limit: int = 200_000) -> str:
    """Return the whole message as plain text."""
    if alert.title:
        shown = clean_lines(alert.body, lines=BODY_LINES, width=BODY_WIDTH)
        return (
            cut("\n".join([headline(alert), *([""] if shown else []), *shown]), limit) + f"\n\n-- \n{footer(alert)}\n"
        )
    parts = [] if alert.notices else [headline(alert)]
    for item in items_of(alert):
        width = max(len(label) for label, _ in item.rows) + 2
        lines = [item.title, *(f"  {label + ':':<{width}}{value}" for label, value in item.rows)]
        if item.evidence:
            lines += ["  Evidence:", *(f"    {line}" for line in item.evidence)]
        parts.append("\n".join(lines))
    if more := left_out(alert):
        parts.append(more)
    return cut("\n\n".join(parts), limit) + f"\n\n-- \n{footer(alert)}\n"


def alert_record(alert: Alert, shorten: Callable[[str], str], *, text: str) -> dict[str, Any]:
    """Return the alert as JSON types for programs, with headline and text; evidence and notices bounded."""

    def short(record: dict[str, Any]) -> dict[str, Any]:
        return {key: shorten(value) if isinstance(value, str) else value for key, value in record.items()}

    record = to_record(alert, complete=True)
    record["notices"] = [
        short(notice) | {"evidence": list(clean_lines(tuple(notice["evidence"])))}
        for notice in record["notices"][:MAX_NOTICES]
    ]
    return {"schema": "resil/1", "kind": "alert", "headline": headline(alert), "text": text, **short(record)}


def footer(alert: Alert) -> str:
    """Return the last line of a message: its origin, time and id."""
    test = "This is a test of the channel; nothing is wrong. " if alert.is_test else ""
    late = "These notifications could not be delivered in time. " if alert.is_digest else ""
    is_many = alert.total > 1 and not alert.is_resolved
    all_of_it = f"; acknowledge all: {acknowledge_command(alert)}" if is_many else ""
    origin = f"resil on {clean_line(alert.host, 100)}, {moment(alert.time)}"
    return f"{test}{late}{origin}, message {clean_line(alert.id, 60)}{all_of_it}"


def typed_id(alert: Alert) -> str:
    """Return the id to acknowledge an alert: of the only incident, or of the message about several."""
    return clean_line(alert.notices[0].episode if alert.total == 1 and alert.notices else alert.id, 24)


def acknowledge_command(alert: Alert) -> str:
    """Return the command that acknowledges every incident in an alert."""
    return in_project(alert, f"resil alert ack {shlex.quote(typed_id(alert))}")


def moment(seconds: float) -> str:
    """Return the local time with its UTC offset. For example, `2026-11-20 03:12:45 +0100`."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def is_command(label: str, value: str) -> bool:
    """Return True if a row can be pasted into a shell: most advice is a sentence."""
    is_pasted = label in ("Details", "Acknowledge", "Project")
    return is_pasted or (label == "Advice" and _COMMAND.fullmatch(value) is not None)


def _announcement(alert: Alert) -> Item:
    rows: tuple[tuple[str, str], ...] = (("From", clean_line(alert.host, 100) or "resil"),)
    if alert.project:
        rows = (*rows, ("Project", clean_line(alert.project, 400)))
    return Item(title=clean_line(alert.title, 300), rows=rows, evidence=clean_lines(alert.body))


def _item(alert: Alert, notice: Notice) -> Item:
    episode = clean_line(notice.episode, 24)
    over = notice.is_over
    word = "TEST" if alert.is_test else "RESOLVED" if over else notice.verdict.value
    subject, summary = clean_line(notice.subject, 300), clean_line(notice.summary, 1000)
    where = f"{subject} (check {clean_line(notice.check, 60)}, seen on {clean_line(alert.host, 100)})"
    age_s = max(0.0, alert.time - notice.since)
    ago = (
        f"{'lasted' if over else 'for'} {format_duration(age_s)}"
        if over or age_s >= _JUST_NOTICED_S
        else "just noticed"
    )
    rows = [("Problem", summary), ("Where", where)]
    if notice.run:
        rows.append(("Run", clean_line(notice.run, 200)))
    rows.append(("Since", f"{moment(notice.since)} ({ago})"))
    if notice.count > 1:
        rows.append(("Notified", f"{notice.count} times"))
    if notice.advice:
        rows.append(("Advice", clean_line(notice.advice, 1000)))
    is_incident = not alert.is_test and notice.check != SELF_CHECK
    if is_incident and not over:
        rows.append(("Details", in_project(alert, f"resil alert show {shlex.quote(episode)}")))
    if notice.acknowledged_by:
        rows.append(("Acknowledged", f"by {clean_line(notice.acknowledged_by, 60)}"))
    elif is_incident and not over:
        rows.append(("Acknowledge", in_project(alert, f"resil alert ack {shlex.quote(episode)}")))
    if alert.project:
        rows.append(("Project", clean_line(alert.project, 400)))
    title = f"{word}: {cut(subject, 80)}: {cut(summary, 200)} ({episode})"
    return Item(title=title, rows=tuple(rows), evidence=clean_lines(notice.evidence))
