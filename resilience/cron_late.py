"""When a scheduler is late, and when it is dead: one rule for the watchdog, `resil status`, the guard and batch shells.

Pure, and light: the guard imports it in the middle of a training. slurm_templates/_attempt.bash has the same rule in
bash.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LEAST_PATIENCE_S = 180.0
"""Nobody is told of a scheduler that missed two minutes: a node that is busy or was suspended has those."""

PERIODS = 2.0
"""So many of the expected pauses may pass beyond the moment at which the next tick was expected."""

DEAD = 2.5
"""So many times its patience, and it is dead: about five pauses."""

FUTURE_S = 120.0
"""Clocks of a cluster differ by less: a sign of life from further ahead shows a clock that is wrong."""

LONGEST_PAUSE_S = 86400.0
"""A sign of life that claims the next tick for later than in a day is not believed: a damaged file must not silence."""

INSTALLED = frozenset({"scrontab", "crontab", "systemd", "slurm"})
"""Drivers that leave an installation: without one they were uninstalled, and nobody expects their ticks."""


def patience_s(pause_s: float, late_s: float = 0.0) -> float:
    """How long a tick may be overdue before the scheduler is late, in seconds.

    `pause_s`: the expected pause between two ticks. `late_s`: [cron] late_s, 0 where nothing was set. For instance, a
    pause of 60 s gives 180 s, one of 15 minutes half an hour.
    """
    return late_s if late_s > 0 else max(PERIODS * pause_s, LEAST_PATIENCE_S)


def pause_s(time: float, expected: float) -> float:
    """The expected pause of a sign of life: from its tick to the next, at most a day."""
    return min(max(0.0, expected - time), LONGEST_PAUSE_S)


def overdue_s(time: float, expected: float, now: float) -> float:
    """By how many seconds the next tick is overdue; 0 or less: it is not."""
    return now - (time + pause_s(time, expected))


def is_late(time: float, expected: float, now: float, late_s: float = 0.0) -> bool:
    """Return whether the scheduler that left this sign of life is late."""
    return overdue_s(time, expected, now) > patience_s(pause_s(time, expected), late_s)


def is_dead(time: float, expected: float, now: float, late_s: float = 0.0) -> bool:
    """Return whether it is late beyond hope."""
    return overdue_s(time, expected, now) > DEAD * patience_s(pause_s(time, expected), late_s)


def times_of(record: Mapping[str, Any]) -> tuple[float, float]:
    """(time, expected) of a heartbeat's JSON. Raise KeyError, TypeError or ValueError if it is none."""
    time, expected = record["time"], record["expected"]
    for value in (time, expected):
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
            raise ValueError("a heartbeat without a time")
    return float(time), float(expected)


def first_times(installation: Mapping[str, Any], tick_s: float, pulse_s: float) -> tuple[float, float]:
    """(time, expected) where a scheduler was installed and has not ticked yet: as if it had ticked then.

    Raise KeyError, TypeError or ValueError if that is no installation.
    """
    time = installation["time"]
    pause = pulse_s if installation.get("mode") == "pulse" else tick_s
    return times_of({"time": time, "expected": time + max(pause, tick_s)})


def is_awaited(driver: str, *, is_installed: bool, is_last: bool = False) -> bool:
    """Return whether ticks are expected of the driver of the last sign of life.

    An installation that is gone was removed on purpose. Ticks that never had an installation (`resil cron
    run` in tmux, `resil cron tick` from elsewhere) are expected to go on, unless the sign of life says that it
    `is_last`: somebody pressed Ctrl-C.
    """
    return is_installed or not (is_last or driver in INSTALLED)


def way_back(driver: str) -> str:
    """The command that brings a late scheduler back, for people."""
    if driver == "foreground":
        return "resil cron run"
    return "resil cron install" if driver in INSTALLED else "resil cron status"
