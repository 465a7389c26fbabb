"""What an alert says of one incident, in one sentence that stands alone at 3 a.m. Pure."""

from __future__ import annotations

from resilience.alerts.alert import Reason
from resilience.alerts.incident import Incident
from resilience.quantities import format_duration
from resilience.settings.alert_policy import AlertPolicy


def sentence(
    incident: Incident,
    reason: Reason,
    now: float,
    policy: AlertPolicy,
    *,
    is_flapping: bool = False,
    expired: bool = False,
) -> str:
    """Given an incident as it is now and why it is told, return what is said of it."""
    summary = incident.summary
    lasted = format_duration(max(0.0, now - incident.opened))
    if reason is Reason.RESOLVED:
        return _end(incident, now, lasted, expired)
    if is_flapping:
        times, within = len(incident.flaps), format_duration(policy.flap_s)
        if incident.flapping is None:
            return f"{summary} (flapping: it came back {times} times in {within}; told again when it has settled)"
        return f"{summary} (still flapping)"
    if reason is Reason.FIRST:
        return summary
    if reason is Reason.REMINDER and incident.flapping is not None:
        return f"{summary} (it flapped, and is now there to stay)"
    if reason is Reason.REMINDER and incident.silenced is not None:
        return f"{summary} (a silence has ended, and it is still there after {lasted})"
    if reason is Reason.ESCALATED:
        return f"{summary} (for {lasted}, and nobody has acknowledged it)"
    if reason in (Reason.WORSE, Reason.BETTER) and incident.told_verdict not in (None, incident.verdict):
        return f"{summary} (was {incident.told_verdict.value})"
    return f"{summary} (still there after {lasted})" if reason is Reason.REMINDER else summary


def _end(incident: Incident, now: float, lasted: str, expired: bool) -> str:
    was = f"it was {incident.worst.value}: {incident.summary}" if incident.summary else f"it was {incident.worst.value}"
    if expired:
        unseen = format_duration(max(0.0, now - max(incident.looked, incident.seen)))
        return f"closed, because nobody has looked for {unseen}: it may still be there; {was}"
    until = incident.gone if incident.gone is not None else now
    lasted = format_duration(max(0.0, until - incident.opened))
    if incident.told is None and incident.held is not None:
        return f"came and went in the quiet hours, after {lasted}; {was}"
    return f"over after {lasted}; {was}"
