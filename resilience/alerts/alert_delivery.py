"""`resil alert flush` and `resil alert test`: deliver now, and find out whether messages arrive."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.alerts.delivery import FLUSH_S, Flushed, flush
from resilience.alerts.entry import Entry, in_order
from resilience.alerts.routes import channels, routes_of
from resilience.alerts.sending import Errand, Outcome, Route, compose_apart, send_apart
from resilience.alerts.state import open_alert_state
from resilience.alerts.steer import NO_CHANNEL
from resilience.errors import UsageError
from resilience.finding import Verdict
from resilience.runs.project import Project

if TYPE_CHECKING:
    from resilience.alerts.notify import Notes


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
