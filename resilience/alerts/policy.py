"""Whether to speak of an incident now, and why. Pure: nothing is told here, and nothing remembered.

`advance` says what a look makes of an incident, `decide` whether that is worth telling.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Any

from resilience.alerts.alert import Reason
from resilience.alerts.incident import Incident, episode_of, fingerprint_of
from resilience.errors import SettingsError
from resilience.finding import Finding, Verdict
from resilience.settings.alert_policy import AlertPolicy, EscalationStep, parse_escalation, parse_quiet_hours

EXPIRES_AFTER_S = 14 * 86400.0
"""An open incident whose subject nobody looked at for so long is closed, with a word."""

FORGOTTEN_AFTER_S = 30 * 86400.0
"""An incident that ended so long ago is forgotten."""

EARLIER_MOST = 20
"""So many ids of earlier episodes are kept."""

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
    """Say whether to speak, and why.

    `previous` is the incident as it was remembered, None where there was none. `verdict` is what was found now; OK
    means that its subject was looked at and this fault was not there. `zone` is where the quiet hours count, None the
    machine's own. Raise SettingsError for a policy that cannot be read.
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
        return _untold(incident, verdict, now, policy, silenced=silenced, is_quiet=is_quiet)
    if silenced:
        return Reason.QUIET
    # A CRITICAL may wake people, and so may the end of one that did.
    may_wake = not is_quiet or Verdict.CRITICAL in (verdict, incident.told_verdict if verdict is Verdict.OK else None)
    if not may_wake:
        return Reason.QUIET
    if verdict is Verdict.OK:
        return Reason.RESOLVED if _has_ended(incident, now, policy) else Reason.QUIET
    return _lasting(incident, verdict, now, policy)


def begin(
    previous: Incident | None, finding: Finding, check: str, now: float, policy: AlertPolicy, host: str = ""
) -> Incident:
    """Given a finding, open its incident. `previous`: the last episode of the same fault, if it is remembered."""
    fingerprint = fingerprint_of(check, finding.subject, finding.fault)
    number = previous.number + 1 if previous is not None else 1
    flaps = (*previous.flaps, now) if previous is not None else ()
    return Incident(
        episode=episode_of(fingerprint, number, now),
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
    """Given an open incident and what was found now, return it as it is now. Doing it twice changes nothing.

    Times that lie in the future (the clock was set back, or another node's is ahead) become now: so nothing is told
    at once because of it, and nothing is put off for ever.
    """
    incident = not_after(incident, now)
    flaps = _of_late(incident.flaps, now, policy)
    if verdict is Verdict.OK:
        return replace(incident, gone=now if incident.gone is None else incident.gone, looked=now, flaps=flaps)
    came_back = incident.gone is not None or (
        # As bad again as it was before. That somebody could not look in between is no change of the fault.
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
    """Whether it comes and goes so often that its comings and goings are no news. `incident`: as `advance` left it."""
    if policy.flap_count <= 0:
        return False
    return len(incident.flaps) >= policy.flap_count or (incident.flapping is not None and bool(incident.flaps))


def ends_unsaid(incident: Incident, now: float, policy: AlertPolicy, *, silenced: bool) -> bool:
    """Whether an incident is over that nobody was told of, and nobody needs to be told of any more."""
    was_told = incident.told is not None or incident.intended is not None
    waits = incident.held is not None and not silenced
    return not was_told and not waits and _has_ended(incident, now, policy)


def in_quiet_hours(policy: AlertPolicy, now: float, zone: tzinfo | None = None) -> bool:
    """Whether it is a time when only CRITICAL is told. By the clock on the wall: a night with a change of the clocks
    is an hour longer or shorter."""
    quiet = parse_quiet_hours(policy.quiet_hours)
    if quiet is None:
        return False
    local = datetime.fromtimestamp(now, UTC).astimezone(zone)
    return quiet.cover(local.hour * 60 + local.minute)


def due_steps(incident: Incident, now: float, policy: AlertPolicy) -> int:
    """How many steps of the escalation are due by now, those told already included."""
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
        raise SettingsError("[alert] has an escalation and no channels", hint="say who is told first: channels = [...]")
    return steps


def sound(policy: AlertPolicy) -> tuple[AlertPolicy, tuple[str, ...]]:
    """Given a policy, return what of it can be used, and what is wrong with the rest, a sentence each.

    At 3 a.m. a misspelled quiet hour is no reason to tell nobody.
    """
    trouble = []
    steps = []
    for step in policy.escalation:
        try:
            parse_escalation((step,))
            steps.append(step)
        except SettingsError as error:
            trouble.append(error.message)
    quiet = policy.quiet_hours
    try:
        parse_quiet_hours(quiet)
    except SettingsError as error:
        trouble.append(error.message)
        quiet = ""
    return replace(policy, escalation=tuple(steps), quiet_hours=quiet), tuple(trouble)


def _near(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(sorted(known))}" if known else f"write a table [channel.{name}]"


def _untold(
    incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy, *, silenced: bool, is_quiet: bool
) -> Reason:
    if silenced:
        return Reason.QUIET
    if verdict is Verdict.OK:
        # What quiet hours kept back is told when they end; and so is what may have been told by one that crashed.
        is_owed = incident.held is not None or incident.intended is not None
        return Reason.RESOLVED if is_owed and not is_quiet and _has_ended(incident, now, policy) else Reason.QUIET
    if is_quiet and verdict is not Verdict.CRITICAL:
        return Reason.QUIET
    return Reason.FIRST if _has_lasted(incident, now, policy) else Reason.QUIET


def _lasting(incident: Incident, verdict: Verdict, now: float, policy: AlertPolicy) -> Reason:
    """What to say of a fault that people were told of and that is still there."""
    told_verdict = incident.told_verdict or Verdict.OK
    flaps = is_flapping(incident, policy)
    is_mine = bool(incident.acknowledged_by)
    if _has_lasted(incident, now, policy) and verdict > told_verdict:
        return Reason.WORSE
    if flaps and incident.flapping is None:
        return Reason.WORSE
    if verdict < told_verdict and verdict is not Verdict.UNKNOWN and not flaps:
        return Reason.BETTER
    if incident.intended is not None:
        return Reason.REMINDER  # something was being said when somebody crashed: say where it stands
    if is_mine:
        return Reason.QUIET
    if due_steps(incident, now, policy) > incident.escalated:
        return Reason.ESCALATED
    has_settled = incident.flapping is not None and not flaps
    is_due = policy.reminder_s > 0 and now - (incident.told or 0.0) >= policy.reminder_s
    return Reason.REMINDER if has_settled or incident.silenced is not None or is_due else Reason.QUIET


def _has_lasted(incident: Incident, now: float, policy: AlertPolicy) -> bool:
    """Whether it is more than one missed answer."""
    return incident.verdict is not Verdict.UNKNOWN or now - incident.changed >= policy.unknown_for_s


def _has_ended(incident: Incident, now: float, policy: AlertPolicy) -> bool:
    """Whether it has been gone long enough. One that flaps must be gone until it has settled."""
    if incident.gone is None:
        return False
    if is_flapping(incident, policy):
        return False
    return now - incident.gone >= policy.resolve_after_s


def _of_late(flaps: tuple[float, ...], now: float, policy: AlertPolicy) -> tuple[float, ...]:
    # The latest few say as much as all of them: a fault that comes back each second must not grow its file.
    return tuple(time for time in flaps if time <= now and now - time < policy.flap_s)[-max(policy.flap_count, 1) :]


def not_after(incident: Incident, now: float) -> Incident:
    """The incident with no time later than now. Pure."""
    early: dict[str, Any] = {name: now for name in _TIMES if (getattr(incident, name) or 0.0) > now}
    return replace(incident, **early) if early else incident
