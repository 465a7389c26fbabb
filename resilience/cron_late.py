"""Decides when the cron scheduler is late or dead: one rule for the watchdog, `resil status`, the guard and batch
shells.

Pure and cheap to import, because the guard imports this module during a training. slurm_templates/_attempt.bash
implements the same rule in bash.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MIN_PATIENCE_S = 180.0
"""Minimum patience: busy or suspended nodes miss two minutes without a fault."""

PERIODS = 2.0
"""Number of expected pauses by which a tick may be overdue before the scheduler is late."""

DEAD = 2.5
"""Multiple of the patience after which the scheduler is dead: about five pauses."""

FUTURE_S = 120.0
"""Maximum clock skew in a cluster: a heartbeat further in the future indicates a wrong clock."""

LONGEST_PAUSE_S = 86400.0
"""Upper limit of the expected pause: a damaged heartbeat must not suppress alerts for longer."""

INSTALLED = frozenset({"scrontab", "crontab", "systemd", "slurm"})
"""Drivers with an installation record: without the record they were uninstalled, and no ticks are expected."""


def patience_s(pause_s: float, late_s: float = 0.0) -> float:
    """Return how long a tick may be overdue before the scheduler is late, in seconds.

    `pause_s`: the expected pause between two ticks. `late_s`: [cron] late_s, 0 where unset. For instance, a pause of
    60 s gives 180 s, a pause of 15 minutes gives half an hour.
    """
    return late_s if late_s > 0 else max(PERIODS * pause_s, MIN_PATIENCE_S)


def pause_s(time: float, expected: float) -> float:
    """Return the expected pause from the tick of a heartbeat to the next, at most a day."""
    return min(max(0.0, expected - time), LONGEST_PAUSE_S)


def overdue_s(time: float, expected: float, now: float) -> float:
    """Return by how many seconds the next tick is overdue; 0 or less if the tick is not overdue."""
    return now - (time + pause_s(time, expected))


def is_late(time: float, expected: float, now: float, late_s: float = 0.0) -> bool:
    """Return whether the scheduler that wrote this heartbeat is late."""
    return overdue_s(time, expected, now) > patience_s(pause_s(time, expected), late_s)


def times_of(record: Mapping[str, Any]) -> tuple[float, float]:
    """Return (time, expected) of a heartbeat's JSON. Raise KeyError, TypeError or ValueError if invalid."""
    time, expected = record["time"], record["expected"]
    for value in (time, expected):
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
            raise ValueError("a heartbeat without a time")
    return float(time), float(expected)


def first_times(installation: Mapping[str, Any], tick_s: float, pulse_s: float) -> tuple[float, float]:
    """Return (time, expected) of a scheduler that was installed and has not ticked yet; the installation counts as
    tick.

    Raise KeyError, TypeError or ValueError if the installation is invalid.
    """
    time = installation["time"]
    pause = pulse_s if installation.get("mode") == "pulse" else tick_s
    return times_of({"time": time, "expected": time + max(pause, tick_s)})


def is_awaited(driver: str, *, is_installed: bool, is_last: bool = False) -> bool:
    """Return whether ticks are expected of the driver of the last heartbeat.

    A missing installation was removed on purpose. Ticks without an installation (`resil cron run` in tmux, `resil cron
    tick` from elsewhere) are expected to continue, unless the heartbeat is marked `is_last` (Ctrl-C).
    """
    return is_installed or not (is_last or driver in INSTALLED)
