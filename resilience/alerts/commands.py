"""The commands of `resil alert`: list, show, acknowledge and silence incidents; flush messages and test channels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.delivery import FLUSH_S, Flushed, flush
from resilience.alerts.incident import Incident, Silence, matching_silence
from resilience.alerts.ledger import silence_id
from resilience.alerts.outbox import Entry, Outbox, sending_order
from resilience.alerts.routes import Route, channels, routes_of
from resilience.alerts.sending import DeliveryRequest, Outcome, compose_in_child, send_in_child
from resilience.alerts.state import AlertState, open_alert_state
from resilience.errors import UsageError
from resilience.finding import Verdict

if TYPE_CHECKING:
    from resilience.alerts.channel_health import NodeState
    from resilience.alerts.notify import Notes
    from resilience.runs.project import Project

_STATES = ("resolved", "recovered", "faulty")

MESSAGE_PREFIX = 8
"""Minimum length of a message's id, so that a mistyped incident's id does not name a message."""

NO_CHANNEL = """\
no channel is configured, so no notification is sent; for example, in resil.toml:
  [alert]
  channels = ["email"]
  [channel.email]
  to = ["you@example.org"]"""
"""Advice when no channel is configured."""


@dataclass(frozen=True, slots=True)
class IncidentStatus:
    """One incident and what may keep its notifications from arriving.

    Attributes:
        silence: the silence that matches the incident, or None.
        accepted: channels that accepted a message about the incident in the last days.
        waiting: channels with a queued message about the incident.
        dead: channels with a dead letter about the incident.
    """

    incident: Incident
    silence: Silence | None = None
    accepted: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Result of `resil alert list`.

    Attributes:
        known: the incidents: open ones first, then by severity.
        waiting: number of queued messages by channel.
        dead: the dead letters.
        failing: state of the channels that fail on this node.
        channels: the channels in [alert]; empty if none is configured.
        errors: errors of the alert state, one sentence each.
        is_partial: True if the alert state could not be read completely.
    """

    known: tuple[IncidentStatus, ...]
    silences: tuple[Silence, ...]
    waiting: dict[str, int]
    dead: tuple[Entry, ...]
    failing: dict[str, NodeState]
    channels: tuple[str, ...]
    errors: tuple[str, ...]
    is_partial: bool


def _open(project: Project) -> AlertState:
    """Open the alert state. Raise StateDirectoryError if other users may write it."""
    state = open_alert_state(project)
    if state.refusal is not None:
        raise state.refusal
    return state


def listing(project: Project, *, everything: bool = False) -> Listing:
    """Return the open incidents; with `everything` the recently resolved ones as well."""
    state = _open(project)
    now = project.system.clock.now()
    silences = state.silences.active(now)
    pending, dead = state.outbox.pending(), state.outbox.dead()
    of = [_by_id(entries) for entries in (state.outbox.sent(), pending, dead)]
    known = [
        IncidentStatus(
            incident,
            matching_silence(silences, incident, now) if incident.is_open else None,
            *(_channels_of(_about(incident, by_id)) for by_id in of),
        )
        for incident in state.ledger.incidents(now)
        if everything or incident.is_open
    ]
    known.sort(key=lambda k: (_STATES.index(k.incident.state), k.incident.verdict, k.incident.opened), reverse=True)
    waiting = Counter(entry.channel for entry in pending)
    states = {name: state.outbox.channels.node_state(name, project.system.host.name) for name in waiting}
    return Listing(
        known=tuple(known),
        silences=silences,
        waiting=dict(waiting),
        dead=dead,
        failing={name: found for name, found in states.items() if found.failures},
        channels=project.loaded.settings.alert.channels,
        errors=_errors(state),
        is_partial=bool(state.error or state.ledger.directory.error),
    )


def _by_id(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return messages by the ids of their incidents and by their own ids. A digest stands for those that it replaces.

    A message about a thousand incidents names few of them; the ledger has its id with each.
    """
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        replaced = (name.rpartition(".")[0] for name in entry.covers)
        for id in dict.fromkeys((entry.alert.id, *replaced, *(line.episode for line in entry.incidents()))):
            found.setdefault(id, []).append(entry)
    return found


def _about(incident: Incident, by_id: Mapping[str, list[Entry]]) -> tuple[Entry, ...]:
    """Return the messages about an incident, each once."""
    found = (entry for id in (incident.episode, *incident.messages) for entry in by_id.get(id, ()))
    return tuple({entry.name: entry for entry in found}.values())


def _channels_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.channel for entry in entries))


def _errors(state: AlertState) -> tuple[str, ...]:
    errors = (state.note, state.error, state.ledger.directory.error, *state.ledger.errors, *state.silences.errors)
    whole = tuple(dict.fromkeys(filter(None, (*errors, state.outbox.error))))
    return tuple(text for text in whole if not any(text != other and text.endswith(other) for other in whole))


@dataclass(frozen=True, slots=True)
class Details:
    """Result of `resil alert show`.

    Attributes:
        sent: messages about the incident delivered in the last days, oldest first.
        waiting, dead: queued messages and dead letters.
    """

    known: IncidentStatus
    sent: tuple[Entry, ...]
    waiting: tuple[Entry, ...]
    dead: tuple[Entry, ...]
    errors: tuple[str, ...]


def details(project: Project, incident_id: str) -> Details:
    """Return one incident and its messages, by its id, that of its message, or the beginning of either.

    Raise UsageError unless exactly one matches.
    """
    state = _open(project)
    now = project.system.clock.now()
    incident = _one_incident_of(state, incident_id, now)
    silence = matching_silence(state.silences.active(now), incident, now) if incident.is_open else None
    sent, waiting, dead = (
        _about(incident, _by_id(entries))
        for entries in (state.outbox.sent(), state.outbox.pending(), state.outbox.dead())
    )
    known = IncidentStatus(incident, silence, *map(_channels_of, (sent, waiting, dead)))
    return Details(known, sent, waiting, dead, _errors(state))


def acknowledge(
    project: Project,
    ids: Sequence[str] = (),
    note: str = "",
    *,
    check: str = "",
    everything: bool = False,
    undo: bool = False,
) -> tuple[Incident, ...]:
    """Acknowledge incidents, or with `undo` remove the acknowledgements; all of them or none.

    `ids`: of incidents, or of messages, which stand for their open incidents. `check`: a pattern: the open incidents of
    these watchdogs. `everything`: all open incidents.

    Raise UsageError if an incident or message is unknown, or an incident is resolved; StateDirectoryError if the
    acknowledgement cannot be written where the watchdogs read it.
    """
    state, now = _open(project), project.system.clock.now()
    if everything or check:
        pattern = Silence(id="", until=1.0, check=check or "*")
        chosen = [i for i in state.ledger.incidents(now) if i.is_open and pattern.matches(i)]
        chosen = [incident for incident in chosen if bool(incident.acknowledged_by) is undo]
    else:
        chosen = [incident for id in ids for incident in _incidents_of(state, id, now)]
    found = {incident.episode: incident for incident in chosen}
    if undo:
        return tuple(map(state.ledger.unacknowledge, found.values()))
    for incident in found.values():
        if not incident.is_open:
            raise UsageError(
                f"{incident.episode} is already resolved: {incident.check} {incident.subject}",
                hint="list open incidents: resil alert list",
            )
    user = project.system.host.user
    return tuple(state.ledger.acknowledge(incident, user, note, now) for incident in found.values())


def _incidents_of(state: AlertState, text: str, now: float) -> tuple[Incident, ...]:
    """Return the incident with an id, or the open incidents in the message with that id. Raise UsageError if none."""
    try:
        return (state.ledger.find(text, now),)
    except UsageError as unknown:
        inside = _in_message(state, text, now)
        if not inside:
            raise
        still_open = tuple(incident for incident in inside if incident.is_open)
        if not still_open:
            raise UsageError(
                f"every incident in message {text} is resolved", hint="list open incidents: resil alert list"
            ) from unknown
        return still_open


def _one_incident_of(state: AlertState, text: str, now: float) -> Incident:
    try:
        return state.ledger.find(text, now)
    except UsageError as unknown:
        inside = _in_message(state, text, now)
        if len(inside) == 1:
            return inside[0]
        if not inside:
            raise
        ids = [incident.episode for incident in inside]
        which = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise UsageError(
            f"message {text} is about {len(ids)} incidents: {which}", hint=f"resil alert show {ids[0]}"
        ) from unknown


def _in_message(state: AlertState, text: str, now: float) -> list[Incident]:
    """Return the incidents in the message with an id, or its beginning."""
    prefix = text.strip().lower()
    if len(prefix) < MESSAGE_PREFIX:
        return []
    digests = (e for e in (*state.outbox.pending(), *state.outbox.sent()) if e.alert.id.startswith(prefix))
    episodes = {line.episode for entry in digests for line in entry.incidents()}
    known = state.ledger.incidents(now)
    return [i for i in known if i.episode in episodes or any(id.startswith(prefix) for id in i.messages)]


def silence(
    project: Project,
    *,
    incident_id: str = "",
    check: str = "",
    subject: str = "",
    run: str = "",
    fault: str = "",
    until: float,
    why: str,
) -> tuple[Silence, tuple[Incident, ...]]:
    """Create a silence; return it with the open incidents that it matches.

    Raise UsageError without a pattern or with an end in the past, StateDirectoryError if the silence cannot be written
    where the watchdogs read it.
    """
    state = _open(project)
    now, user = project.system.clock.now(), project.system.host.user
    if until <= now:
        raise UsageError("a silence cannot end in the past", hint="say for how long: --for 2h")
    episode = state.ledger.find(incident_id, now).episode if incident_id else ""
    patterns = {"episode": episode, "check": check, "subject": subject, "run": run, "fault": fault}
    made = Silence(
        id=silence_id("\0".join(patterns.values()), user, now), until=until, by=user, why=why, since=now, **patterns
    )
    incidents = state.ledger.incidents(now)
    state.silences.add(made, is_known=bool(incidents))
    return made, tuple(i for i in incidents if i.is_open and matching_silence((made,), i, now))


def unsilence(project: Project, ids: Sequence[str]) -> tuple[Silence, ...]:
    """Expire silences. Raise UsageError if one does not exist."""
    state = _open(project)
    return tuple(state.silences.remove(id) for id in ids)


def incident_ids(project: Project) -> tuple[str, ...]:
    """Return the ids of the open incidents, for tab completion."""
    found = open_alert_state(project, touch=False).ledger.incidents()
    return tuple(incident.episode for incident in found if incident.is_open)


def silence_ids(project: Project) -> tuple[str, ...]:
    """Return the ids of the active silences, for tab completion."""
    state = open_alert_state(project, touch=False)
    return tuple(found.id for found in state.silences.active(project.system.clock.now()))


def deliver(
    project: Project, *, notes: Notes | None = None, patient: bool = False, deadline_s: float = 300.0
) -> Iterator[Flushed]:
    """Deliver the queued messages in rounds of one message per channel; yield the result of each round.

    A channel that failed is skipped afterwards; the last value has the number of messages still queued. `patient`
    respects a channel's back-off. The caller may stop at any time: undelivered messages stay queued.
    """
    state, routes, system = _open(project), routes_of(project), project.system
    state.flush_fallback()
    if not state.error and notes is not None and notes.is_noted(project):
        from resilience.alerts.notify import notify

        notify(project, (), notes=notes, deliver_s=0.0)  # queue them; the rounds below deliver them
    end = system.clock.monotonic() + deadline_s
    failed: set[str] = set()
    while True:
        left_s = end - system.clock.monotonic()
        done = flush(
            state.outbox,
            routes,
            system=system,
            project=str(project.loaded.project),
            deadline_s=min(FLUSH_S, left_s),
            patient=patient,
            most=1,
            skip=failed,
        )
        yield done
        failed |= {delivery.channel for delivery in done.failed}
        if not done.waiting or left_s <= 0 or not (done.sent or done.dead or done.failed):
            return


def requeue(project: Project) -> tuple[Entry, ...]:
    """Queue every dead letter again, and return them."""
    return _each_dead(project, Outbox.requeue)


def discard(project: Project) -> tuple[Entry, ...]:
    """Remove every dead letter for good, and return them."""
    return _each_dead(project, Outbox.discard)


def _each_dead(project: Project, treat: Callable[[Outbox, Entry], None]) -> tuple[Entry, ...]:
    outbox = _open(project).outbox
    dead = outbox.dead()
    for entry in dead:
        treat(outbox, entry)
    return dead


def preview(project: Project) -> tuple[tuple[Entry, str | None], ...]:
    """Return the queued messages in sending order, each with its text; None if its thread has an earlier one."""
    state, routes = _open(project), routes_of(project)
    pending = state.outbox.pending()
    found: list[tuple[Entry, str | None]] = []
    for channel in dict.fromkeys(entry.channel for entry in pending):
        mine = [entry for entry in pending if entry.channel == channel]
        heads = sending_order(mine)
        route = routes.get(channel)
        texts = dict.fromkeys((entry.name for entry in heads), f"there is no channel {channel!r} any more")
        if route is not None:
            texts |= compose_in_child(
                {
                    entry.name: DeliveryRequest(
                        entry.alert, route, state.outbox.channels.thread(entry.alert.thread, channel)
                    )
                    for entry in heads
                }
            )
        found += [(entry, texts[entry.name]) for entry in heads]
        found += [(entry, None) for entry in mine if entry not in heads]
    return tuple(found)


def routes_to_test(project: Project, name: str = "") -> Mapping[str, Route]:
    """Return the channels to test: the one named, or all configured ones.

    Raise UsageError if the channel does not exist, or none is configured.
    """
    routes = routes_of(project, name)
    if name:
        if name not in project.loaded.settings.channels and name not in channels().names():
            from resilience.messages import suggest

            known = sorted({*routes, *channels().names()} - {name})
            raise UsageError(f"there is no channel {name!r}", hint=suggest(name, known, cutoff=0.6))
        return {name: routes[name]}
    if not routes:
        raise UsageError(NO_CHANNEL, hint="then run again: resil alert test")
    return routes


def trial(project: Project, summary: str = "") -> Alert:
    """Return a test alert, with an id of its own."""
    host, now = project.system.host, project.system.clock.now()
    id = f"test-{os.urandom(4).hex()}"
    notice = Notice(
        episode=id,
        fingerprint=id,
        reason=Reason.FIRST,
        check="alert",
        subject="test",
        fault="",
        verdict=Verdict.OK,
        summary=summary or f"test message, nothing is wrong: sent by {host.user} on {host.name}",
        since=now,
        run=project.default_run(),
    )
    return Alert.of(notice, id=id, time=now, host=host.name, project=str(project.loaded.project), is_test=True)


def send_tests(project: Project, routes: Mapping[str, Route], summary: str = "") -> Iterator[tuple[str, Outcome]]:
    """Send a test alert through all channels concurrently; yield the outcomes as they arrive."""
    alert = trial(project, summary)
    yield from send_in_child({name: DeliveryRequest(alert, route) for name, route in routes.items()}, project.system)


def compose_tests(project: Project, routes: Mapping[str, Route]) -> Iterator[tuple[str, str]]:
    """Yield the messages that `send_tests` would send."""
    alert = trial(project)
    yield from compose_in_child({name: DeliveryRequest(alert, route) for name, route in routes.items()})
