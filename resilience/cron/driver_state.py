"""How the driver of cron is that was installed, asked with a deadline; else what it was when somebody last knew.

A controller that hangs costs each of its commands a minute, and a driver asks several: people who look at their
scheduler get an answer sooner, and the last one that was known.
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
"""How long a driver may take to say how it is."""

KEPT_S = 7 * 86400.0
"""An answer that is older says nothing about today."""


def driver_state(cron: CronProject, installation: Installation) -> DriverState:
    """How the driver is. Whatever goes wrong is UNKNOWN, with the reason and what was known last; never raises."""
    from resilience.system.child import run_apart

    now = cron.project.system.clock.now()
    ((_, answer),) = run_apart({0: (lambda: _look(cron, installation, now), DRIVER_S)})
    if answer.error is None:
        return _state(answer.value)
    why = f"{installation.driver} gave no answer in {DRIVER_S:g} s" if answer.is_overdue else answer.error.message
    return DriverState(Liveness.UNKNOWN, why + _remembered(cron, installation, now), hint=answer.error.hint)


def _look(cron: CronProject, installation: Installation, now: float) -> list[Any]:
    """In a child: ask the driver, and remember what it said."""
    from resilience.cron.driver_choice import drivers
    from resilience.watch.watchdogs import context_of

    try:
        driver = drivers().load(installation.driver)
        found = DriverState(*driver.state(installation, cron.settings, context_of(cron.project)))
    except ResilError as error:
        found = DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
    except Exception as error:  # an outsider's plugin may raise anything
        found = DriverState(Liveness.UNKNOWN, f"check failed: {type(error).__name__}: {error}")
    if found.liveness is Liveness.UNKNOWN:
        found = found._replace(summary=found.summary + _remembered(cron, installation, now))
    else:
        _remember(cron, installation, found, now)
    return [found.liveness.value, found.summary, found.next_tick, found.hint]


def _state(value: list[Any]) -> DriverState:
    liveness, summary, next_tick, hint = value
    return DriverState(Liveness(liveness), summary, next_tick, hint)


def _memory(cron: CronProject) -> Path:
    """In the person's cache: not everybody who may look may write in the state directory."""
    name = short_digest(str(cron.state.path).encode("utf-8", "surrogateescape"))
    return cron.project.system.cache_home / "resil" / "cron" / f"{name}.json"


def _remember(cron: CronProject, installation: Installation, found: DriverState, now: float) -> None:
    path = _memory(cron)
    record = {"token": installation.token, "time": now, "liveness": found.liveness.value, "summary": found.summary}
    with suppress(ResilError):
        make_directory(path.parent, mode=0o700)
        write_atomic(path, json.dumps(record) + "\n", durable=False)


def _remembered(cron: CronProject, installation: Installation, now: float) -> str:
    """`; 5 min ago it was ALIVE: job 88 runs`, or nothing."""
    try:
        found = read_regular(_memory(cron))
        record = json.loads(found[0]) if found is not None else {}
        age_s = now - float(record["time"])
        if record["token"] != installation.token or not 0 <= age_s <= KEPT_S:
            return ""
        return f"; {format_duration(age_s)} ago it was {Liveness(record['liveness'])}: {record['summary']}"
    except (ResilError, ValueError, KeyError, TypeError):
        return ""
