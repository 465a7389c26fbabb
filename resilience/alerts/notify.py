"""Notifies people after a tick and delivers queued messages. Runs in a child, so that no error here changes the
watchdogs' output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from resilience.alerts.notification import NotificationGroup
from resilience.alerts.notifier import Notifier
from resilience.alerts.policy import check_policy, usable
from resilience.alerts.state import AlertState, open_alert_state
from resilience.errors import SettingsError
from resilience.finding import Report
from resilience.runs.project import Project

if TYPE_CHECKING:
    from resilience.alerts.delivery import Flushed
    from resilience.alerts.outbox import Outbox

DELIVERY_S = 15.0
"""How long delivering may take after a tick; the next one sends the rest."""

MOST_INCIDENTS = 6
"""So many incidents are named in a line for people; the rest are counted."""


class Notes(Protocol):
    """Notes of faults that are to be reported with the next notification: `cron.notes`."""

    def is_noted(self, project: Project) -> bool:
        """Whether there is a note."""
        ...

    def noted(self, project: Project, reports: Sequence[Report] = ()) -> tuple[Report, ...]:
        """A report for each note that holds now and that `reports` lack. Never raises."""
        ...

    def forget(self, project: Project) -> None:
        """Remove the notes. Never raises."""
        ...


def notify(
    project: Project, reports: Sequence[Report], *, notes: Notes | None = None, deliver_s: float = DELIVERY_S
) -> tuple[str, ...]:
    """Notify people of the reports of one tick, and of `notes`; return a line for each message and each error.

    A mistake in [alert] is reported and skipped: a misspelled name must not keep the other channels from being used.
    """
    if not project.loaded.settings.alert.channels:
        return ()
    policy, wrong = usable(project.loaded.settings.alert)
    try:
        check_policy(policy, _known_channels(project))
    except SettingsError as error:  # its messages go to the dead letters, and the next command says so
        wrong = (*wrong, f"{error.message}; {error.hint}")
    state = open_alert_state(project)
    moved = state.flush_fallback()
    system = project.system
    notifier = Notifier(
        ledger=state.ledger,
        silences=state.silences,
        outbox=state.outbox,
        policy=policy,
        host=system.host.name,
        project=str(project.loaded.project),
    )
    noted = () if state.error or notes is None else notes.noted(project, reports)
    notified = notifier.notify((*reports, *noted), system.clock.now())
    if not state.error and notes is not None:
        notes.forget(project)
    flushed = _deliver(project, state.outbox, deliver_s)
    lines = [*map(_line, notified.groups), *(_failures(flushed) if flushed is not None else ())]
    if moved:
        files = "1 alert file" if moved == 1 else f"{moved} alert files"
        lines.append(f"{files} moved back from the fallback directory of this node")
    outbox_error = state.outbox.error if flushed is None else flushed.error
    return (*lines, *_errors(state, (*wrong, *notified.errors), outbox_error))


def _deliver(project: Project, outbox: Outbox, deliver_s: float) -> Flushed | None:
    """Deliver queued messages. Mostly there are none: then the modules that deliver are not even loaded."""
    outbox.flush_fallback()
    if not outbox.names():
        return None
    from resilience.alerts.delivery import flush
    from resilience.alerts.routes import routes_of

    system, directory = project.system, str(project.loaded.project)
    return flush(outbox, routes_of(project), system=system, project=directory, deadline_s=deliver_s)


def _known_channels(project: Project) -> tuple[str, ...]:
    """The names that [alert] may use: the tables [channel.NAME], and the plugins, which work by their defaults."""
    from resilience.alerts.routes import channels

    return tuple(dict.fromkeys((*project.loaded.settings.channels, *channels().names())))


def _line(group: NotificationGroup) -> str:
    """`notified email: 2 incidents (3f9a1c04, 77e0d2b1)`: the message is in the outbox, and so it will arrive."""
    ids = [one.incident.episode for one in group.notifications]
    named = ", ".join(ids[:MOST_INCIDENTS]) + (", ..." if len(ids) > MOST_INCIDENTS else "")
    count = f"{len(ids)} incidents" if len(ids) > 1 else "1 incident"
    return f"notified {', '.join(group.channels)}: {count} ({named})"


def _failures(flushed: Flushed) -> list[str]:
    lines = []
    for delivery in (*flushed.failed, *flushed.dead):
        hint = f"; {delivery.outcome.hint}" if delivery.outcome.hint else ""
        lines.append(f"{delivery.channel} did not take a message: {delivery.outcome.error}{hint}")
    if flushed.waiting:
        queued = "1 message is" if flushed.waiting == 1 else f"{flushed.waiting} messages are"
        lines.append(f"{queued} still queued: see resil alert list")
    return lines


def _errors(state: AlertState, errors: Sequence[str], outbox_error: str) -> tuple[str, ...]:
    """Every error once. Where the disk fails, one line replaces those of its files."""
    directory = state.ledger.directory
    error = state.error or directory.error
    where = (f"alerts are kept in {directory.fallback} on this node: {error}",) if error and directory.fallback else ()
    more = (text for text in errors if not (where and text.endswith(error)))
    return tuple(dict.fromkeys((*(where or filter(None, [outbox_error])), *more)))
