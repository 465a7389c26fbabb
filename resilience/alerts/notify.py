"""Sends notifications after a tick and delivers queued messages. Runs in a child process, so that an error here does
not change the watchdogs' output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from resilience.alerts.acting import act_upon
from resilience.alerts.claims import turn
from resilience.alerts.notification import NotificationGroup
from resilience.alerts.notifier import Notifier
from resilience.alerts.outbox import entry_name
from resilience.alerts.policy import check_policy, usable
from resilience.alerts.state import AlertState, open_alert_state
from resilience.errors import SettingsError
from resilience.finding import Report, Verdict
from resilience.messages import plural
from resilience.runs.project import Project

if TYPE_CHECKING:
    from resilience.alerts.delivery import Flushed
    from resilience.alerts.outbox import Outbox

DELIVERY_S = 15.0
"""Time limit of delivery after a tick; the next tick sends the rest."""

INCIDENTS, TURN_S = "(incidents)", 10.0
"""The claim of the process that updates the incidents, no name of a channel; and how long the others wait for it. Two
watchdogs that read the incidents at the same time would each send a first message about the same one."""

MAX_NAMED = 6
"""Maximum number of incidents named in a line of output; the rest are counted."""


class Notes(Protocol):
    """Noted faults that are reported with the next notification: `cron.late`."""

    def is_noted(self, project: Project) -> bool:
        """Return True if there is a note."""
        ...

    def noted(self, project: Project, reports: Sequence[Report] = ()) -> tuple[Report, ...]:
        """Return a report for each note that still applies and is not in `reports`. Never raises."""
        ...

    def forget(self, project: Project) -> None:
        """Remove the notes. Never raises."""
        ...


def notify(
    project: Project,
    reports: Sequence[Report],
    *,
    notes: Notes | None = None,
    typed: str | None = None,
    deliver_s: float = DELIVERY_S,
) -> tuple[str, ...]:
    """Send the notifications of one tick and of `notes`; return a line for each message and each error.

    `typed`: the targets and options of the command line that override the settings, empty if there are none: the
    reports then have all subjects of that command. None: the reports have some subjects only.

    A mistake in [alert] is reported and skipped: a misspelled channel must not disable the others.
    """
    if not project.loaded.settings.alert.channels:
        return ()
    policy, wrong = usable(project.loaded.settings.alert)
    try:
        check_policy(policy, _known_channels(project))
    except SettingsError as error:  # messages for an unknown channel become dead letters, which commands report
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
        act=partial(act_upon, project),
    )
    noted = () if state.error or notes is None else notes.noted(project, reports)
    source = "" if typed is None or noted else f"{system.host.name}:{project.loaded.project} {typed}".rstrip()
    owner = f"{system.host.name} {os.getpid()} {os.urandom(4).hex()}"
    if any(finding.verdict is not Verdict.OK for report in (*reports, *noted) for finding in report.findings):
        state.make()
    with turn(state.outbox.claims, INCIDENTS, owner, system.clock, TURN_S):
        notified = notifier.notify((*reports, *noted), system.clock.now(), source=source)
    if not state.error and notes is not None:
        notes.forget(project)
    state.record_home()
    flushed = _deliver(project, state.outbox, deliver_s)
    lines = [line for group in notified.groups for line in _lines(group, flushed)]
    lines += _failures(flushed) if flushed is not None else ()
    if moved:
        lines.append(f"{plural(moved, 'alert file')} moved back from the fallback directory of this node")
    outbox_error = state.outbox.error if flushed is None else flushed.error
    if state.note:
        lines.append(state.note)
    return (*lines, *_errors(state, (*wrong, *notified.errors), outbox_error))


def _deliver(project: Project, outbox: Outbox, deliver_s: float) -> Flushed | None:
    """Deliver queued messages. With an empty outbox, the usual case, the modules that deliver are not loaded."""
    outbox.flush_fallback()
    if not outbox.names():
        return None
    from resilience.alerts.delivery import flush
    from resilience.alerts.routes import routes_of

    system, directory = project.system, str(project.loaded.project)
    return flush(outbox, routes_of(project), system=system, project=directory, deadline_s=deliver_s)


def _known_channels(project: Project) -> tuple[str, ...]:
    """Return the channels that [alert] may name: tables [channel.NAME], and plugins, which work with defaults."""
    from resilience.alerts.routes import channels

    return tuple(dict.fromkeys((*project.loaded.settings.channels, *channels().names())))


def _lines(group: NotificationGroup, flushed: Flushed | None) -> list[str]:
    """Return lines such as `notified email: 2 incidents (3f9a1c04, 77e0d2b1)`: a channel is notified once it accepted
    the message. Until then the message is queued for it, unless the channel rejected it for good."""
    words = {
        name: word
        for word, deliveries in (("notified", flushed.sent), ("rejected by", flushed.dead))
        for delivery in deliveries
        for name in (delivery.entry.name, *delivery.entry.covers)
    } if flushed is not None else {}  # fmt: skip
    ids = [one.incident.episode for one in group.notifications]
    named = ", ".join(ids[:MAX_NAMED]) + (", ..." if len(ids) > MAX_NAMED else "")
    channels: dict[str, list[str]] = {}
    for channel in group.channels:
        word = words.get(entry_name(group.alert.id, channel), "queued for")
        channels.setdefault(word, []).append(channel)
    return [f"{word} {', '.join(names)}: {plural(len(ids), 'incident')} ({named})" for word, names in channels.items()]


def _failures(flushed: Flushed) -> list[str]:
    lines = []
    for delivery in (*flushed.failed, *flushed.dead):
        hint = f"; {delivery.outcome.hint}" if delivery.outcome.hint else ""
        lines.append(f"{delivery.channel} failed to deliver a message: {delivery.outcome.error}{hint}")
    if flushed.waiting:
        lines.append(f"{plural(flushed.waiting, 'message')} still queued: resil alert list")
    return lines


def _errors(state: AlertState, errors: Sequence[str], outbox_error: str) -> tuple[str, ...]:
    """Return every error once. If the disk fails, one line replaces those about its files."""
    directory = state.ledger.directory
    error = state.error or directory.error
    where = (f"alerts are saved in {directory.fallback} on this node: {error}",) if error and directory.fallback else ()
    more = (text for text in errors if not (where and text.endswith(error)))
    return tuple(dict.fromkeys((*(where or filter(None, [outbox_error])), *more)))
