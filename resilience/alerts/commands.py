"""`resil alert list|show|ack|silence`: what is known of incidents, and what people say to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.delivery import FLUSH_S, Flushed, flush
from resilience.alerts.incident import Incident, Silence
from resilience.alerts.ledger import silence_id, silencing
from resilience.alerts.outbox import Entry, channel_of, in_order
from resilience.alerts.routes import channels, routes_of
from resilience.alerts.sending import Errand, Outcome, Route, compose_apart, send_apart
from resilience.alerts.state import AlertState, open_alert_state
from resilience.errors import StateDirectoryError, UsageError
from resilience.finding import Verdict
from resilience.runs.project import Project

if TYPE_CHECKING:
    from resilience.alerts.channel_health import Health
    from resilience.alerts.notify import Notes
    from resilience.runs.project import Project

NO_CHANNEL = """\
no channel is set, so nobody is told of anything; for instance, write in resil.toml:
  [alert]
  channels = ["email"]
  [channel.email]
  to = ["you@example.org"]"""
"""What to write when nobody is told of anything yet."""


@dataclass(frozen=True, slots=True)
class Known:
    """One incident, and what keeps people from hearing of it.

    Attributes:
        silence: the silence that covers it, or None.
        waiting: channels that a message about it waits for.
        dead: channels that will never take a message about it.
    """

    incident: Incident
    silence: Silence | None = None
    waiting: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """What `resil alert list` shows.

    Attributes:
        known: the incidents, the open ones first, the worst of them first.
        waiting: how many messages wait, by channel.
        dead: the dead letters.
        failing: how the channels fare that do not deliver from this node.
        channels: whom [alert] names; empty: nobody is told.
        trouble: what is wrong with the alert state, one sentence each.
        is_partial: whether the alert state could not be read: there may be more.
    """

    known: tuple[Known, ...]
    silences: tuple[Silence, ...]
    waiting: dict[str, int]
    dead: tuple[Entry, ...]
    failing: dict[str, Health]
    channels: tuple[str, ...]
    trouble: tuple[str, ...]
    is_partial: bool


def listing(project: Project, *, everything: bool = False) -> Listing:
    """Every open incident, and with `everything` those that ended of late."""
    state = open_alert_state(project)
    now = project.world.clock.now()
    silences = state.silences.all(now)
    pending, dead = state.outbox.pending(), state.outbox.dead()
    waits, is_dead = _channels_by_episode(pending), _channels_by_episode(dead)
    shown = [incident for incident in state.ledger.incidents(now) if everything or incident.is_open]
    known = [
        Known(
            incident,
            silencing(silences, incident, now) if incident.is_open else None,
            waits.get(incident.episode, ()),
            is_dead.get(incident.episode, ()),
        )
        for incident in shown
    ]
    known.sort(key=lambda k: (k.incident.is_open, k.incident.verdict, k.incident.opened), reverse=True)
    waiting: dict[str, int] = {}
    for entry in pending:
        waiting[entry.channel] = waiting.get(entry.channel, 0) + 1
    host = project.world.host.name
    health = {name: state.outbox.memory.health(name, host) for name in waiting}
    return Listing(
        known=tuple(known),
        silences=silences,
        waiting=waiting,
        dead=dead,
        failing={name: found for name, found in health.items() if found.failures},
        channels=project.loaded.settings.alert.channels,
        trouble=_trouble(state),
        is_partial=bool(state.trouble or state.ledger.folder.trouble),
    )


def _channels_by_episode(entries: Sequence[Entry]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        for line in entry.incidents():
            found[line.episode] = tuple(dict.fromkeys((*found.get(line.episode, ()), entry.channel)))
    return found


def _trouble(state: AlertState) -> tuple[str, ...]:
    said = (state.trouble, state.ledger.folder.trouble, *state.ledger.trouble, *state.silences.trouble)
    whole = tuple(dict.fromkeys(filter(None, (*said, state.outbox.trouble))))
    return tuple(text for text in whole if not any(text != other and text.endswith(other) for other in whole))


@dataclass(frozen=True, slots=True)
class Details:
    """What `resil alert show` shows of one incident.

    Attributes:
        sent: messages about it that were delivered in the last days, the oldest first.
        waiting, dead: those that wait, and those that never will be.
    """

    known: Known
    sent: tuple[Entry, ...]
    waiting: tuple[Entry, ...]
    dead: tuple[Entry, ...]
    trouble: tuple[str, ...]


def details(project: Project, episode: str) -> Details:
    """The life of one incident, by its id or the beginning of it. Raise UsageError if there is none, or several."""
    state = open_alert_state(project)
    now = project.world.clock.now()
    incident = state.ledger.find(episode, now)
    silence = silencing(state.silences.all(now), incident, now) if incident.is_open else None

    def about(entries: Sequence[Entry]) -> tuple[Entry, ...]:
        return tuple(e for e in entries if any(line.episode == incident.episode for line in e.incidents()))

    sent, waiting, dead = (about(found) for found in (state.outbox.sent(), state.outbox.pending(), state.outbox.dead()))
    known = Known(incident, silence, tuple(e.channel for e in waiting), tuple(e.channel for e in dead))
    return Details(known, sent, waiting, dead, _trouble(state))


def acknowledge(project: Project, episodes: Sequence[str], note: str, *, undo: bool = False) -> tuple[Incident, ...]:
    """Take incidents on, or hand them back; all of them or none.

    Raise UsageError if one is not there or over, StateDirectoryError if it cannot be written where it is read.
    """
    state, now = open_alert_state(project), project.world.clock.now()
    found = [state.ledger.find(episode, now) for episode in episodes]
    over = [incident for incident in found if not incident.is_open]
    if over and not undo:
        raise UsageError(
            f"{over[0].episode} is over already: {over[0].check} {over[0].subject}",
            hint="see what lasts: resil alert list",
        )
    ids = dict.fromkeys(incident.episode for incident in found)
    if undo:
        return tuple(state.ledger.unacknowledge(episode) for episode in ids)
    who = project.world.host.user
    return tuple(state.ledger.acknowledge(episode, who, note, now) for episode in ids)


def silence(
    project: Project,
    *,
    episode: str = "",
    check: str = "",
    subject: str = "",
    run: str = "",
    fault: str = "",
    until: float,
    why: str,
) -> tuple[Silence, tuple[Incident, ...]]:
    """Keep people from being told until then; return the silence and the open incidents that it covers.

    Raise UsageError if nothing is named, or the end is in the past; StateDirectoryError if it cannot be written where
    the watchdogs read it.
    """
    state = open_alert_state(project)
    now, who = project.world.clock.now(), project.world.host.user
    if until <= now:
        raise UsageError("a silence cannot end in the past", hint="say for how long: --for 2h")
    about = state.ledger.find(episode, now).episode if episode else ""
    wanted = Silence(
        id=silence_id("\0".join((about, check, subject, run, fault)), who, now),
        until=until,
        by=who,
        why=why,
        since=now,
        check=check,
        subject=subject,
        run=run,
        fault=fault,
        episode=about,
    )
    folder = state.silences.folder
    folder.trouble = state.trouble
    state.silences.add(wanted)
    if folder.trouble and not _is_ours(state, now):
        state.silences.remove(wanted.id)  # in our own spare folder, the watchdogs of its owner would never see it
        raise StateDirectoryError(
            f"the silence was not kept: {folder.trouble}",
            hint="ask the owner of the run to set `[run] group`, so that the whole group may silence",
        )
    covered = (i for i in state.ledger.incidents(now) if i.is_open and silencing((wanted,), i, now))
    return wanted, tuple(covered)


def _is_ours(state: AlertState, now: float) -> bool:
    """Whether the watchdogs that write here are this person's, as far as can be told: then the spare is read."""
    if state.trouble:  # not to be touched; whose watchdogs were on this node has their copy here
        return bool(state.ledger.incidents(now))
    try:
        return state.path.stat().st_uid == os.getuid()
    except PermissionError:
        return False
    except OSError:  # it is not there yet, or its disk is in trouble
        return True


def unsilence(project: Project, ids: Sequence[str]) -> tuple[Silence, ...]:
    """End silences. Raise UsageError if one is not there."""
    state = open_alert_state(project)
    return tuple(state.silences.remove(id) for id in ids)


def episodes(project: Project) -> tuple[str, ...]:
    """The ids of the open incidents, for tab completion."""
    found = open_alert_state(project, touch=False).ledger.incidents()
    return tuple(incident.episode for incident in found if incident.is_open)


def silence_ids(project: Project) -> tuple[str, ...]:
    """The ids of the silences, for tab completion."""
    state = open_alert_state(project, touch=False)
    return tuple(found.id for found in state.silences.all(project.world.clock.now()))


def waiting_channels(names: Sequence[str]) -> tuple[str, ...]:
    """Given the names of entries, return their channels, each once. Pure."""
    return tuple(dict.fromkeys(channel_of(name) for name in names))


def deliver(
    project: Project, *, notes: Notes | None = None, patient: bool = False, deadline_s: float = 300.0
) -> Iterator[Flushed]:
    """Deliver what waits, a message for each channel at a time, and yield what became of them.

    A channel that failed is left alone; the last value says what waits still. `patient` leaves channels alone whose
    back-off is not over. Whoever asks may stop at any time: nothing is lost.
    """
    state, routes, world = open_alert_state(project), routes_of(project), project.world
    state.bring_home()
    if not state.trouble and notes is not None and notes.is_noted(project):
        from resilience.alerts.notify import notify

        notify(project, (), notes=notes, deliver_s=0.0)  # into the outbox, with what waits there already
    end = world.clock.monotonic() + deadline_s
    failed: set[str] = set()
    while True:
        left_s = end - world.clock.monotonic()
        done = flush(
            state.outbox,
            routes,
            world=world,
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


def revive(project: Project) -> tuple[Entry, ...]:
    """Put every dead letter back into the outbox, and return them."""
    outbox = open_alert_state(project).outbox
    dead = outbox.dead()
    for entry in dead:
        outbox.revive(entry)
    return dead


def discard(project: Project) -> tuple[Entry, ...]:
    """Remove every dead letter for good, and return them."""
    outbox = open_alert_state(project).outbox
    dead = outbox.dead()
    for entry in dead:
        outbox.discard(entry)
    return dead


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that waits, as it would be sent next.

    Attributes:
        text: the composed message; None where its thread has another before it.
    """

    entry: Entry
    text: str | None


def drafts(project: Project) -> tuple[Draft, ...]:
    """What waits, in the order in which it would go out; nothing is sent."""
    state, routes = open_alert_state(project), routes_of(project)
    pending = state.outbox.pending()
    found: list[Draft] = []
    for channel in dict.fromkeys(entry.channel for entry in pending):
        mine = [entry for entry in pending if entry.channel == channel]
        heads = in_order(mine)
        route = routes.get(channel)
        errands = {
            entry.name: Errand(entry.alert, route, state.outbox.memory.thread(entry.alert.thread, channel))
            for entry in heads
            if route is not None
        }
        texts = dict(compose_apart(errands))
        gone = f"there is no channel {channel!r} any more"
        found += [Draft(entry, texts.get(entry.name, gone)) for entry in heads]
        found += [Draft(entry, None) for entry in mine if entry not in heads]
    return tuple(found)


def routes_to_try(project: Project, name: str = "") -> Mapping[str, Route]:
    """The channels to try: the one named, or all that the settings name.

    Raise UsageError if there is none of that name, or none at all.
    """
    routes = routes_of(project, name)
    if name:
        if name not in project.loaded.settings.channels and name not in channels().names():
            from difflib import get_close_matches

            known = sorted({*routes, *channels().names()} - {name})
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise UsageError(f"there is no channel {name!r}", hint=hint)
        return {name: routes[name]}
    if not routes:
        raise UsageError(NO_CHANNEL, hint="then once more: resil alert test")
    return routes


def trial(project: Project) -> Alert:
    """A message that says that nothing is wrong. Each has an id of its own."""
    host, now = project.world.host, project.world.clock.now()
    episode = f"test-{os.urandom(4).hex()}"
    notice = Notice(
        episode=episode,
        fingerprint=episode,
        reason=Reason.FIRST,
        check="alert",
        subject="test",
        fault="",
        verdict=Verdict.OK,
        summary=f"nothing is wrong: {host.user} on {host.name} tries whether messages arrive",
        since=now,
        run=project.default_run(),
    )
    return Alert(
        id=episode,
        thread=episode,
        reason=Reason.FIRST,
        verdict=Verdict.OK,
        time=now,
        host=host.name,
        project=str(project.loaded.project),
        notices=(notice,),
        is_test=True,
    )


def try_channels(project: Project, routes: Mapping[str, Route]) -> Iterator[tuple[str, Outcome]]:
    """Send a real message through each channel at once; yield what came back, as it comes."""
    alert = trial(project)
    yield from send_apart({name: Errand(alert, route) for name, route in routes.items()}, project.world)


def compose_tests(project: Project, routes: Mapping[str, Route]) -> Iterator[tuple[str, str]]:
    """The messages that `try_channels` would send."""
    alert = trial(project)
    yield from compose_apart({name: Errand(alert, route) for name, route in routes.items()})
