"""Reports the state of the installed driver, queried with a deadline, or the last known state.

Each command to a hung controller takes a minute, and a driver runs several: users get an answer sooner, together with
the last known state.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cron.drivers import DriverState, state_of
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.quantities import format_duration
from resilience.system.files import make_directory, read_regular, short_digest, write_atomic

if TYPE_CHECKING:
    from resilience.cron.records import Installation
    from resilience.runs.context import Context
    from resilience.settings.cron_settings import CronSettings

DRIVER_S = 15.0
"""Time limit for the driver's state."""

KEPT_S = 7 * 86400.0
"""Older answers are not shown."""


def driver_state(
    installation: Installation, settings: CronSettings, context: Context, limit_s: float = 0.0
) -> DriverState:
    """Return the driver's state. Any failure is UNKNOWN, with the reason and the last known state; never raises.

    `limit_s`: time limit; 0: DRIVER_S.
    """
    from resilience.system.child import run_in_child

    limit_s = limit_s or DRIVER_S
    ((_, answer),) = run_in_child({0: (lambda: _query(installation, settings, context), limit_s)})
    if answer.error is None:
        found = DriverState(Liveness(answer.value[0]), *answer.value[1:])
    else:
        slow = f"backend {installation.driver} did not respond within {limit_s:g} s"
        why = slow if answer.is_overdue else answer.error.message
        found = DriverState(Liveness.UNKNOWN, why, hint=answer.error.hint)
    known = _last_known(installation, context) if found.liveness is Liveness.UNKNOWN else ""
    return found._replace(summary=found.summary + known)


def _query(installation: Installation, settings: CronSettings, context: Context) -> tuple[Any, ...]:
    """In the child: query the driver, and cache its answer."""
    from resilience.cron.driver_choice import drivers

    found = state_of(drivers().load(installation.driver), installation, settings, context)
    if found.liveness is not Liveness.UNKNOWN:
        _cache(installation, context, found)
    return found.liveness.value, *found[1:]


def _cache_path(context: Context) -> Path:
    """Return the path of the cached answer: in the user's cache, because readers may not write the state directory."""
    name = short_digest(str(context.state_dir / ".cron").encode("utf-8", "surrogateescape"))
    return context.system.cache_home / "resil" / "cron" / f"{name}.json"


def _cache(installation: Installation, context: Context, found: DriverState) -> None:
    path, now = _cache_path(context), context.system.clock.now()
    record = {"token": installation.token, "time": now, "liveness": found.liveness.value, "summary": found.summary}
    with suppress(ResilError):
        make_directory(path.parent, mode=0o700)
        write_atomic(path, json.dumps(record) + "\n", durable=False)


def _last_known(installation: Installation, context: Context) -> str:
    """Return the last known state (`; 5 min ago it was ALIVE: job 88 runs`), or an empty string."""
    try:
        found = read_regular(_cache_path(context))
        record = json.loads(found[0]) if found is not None else {}
        age_s = context.system.clock.now() - float(record["time"])
        if record["token"] != installation.token or not 0 <= age_s <= KEPT_S:
            return ""
        return f"; {format_duration(age_s)} ago it was {Liveness(record['liveness'])}: {record['summary']}"
    except (ResilError, ValueError, KeyError, TypeError):
        return ""
