"""`resil cron status`: scheduler health, delay, next runs and recent results.

A child with a deadline reads the disk, and the driver has deadlines of its own, so neither a hung file system nor a
dead controller blocks the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from resilience import cron_late
from resilience.cron.driver_state import driver_state
from resilience.cron.entries import EntryRow, lateness_s, list_entries
from resilience.cron.records import Heartbeat, Installation, Outcome
from resilience.errors import EX_TEMPFAIL, ResilError
from resilience.job import Liveness
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.drivers import DriverState
    from resilience.cron.project import CronProject
    from resilience.settings.cron_settings import CronSettings

READ_S = 10.0
"""Time limit for reading the state directory and the cron directory together."""

RECENT = 200
"""Number of recent runs whose delay is counted."""


class Health(StrEnum):
    """Health of the scheduler."""

    ALIVE = "alive"
    """Ticks come on time."""
    WAITING = "waiting"
    """Recently installed, without a tick yet."""
    LATE = "late"
    """The driver is present or unknown, and a tick is overdue."""
    DEAD = "dead"
    """The driver is gone."""
    STOPPED = "stopped"
    """Stopped by a user."""
    ABSENT = "not installed"
    """No driver is installed, and no tick is expected."""
    UNKNOWN = "unknown"
    """It could not be checked."""


_EXIT_CODES = {Health.ALIVE: 0, Health.WAITING: 0, Health.UNKNOWN: EX_TEMPFAIL}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Health of the scheduler, with reason and advice."""

    health: Health
    reason: str
    advice: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code of `resil cron status`."""
        return _EXIT_CODES.get(self.health, 1)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Delays between slot and start of the last `count` runs, in seconds."""

    median_s: float
    p95_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStatus:
    """Status of the scheduler.

    Attributes:
        now: time of the check.
        judgement: health of the scheduler.
        installation: recorded installation; None: none.
        driver: state of its driver; None: nothing is installed.
        heartbeat: the last heartbeat; None: none.
        stopped: who stopped it, why and when; None: not stopped.
        lateness: of recent runs; None: none.
        next: next runs: (slot, name).
        rows: the entries.
        ignored, faults: number of ignored things in the cron directory, and of those probably meant to run.
        trouble: errors while reading.
        directory: the cron directory, for display.
    """

    now: float
    judgement: Judgement
    installation: Installation | None = None
    driver: DriverState | None = None
    heartbeat: Heartbeat | None = None
    stopped: Mapping[str, Any] | None = None
    lateness: Lateness | None = None
    next: tuple[tuple[float, str], ...] = ()
    rows: tuple[EntryRow, ...] = ()
    ignored: int = 0
    faults: int = 0
    trouble: tuple[str, ...] = ()
    directory: str = ""

    @property
    def exit_code(self) -> int:
        """0: healthy; 1: not; 75: unknown."""
        return self.judgement.exit_code


def cron_status(cron: CronProject) -> CronStatus:
    """Read the status, with deadlines; never raises ResilError."""
    now = cron.project.system.clock.now()
    seen, trouble = read_disk(cron)
    common: dict[str, Any] = {"now": now, "directory": str(cron.directory)}
    if seen is None:
        return CronStatus(judgement=Judgement(Health.UNKNOWN, trouble[0], _HINT_HUNG), trouble=trouble, **common)
    installation = Installation.from_json(seen["installation"]) if seen["installation"] else None
    heartbeat = Heartbeat.from_json(seen["heartbeat"]) if seen["heartbeat"] else None
    driver = driver_state(cron, installation) if installation is not None else None
    troubles = (*seen["trouble"], *trouble)
    if seen["unread"]:
        judgement = Judgement(Health.UNKNOWN, seen["unread"], seen["unread_hint"] or _HINT_HUNG)
    else:
        judgement = judge_scheduler(installation, heartbeat, driver, seen["stopped"], now=now, settings=cron.settings)
    return CronStatus(
        judgement=judgement,
        installation=installation,
        driver=driver,
        heartbeat=heartbeat,
        stopped=seen["stopped"],
        lateness=lateness_of(seen["lateness"]),
        next=tuple((moment, name) for moment, name in seen["next"]),
        rows=tuple(EntryRow.from_json(row) for row in seen["rows"]),
        ignored=seen["ignored"],
        faults=seen["faults"],
        trouble=tuple(dict.fromkeys(troubles)),
        **common,
    )


_HINT_HUNG = "try again, or from another node; the file system of the state directory may be hung"


def read_disk(cron: CronProject) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Read the state directory and the cron directory in a child, as either may hang; return plain data and errors."""
    from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child

    system = cron.project.system
    look = ChildProbe(f"cron of {cron.project.loaded.project}", lambda: _read(cron), READ_S)
    ((_, answer),) = probe_in_child({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None:
        return None, (f"the state directory {cron.state.path.parent}: {answer.error.message}",)
    return answer.value, ()


def _read(cron: CronProject) -> dict[str, Any]:
    """Read the disk as plain data; errors are part of it."""
    found: dict[str, Any] = {
        "installation": None, "heartbeat": None, "stopped": None, "unread": "", "unread_hint": "", "trouble": [],
        "rows": [], "next": [], "ignored": 0, "faults": 0, "lateness": [],
    }  # fmt: skip
    try:
        installation, heartbeat = cron.state.installation(), cron.state.heartbeat()
        found["installation"] = _plain(installation.to_json()) if installation is not None else None
        found["heartbeat"] = _plain(heartbeat.to_json()) if heartbeat is not None else None
        stopped = cron.state.stopped()
        found["stopped"] = dict(stopped) if stopped is not None else None
    except ResilError as error:
        found |= {"unread": error.message, "unread_hint": error.hint}
        return found
    try:
        listing = list_entries(cron)
        found |= {
            "rows": [_plain(row.to_json()) for row in listing.rows],
            "next": list(listing.next),
            "ignored": len(listing.ignored),
            "faults": sum(ignored.is_fault for ignored in listing.ignored),
            "trouble": list(listing.trouble),
            "lateness": _recent_lateness(cron),
        }
    except ResilError as error:
        found["trouble"] = [error.message]
    from resilience.cron.report import send_failures

    found["trouble"] = [*found["trouble"], *send_failures(cron)]
    return found


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert to plain data for `marshal`, which does not accept enumeration members."""
    plain: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            plain[key] = _plain(value)
        elif isinstance(value, StrEnum):
            plain[key] = value.value
        else:
            plain[key] = value
    return plain


def _recent_lateness(cron: CronProject) -> list[float]:
    runs = []
    remembered = cron.state.keys()
    for key in remembered:
        runs += [run for run in cron.state.history(key)[-RECENT:] if run.outcome is not Outcome.MISSED]
    late = [(run.slot, seconds) for run in runs if (seconds := lateness_s(run)) is not None]
    return [seconds for _, seconds in sorted(late)[-RECENT:]]


def lateness_of(seconds: Sequence[float]) -> Lateness | None:
    """Return the median and the 95th percentile (nearest rank) of delays. Pure."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(percent: int) -> float:
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

    return Lateness(rank(50), rank(95), len(ordered))


def judge_scheduler(
    installation: Installation | None,
    heartbeat: Heartbeat | None,
    driver: DriverState | None,
    stopped: Mapping[str, Any] | None,
    *,
    now: float,
    settings: CronSettings,
) -> Judgement:
    """Return the health of the scheduler, with reason and advice. Pure.

    cron_late.py defines lateness: the watchdog `cron`, `resil status` and the guard use it as well.
    """
    if stopped is not None:
        reason = describe_stop(stopped, now).removeprefix("stopped ")
        return Judgement(Health.STOPPED, reason, "resume: resil cron install")
    last_tick = _last_tick(heartbeat, now)
    if installation is None:
        return _judge_ticks(heartbeat, last_tick, now, settings)
    assert driver is not None, "the state of an installed driver is read"
    beat = heartbeat if heartbeat is not None and heartbeat.time >= installation.time else None
    if beat is not None:
        times = beat.time, beat.expected
    else:
        times = cron_late.first_times(installation.to_json(), settings.tick_s, settings.pulse_s)
    is_late = cron_late.is_late(*times, now, settings.late_s)
    if driver.liveness is Liveness.GONE:
        advice = driver.hint or "start it again: resil cron install"
        if beat is not None and not is_late and beat.driver != installation.driver:
            return Judgement(Health.ALIVE, f"ticking ({beat.driver}), although {driver.summary}", advice)
        return Judgement(Health.DEAD, f"{driver.summary}; {last_tick}", advice)
    if not is_late:
        if beat is None:
            return Judgement(Health.WAITING, f"{driver.summary}; waiting for the first tick", driver.hint)
        return Judgement(Health.ALIVE, driver.summary, driver.hint)
    is_dead = cron_late.is_dead(*times, now, settings.late_s) and driver.liveness is Liveness.UNKNOWN
    health = Health.DEAD if is_dead else Health.LATE
    return Judgement(health, f"{last_tick}; {driver.summary}", driver.hint or _advice(installation, driver))


def _judge_ticks(heartbeat: Heartbeat | None, last_tick: str, now: float, settings: CronSettings) -> Judgement:
    """Return the health without an installation: the user may call `resil cron tick` or `run` directly."""
    if heartbeat is None:
        return Judgement(
            Health.ABSENT, "no scheduler is installed, and none has ever ticked", "start it: resil cron install"
        )
    if not cron_late.is_awaited(heartbeat.driver, is_installed=False, is_last=heartbeat.is_last):
        advice = "start it: resil cron install"
        if not heartbeat.is_last and not cron_late.is_late(heartbeat.time, heartbeat.expected, now, settings.late_s):
            advice += f"; if ticks continue, a crontab line is left over on {heartbeat.host}: resil cron uninstall"
        return Judgement(Health.ABSENT, f"nothing is installed; {last_tick}", advice)
    advice = f"on {heartbeat.host}: resil cron run; or install a scheduler: resil cron install"
    if cron_late.is_dead(heartbeat.time, heartbeat.expected, now, settings.late_s):
        return Judgement(Health.DEAD, f"nothing is installed; {last_tick}", advice)
    if cron_late.is_late(heartbeat.time, heartbeat.expected, now, settings.late_s):
        return Judgement(Health.LATE, f"nothing is installed; {last_tick}", advice)
    return Judgement(Health.ALIVE, f"ticking ({heartbeat.driver or 'unknown driver'}); nothing is installed")


def describe_stop(stopped: Mapping[str, Any], now: float) -> str:
    """Return who stopped it, when and why. Pure."""
    text = f"stopped by {stopped.get('by') or 'an unknown user'}"
    if isinstance(stopped.get("time"), int | float):
        text += f" {format_duration(max(0.0, now - stopped['time']))} ago"
    return f"{text}: {stopped['why']}" if stopped.get("why") else text


def _last_tick(heartbeat: Heartbeat | None, now: float) -> str:
    if heartbeat is None:
        return "it has never ticked"
    text = f"last tick {format_duration(max(0.0, now - heartbeat.time))} ago"
    overdue_s = cron_late.overdue_s(heartbeat.time, heartbeat.expected, now)
    return f"{text}, next tick overdue by {format_duration(overdue_s)}" if overdue_s >= 1 else text


def _advice(installation: Installation, driver: DriverState) -> str:
    if driver.liveness is Liveness.UNKNOWN:
        return "try again, or on the host itself: resil cron status"
    return {
        "foreground": f"start it again on {installation.host}: resil cron run",
        "slurm": "its job may be pending: resil cron doctor; to restart: resil cron uninstall, resil cron install",
    }.get(installation.driver, f"check {installation.driver} on {installation.host}: resil cron doctor")
