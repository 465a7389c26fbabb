"""Decides whether to notify people of an incident now, and why. Pure: nothing is sent or saved here.

`advance` applies the result of a check to an incident, `decide` gives the reason to notify, and `assess` adds the
incident to save when no notification is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Any

from resilience.alerts.alert import Reason
from resilience.alerts.incident import Incident, fingerprint_of, incident_id_of
from resilience.errors import SettingsError
from resilience.finding import Finding, Verdict
from resilience.settings.alert_policy import AlertPolicy, EscalationStep, parse_escalation, parse_quiet_hours

EXPIRES_AFTER_S = 14 * 86400.0
"""An open incident whose subject was not checked for so long is closed, with a notification."""

FORGOTTEN_AFTER_S = 30 * 86400.0
"""An incident that ended so long ago is removed."""

EARLIER_MOST = 20
"""So many ids of earlier incidents are kept."""

_TIMES = ("opened", "changed", "seen", "looked", "gone", "told", "first_told", "flapping", "held", "silenced")


def decide(
    previous: Incident | None,
    verdict: Verdict,
    now: float,
    policy: AlertPolicy,
    *,
    silenced: bool = False,
    zone: tzinfo | None = None,
) -> Reason:
    """Return the reason to notify people now; QUIET for none.

    `previous` is the incident as it was saved, None where there was none. `verdict` is the present one; OK means that
    the subject was checked and this fault was not there. `zone` is where the quiet hours count, None the machine's own.
    Raise SettingsError for a policy that cannot be parsed.
    """
    if previous is None or not previous.is_open:
        if verdict is Verdict.OK:
            return Reason.QUIET
        blank = Finding(subject=previous.subject if previous else "", verdict=verdict, summary="")
        incident = begin(previous, blank, previous.check if previous else "", now, policy)
    else:
        incident = advance(previous, verdict, now, policy)
    is_quiet = in_quiet_hours(policy, now, zone)
    if incident.told is None:
        return _not_notified(incident, verdict, now, policy, silenced=silenced, is_quiet=is_quiet)
    if silenced:
        return Reason.QUIET
    # A CRITICAL may wake people, and so may the end of a CRITICAL that did.
    may_wake = not is_quiet or Verdict.CRITICAL in (verdict, incident.told_verdict if verdict is Verdict.OK else None)
    if not may_wake:
        return Reason.QUIET
    if verdict is Verdict.OK:
        return Reason.RESOLVED if _has_ended(incident, now, policy) else Reason.QUIET
    return _notified(incident, verdict, now, policy)


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
    """Given an incident as `advance` left it, return the reason to notify, and the incident to save if nothing is sent.

    `expired`: its subject was not checked for so long that the incident is closed. The other arguments are those of
    `decide`.
    """
    if expired:
        if incident.told is None and incident.intended is None:
            return Reason.QUIET, replace(incident, resolved=now)
        return Reason.QUIET if silenced else Reason.RESOLVED, incident
    reason = decide(incident, verdict, now, policy, silenced=silenced, zone=zone)
    if verdict is Verdict.OK and resolves_silently(incident, now, policy, silenced=silenced):
        return reason, replace(incident, resolved=now)
    if incident.acknowledged_by and not silenced:
        # The person who acknowledged needs no notification that a silence has ended, or that flapping has settled.
        settled = incident.flapping is not None and not is_flapping(incident, policy)
        return reason, replace(incident, silenced=None, flapping=None if settled else incident.flapping)
    if silenced:
        return reason, incident if incident.silenced is not None else replace(incident, silenced=now)
    is_new = incident.told is None and incident.held is None and verdict is not Verdict.OK
    if is_new and reason is Reason.QUIET and _has_lasted(incident, now, policy):
        return reason, replace(incident, held=now)  # only quiet hours hold its notification back
    return reason, incident


def begin(
    previous: Incident | None, finding: Finding, check: str, now: float, policy: AlertPolicy, host: str = ""
) -> Incident:
    """Given a finding, open its incident. `previous`: the last incident of the same fault, if there is one."""
    fingerprint = fingerprint_of(check, finding.subject, finding.fault)
    number = previous.number + 1 if previous is not None else 1
    flaps = (*previous.flaps, now) if previous is not None else ()
    return Incident(
        episode=incident_id_of(fingerprint, number, now),
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
        flaps=_of_late(flaps, now, policy),
        earlier=(*previous.earlier, previous.episode)[-EARLIER_MOST:] if previous is not None else (),
    )


def advance(incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy) -> Incident:
    """Given an open incident and the present verdict, return the incident as it is now. Twice is as once.

    Times that lie in the future (the clock was set back, or another node's is ahead) become now: so they neither
    trigger a notification nor put one off for ever.
    """
    incident = not_after(incident, now)
    flaps = _of_late(incident.flaps, now, policy)
    if verdict is Verdict.OK:
        return replace(incident, gone=now if incident.gone is None else incident.gone, looked=now, flaps=flaps)
    came_back = incident.gone is not None or (
        # As bad again as it was before. A check that failed in between is no change of the fault.
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
        flaps=_of_late((*incident.flaps, now), now, policy) if came_back else flaps,
    )


def is_flapping(incident: Incident, policy: AlertPolicy) -> bool:
    """Whether the fault comes and goes so often that this is no news. `incident`: as `advance` left it."""
    if policy.flap_count <= 0:
        return False
    return len(incident.flaps) >= policy.flap_count or (incident.flapping is not None and bool(incident.flaps))


def resolves_silently(incident: Incident, now: float, policy: AlertPolicy, *, silenced: bool) -> bool:
    """Whether an incident is over of which nobody was notified, and nobody needs to be."""
    was_notified = incident.told is not None or incident.intended is not None
    is_held = incident.held is not None and not silenced
    return not was_notified and not is_held and _has_ended(incident, now, policy)


def in_quiet_hours(policy: AlertPolicy, now: float, zone: tzinfo | None = None) -> bool:
    """Whether people are only notified of CRITICAL now. By the clock on the wall: a night in which the clocks change is
    an hour longer or shorter."""
    quiet = parse_quiet_hours(policy.quiet_hours)
    if quiet is None:
        return False
    local = datetime.fromtimestamp(now, UTC).astimezone(zone)
    return quiet.cover(local.hour * 60 + local.minute)


def due_steps(incident: Incident, now: float, policy: AlertPolicy) -> int:
    """How many steps of the escalation are due by now, those notified already included."""
    began = incident.first_told
    if began is None:
        return incident.escalated
    steps = parse_escalation(policy.escalation)
    due = sum(now - min(began, now) >= step.after_s for step in steps)
    return max(due, min(incident.escalated, len(steps)))


def check_policy(policy: AlertPolicy, known: Collection[str]) -> tuple[EscalationStep, ...]:
    """Given the names of the channels that there are, raise SettingsError for a policy that cannot be meant."""
    parse_quiet_hours(policy.quiet_hours)
    steps = parse_escalation(policy.escalation)
    for place, names in [("channels", policy.channels), *(("escalation", step.channels) for step in steps)]:
        for name in names:
            if name not in known:
                raise SettingsError(
                    f"[alert] {place} names {name!r}, and there is no such channel", hint=_near(name, known)
                )
    if steps and not policy.channels:
        raise SettingsError(
            "[alert] has an escalation and no channels", hint="name the channels to notify first: channels = [...]"
        )
    return steps


def usable(policy: AlertPolicy) -> tuple[AlertPolicy, tuple[str, ...]]:
    """Given a policy, return the usable part, and what is wrong with the rest, a sentence each.

    At 3 a.m. a misspelled quiet hour is no reason to notify nobody.
    """
    errors = []
    steps = []
    for step in policy.escalation:
        try:
            parse_escalation((step,))
            steps.append(step)
        except SettingsError as error:
            errors.append(error.message)
    quiet = policy.quiet_hours
    try:
        parse_quiet_hours(quiet)
    except SettingsError as error:
        errors.append(error.message)
        quiet = ""
    return replace(policy, escalation=tuple(steps), quiet_hours=quiet), tuple(errors)


def _near(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(sorted(known))}" if known else f"write a table [channel.{name}]"


def _not_notified(
    incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy, *, silenced: bool, is_quiet: bool
) -> Reason:
    if silenced:
        return Reason.QUIET
    if verdict is Verdict.OK:
        # Owed: a notification that quiet hours hold back, or one that a process may have sent before it crashed.
        is_owed = incident.held is not None or incident.intended is not None
        return Reason.RESOLVED if is_owed and not is_quiet and _has_ended(incident, now, policy) else Reason.QUIET
    if is_quiet and verdict is not Verdict.CRITICAL:
        return Reason.QUIET
    return Reason.FIRST if _has_lasted(incident, now, policy) else Reason.QUIET


def _notified(incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy) -> Reason:
    """The reason to notify again of a fault that people were notified of and that is still there."""
    told_verdict = incident.told_verdict or Verdict.OK
    flaps = is_flapping(incident, policy)
    is_acknowledged = bool(incident.acknowledged_by)
    if _has_lasted(incident, now, policy) and verdict > told_verdict:
        return Reason.WORSE
    if flaps and incident.flapping is None:
        return Reason.WORSE
    if verdict < told_verdict and verdict is not Verdict.UNKNOWN and not flaps:
        return Reason.BETTER
    if incident.intended is not None:
        return Reason.REMINDER  # a process crashed while it notified: send the present state
    if is_acknowledged:
        return Reason.QUIET
    if due_steps(incident, now, policy) > incident.escalated:
        return Reason.ESCALATED
    has_settled = incident.flapping is not None and not flaps
    is_due = policy.reminder_s > 0 and now - (incident.told or 0.0) >= policy.reminder_s
    return Reason.REMINDER if has_settled or incident.silenced is not None or is_due else Reason.QUIET


def _has_lasted(incident: Incident, now: float, policy: AlertPolicy) -> bool:
    """Whether the fault is more than one missed answer."""
    return incident.verdict is not Verdict.UNKNOWN or now - incident.changed >= policy.unknown_for_s


def _has_ended(incident: Incident, now: float, policy: AlertPolicy) -> bool:
    """Whether the fault has been gone long enough. One that flaps must be gone until it has settled."""
    if incident.gone is None or is_flapping(incident, policy):
        return False
    return now - incident.gone >= policy.resolve_after_s


def _of_late(flaps: tuple[float, ...], now: float, policy: AlertPolicy) -> tuple[float, ...]:
    # The latest few say as much as all of them: a fault that comes back each second must not grow its file.
    return tuple(time for time in flaps if time <= now and now - time < policy.flap_s)[-max(policy.flap_count, 1) :]


def not_after(incident: Incident, now: float) -> Incident:
    """The incident with no time later than now. Pure."""
    early: dict[str, Any] = {name: now for name in _TIMES if (getattr(incident, name) or 0.0) > now}
    return replace(incident, **early) if early else incident
