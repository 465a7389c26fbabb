"""What a watchdog of file systems was told to look at and to mind: the settings of `fs` or `inodes`, checked. Pure."""

from __future__ import annotations

from typing import NamedTuple

from resilience.errors import SettingsError
from resilience.quantities import format_bytes, format_duration
from resilience.watch.checks._filesystem.amount import BYTES
from resilience.watch.checks._filesystem.site import SiteCommand

WARN_PERCENT = 85.0
CRIT_PERCENT = 95.0
LEAST_BYTES = 2**16
"""A threshold or a size below it is one whose unit was forgotten: `100` for 100 GiB."""


LONGEST_S = 100 * 366 * 86400.0


class Thresholds(NamedTuple):
    """When it is too much. Any of them that is crossed counts; at a threshold exactly it is still well.

    Attributes:
        warn_percent: of what is usable; None: percents are not looked at.
        warn_free: bytes or inodes; None: not looked at.
        warn_runway_s: 0: not looked at.
        usable_percent: how much of each limit counts as the whole.
        large: a shared file system larger than this is judged by what is free.
        large_warn_free: what is asked of it when nothing else is set.
    """

    warn_percent: float | None = WARN_PERCENT
    crit_percent: float | None = CRIT_PERCENT
    warn_free: float | None = None
    crit_free: float | None = None
    warn_runway_s: float = 48 * 3600.0
    crit_runway_s: float = 12 * 3600.0
    usable_percent: float = 100.0
    large: float | None = None
    large_warn_free: float = 0.0
    large_crit_free: float = 0.0
    percent_was_set: bool = False


class Look(NamedTuple):
    """One watchdog's task.

    Attributes:
        kind: bytes or inodes.
        paths: what was named; empty: what is found.
        thresholds: when it is too much.
        site: the site's own command.
        asks_quota: whether the quota tools are asked.
        du_limit: what du's total is held against; None: du is not run.
        du_every_s: how old du's total may be.
        du_deadline_s: how long it may run.
        checkpoints: their folder, as it was written; empty: looked for.
        checkpoint: the size of one, in bytes or inodes; None: measured.
        checkpoint_every_s: how often one is written; None: from the run's journal.
        purge_s: files not used for so long are deleted by the site; 0: never.
        purge_warn_s: how long before that it is told.
        read_only_is_meant: whether being unable to write is as it should be.
    """

    kind: str
    paths: tuple[str, ...]
    thresholds: Thresholds
    site: SiteCommand
    asks_quota: bool = True
    du_limit: float | None = None
    du_every_s: float = 6 * 3600.0
    du_deadline_s: float = 600.0
    checkpoints: str = ""
    checkpoint: float | None = None
    checkpoint_every_s: float | None = None
    purge_s: float = 0.0
    purge_warn_s: float = 7 * 86400.0
    read_only_is_meant: bool = False


def thresholds_of(
    *,
    warn_percent: float | None,
    crit_percent: float | None,
    warn_free: float | None,
    crit_free: float | None,
    warn_runway_s: float,
    crit_runway_s: float,
    usable_percent: float,
    kind: str,
    large: float | None = None,
    large_free: tuple[float, float] = (0.0, 0.0),
) -> Thresholds:
    """Given the settings as they are, return the thresholds.

    Percents have a default where no free amount is asked for. Raise SettingsError, naming the key and what to write,
    if they cannot be meant: a fraction for a percentage, a warning beyond the alarm, a size without its unit.
    """
    suffix = "_bytes" if kind == BYTES else ""
    for key, percent in (
        ("warn_percent", warn_percent),
        ("crit_percent", crit_percent),
        ("usable_percent", usable_percent),
    ):
        _check_percent(key, percent)
    if usable_percent == 0:
        raise SettingsError("usable_percent = 0 leaves nothing to use", hint="write for instance 80%")
    for key, free in ((f"warn_free{suffix}", warn_free), (f"crit_free{suffix}", crit_free)):
        check_amount(key, free, kind)
    percent_was_set = warn_percent is not None or crit_percent is not None
    uses_percent = percent_was_set or (warn_free is None and crit_free is None)
    warn = warn_percent if warn_percent is not None else (WARN_PERCENT if uses_percent else None)
    crit = crit_percent if crit_percent is not None else (CRIT_PERCENT if uses_percent else None)
    if warn is not None and crit is not None and warn > crit:
        # One that was not set gives way: `--warn-percent 97` alone can be meant.
        if warn_percent is not None and crit_percent is not None:
            raise SettingsError(
                f"warn_percent = {warn:g} lies beyond crit_percent = {crit:g}: it would be critical before it warns",
                hint="warn at the lower percentage",
            )
        warn, crit = (warn, max(warn, 100.0)) if crit_percent is None else (crit, crit)
    if warn_free is not None and crit_free is not None and warn_free < crit_free:
        raise SettingsError(
            f"warn_free{suffix} = {_text(warn_free, kind)} is less than crit_free{suffix} = {_text(crit_free, kind)}: "
            "it would be critical before it warns",
            hint="warn while more is free",
        )
    if warn_runway_s and crit_runway_s and warn_runway_s < crit_runway_s:
        raise SettingsError(
            f"warn_runway_s = {format_duration(warn_runway_s)} is shorter than crit_runway_s = "
            f"{format_duration(crit_runway_s)}: it would be critical before it warns",
            hint='warn the longer time before: warn_runway_s = "48h", crit_runway_s = "12h"',
        )
    return Thresholds(
        warn_percent=warn, crit_percent=crit, warn_free=warn_free, crit_free=crit_free, warn_runway_s=warn_runway_s,
        crit_runway_s=crit_runway_s, usable_percent=usable_percent, large=large, large_warn_free=large_free[0],
        large_crit_free=large_free[1], percent_was_set=percent_was_set,
    )  # fmt: skip


def check_amount(key: str, value: float | None, kind: str) -> None:
    """Raise SettingsError if a number of bytes or inodes cannot be meant."""
    if value is None:
        return
    if not 0 <= value < 2**63:
        raise SettingsError(f"{key} = {value:g} is no amount", hint="write a number that is not negative")
    if kind == BYTES and 0 < value < LEAST_BYTES:
        raise SettingsError(
            f"{key} = {value:g} is {format_bytes(value)}: the unit is missing",
            hint=f'write for instance "{value:g}GiB"',
        )


def _check_percent(key: str, percent: float | None) -> None:
    if percent is None:
        return
    if not 0 <= percent <= 100:
        raise SettingsError(f"{key} = {percent:g} is not between 0% and 100%", hint="write for instance 85%")
    if 0 < percent < 1:
        raise SettingsError(f"{key} = {percent:g} is a fraction, not a percentage", hint=f"write {percent * 100:g}%")


def _text(value: float, kind: str) -> str:
    return format_bytes(value) if kind == BYTES else f"{value:,.0f}"


def check_du(look: Look, *, wanted: bool, limit: float | None, limit_key: str) -> None:
    """Raise SettingsError if du is wanted and cannot be meant, or its limit is set and it is not wanted."""
    if wanted and not limit:
        raise SettingsError("du = true counts what is used, and of how much is not said", hint=f"set {limit_key}")
    if limit is not None and not wanted:
        raise SettingsError(f"{limit_key} is set, and du is not asked for", hint="set du = true, or leave it out")
    if wanted and look.site.argv:
        raise SettingsError(
            "du and command are both set, and one source of the figures is enough", hint="leave one out"
        )
    if wanted and not look.paths:
        raise SettingsError("du = true, and paths names no folder to count", hint="name it: du walks every file below")
    for key, seconds in (("purge_days", look.purge_s), ("purge_warn_days", look.purge_warn_s)):
        if not 0 <= seconds < LONGEST_S:
            raise SettingsError(f"{key} = {seconds / 86400:g} is no number of days", hint="write for instance 30")
