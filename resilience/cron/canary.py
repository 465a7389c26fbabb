"""`resil cron canary`: requests a test alert, which the next tick of the project's scheduler sends, wherever it runs.

The tick does what `resil alert test` does. A request is one file that moves through its states by rename(2), which
succeeds for one tick: `ID.asked`, then `ID.taken`, where the tick writes the answers.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resilience.errors import ResilError, StateDirectoryError, UsageError
from resilience.records import from_record, to_record
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

DIRECTORY = "canary"
"""In `<state_dir>/.cron`."""
KEPT_S = 7 * 86400.0
_ID = re.compile(r"canary-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnswer:
    """State of a canary.

    Attributes:
        id: as returned by `ask`.
        asked: time of the request, seconds since the epoch.
        who: the user who asked.
        taken: when a tick took the request; None: not yet.
        by: driver and host of that tick; empty before.
        ended: when all channels had answered or timed out; None: not yet.
        channels: for each channel its name, success, answer, and seconds since `asked`: ("email", True, "250 OK", 3.2).
        trouble: why nothing was sent; empty if something was.
    """

    id: str
    asked: float
    who: str = ""
    taken: float | None = None
    by: str = ""
    ended: float | None = None
    channels: tuple[tuple[str, bool, str, float], ...] = ()
    trouble: str = ""

    @property
    def is_well(self) -> bool:
        """Return whether every channel accepted the alert."""
        return self.ended is not None and bool(self.channels) and all(ok for _, ok, _, _ in self.channels)


def ask(cron: CronProject) -> str:
    """Write a request for the next tick, and return its id.

    Raise UsageError if no channel is configured or the scheduler is stopped, StateDirectoryError if the request cannot
    be written.
    """
    if not cron.project.loaded.settings.alert.channels:
        raise UsageError(
            "no channel is configured, so a canary cannot be delivered", hint='[alert] channels = ["email"]'
        )
    if cron.state.stopped() is not None:
        raise UsageError(
            "the scheduler is stopped, so no tick sends a canary",
            hint="resil cron install; to send a test alert from here: resil alert test",
        )
    system = cron.project.system
    for directory in (cron.state.path, cron.state.path / DIRECTORY):
        make_directory(directory, mode=cron.state.directory_mode)
    id = f"canary-{os.urandom(4).hex()}"
    _write(cron, "asked", CanaryAnswer(id=id, asked=system.clock.now(), who=system.host.user))
    return id


def answer(cron: CronProject, id: str) -> CanaryAnswer:
    """Return the state of a request. Raise UsageError for an unknown id."""
    for state in ("asked", "taken") if _ID.fullmatch(id) else ():  # in this order it is found while it moves
        raw = read_regular(cron.state.path / DIRECTORY / f"{id}.{state}")
        try:
            if raw is not None:
                found = from_record(CanaryAnswer, json.loads(raw[0]))
                return replace(found, asked=float(found.asked))
        except (TypeError, ValueError) as error:
            hint = "request another one: resil cron canary"
            raise StateDirectoryError(f"the canary {id} is damaged: {error}", hint=hint) from error
    raise UsageError(f"canary {id!r} does not exist", hint="request a canary: resil cron canary")


def waiting(cron: CronProject) -> tuple[str, ...]:
    """Return the requests that no tick has taken yet. Reads one directory; never raises."""
    try:
        names = os.listdir(cron.state.path / DIRECTORY)  # noqa: PTH208 - names only
    except OSError:
        return ()
    asked = sorted(name.removesuffix(".asked") for name in names if name.endswith(".asked"))
    return tuple(id for id in asked if _ID.fullmatch(id))


def release(cron: CronProject, id: str, driver: str) -> None:
    """Take a request, send the alert, and record the answer of each channel.

    Exactly one tick takes a request; all others return at once. Never raises.
    """
    system, directory = cron.project.system, cron.state.path / DIRECTORY
    with suppress(OSError, ResilError):
        os.rename(directory / f"{id}.asked", directory / f"{id}.taken")  # noqa: PTH104 - the manual's name
        found = replace(answer(cron, id), taken=system.clock.now(), by=f"{driver or 'a tick'} on {system.host.name}")
        _write(cron, "taken", found)
        try:
            found = replace(found, channels=_send(cron, found))
        except Exception as error:
            found = replace(found, trouble=error.message if isinstance(error, ResilError) else repr(error))
        _write(cron, "taken", replace(found, ended=system.clock.now()))
        for path in directory.iterdir():
            if path.stat().st_mtime < system.clock.now() - KEPT_S:
                path.unlink()


def _send(cron: CronProject, asked: CanaryAnswer) -> tuple[tuple[str, bool, str, float], ...]:
    """Send the alert through every channel; return each channel's answer and the seconds until it came."""
    from resilience.alerts.commands import trial
    from resilience.alerts.routes import routes_of
    from resilience.alerts.sending import DeliveryRequest, DeliveryStatus, send_in_child

    project, alert = cron.project, trial(cron.project)
    summary = f"test alert {asked.id}, requested by {asked.who} and sent by {asked.by}: alert delivery works"
    alert = replace(alert, notices=tuple(replace(notice, summary=summary) for notice in alert.notices))
    routes = routes_of(project)
    requests = {name: DeliveryRequest(alert, routes[name]) for name in project.loaded.settings.alert.channels}
    answers = []
    for name, outcome in send_in_child(requests, project.system):
        is_sent = outcome.status is DeliveryStatus.SENT
        said = outcome.answer or "accepted" if is_sent else outcome.error
        answers.append((name, is_sent, said, round(project.system.clock.now() - asked.asked, 3)))
    return tuple(sorted(answers))


def _write(cron: CronProject, state: str, found: CanaryAnswer) -> None:
    path = cron.state.path / DIRECTORY / f"{found.id}.{state}"
    write_atomic(path, json.dumps(to_record(found)) + "\n", mode=cron.state.file_mode)
