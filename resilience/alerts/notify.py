"""After a tick: tells people what is news, and delivers what waits. Runs in a child, so that nothing that goes wrong
here changes what the watchdogs say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from resilience.alerts.notification import Letter
from resilience.alerts.notifier import Notifier
from resilience.alerts.policy import check_policy, sound
from resilience.alerts.state import AlertState, open_alert_state
from resilience.errors import SettingsError
from resilience.finding import Report
from resilience.runs.project import Project

if TYPE_CHECKING:
    from resilience.alerts.delivery import Flushed
    from resilience.alerts.outbox import Outbox

DELIVERY_S = 15.0
"""How long delivering may take after a tick; what is left goes with the next one."""

MOST_EPISODES = 6
"""So many incidents are named in a line for people; the rest are counted."""


class Notes(Protocol):
    """Where others leave notes of faults that are to be reported with the next notification: `cron.notes`."""

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
    """Tell of the reports of one tick, and of `notes`; return a line each for what was told and what went wrong.

    What cannot be meant in [alert] is said and passed over: a misspelled name must not keep the others from being told.
    """
    if not project.loaded.settings.alert.channels:
        return ()
    policy, wrong = sound(project.loaded.settings.alert)
    try:
        check_policy(policy, _known_channels(project))
    except SettingsError as error:  # its messages go to the dead letters, and the next command says so
        wrong = (*wrong, f"{error.message}; {error.hint}")
    state = open_alert_state(project)
    moved = state.bring_home()
    world = project.world
    notifier = Notifier(
        ledger=state.ledger,
        silences=state.silences,
        outbox=state.outbox,
        policy=policy,
        host=world.host.name,
        project=str(project.loaded.project),
    )
    noted = () if state.trouble or notes is None else notes.noted(project, reports)
    told = notifier.tell((*reports, *noted), world.clock.now())
    if not state.trouble and notes is not None:
        notes.forget(project)
    flushed = _deliver(project, state.outbox, deliver_s)
    lines = [*(_line(letter) for letter in told.letters), *(_of(flushed) if flushed is not None else ())]
    if moved:
        files = "1 alert file" if moved == 1 else f"{moved} alert files"
        lines.append(f"{files} moved home from the spare folder of this node")
    on_the_way = state.outbox.trouble if flushed is None else flushed.trouble
    return (*lines, *_trouble(state, (*wrong, *told.trouble), on_the_way))


def _deliver(project: Project, outbox: Outbox, deliver_s: float) -> Flushed | None:
    """Deliver what waits. Mostly nothing does: then what delivers is not even loaded."""
    outbox.bring_home()
    if not outbox.names():
        return None
    from resilience.alerts.delivery import flush
    from resilience.alerts.routes import routes_of

    world, folder = project.world, str(project.loaded.project)
    return flush(outbox, routes_of(project), world=world, project=folder, deadline_s=deliver_s)


def _known_channels(project: Project) -> tuple[str, ...]:
    """What [alert] may name: the tables [channel.NAME], and the plugins, which work by their defaults."""
    from resilience.alerts.routes import channels

    return tuple(dict.fromkeys((*project.loaded.settings.channels, *channels().names())))


def _line(letter: Letter) -> str:
    """`told email: 2 incidents (3f9a1c04, 77e0d2b1)`: it is in the outbox, and so it will arrive."""
    episodes = [news.incident.episode for news in letter.news]
    named = ", ".join(episodes[:MOST_EPISODES]) + (", ..." if len(episodes) > MOST_EPISODES else "")
    count = f"{len(episodes)} incidents" if len(episodes) > 1 else "1 incident"
    return f"told {', '.join(letter.channels)}: {count} ({named})"


def _of(flushed: Flushed) -> list[str]:
    lines = []
    for delivery in (*flushed.failed, *flushed.dead):
        hint = f"; {delivery.outcome.hint}" if delivery.outcome.hint else ""
        lines.append(f"{delivery.channel} did not take a message: {delivery.outcome.error}{hint}")
    if flushed.waiting:
        waits = "1 message waits" if flushed.waiting == 1 else f"{flushed.waiting} messages wait"
        lines.append(f"{waits} to be delivered: see resil alert list")
    return lines


def _trouble(state: AlertState, said: Sequence[str], of_outbox: str) -> tuple[str, ...]:
    """What is wrong, each once. `of_outbox`: with its files; where the disk is in trouble, that says it all."""
    folder = state.ledger.folder
    trouble = state.trouble or folder.trouble
    where = (f"alerts are kept in {folder.spare} on this node: {trouble}",) if trouble and folder.spare else ()
    more = (text for text in said if not (where and text.endswith(trouble)))
    return tuple(dict.fromkeys((*(where or filter(None, [of_outbox])), *more)))
