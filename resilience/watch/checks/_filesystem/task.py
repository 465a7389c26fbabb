"""The settings that `fs` and `inodes` share, their validation, and the task that they become. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilience.errors import QuantityError, SettingsError
from resilience.quantities import format_bytes, format_duration, parse_bytes
from resilience.watch.checks._filesystem.reading import BYTES, amount_text

WARN_PERCENT = 85.0
CRIT_PERCENT = 95.0
LEAST_BYTES = 2**16
"""A smaller threshold or size probably lacks its unit: `100` for 100 GiB."""
LONGEST_S = 100 * 366 * 86400.0
_PLACEHOLDER = r"\{(\w*)\}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemSettings:
    """The settings of both amounts.

    Attributes:
        paths: the paths to watch; `~` and `$SCRATCH` are expanded. Relative paths are relative to the project in a
            settings file, and to the current directory on the command line. Default: the file systems of the project,
            the state directory, home, $SCRATCH, $WORK and the like, /dev/shm and /tmp, and of the command, the data
            and the environment that the run's batch script and journal name.
        warn_percent: warn if more than this is used. Default: 85%, unless a free amount is set. Percentages and free
            amounts may both be set; crossing either counts.
        crit_percent: critical if more than this is used. Default: 95%, unless a free amount is set.
        warn_runway_s: warn if the file system will be full sooner than this at its measured growth; 0: never.
        crit_runway_s: critical if the file system will be full sooner than this at its measured growth; 0: never.
        usable_percent: the usable part of each limit: 80% for file systems that fail before they are full.
        command: a command of your site that prints quotas, as a list: ["idrquota", "-w"]. {path} and {user} are filled
            in.
        used_regex: regular expression for the usage in the command's output: the figure in the first group, the unit
            of a size in the same or a second group.
        limit_regex: regular expression for the limit, as `used_regex`.
        percent_regex: regular expression for the percentage, if the command prints no amounts.
        command_max_age_s: the maximum age of the command's figures.
        quota: query lfs quota, mmlsquota, beegfs, quota and xfs_quota, depending on the file system.
        du: measure the directory with du, which is slow and loads a parallel file system.
        du_every_s: how often to run du.
        du_deadline_s: the time limit of du.
        checkpoints: directory of the checkpoints. Default: [checkpoints] path, else checkpoints, checkpoint, ckpts or
            ckpt in the project.
        checkpoint_every_s: the interval between checkpoints. Default: from the run's journal, else from the manifests
            or the file times of the checkpoints.
    """

    paths: tuple[str, ...] = ()
    warn_percent: float | None = None
    crit_percent: float | None = None
    warn_runway_s: float = 48 * 3600.0
    crit_runway_s: float = 12 * 3600.0
    usable_percent: float = 100.0
    command: tuple[str, ...] = ()
    used_regex: str = ""
    limit_regex: str = ""
    percent_regex: str = ""
    command_max_age_s: float = 0.0
    quota: bool = True
    du: bool = False
    du_every_s: float = 6 * 3600.0
    du_deadline_s: float = 600.0
    checkpoints: str = ""
    checkpoint_every_s: float | None = None


class Thresholds(NamedTuple):
    """The thresholds. Crossing any of them counts; a figure exactly at a threshold is OK.

    Attributes:
        warn_percent: percent of the usable part; None: not checked.
        warn_free: bytes or inodes; None: not checked.
        warn_runway_s: 0: not checked.
        usable_percent: the usable part of each limit.
        large: a shared file system larger than this is judged by its free amount instead of percent.
        large_warn_free: the threshold for such a file system if no other is set.
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


class Task(NamedTuple):
    """The task of one watchdog of file systems: its validated settings, and those that bytes and inodes name
    differently.

    Attributes:
        kind: bytes or inodes.
        settings: the settings; without paths, the file systems that a training needs are probed.
        thresholds: the thresholds.
        du_limit: the limit for du's total; None: du is not run.
        checkpoint: the size of one checkpoint, in bytes or inodes; None: measured.
        purge_s: the site deletes files not used for this long; 0: never.
        purge_warn_s: how long before that to warn.
        accepts_read_only: whether a read-only mount is intended.
    """

    kind: str
    settings: FileSystemSettings
    thresholds: Thresholds = Thresholds()
    du_limit: float | None = None
    checkpoint: float | None = None
    purge_s: float = 0.0
    purge_warn_s: float = 7 * 86400.0
    accepts_read_only: bool = False


def task_of(settings: Any, kind: str) -> Task:
    """Return the task for the settings of `fs` or `inodes`. Raise SettingsError if they are invalid. Pure."""
    suffix = "_bytes" if kind == BYTES else ""
    check_site(settings)
    thresholds = _thresholds(settings, kind, suffix)
    size_key, limit_key = ("checkpoint_bytes" if kind == BYTES else "checkpoint_files"), f"du_limit{suffix}"
    size, du_limit = getattr(settings, size_key), getattr(settings, limit_key)
    for key, value in ((limit_key, du_limit), (size_key, size)):
        _check_amount(key, value, kind)
    task = Task(
        kind, settings, thresholds, du_limit=du_limit if settings.du else None, checkpoint=size,
        purge_s=getattr(settings, "purge_days", 0.0) * 86400,
        purge_warn_s=getattr(settings, "purge_warn_days", 7.0) * 86400,
        accepts_read_only=getattr(settings, "read_only", False),
    )  # fmt: skip
    _check_du(settings, du_limit, limit_key)
    for key, seconds in (("purge_days", task.purge_s), ("purge_warn_days", task.purge_warn_s)):
        if not 0 <= seconds < LONGEST_S:
            raise SettingsError(f"{key} = {seconds / 86400:g} is not a number of days", hint="for example 30")
    return task


def _thresholds(settings: Any, kind: str, suffix: str) -> Thresholds:
    """Return the thresholds in the settings. Percentages have a default unless a free amount is set.

    Raise SettingsError, with the key and a correct value, for a fraction instead of a percentage, a warning threshold
    beyond the critical one, or a size without unit.
    """
    for key in ("warn_percent", "crit_percent", "usable_percent"):
        _check_percent(key, getattr(settings, key))
    if settings.usable_percent == 0:
        raise SettingsError("usable_percent = 0 leaves no usable space", hint="for example 80%")
    warn_key, crit_key = f"warn_free{suffix}", f"crit_free{suffix}"
    warn_free, crit_free = getattr(settings, warn_key), getattr(settings, crit_key)
    large = {key: getattr(settings, f"{key}_bytes", None) for key in ("large", "large_warn_free", "large_crit_free")}
    free_amounts = {warn_key: warn_free, crit_key: crit_free}
    for key, free in (free_amounts | {f"{key}_bytes": value for key, value in large.items()}).items():
        _check_amount(key, free, kind)
    warn, crit = settings.warn_percent, settings.crit_percent
    percent_was_set = warn is not None or crit is not None
    if warn is not None and crit is not None and warn > crit:
        raise SettingsError(
            f"warn_percent = {warn:g} is above crit_percent = {crit:g}: critical would come before warning",
            hint="warn at the lower percentage",
        )
    if percent_was_set or (warn_free is None and crit_free is None):
        # The default of the other one adapts, so that `--warn-percent 97` alone is valid.
        warn, crit = (
            warn if warn is not None else min(WARN_PERCENT, crit if crit is not None else WARN_PERCENT),
            crit if crit is not None else CRIT_PERCENT if warn is None or warn <= CRIT_PERCENT else 100.0,
        )
    if warn_free is not None and crit_free is not None and warn_free < crit_free:
        raise SettingsError(
            f"{warn_key} = {amount_text(warn_free, kind)} is less than {crit_key} = {amount_text(crit_free, kind)}: "
            "critical would come before warning",
            hint="warn at the larger free amount",
        )
    warn_s, crit_s = settings.warn_runway_s, settings.crit_runway_s
    if warn_s and crit_s and warn_s < crit_s:
        raise SettingsError(
            f"warn_runway_s = {format_duration(warn_s)} is shorter than crit_runway_s = {format_duration(crit_s)}: "
            "critical would come before warning",
            hint='warn earlier: warn_runway_s = "48h", crit_runway_s = "12h"',
        )
    return Thresholds(
        warn_percent=warn, crit_percent=crit, warn_free=warn_free, crit_free=crit_free, warn_runway_s=warn_s,
        crit_runway_s=crit_s, usable_percent=settings.usable_percent, percent_was_set=percent_was_set,
        **{key: value for key, value in large.items() if value is not None},
    )  # fmt: skip


def _check_amount(key: str, value: float | None, kind: str) -> None:
    """Raise SettingsError for an invalid number of bytes or inodes."""
    if value is None:
        return
    if not 0 <= value < 2**63:
        raise SettingsError(f"{key} = {value:g} is not an amount", hint="must be 0 or more")
    if kind == BYTES and 0 < value < LEAST_BYTES:
        raise SettingsError(
            f"{key} = {value:g} means {format_bytes(value)}: is the unit missing?",
            hint=f'for example "{value:g}GiB"',
        )


def _check_percent(key: str, percent: float | None) -> None:
    if percent is None:
        return
    if not 0 <= percent <= 100:
        raise SettingsError(f"{key} = {percent:g} is not between 0% and 100%", hint="for example 85%")
    if 0 < percent < 1:
        raise SettingsError(f"{key} = {percent:g} is a fraction, not a percentage", hint=f"write {percent * 100:g}%")


def _check_du(settings: FileSystemSettings, limit: float | None, limit_key: str) -> None:
    """Raise SettingsError if du is requested without what it needs, or its limit is set without du."""
    if settings.du and not limit:
        raise SettingsError("du = true needs a limit to compare its total with", hint=f"set {limit_key}")
    if limit is not None and not settings.du:
        raise SettingsError(f"{limit_key} is set without du = true", hint=f"set du = true, or remove {limit_key}")
    if settings.du and settings.command:
        raise SettingsError(
            "du and command are both set, but only one source of the figures is allowed", hint="remove one"
        )
    if settings.du and not settings.paths:
        raise SettingsError(
            "du = true needs a directory in paths", hint="name the directory; du walks the whole tree below"
        )


def check_site(settings: FileSystemSettings) -> None:
    """Raise SettingsError if the site's command or its regular expressions are invalid."""
    used, limit, percent = settings.used_regex, settings.limit_regex, settings.percent_regex
    expressions = {"used_regex": used, "limit_regex": limit, "percent_regex": percent}
    given = [key for key, text in expressions.items() if text]
    argv, unit = settings.command, command_unit(settings)
    if not argv:
        if given:
            raise SettingsError(
                f"{given[0]} is set without command",
                hint='set command = ["idrquota", "-w"]',
            )
        return
    if not argv[0].strip():
        raise SettingsError("command starts with an empty text", hint="the first item is the program")
    if len(argv) == 1 and " " in argv[0].strip() and "/" not in argv[0]:
        words = ", ".join(f'"{word}"' for word in argv[0].split())
        raise SettingsError(
            "command is one text with blanks, but is run without a shell", hint=f"use a list: [{words}]"
        )
    for match in re.finditer(_PLACEHOLDER, "\n".join(argv)):
        if match[1] not in ("path", "user"):
            raise SettingsError(
                f"command contains the unknown placeholder {match[0]}", hint="{path} and {user} are filled in"
            )
    if not given:
        raise SettingsError(
            "command is set without a regular expression for its output",
            hint="set used_regex and limit_regex, or percent_regex",
        )
    for key, text in expressions.items():
        _check_expression(key, text)
    if percent and (used or limit):
        raise SettingsError(
            "percent_regex is set together with used_regex or limit_regex",
            hint="set percent_regex, or used_regex and limit_regex",
        )
    if bool(used) != bool(limit):
        missing = "limit_regex" if used else "used_regex"
        raise SettingsError(f"{missing} is missing: used_regex and limit_regex must be set together")
    try:
        parse_bytes(f"1{unit}")
    except QuantityError:
        raise SettingsError(f"command_unit = {unit!r} is not a unit", hint="KiB, GB, T ...") from None


def command_unit(settings: FileSystemSettings) -> str:
    """Return the unit of sizes that the site's command prints without one."""
    return getattr(settings, "command_unit", "B")


def _check_expression(key: str, text: str) -> None:
    """Raise SettingsError, with the key and the position, if an expression does not compile or has no group."""
    try:
        pattern = re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(
            f"{key} = {text!r} is not a regular expression: {error}",
            hint="escape literal ( . [ with a \\",
        ) from None
    if text and pattern.groups == 0:
        raise SettingsError(f"{key} = {text!r} has no group", hint=r"capture the figure: ([0-9.]+)")
