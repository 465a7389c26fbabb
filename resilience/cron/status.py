"""`resil cron status`: whether the scheduler lives, how late it is, what runs next and what became of what ran last.

What lies on the disk is read by a child with a deadline, and the driver looks with deadlines of its own: neither a hung
file system nor a dead controller keeps people from an answer.
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

LOOK_S = 10.0
"""How long the state directory and the cron directory may take together."""

RECENT = 200
"""The lateness of so many runs is counted, newest first."""


class Health(StrEnum):
    """How the scheduler is."""

    ALIVE = "alive"
    """Ticks come as they should."""
    WAITING = "waiting"
    """It was installed a moment ago and has not ticked yet."""
    LATE = "late"
    """What makes the ticks is there, or may be, and none has come for too long."""
    DEAD = "dead"
    """What makes the ticks is gone."""
    STOPPED = "stopped"
    """Somebody stopped it."""
    ABSENT = "not installed"
    """Nothing makes ticks."""
    UNKNOWN = "unknown"
    """It could not be looked at."""


_EXIT_CODES = {Health.ALIVE: 0, Health.WAITING: 0, Health.UNKNOWN: EX_TEMPFAIL}


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the scheduler is, why we think so, and what to do."""

    health: Health
    reason: str
    advice: str = ""

    @property
    def exit_code(self) -> int:
        """What `resil cron status` exits with."""
        return _EXIT_CODES.get(self.health, 1)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their slots the last runs began, in seconds: of `count` of them."""

    median_s: float
    p95_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStatus:
    """All of it.

    Attributes:
        now: when it was looked at.
        judgement: how the scheduler is.
        installation: what `resil cron install` made; None: nothing.
        driver: what became of that; None: nothing was installed.
        heartbeat: the last sign of life; None: there never was one.
        stopped: who stopped it, why and when; None: nobody did.
        lateness: of the last runs; None: nothing ran yet.
        next: the next runs: (slot, name).
        rows: the entries.
        ignored, faults: how much of the cron directory does not run; how much of that somebody means to run.
        trouble: what could not be read.
        directory, project: paths, for people.
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
        """0: fine; 1: not; 75: nobody could look."""
        return self.judgement.exit_code


def cron_status(cron: CronProject) -> CronStatus:
    """Look, with deadlines; never raises ResilError for what cannot be looked at."""
    now = cron.project.system.clock.now()
    seen, trouble = look_at_disk(cron)
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


_HINT_HUNG = "retry, or check from another node; the file system of the state directory may hang"


def look_at_disk(cron: CronProject) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """What lies in the state directory and the cron directory, as plain data, and what kept us from reading it.

    In a child: either may lie on a file system that hangs.
    """
    from resilience.system.stuck import Look, StuckMemory, look_apart

    system = cron.project.system
    look = Look(f"cron of {cron.project.loaded.project}", lambda: _read(cron), LOOK_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None:
        return None, (f"the state directory {cron.state.path.parent}: {answer.error.message}",)
    return answer.value, ()


def _read(cron: CronProject) -> dict[str, Any]:
    """What is on the disk, as plain data. What cannot be read is said."""
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
    from resilience.cron.tell import unreached

    found["trouble"] = [*found["trouble"], *unreached(cron)]
    return found


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """As `marshal` takes it: an enumeration's member is no text to it."""
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
    """Given how late each run began, return the median and the 95th percentile (nearest rank). Pure."""
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
    """Say how the scheduler is, why, and what to do. Pure.

    What is late is what cron_late.py calls so: the watchdog `cron`, `resil status` and the guard say the same.
    """
    if stopped is not None:
        reason = stopped_sentence(stopped, now).removeprefix("stopped ")
        return Judgement(Health.STOPPED, reason, "go on: resil cron install")
    told = _told(heartbeat, now)
    if installation is None:
        return _judge_ticks(heartbeat, told, now, settings)
    assert driver is not None, "what was installed was looked at"
    beat = heartbeat if heartbeat is not None and heartbeat.time >= installation.time else None
    if beat is not None:
        times = beat.time, beat.expected
    else:
        times = cron_late.first_times(installation.to_json(), settings.tick_s, settings.pulse_s)
    is_late = cron_late.is_late(*times, now, settings.late_s)
    if driver.liveness is Liveness.GONE:
        advice = driver.hint or "start it again: resil cron install"
        if beat is not None and not is_late and beat.driver != installation.driver:
            return Judgement(Health.ALIVE, f"ticks come ({beat.driver}), though {driver.summary}", advice)
        return Judgement(Health.DEAD, f"{driver.summary}; {told}", advice)
    if not is_late:
        if beat is None:
            return Judgement(Health.WAITING, f"{driver.summary}; its first tick is still to come", driver.hint)
        return Judgement(Health.ALIVE, driver.summary, driver.hint)
    is_dead = cron_late.is_dead(*times, now, settings.late_s) and driver.liveness is Liveness.UNKNOWN
    health = Health.DEAD if is_dead else Health.LATE
    return Judgement(health, f"{told}; {driver.summary}", driver.hint or _advice(installation, driver))


def _judge_ticks(heartbeat: Heartbeat | None, told: str, now: float, settings: CronSettings) -> Judgement:
    """How it is where nothing was installed: somebody may call `resil cron tick`, or `run`, nevertheless."""
    if heartbeat is None:
        return Judgement(
            Health.ABSENT, "no scheduler is installed, and no tick was ever made", "start it: resil cron install"
        )
    if not cron_late.is_awaited(heartbeat.driver, is_installed=False, is_last=heartbeat.is_last):
        advice = "start it: resil cron install"
        if not heartbeat.is_last and not cron_late.is_late(heartbeat.time, heartbeat.expected, now, settings.late_s):
            advice += f"; if ticks still come, a line is left: resil cron uninstall on {heartbeat.host}"
        return Judgement(Health.ABSENT, f"nothing is installed; {told}", advice)
    advice = f"on {heartbeat.host}: resil cron run; or have something do it: resil cron install"
    if cron_late.is_dead(heartbeat.time, heartbeat.expected, now, settings.late_s):
        return Judgement(Health.DEAD, f"nothing is installed; {told}", advice)
    if cron_late.is_late(heartbeat.time, heartbeat.expected, now, settings.late_s):
        return Judgement(Health.LATE, f"nothing is installed; {told}", advice)
    return Judgement(Health.ALIVE, f"ticks come ({heartbeat.driver or 'from somewhere'}); nothing is installed")


def stopped_sentence(stopped: Mapping[str, Any], now: float) -> str:
    """Who stopped it, when and why. Pure."""
    text = f"stopped by {stopped.get('by') or 'somebody'}"
    if isinstance(stopped.get("time"), int | float):
        text += f" {format_duration(max(0.0, now - stopped['time']))} ago"
    return f"{text}: {stopped['why']}" if stopped.get("why") else text


def _told(heartbeat: Heartbeat | None, now: float) -> str:
    if heartbeat is None:
        return "no tick ever came"
    text = f"the last tick was {format_duration(max(0.0, now - heartbeat.time))} ago"
    overdue_s = cron_late.overdue_s(heartbeat.time, heartbeat.expected, now)
    return f"{text}, the next one is overdue by {format_duration(overdue_s)}" if overdue_s >= 1 else text


def _advice(installation: Installation, driver: DriverState) -> str:
    if driver.liveness is Liveness.UNKNOWN:
        return "nobody could look: try again; on the host itself: resil cron status"
    return {
        "foreground": f"start it again on {installation.host}: resil cron run",
        "slurm": "it may wait for a free node: resil cron doctor; begin anew: resil cron uninstall, resil cron install",
    }.get(installation.driver, f"see whether {installation.driver} runs on {installation.host}: resil cron doctor")
