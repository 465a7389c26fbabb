"""Decides whether to send a notification of an incident now, and for which reason. Pure: nothing is sent or saved here.

`advance` applies the result of a check to an incident, `decide` returns the reason to notify, and `assess` also returns
the incident to save if no notification is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Any

from resilience.alerts.alert import Reason
from resilience.alerts.incident import Incident, fingerprint_of, next_incident_id
from resilience.errors import SettingsError
from resilience.finding import Finding, Verdict
from resilience.messages import suggest
from resilience.settings.alert_policy import (
    AlertPolicy,
    EscalationStep,
    parse_acts,
    parse_escalation,
    parse_quiet_hours,
)

RESOLVED_RETENTION_S = 30 * 86400.0
"""A resolved incident is removed after this long."""

MAX_EARLIER = 20
"""Maximum number of ids of earlier incidents."""

_TIMES = (
    "opened",
    "changed",
    "seen",
    "looked",
    "gone",
    "told",
    "told_before",
    "first_told",
    "flapping",
    "held",
    "silenced",
    "acted_at",
)


def decide(
    previous: Incident | None,
    verdict: Verdict,
    now: float,
    policy: AlertPolicy,
    *,
    silenced: bool = False,
    zone: tzinfo | None = None,
) -> Reason:
    """Return the reason to notify now; QUIET for none.

    `previous` is the saved incident, or None. `verdict` is the current one; OK means that the check did not find this
    fault. `zone` is the time zone of the quiet hours, None for the machine's own.
    Raise SettingsError for a policy that cannot be parsed.
    """
    if previous is None or not previous.is_open:
        if verdict is Verdict.OK:
            return Reason.QUIET
        blank = Finding(subject=previous.subject if previous else "", verdict=verdict, summary="")
        incident = open_incident(previous, blank, previous.check if previous else "", now, policy)
    else:
        incident = advance(previous, verdict, now, policy)
    is_quiet = in_quiet_hours(policy, now, zone)
    if incident.told is None:
        return _first_reason(incident, verdict, now, policy, silenced=silenced, is_quiet=is_quiet)
    if silenced:
        return Reason.QUIET
    # A CRITICAL overrides quiet hours, and so does the resolution of a CRITICAL that was notified.
    may_notify = not is_quiet or Verdict.CRITICAL in (verdict, incident.told_verdict if verdict is Verdict.OK else None)
    if not may_notify:
        return Reason.QUIET
    if verdict is Verdict.OK:
        return Reason.RESOLVED if _has_ended(incident, now, policy) else Reason.QUIET
    return _next_reason(incident, verdict, now, policy)


def assess(
    incident: Incident,
    verdict: Verdict,
    now: float,
    policy: AlertPolicy,
    *,
    silenced: bool = False,
    expired: bool = False,
    zone: tzinfo | None = None,
) -> tuple[Reason, Incident]:
    """Return the reason to notify and the incident to save if no notification is sent.

    `incident`: as returned by `advance`. `expired`: close the incident because its subject is no longer checked. The
    other arguments are those of `decide`.
    """
    if expired:
        if incident.told is None and incident.intended is None:
            return Reason.QUIET, replace(incident, resolved=now)
        waits = in_quiet_hours(policy, now, zone) and incident.told_verdict is not Verdict.CRITICAL
        return Reason.QUIET if silenced or waits else Reason.RESOLVED, incident
    reason = decide(incident, verdict, now, policy, silenced=silenced, zone=zone)
    if verdict is Verdict.OK and resolves_silently(incident, now, policy, silenced=silenced):
        return reason, replace(incident, resolved=now)
    if incident.acknowledged_by and not silenced:
        # An acknowledged incident needs no notification that a silence has expired or that flapping has settled.
        settled = incident.flapping is not None and not is_flapping(incident, policy)
        return reason, replace(incident, silenced=None, flapping=None if settled else incident.flapping)
    if silenced:
        return reason, incident if incident.silenced is not None else replace(incident, silenced=now)
    is_new = incident.told is None and incident.held is None and verdict is not Verdict.OK
    if is_new and reason is Reason.QUIET and _is_confirmed(incident, now, policy):
        return reason, replace(incident, held=now)  # only quiet hours delay its notification
    return reason, incident


def open_incident(
    previous: Incident | None, finding: Finding, check: str, now: float, policy: AlertPolicy, host: str = ""
) -> Incident:
    """Return a new incident for a finding. `previous`: the last incident of the same fault, or None.

    Without a previous incident the id is empty until the ledger opens the incident.
    """
    fingerprint = fingerprint_of(check, finding.subject, finding.fault)
    number = previous.number + 1 if previous is not None else 1
    flaps = (*previous.flaps, now) if previous is not None else ()
    return Incident(
        episode=next_incident_id(previous.episode, number) if previous is not None else "",
        fingerprint=fingerprint,
        number=number,
        check=check,
        subject=finding.subject,
        fault=finding.fault,
        run=finding.run,
        verdict=finding.verdict,
        worst=finding.verdict,
        changed=now,
        summary=finding.summary,
        advice=finding.advice,
        evidence=finding.evidence,
        host=host,
        opened=now,
        seen=now,
        looked=now,
        flaps=_recent(flaps, now, policy),
        told_before=max(filter(None, (previous.told, previous.told_before)), default=None) if previous else None,
        earlier=(*previous.earlier, previous.episode)[-MAX_EARLIER:] if previous is not None else (),
    )


def advance(incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy) -> Incident:
    """Apply the current verdict to an open incident and return the result. Idempotent.

    Times in the future (the clock was set back, or another node's is ahead) are set to now, so that they neither
    trigger a notification nor postpone one indefinitely.
    """
    incident = cap_times(incident, now)
    incident = replace(incident, missed=0, every_s=now - incident.looked if incident.looked < now else incident.every_s)
    flaps = _recent(incident.flaps, now, policy)
    if verdict is Verdict.OK:
        return replace(incident, gone=now if incident.gone is None else incident.gone, looked=now, flaps=flaps)
    came_back = incident.gone is not None or (
        # Back to an earlier severity. A failed check in between does not count as a change.
        Verdict.UNKNOWN not in (incident.verdict, verdict) and incident.verdict < verdict <= incident.worst
    )
    return replace(
        incident,
        verdict=verdict,
        worst=max(incident.worst, verdict),
        changed=now if came_back or verdict is not incident.verdict else incident.changed,
        seen=now,
        looked=now,
        gone=None,
        flaps=_recent((*incident.flaps, now), now, policy) if came_back else flaps,
    )


def is_flapping(incident: Incident, policy: AlertPolicy) -> bool:
    """Return True if the fault comes and goes too often to notify each time. `incident`: as returned by `advance`."""
    if policy.flap_count <= 0:
        return False
    return len(incident.flaps) >= policy.flap_count or (incident.flapping is not None and bool(incident.flaps))


def resolves_silently(incident: Incident, now: float, policy: AlertPolicy, *, silenced: bool) -> bool:
    """Return True if an incident is over that was never notified and needs no notification."""
    was_notified = incident.told is not None or incident.intended is not None
    is_held = incident.held is not None and not silenced
    return not was_notified and not is_held and _has_ended(incident, now, policy)


def in_quiet_hours(policy: AlertPolicy, now: float, zone: tzinfo | None = None) -> bool:
    """Return True in quiet hours, when only CRITICAL is notified. By local time: a night in which the clocks change is
    an hour longer or shorter."""
    quiet = parse_quiet_hours(policy.quiet_hours)
    if quiet is None:
        return False
    local = datetime.fromtimestamp(now, UTC).astimezone(zone)
    return quiet.cover(local.hour * 60 + local.minute)


def due_steps(incident: Incident, now: float, policy: AlertPolicy) -> int:
    """Return the number of escalation steps that are due, including those notified already."""
    began = incident.first_told
    if began is None:
        return incident.escalated
    steps = parse_escalation(policy.escalation)
    due = sum(now - min(began, now) >= step.after_s for step in steps)
    return max(due, min(incident.escalated, len(steps)))


def due_act(incident: Incident, now: float, policy: AlertPolicy) -> str:
    """Return what is to be done now about the run of an incident: `hold`, `cancel`, or an empty text.

    `incident`: as returned by `advance`. Nothing without a run, and only if this tick has found it to be CRITICAL: an
    UNKNOWN is no reason to act, nor is a check that failed. If several are due together, the last one is done.
    """
    if not incident.run or incident.acknowledged_by or incident.first_told is None or not incident.is_open:
        return ""
    if incident.verdict is not Verdict.CRITICAL or incident.gone is not None or incident.seen != now:
        return ""
    due = [act for after_s, act in parse_acts(policy.act) if now - incident.first_told >= after_s]
    return due[-1] if len(due) > incident.acted else ""


def acted(incident: Incident, did: str, now: float, policy: AlertPolicy) -> Incident:
    """Return the incident after `due_act` was done."""
    first = incident.first_told if incident.first_told is not None else now
    count = sum(now - first >= after_s for after_s, _ in parse_acts(policy.act))
    return replace(incident, acted=count, acted_at=now, did=did)


def check_policy(policy: AlertPolicy, known: Collection[str]) -> tuple[EscalationStep, ...]:
    """Raise SettingsError for a policy that is inconsistent or names a channel that is not in `known`."""
    parse_quiet_hours(policy.quiet_hours)
    acts = parse_acts(policy.act)
    steps = parse_escalation(policy.escalation)
    for place, names in [("channels", policy.channels), *(("escalation", step.channels) for step in steps)]:
        for name in names:
            if name not in known:
                hint = suggest(name, sorted(known), cutoff=0.6) if known else f"write a table [channel.{name}]"
                raise SettingsError(f"[alert] {place} names an unknown channel: {name!r}", hint=hint)
    if (steps or acts) and not policy.channels:
        what = "an escalation" if steps else "act"
        raise SettingsError(
            f"[alert] has {what} but no channels", hint="name the channels to notify first: channels = [...]"
        )
    return steps


def usable(policy: AlertPolicy) -> tuple[AlertPolicy, tuple[str, ...]]:
    """Return the usable part of a policy, and one sentence for each part with an error.

    A misspelled quiet hour must not suppress all notifications.
    """
    errors = []
    steps: dict[str, list[str]] = {"escalation": [], "act": []}
    for key, parse in (("escalation", parse_escalation), ("act", parse_acts)):
        for step in getattr(policy, key):
            try:
                parse((step,))
                steps[key].append(step)
            except SettingsError as error:
                errors.append(error.message)
    quiet = policy.quiet_hours
    try:
        parse_quiet_hours(quiet)
    except SettingsError as error:
        errors.append(error.message)
        quiet = ""
    escalation, act = tuple(steps["escalation"]), tuple(steps["act"])
    return replace(policy, escalation=escalation, act=act, quiet_hours=quiet), tuple(errors)


def _first_reason(
    incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy, *, silenced: bool, is_quiet: bool
) -> Reason:
    if silenced:
        return Reason.QUIET
    if verdict is Verdict.OK:
        # Owed: a notification delayed by quiet hours, or one that a process may have sent before it crashed.
        is_owed = incident.held is not None or incident.intended is not None
        return Reason.RESOLVED if is_owed and not is_quiet and _has_ended(incident, now, policy) else Reason.QUIET
    if is_quiet and verdict is not Verdict.CRITICAL:
        return Reason.QUIET
    return Reason.FIRST if _is_confirmed(incident, now, policy) else Reason.QUIET


def _next_reason(incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy) -> Reason:
    """Return the reason to notify again of a persisting fault that was notified before."""
    told_verdict = incident.told_verdict or Verdict.OK
    flaps = is_flapping(incident, policy)
    if _is_confirmed(incident, now, policy) and verdict > told_verdict:
        return Reason.WORSE
    if flaps and incident.flapping is None:
        return Reason.WORSE
    if verdict < told_verdict and verdict is not Verdict.UNKNOWN and not flaps:
        return Reason.BETTER
    if incident.intended is not None:
        return Reason.REMINDER  # a process crashed while sending a notification: send the current state
    if incident.acknowledged_by:
        return Reason.QUIET
    if due_steps(incident, now, policy) > incident.escalated:
        return Reason.ESCALATED
    was_acted_upon = incident.acted_at is not None and incident.acted_at > (incident.told or 0.0)
    has_settled = incident.flapping is not None and not flaps
    is_due = policy.reminder_s > 0 and now - (incident.told or 0.0) >= policy.reminder_s
    is_news = has_settled or was_acted_upon or incident.silenced is not None
    return Reason.REMINDER if is_news or is_due else Reason.QUIET


def _is_confirmed(incident: Incident, now: float, policy: AlertPolicy) -> bool:
    """Return True unless the verdict is an UNKNOWN younger than `unknown_for_s`."""
    return incident.verdict is not Verdict.UNKNOWN or now - incident.changed >= policy.unknown_for_s


def _has_ended(incident: Incident, now: float, policy: AlertPolicy) -> bool:
    """Return True if the fault has been gone for `resolve_after_s`, and is not flapping."""
    if incident.gone is None or is_flapping(incident, policy):
        return False
    return now - incident.gone >= policy.resolve_after_s


def _recent(flaps: tuple[float, ...], now: float, policy: AlertPolicy) -> tuple[float, ...]:
    # Only the latest are needed: a fault that comes back each second must not grow its file.
    return tuple(time for time in flaps if time <= now and now - time < policy.flap_s)[-max(policy.flap_count, 1) :]


def cap_times(incident: Incident, now: float) -> Incident:
    """Return the incident with all times capped at `now`."""
    early: dict[str, Any] = {name: now for name in _TIMES if (getattr(incident, name) or 0.0) > now}
    return replace(incident, **early) if early else incident
