"""Reports the state of the installed driver, queried with a deadline, or the last known state.

Each command to a hung controller takes a minute, and a driver runs several: users get an answer sooner, together with
the last known state.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cron.drivers import DriverState
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.quantities import format_duration
from resilience.system.files import make_directory, read_regular, short_digest, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation

DRIVER_S = 15.0
"""Time limit for the driver's state."""

KEPT_S = 7 * 86400.0
"""Older answers are not shown."""


def driver_state(cron: CronProject, installation: Installation) -> DriverState:
    """Return the driver's state. Any failure is UNKNOWN, with the reason and the last known state; never raises."""
    from resilience.system.child import run_in_child

    now = cron.project.system.clock.now()
    ((_, answer),) = run_in_child({0: (lambda: _query(cron, installation, now), DRIVER_S)})
    if answer.error is None:
        return _state(answer.value)
    why = (
        f"backend {installation.driver} did not respond within {DRIVER_S:g} s"
        if answer.is_overdue
        else answer.error.message
    )
    return DriverState(Liveness.UNKNOWN, why + _last_known(cron, installation, now), hint=answer.error.hint)


def _query(cron: CronProject, installation: Installation, now: float) -> list[Any]:
    """In the child: query the driver, and cache its answer."""
    from resilience.cron.driver_choice import drivers
    from resilience.watch.watchdogs import context_of

    try:
        driver = drivers().load(installation.driver)
        found = DriverState(*driver.state(installation, cron.settings, context_of(cron.project)))
    except ResilError as error:
        found = DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
    except Exception as error:  # a third-party plugin may raise anything
        found = DriverState(Liveness.UNKNOWN, f"the query failed: {type(error).__name__}: {error}")
    if found.liveness is Liveness.UNKNOWN:
        found = found._replace(summary=found.summary + _last_known(cron, installation, now))
    else:
        _cache(cron, installation, found, now)
    return [found.liveness.value, found.summary, found.next_tick, found.hint]


def _state(value: list[Any]) -> DriverState:
    liveness, summary, next_tick, hint = value
    return DriverState(Liveness(liveness), summary, next_tick, hint)


def _cache_path(cron: CronProject) -> Path:
    """Return the path of the cached answer: in the user's cache, because readers may not write the state directory."""
    name = short_digest(str(cron.state.path).encode("utf-8", "surrogateescape"))
    return cron.project.system.cache_home / "resil" / "cron" / f"{name}.json"


def _cache(cron: CronProject, installation: Installation, found: DriverState, now: float) -> None:
    path = _cache_path(cron)
    record = {"token": installation.token, "time": now, "liveness": found.liveness.value, "summary": found.summary}
    with suppress(ResilError):
        make_directory(path.parent, mode=0o700)
        write_atomic(path, json.dumps(record) + "\n", durable=False)


def _last_known(cron: CronProject, installation: Installation, now: float) -> str:
    """Return the last known state (`; 5 min ago it was ALIVE: job 88 runs`), or an empty string."""
    try:
        found = read_regular(_cache_path(cron))
        record = json.loads(found[0]) if found is not None else {}
        age_s = now - float(record["time"])
        if record["token"] != installation.token or not 0 <= age_s <= KEPT_S:
            return ""
        return f"; {format_duration(age_s)} ago it was {Liveness(record['liveness'])}: {record['summary']}"
    except (ResilError, ValueError, KeyError, TypeError):
        return ""
