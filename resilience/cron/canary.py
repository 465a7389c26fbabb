"""`resil cron canary`: requests a test alert, which the next tick of the project's scheduler raises and delivers."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resilience.errors import ResilError, StateDirectoryError, UsageError
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

DIRECTORY = "canary"
"""In `<state_dir>/.cron`: `ID.asked`, `ID.taken`, `ID.answer`."""
DELIVERY_S = 45.0
"""Time limit for all channels together."""
KEPT_S = 7 * 86400.0
_ID = re.compile(r"canary-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnswer:
    """State of a canary.

    Attributes:
        id: as returned by `ask`.
        asked: time of the request, seconds since the epoch.
        taken: when a tick took the request; None: not yet.
        by: driver and host of that tick; empty before.
        ended: when all channels had answered or timed out; None: not yet.
        channels: for each channel its name, success, answer, and seconds since `asked`: ("email", True, "250 OK", 3.2).
        trouble: why nothing was sent; empty if something was.
    """

    id: str
    asked: float
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

    Raise UsageError if no channel is configured, StateDirectoryError if the request cannot be written.
    """
    if not cron.project.loaded.settings.alert.channels:
        raise UsageError(
            "no channel is configured, so a canary cannot be delivered", hint='[alert] channels = ["email"]'
        )
    system = cron.project.system
    directory = cron.state.path / DIRECTORY
    make_directory(cron.state.path, mode=cron.state.directory_mode)
    make_directory(directory, mode=cron.state.directory_mode)
    id = f"canary-{os.urandom(4).hex()}"
    record = {"asked": system.clock.now(), "by": system.host.user, "host": system.host.name}
    write_atomic(directory / f"{id}.asked", json.dumps(record) + "\n", mode=cron.state.file_mode)
    return id


def answer(cron: CronProject, id: str) -> CanaryAnswer:
    """Return the state of a request. Raise UsageError for an unknown id."""
    if _ID.fullmatch(id) is None:
        raise UsageError(f"{id!r} is not a canary id", hint="request a canary: resil cron canary")
    asked = _read(cron, f"{id}.asked")
    if asked is None:
        raise UsageError(f"canary {id} does not exist", hint="request a canary: resil cron canary")
    taken = _read(cron, f"{id}.taken") or {}
    ended = _read(cron, f"{id}.answer") or {}
    try:
        return CanaryAnswer(
            id=id,
            asked=float(asked["asked"]),
            taken=float(taken["time"]) if "time" in taken else None,
            by=str(taken.get("by", "")),
            ended=float(ended["ended"]) if "ended" in ended else None,
            channels=tuple((str(c), bool(ok), str(said), float(s)) for c, ok, said, s in ended.get("channels", ())),
            trouble=str(ended.get("trouble", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateDirectoryError(
            f"the canary {id} is damaged: {error}", hint="request another one: resil cron canary"
        ) from error


def waiting(cron: CronProject) -> tuple[str, ...]:
    """Return the requests that no tick has taken yet. Reads one directory; never raises."""
    try:
        names = os.listdir(cron.state.path / DIRECTORY)  # noqa: PTH208 - names only
    except OSError:
        return ()
    asked = {name.removesuffix(".asked") for name in names if name.endswith(".asked")}
    return tuple(sorted(id for id in asked if _ID.fullmatch(id) and f"{id}.taken" not in names))


def release(cron: CronProject, id: str, driver: str) -> None:
    """Take a request, raise and deliver an incident, resolve it, and record the answer of each channel.

    Exactly one tick takes a request; all others return at once. Never raises.
    """
    system = cron.project.system
    by = f"{driver or 'a tick'} on {system.host.name}"
    if not _take(cron, id, {"time": system.clock.now(), "by": by}):
        return
    channels: list[tuple[str, bool, str, float]] = []
    trouble = ""
    try:
        asked = _read(cron, f"{id}.asked") or {}
        channels = _deliver(cron, id, float(asked.get("asked") or system.clock.now()), str(asked.get("by", "")), by)
        if not channels:
            trouble = "no channel is configured: nothing was sent"
    except ResilError as error:
        trouble = error.message
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    with suppress(ResilError):
        record = {"ended": system.clock.now(), "channels": channels, "trouble": trouble}
        path = cron.state.path / DIRECTORY / f"{id}.answer"
        write_atomic(path, json.dumps(record) + "\n", mode=cron.state.file_mode)
    _delete_old(cron)


def _deliver(cron: CronProject, id: str, asked: float, who: str, by: str) -> list[tuple[str, bool, str, float]]:
    """Notify through ledger, outbox and channels; return each channel's answer and the seconds until it came."""
    from resilience.alerts.delivery import flush
    from resilience.alerts.notifier import Notifier
    from resilience.alerts.policy import usable
    from resilience.alerts.routes import routes_of
    from resilience.alerts.state import open_alert_state
    from resilience.finding import Finding, Report, Verdict

    project = cron.project
    system, state = project.system, open_alert_state(project)
    state.flush_fallback()
    # Requested explicitly: skips quiet hours and grouping, and is resolved at once.
    policy = replace(usable(project.loaded.settings.alert)[0], quiet_hours="", group_s=0.0, resolve_after_s=0.0)
    notifier = Notifier(
        ledger=state.ledger, silences=state.silences, outbox=state.outbox, policy=policy,
        host=system.host.name, project=str(project.loaded.project),
    )  # fmt: skip
    summary = f"test alert, requested by {who or 'an unknown user'} and sent by {by}: alert delivery works"
    alert = Finding(subject=id, verdict=Verdict.WARNING, fault="canary", summary=summary)
    notified = notifier.notify([Report(check="canary", findings=(alert,), time=system.clock.now())], system.clock.now())
    names = {group.alert.id: group.channels for group in notified.groups}
    if not names and notified.errors:
        raise StateDirectoryError("; ".join(notified.errors))
    said: dict[str, tuple[str, bool, str, float]] = {}
    deadline = system.clock.monotonic() + DELIVERY_S
    wanted = {(alert_id, channel) for alert_id, channels in names.items() for channel in channels}
    while True:
        done = flush(
            state.outbox, routes_of(project), system=system, project=str(project.loaded.project),
            deadline_s=max(1.0, deadline - system.clock.monotonic()), patient=False,
        )  # fmt: skip
        after_s = round(system.clock.now() - asked, 3)
        for delivery in (*done.sent, *done.failed, *done.dead):
            if (delivery.entry.alert.id, delivery.channel) in wanted:
                took = delivery in done.sent
                words = delivery.outcome.answer if took else delivery.outcome.error
                said[delivery.channel] = (delivery.channel, took, words or "accepted", after_s)
        for entry in state.outbox.sent():  # another process may have delivered it meanwhile
            if (entry.alert.id, entry.channel) in wanted and entry.channel not in said:
                said[entry.channel] = (entry.channel, True, entry.answer or "accepted", after_s)
        missing = {channel for _, channel in wanted} - set(said)
        if not missing or system.clock.monotonic() >= deadline:
            break
        system.clock.sleep(1.0)
    for channel in sorted({channel for _, channel in wanted} - set(said)):
        why = done.paused.get(channel, "no answer in time; the message is still queued")
        said[channel] = (channel, False, why, round(system.clock.now() - asked, 3))
    well = replace(alert, verdict=Verdict.OK, fault="", summary="test alert resolved")
    notifier.notify([Report(check="canary", findings=(well,), time=system.clock.now())], system.clock.now())
    flush(
        state.outbox, routes_of(project), system=system, project=str(project.loaded.project), deadline_s=15.0,
    )  # fmt: skip
    return sorted(said.values())


def _take(cron: CronProject, id: str, record: dict[str, object]) -> bool:
    """Create the file that records which tick took the request; O_EXCL lets one of many succeed (open(2))."""
    path = cron.state.path / DIRECTORY / f"{id}.taken"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(record).encode() + b"\n")
            os.fchmod(file.fileno(), cron.state.file_mode)
    except OSError:
        return False
    return True


def _read(cron: CronProject, name: str) -> dict[str, Any] | None:
    found = read_regular(cron.state.path / DIRECTORY / name)
    try:
        record = json.loads(found[0]) if found is not None else None
    except ValueError:
        return None  # being written
    return record if isinstance(record, dict) else None


def _delete_old(cron: CronProject) -> None:
    """Delete old canaries."""
    before = cron.project.system.clock.now() - KEPT_S
    with suppress(OSError):
        for path in (cron.state.path / DIRECTORY).iterdir():
            if path.stat().st_mtime < before:
                path.unlink()
