"""Decides the health of the scheduler: one judge for `resil cron status`, `doctor`, the watchdog `cron`, the line in
`resil status`, and the notes of guards. Pure.

Each caller passes what it has read. One that cannot ask the driver within its time passes None for its state, and is
answered from the heartbeat alone. cron_late.py defines lateness, for the guard and for batch shells too.
"""

from __future__ import annotations

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
    """Without a tick yet, and the first is not overdue: just installed, or this node has just booted."""
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
        fault: what is wrong, for an incident: `late`, also of a dead scheduler, so that both are one incident, or
            `clock`; empty: nothing, or nothing that a tick would mend.
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
    """Return the health of the scheduler, with reason and advice.

    Args:
        driver: state of the installed driver; None: nothing is installed, or it was not asked.
        late_s: how long a tick may be overdue; 0: [cron] late_s, or what the last tick knew of it.
        awake_since: when this node was booted or resumed: ticks missed before do not count.
    """
    if stopped is not None:
        reason = describe_stop(stopped, now).removeprefix("stopped ")
        return Judgement(Health.STOPPED, reason, "resume: resil cron install")
    if heartbeat is not None and heartbeat.time - now > cron_late.FUTURE_S:
        return _clock_ahead(heartbeat, now)
    last, summary, hint = last_tick(heartbeat, now), _summary(installation, heartbeat, driver), ""
    if installation is None:
        if heartbeat is None:
            why = "no scheduler is installed, and none has ever ticked"
            return Judgement(Health.ABSENT, why, "start it: resil cron install")
        late_s = late_s or settings.late_s or heartbeat.patience_s
        if not cron_late.is_awaited(heartbeat.driver, is_installed=False, is_last=heartbeat.is_last):
            advice = "start it: resil cron install"
            if not heartbeat.is_last and not cron_late.is_late(heartbeat.time, heartbeat.expected, now, late_s):
                advice += f"; if ticks continue, a crontab line is left over on {heartbeat.host}: resil cron uninstall"
            return Judgement(Health.ABSENT, f"nothing is installed; {last}", advice)
        hint = f"on {heartbeat.host}: resil cron run; or install a scheduler: resil cron install"
        beat: Heartbeat | None = heartbeat
        times = heartbeat.time, heartbeat.expected
    else:
        beat = heartbeat if heartbeat is not None and heartbeat.time >= installation.time else None
        late_s = late_s or settings.late_s or (heartbeat.patience_s if heartbeat is not None else 0.0)
        first = cron_late.first_times(installation.to_json(), settings.tick_s, settings.pulse_s)
        times = (beat.time, beat.expected) if beat is not None else first
        hint = driver.hint if driver is not None else ""
        if beat is None:
            last = f"installed {format_duration(max(0.0, now - installation.time))} ago, without a tick since"
    patience_s = cron_late.patience_s(cron_late.pause_s(*times), late_s)
    overdue_s = cron_late.overdue_s(*times, now)
    judged = Judgement(Health.ALIVE, summary, hint, overdue_s=max(0.0, overdue_s), patience_s=patience_s)
    late = replace(judged, health=Health.LATE, fault="late", advice=hint or _advice(installation, driver))
    if driver is not None and driver.liveness is Liveness.GONE and installation is not None:
        if beat is not None and overdue_s <= patience_s and beat.driver != installation.driver:
            return replace(judged, reason=f"ticking ({beat.driver}), although {summary}")
        advice = hint or "start it again: resil cron install"
        return replace(late, health=Health.DEAD, reason=f"{summary}; {last}", advice=advice)
    if overdue_s > patience_s:
        if 0 <= now - awake_since < patience_s:
            up = format_duration(now - awake_since)
            why = f"{last}, but this node has been up for only {up}: waiting for the next tick"
            return replace(judged, health=Health.WAITING, reason=why)
        is_dead = overdue_s > cron_late.DEAD * patience_s
        return replace(late, health=Health.DEAD if is_dead else Health.LATE, reason=f"{last}; {summary}")
    next_tick = driver.next_tick if driver is not None else None
    if next_tick is not None and cron_late.overdue_s(*times, next_tick) > patience_s:
        return replace(late, reason=f"no tick for another {format_duration(next_tick - now)}: {summary}; {last}")
    if beat is None:
        return replace(judged, health=Health.WAITING, reason=f"{summary}; waiting for the first tick")
    return judged


def describe_stop(stopped: Mapping[str, Any], now: float) -> str:
    """Return who stopped it, when and why."""
    text = f"stopped by {stopped.get('by') or 'an unknown user'}"
    if isinstance(stopped.get("time"), int | float):
        text += f" {format_duration(max(0.0, now - stopped['time']))} ago"
    return f"{text}: {stopped['why']}" if stopped.get("why") else text


def last_tick(heartbeat: Heartbeat | None, now: float) -> str:
    """Return the last tick for display: `last tick 12 min ago (crontab on login1), next tick overdue by 11 min`."""
    if heartbeat is None:
        return "it has never ticked"
    maker = " ".join(filter(None, (heartbeat.driver, heartbeat.host and f"on {heartbeat.host}")))
    text = f"last tick {format_duration(max(0.0, now - heartbeat.time))} ago{maker and f' ({maker})'}"
    overdue_s = cron_late.overdue_s(heartbeat.time, heartbeat.expected, now)
    return f"{text}, next tick overdue by {format_duration(overdue_s)}" if overdue_s >= 1 else text


def _summary(installation: Installation | None, heartbeat: Heartbeat | None, driver: DriverState | None) -> str:
    if driver is not None:
        return driver.summary
    if installation is not None:
        return f"{installation.driver} is installed"
    maker = heartbeat.driver if heartbeat is not None else ""
    return f"ticking ({maker or 'unknown driver'}); nothing is installed"


def _clock_ahead(heartbeat: Heartbeat, now: float) -> Judgement:
    where = f" on {heartbeat.host}" if heartbeat.host else ""
    ahead = format_duration(heartbeat.time - now)
    why = f"its last tick{where} is {ahead} in the future: the clock there or here is wrong"
    advice = f"compare: date +%s here and{where or ' there'}; ask your administrators for time synchronisation"
    return Judgement(Health.UNKNOWN, why, advice, "clock")


def _advice(installation: Installation | None, driver: DriverState | None) -> str:
    if installation is None or driver is None or driver.liveness is Liveness.UNKNOWN:
        return "see: resil cron status; to start it again: resil cron install"
    return {
        "foreground": f"start it again on {installation.host}: resil cron run",
        "slurm": "its job may be pending: resil cron doctor; to restart: resil cron uninstall, resil cron install",
    }.get(installation.driver, f"check {installation.driver} on {installation.host}: resil cron doctor")
