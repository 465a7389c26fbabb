"""`resil cron status`: scheduler health, delay, next runs and recent results.

A child with a deadline reads the disk, and the driver has deadlines of its own, so neither a hung file system nor a
dead controller blocks the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from resilience.cron.driver_state import driver_state
from resilience.cron.entries import EntryRow, lateness_s, list_entries
from resilience.cron.health import Health, Judgement, awake_since, judge_scheduler
from resilience.cron.records import Heartbeat, Installation, Outcome
from resilience.errors import ResilError

if TYPE_CHECKING:
    from resilience.cron.drivers import DriverState
    from resilience.cron.project import CronProject

READ_S = 10.0
"""Time limit for reading the state directory and the cron directory together."""

RECENT = 200
"""Number of recent runs whose delay is counted."""


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
    from resilience.watch.watchdogs import context_of

    now = cron.project.system.clock.now()
    seen, trouble = read_disk(cron)
    common: dict[str, Any] = {"now": now, "directory": str(cron.directory)}
    if seen is None:
        return CronStatus(judgement=Judgement(Health.UNKNOWN, trouble[0], _HINT_HUNG), trouble=trouble, **common)
    installation = Installation.from_json(seen["installation"]) if seen["installation"] else None
    heartbeat = Heartbeat.from_json(seen["heartbeat"]) if seen["heartbeat"] else None
    driver = None
    if installation is not None:
        driver = driver_state(installation, cron.settings, context_of(cron.project))
    troubles = (*seen["trouble"], *trouble)
    if seen["unread"]:
        judgement = Judgement(Health.UNKNOWN, seen["unread"], seen["unread_hint"] or _HINT_HUNG)
    else:
        judgement = judge_scheduler(
            installation, heartbeat, driver, seen["stopped"], now=now, settings=cron.settings,
            awake_since=awake_since(now),
        )  # fmt: skip
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
    from resilience.cron.drivers._slurm.keeper import chain_problem

    chain = chain_problem(cron.state.path, installation) if stopped is None else ""
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

    found["trouble"] = [*([chain] if chain else []), *found["trouble"], *send_failures(cron)]
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
