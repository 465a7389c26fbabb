"""Prints what `resil alert` found and did."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from resilience.alerts.commands import NO_CHANNEL, Details, Known, Listing
from resilience.alerts.delivery import Delivery
from resilience.alerts.incident import Incident, Silence
from resilience.alerts.outbox import Entry
from resilience.alerts.sending import DeliveryStatus, Outcome
from resilience.cli.output import clean, paint, table
from resilience.finding import Verdict
from resilience.quantities import format_duration
from resilience.records import to_record

COLOURS = {Verdict.OK: "", Verdict.WARNING: "yellow", Verdict.UNKNOWN: "yellow", Verdict.CRITICAL: "red"}
_HEADERS = ("ID", "VERDICT", "WHAT", "SINCE", "NOTIFIED", "ACKNOWLEDGED", "SUMMARY")
_SUMMARY_CHARACTERS = 100


def show_listing(found: Listing, now: float, *, everything: bool) -> None:
    """The table of incidents, then silences, queued messages and dead letters."""
    for sentence in found.errors:
        print(paint(f"  {clean(sentence)}", "yellow"))
    if found.known:
        colours = [COLOURS[k.incident.verdict] if k.incident.is_open else "dim" for k in found.known]
        print("\n".join(table(_HEADERS, [_row(known, now) for known in found.known], colours)))
    elif found.is_partial:
        print("no incident is known: the alert state could not be read")
    else:
        print("no incident" if everything else "no open incident (those that ended: resil alert list --all)")
    show_silences(found.silences, now)
    for channel, count in found.waiting.items():
        state = found.failing.get(channel)
        why = f": {clean(state.error)}" if state is not None else ""
        print(f"{channel}: {_messages(count)} queued{why}")
    if found.waiting:
        print("  deliver now: resil alert flush")
    for entry in found.dead:
        print(f"{entry.channel} did not take {_what(entry)}: {clean(entry.error)}")
        if entry.hint:
            print(f"  try: {clean(entry.hint)}")
    if found.dead:
        print("  try them again: resil alert flush --retry-dead; remove them: resil alert flush --discard-dead")
    if not found.channels:
        print(NO_CHANNEL)


def _row(known: Known, now: float) -> tuple[str, ...]:
    incident = known.incident
    verdict = incident.verdict.value if incident.is_open else f"was {incident.worst.value}"
    since = f"{_age(now - incident.opened)} ago"
    if incident.resolved is not None:
        since = f"ended {_age(now - incident.resolved)} ago"
    elif incident.is_stale(now):
        since += ", not checked of late"
    summary = clean(incident.summary)
    if len(summary) > _SUMMARY_CHARACTERS:
        summary = summary[: _SUMMARY_CHARACTERS - 3] + "..."
    return incident.episode, verdict, what(incident), since, _told(known), incident.acknowledged_by, summary


def what(incident: Incident) -> str:
    """`fs /scratch space`: check, subject and fault."""
    return " ".join(filter(None, (incident.check, incident.subject, incident.fault)))


def _told(known: Known) -> str:
    parts = [f"{known.incident.count}x" if known.incident.count else "no"]
    if known.silence is not None:
        parts.append("silenced")
    if known.waiting:
        parts.append(f"queued for {', '.join(known.waiting)}")
    if known.dead:
        parts.append(f"{', '.join(known.dead)} refused")
    return ", ".join(parts)


def show_silences(silences: Sequence[Silence], now: float) -> None:
    """A line for each, with how long it lasts."""
    for silence in silences:
        why = f": {clean(silence.why)}" if silence.why else ""
        left = _age(silence.until - now)
        print(f"silence {silence.id} of {clean(silence.by)} for {left} more: {clean(scope(silence))}{why}")


def scope(silence: Silence) -> str:
    """What a silence covers, in the words of the options. Pure."""
    named = (("incident", silence.episode), ("check", silence.check), ("subject", silence.subject))
    parts = (*named, ("run", silence.run), ("fault", silence.fault))
    return ", ".join(f"{name} {value}" for name, value in parts if value)


def listing_to_json(found: Listing) -> dict[str, Any]:
    """The listing as JSON's own types."""
    return {
        "incidents": [_known_to_json(known) for known in found.known],
        "silences": [to_record(silence, complete=True) for silence in found.silences],
        "waiting": found.waiting,
        "dead": [entry_to_json(entry) for entry in found.dead],
        "channels": list(found.channels),
        "trouble": list(found.errors),
    }


def _known_to_json(known: Known) -> dict[str, Any]:
    record: dict[str, Any] = to_record(known.incident, complete=True)
    return record | {
        "open": known.incident.is_open,
        "silenced_by": known.silence.id if known.silence is not None else None,
        "waiting_for": list(known.waiting),
        "refused_by": list(known.dead),
    }


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """One message as JSON's own types, without its text."""
    return {
        "id": entry.alert.id,
        "channel": entry.channel,
        "reason": entry.alert.reason.value,
        "episodes": [line.episode for line in entry.incidents()],
        "queued": entry.queued,
        "tries": entry.tries,
        "ended": entry.ended or None,
        "answer": entry.answer,
        "error": entry.error,
        "hint": entry.hint,
        "host": entry.host,
    }


def show_details(found: Details, now: float) -> None:
    """The life of one incident."""
    incident, silence = found.known.incident, found.known.silence
    verdict = incident.verdict.value if incident.is_open else f"over, was {incident.worst.value}"
    print(f"{paint(incident.episode, 'bold')}  {paint(verdict, COLOURS[incident.verdict])}  {clean(what(incident))}")
    print(f"  {clean(incident.summary)}")
    if incident.advice and incident.is_open:
        print(f"  try: {clean(incident.advice)}")
    lines: list[tuple[float, str]] = [(incident.opened, f"opened, seen from {incident.host or 'somewhere'}")]
    if incident.run:
        print(f"  run: {clean(incident.run)}")
    if incident.acknowledged_at is not None:
        note = f": {incident.acknowledged_note}" if incident.acknowledged_note else ""
        lines.append((incident.acknowledged_at, f"acknowledged by {incident.acknowledged_by}{note}"))
    if incident.changed and incident.changed != incident.opened:
        lines.append((incident.changed, f"became {incident.verdict.value}"))
    for entry in found.sent:
        answer = f" ({entry.answer})" if entry.answer else ""
        lines.append((entry.ended, f"{entry.channel} took {_what(entry)} from {entry.host}{answer}"))
    for entry in found.dead:
        lines.append((entry.ended, f"{entry.channel} will never take {_what(entry)}: {entry.error}"))
    if incident.resolved is not None:
        lines.append((incident.resolved, "resolved"))
    lines.append((incident.seen, "last seen"))
    cells = [(_moment(at), f"{_age(now - at)} ago", text) for at, text in sorted(lines)]
    print("\n".join(table(("", "", ""), cells, indent=2)))
    for entry in found.waiting:
        tries = f", tried {entry.tries} times: {entry.error}" if entry.tries else ""
        print(f"  {_what(entry)} queued for {entry.channel} since {_moment(entry.queued)}{clean(tries)}")
    if silence is not None:
        print(f"  silenced until {_moment(silence.until)} by {clean(silence.by)}: resil alert unsilence {silence.id}")
    if incident.evidence:
        print("  evidence:")
        for line in incident.evidence:
            print(f"    {clean(line)}")
    for sentence in found.errors:
        print(f"  {clean(sentence)}")


def details_to_json(found: Details) -> dict[str, Any]:
    """The details as JSON's own types."""
    return _known_to_json(found.known) | {
        "sent": [entry_to_json(entry) for entry in found.sent],
        "waiting": [entry_to_json(entry) for entry in found.waiting],
        "dead": [entry_to_json(entry) for entry in found.dead],
        "trouble": list(found.errors),
    }


def delivery_line(delivery: Delivery) -> str:
    """The outcome of one delivery. Pure."""
    outcome, what_it_is = delivery.outcome, _what(delivery.entry)
    if outcome.status is DeliveryStatus.SENT:
        answer = f": {clean(outcome.answer)}" if outcome.answer else ""
        return f"{delivery.channel} took {what_it_is} in {outcome.took_s:.1f} s{answer}"
    will = "will never take" if outcome.status is DeliveryStatus.REFUSED else "did not take"
    hint = f"\n  try: {clean(outcome.hint)}" if outcome.hint else ""
    return f"{delivery.channel} {will} {what_it_is}: {clean(outcome.error)}{hint}"


def trial_line(channel: str, outcome: Outcome) -> str:
    """The outcome of a test message. Pure."""
    if outcome.status is DeliveryStatus.SENT:
        return f"{channel}: taken in {outcome.took_s:.1f} s: {clean(outcome.answer) or 'no word came back'}"
    hint = f"\n  try: {clean(outcome.hint)}" if outcome.hint else ""
    return f"{channel}: FAILED after {outcome.took_s:.1f} s: {clean(outcome.error)}{hint}"


def trial_to_json(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """The outcomes, as JSON's own types."""
    return {
        "channels": {
            name: {
                "taken": outcome.status is DeliveryStatus.SENT,
                "answer": outcome.answer,
                "error": outcome.error,
                "hint": outcome.hint,
                "took_s": round(outcome.took_s, 3),
            }
            for name, outcome in outcomes.items()
        }
    }


def _what(entry: Entry) -> str:
    """`FIRST fs /scratch space (3f9a1c04)`, or what a digest stands for."""
    if entry.alert.title:
        return clean(entry.alert.title)
    lines = entry.incidents()
    if entry.is_digest:
        return f"a digest of {_count(entry.alert.total, 'incident')}"
    if not lines:
        return entry.alert.id
    first = lines[0]
    more = f" and {entry.alert.total - 1} more" if entry.alert.total > 1 else ""
    named = " ".join(filter(None, (first.check, first.subject, first.fault)))
    return clean(f"{entry.alert.reason.value} {named}{more} ({first.episode})")


def _age(seconds: float) -> str:
    return format_duration(round(max(0.0, seconds)))


def _messages(count: int) -> str:
    return _count(count, "message")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _moment(seconds: float) -> str:
    """Local time as people write it. A damaged time is none."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "?"
