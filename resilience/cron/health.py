"""Decides the health of the scheduler: one judge for `resil cron status`, `doctor`, the watchdog `cron`, the line in
`resil status`, and the notes of guards.

Each caller passes what it has read. One that cannot ask the driver within its time passes None for its state, and is
answered from the heartbeat alone. cron_late.py defines lateness, for the guard and for batch shells too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from resilience import cron_late
from resilience.errors import EX_TEMPFAIL
from resilience.job import Liveness
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.drivers import DriverState
    from resilience.cron.records import Heartbeat, Installation
    from resilience.settings.cron_settings import CronSettings


class Health(StrEnum):
    """Health of the scheduler."""

    ALIVE = "alive"
    """Ticks come on time."""
    WAITING = "waiting"
    """The first tick is not overdue: it was just installed, or this node has just booted."""
    LATE = "late"
    """A tick is overdue, or the next one will be."""
    DEAD = "dead"
    """The driver is gone, or ticks are overdue by several pauses: nothing runs."""
    STOPPED = "stopped"
    """Stopped by a user."""
    ABSENT = "not installed"
    """No driver is installed, and no tick is expected."""
    UNKNOWN = "unknown"
    """It could not be checked."""


_EXIT_CODES = {Health.ALIVE: 0, Health.WAITING: 0, Health.UNKNOWN: EX_TEMPFAIL}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Health of the scheduler, with reason and advice.

    Attributes:
        fault: what is wrong, for an incident: `late`, also of a dead scheduler, so that both are one incident, `clock`
            or `damaged`; empty: nothing that needs an alert.
        overdue_s, patience_s: by how much the next tick is overdue, and may be.
    """

    health: Health
    reason: str
    advice: str = ""
    fault: str = ""
    overdue_s: float = 0.0
    patience_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """Exit code of `resil cron status`."""
        return _EXIT_CODES.get(self.health, 1)


def awake_since(now: float) -> float:
    """Return when this node was booted: a cluster that was off for a night has missed ticks because of that."""
    return now - time.clock_gettime(time.CLOCK_BOOTTIME)


def judge_scheduler(
    installation: Installation | None,
    heartbeat: Heartbeat | None,
    driver: DriverState | None,
    stopped: Mapping[str, Any] | None,
    *,
    now: float,
    settings: CronSettings,
    late_s: float = 0.0,
    awake_since: float = 0.0,
) -> Judgement:
    """Return the health of the scheduler, with reason and advice. Pure.

    Args:
        driver: state of the installed driver; None: nothing is installed, or it was not asked.
        late_s: how long a tick may be overdue; 0: [cron] late_s, or what the last tick knew of it.
        awake_since: when this node was booted: ticks missed before do not count.
    """
    start = "start it: resil cron install"
    if stopped is not None:
        reason = describe_stop(stopped, now).removeprefix("stopped ")
        return Judgement(Health.STOPPED, reason, "resume: resil cron install")
    if heartbeat is None and installation is None:
        return Judgement(Health.ABSENT, "no scheduler is installed, and none has ever ticked", start)
    if heartbeat is not None and heartbeat.time - now > cron_late.FUTURE_S:
        where = f"on {heartbeat.host or 'its host'}"
        why = f"its last tick {where} is {format_duration(heartbeat.time - now)} in the future"
        advice = f"compare: date +%s here and {where}; ask your administrators for time synchronisation"
        return Judgement(Health.UNKNOWN, f"{why}: the clock there or here is wrong", advice, "clock")

    beat = heartbeat  # of this installation
    if installation is not None and beat is not None and beat.time < installation.time:
        beat = None
    if beat is not None:
        times, last = (beat.time, beat.expected), _last_tick(beat, now)
    else:
        assert installation is not None
        times = cron_late.first_times(installation.to_json(), settings.tick_s, settings.pulse_s)
        last = f"installed {format_duration(max(0.0, now - installation.time))} ago, without a tick since"
    late_s = late_s or settings.late_s or (heartbeat.patience_s if heartbeat is not None else 0.0)
    patience_s = cron_late.patience_s(cron_late.pause_s(*times), late_s)
    overdue_s = cron_late.overdue_s(*times, now)
    what = "nothing is installed" if installation is None else driver.summary if driver is not None else "installed"
    hint = driver.hint if driver is not None else ""
    judged = Judgement(Health.ALIVE, f"{what}; {last}", hint, "", max(0.0, overdue_s), patience_s)
    late = replace(judged, health=Health.LATE, fault="late", advice=hint or _advice(installation, beat, driver))
    dead = replace(late, health=Health.DEAD)

    if (
        installation is None
        and beat is not None
        and not cron_late.is_awaited(beat.driver, is_installed=False, is_last=beat.is_last)
    ):
        if not beat.is_last and overdue_s <= patience_s:
            start += f"; if ticks continue, a crontab line is left over on {beat.host}: resil cron uninstall"
        return Judgement(Health.ABSENT, judged.reason, start)
    if driver is not None and installation is not None and driver.liveness is Liveness.GONE:
        if beat is not None and overdue_s <= patience_s and beat.driver != installation.driver:
            return replace(judged, reason=f"ticking ({beat.driver}), although {judged.reason}")
        return replace(dead, advice=hint or "start it again: resil cron install")
    if overdue_s > patience_s:
        if 0 <= now - awake_since < patience_s:
            up = f"this node has been up for only {format_duration(now - awake_since)}: waiting for the next tick"
            return replace(judged, health=Health.WAITING, reason=f"{last}, but {up}")
        return replace(dead if overdue_s > cron_late.DEAD * patience_s else late, reason=f"{last}; {what}")
    next_tick = driver.next_tick if driver is not None else None
    if next_tick is not None and cron_late.overdue_s(*times, next_tick) > patience_s:
        return replace(late, reason=f"no tick for another {format_duration(next_tick - now)}: {judged.reason}")
    if beat is None:
        return replace(judged, health=Health.WAITING, reason=f"{what}; waiting for the first tick")
    return judged


def describe_stop(stopped: Mapping[str, Any], now: float) -> str:
    """Return who stopped it, when and why. Pure."""
    text = f"stopped by {stopped.get('by') or 'an unknown user'}"
    if isinstance(stopped.get("time"), int | float):
        text += f" {format_duration(max(0.0, now - stopped['time']))} ago"
    return f"{text}: {stopped['why']}" if stopped.get("why") else text


def _last_tick(beat: Heartbeat, now: float) -> str:
    """Return the last tick for display: `last tick 12 min ago (crontab on login1), next tick overdue by 11 min`."""
    maker = " ".join(filter(None, (beat.driver, beat.host and f"on {beat.host}"))) or "unknown driver"
    overdue_s = cron_late.overdue_s(beat.time, beat.expected, now)
    overdue = f", next tick overdue by {format_duration(overdue_s)}" if overdue_s >= 1 else ""
    return f"last tick {format_duration(max(0.0, now - beat.time))} ago ({maker}){overdue}"


def _advice(installation: Installation | None, beat: Heartbeat | None, driver: DriverState | None) -> str:
    if installation is None:
        where = beat.host if beat is not None else "its host"
        return f"on {where}: resil cron run; or install a scheduler: resil cron install"
    if driver is None or driver.liveness is Liveness.UNKNOWN:
        return "see: resil cron status; to start it again: resil cron install"
    return {
        "foreground": f"start it again on {installation.host}: resil cron run",
        "slurm": "its job may be pending: resil cron doctor; to restart: resil cron uninstall, resil cron install",
    }.get(installation.driver, f"check {installation.driver} on {installation.host}: resil cron doctor")
