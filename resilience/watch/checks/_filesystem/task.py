"""The settings of `fs` and `inodes`, checked and turned into a task. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from resilience.errors import QuantityError, SettingsError
from resilience.quantities import format_bytes, format_duration, parse_bytes
from resilience.watch.checks._filesystem.reading import BYTES, amount_text

WARN_PERCENT = 85.0
CRIT_PERCENT = 95.0
LEAST_BYTES = 2**16
"""A threshold or a size below it is one whose unit was forgotten: `100` for 100 GiB."""
LONGEST_S = 100 * 366 * 86400.0
_PLACEHOLDER = r"\{(\w*)\}"


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


class SiteCommand(NamedTuple):
    """A site's own quota command, and how to read its output.

    Attributes:
        argv: the program and its arguments; `{path}` and `{user}` are filled in.
        used: regular expression for what is used, of bytes or of inodes as the watchdog counts.
        limit: the same for the limit.
        percent: the same for the percentage, where nothing else is printed.
        unit: the unit of a size without one.
        max_age_s: how old the command's figures may be, as the site says: shown with each figure.
    """

    argv: tuple[str, ...]
    used: str
    limit: str
    percent: str
    unit: str = "B"
    max_age_s: float = 0.0


class Task(NamedTuple):
    """The task of one watchdog of file systems.

    Attributes:
        kind: bytes or inodes.
        paths: what was named; empty: what is found.
        thresholds: when it is too much.
        site: the site's own command.
        asks_quota: whether the quota tools are asked.
        du_limit: the limit that du's total is compared with; None: du is not run.
        du_every_s: how old du's total may be.
        du_deadline_s: how long it may run.
        checkpoints: their directory, as it was written; empty: looked for.
        checkpoint: the size of one, in bytes or inodes; None: measured.
        checkpoint_every_s: how often one is written; None: from the run's journal.
        purge_s: files not used for so long are deleted by the site; 0: never.
        purge_warn_s: how long before that the watchdog warns.
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


def task_of(settings: Any, kind: str) -> Task:
    """Given the settings of `fs` or `inodes`, return the task. Raise SettingsError if they cannot be meant. Pure."""
    suffix = "_bytes" if kind == BYTES else ""
    site = SiteCommand(
        argv=settings.command, used=settings.used_regex, limit=settings.limit_regex, percent=settings.percent_regex,
        unit=getattr(settings, "command_unit", "B"), max_age_s=settings.command_max_age_s,
    )  # fmt: skip
    check_site(site)
    thresholds = _thresholds(settings, kind, suffix)
    size_key, limit_key = ("checkpoint_bytes" if kind == BYTES else "checkpoint_files"), f"du_limit{suffix}"
    size, du_limit = getattr(settings, size_key), getattr(settings, limit_key)
    for key, value in ((limit_key, du_limit), (size_key, size)):
        _check_amount(key, value, kind)
    task = Task(
        kind=kind, paths=settings.paths, thresholds=thresholds, site=site, asks_quota=settings.quota,
        du_limit=du_limit if settings.du else None, du_every_s=settings.du_every_s,
        du_deadline_s=settings.du_deadline_s, checkpoints=settings.checkpoints, checkpoint=size,
        checkpoint_every_s=settings.checkpoint_every_s, purge_s=getattr(settings, "purge_days", 0.0) * 86400,
        purge_warn_s=getattr(settings, "purge_warn_days", 7.0) * 86400,
        read_only_is_meant=getattr(settings, "read_only", False),
    )  # fmt: skip
    _check_du(task, settings.du, du_limit, limit_key)
    for key, seconds in (("purge_days", task.purge_s), ("purge_warn_days", task.purge_warn_s)):
        if not 0 <= seconds < LONGEST_S:
            raise SettingsError(f"{key} = {seconds / 86400:g} is no number of days", hint="write for instance 30")
    return task


def _thresholds(settings: Any, kind: str, suffix: str) -> Thresholds:
    """The thresholds of some settings. Percents have a default where no free amount is asked for.

    Raise SettingsError, naming the key and what to write, if they cannot be meant: a fraction for a percentage, a
    warning beyond the alarm, a size without its unit.
    """
    for key in ("warn_percent", "crit_percent", "usable_percent"):
        _check_percent(key, getattr(settings, key))
    if settings.usable_percent == 0:
        raise SettingsError("usable_percent = 0 leaves nothing to use", hint="write for instance 80%")
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
            f"warn_percent = {warn:g} lies beyond crit_percent = {crit:g}: it would be critical before it warns",
            hint="warn at the lower percentage",
        )
    if percent_was_set or (warn_free is None and crit_free is None):
        # One that was not set gives way: `--warn-percent 97` alone can be meant.
        warn, crit = (
            warn if warn is not None else min(WARN_PERCENT, crit if crit is not None else WARN_PERCENT),
            crit if crit is not None else CRIT_PERCENT if warn is None or warn <= CRIT_PERCENT else 100.0,
        )
    if warn_free is not None and crit_free is not None and warn_free < crit_free:
        raise SettingsError(
            f"{warn_key} = {amount_text(warn_free, kind)} is less than {crit_key} = {amount_text(crit_free, kind)}: "
            "it would be critical before it warns",
            hint="warn while more is free",
        )
    warn_s, crit_s = settings.warn_runway_s, settings.crit_runway_s
    if warn_s and crit_s and warn_s < crit_s:
        raise SettingsError(
            f"warn_runway_s = {format_duration(warn_s)} is shorter than crit_runway_s = {format_duration(crit_s)}: "
            "it would be critical before it warns",
            hint='warn the longer time before: warn_runway_s = "48h", crit_runway_s = "12h"',
        )
    return Thresholds(
        warn_percent=warn, crit_percent=crit, warn_free=warn_free, crit_free=crit_free, warn_runway_s=warn_s,
        crit_runway_s=crit_s, usable_percent=settings.usable_percent, percent_was_set=percent_was_set,
        **{key: value for key, value in large.items() if value is not None},
    )  # fmt: skip


def _check_amount(key: str, value: float | None, kind: str) -> None:
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


def _check_du(task: Task, requested: bool, limit: float | None, limit_key: str) -> None:
    """Raise SettingsError if du is requested and cannot be meant, or its limit is set and du is not requested."""
    if requested and not limit:
        raise SettingsError("du = true counts what is used, and of how much is not said", hint=f"set {limit_key}")
    if limit is not None and not requested:
        raise SettingsError(f"{limit_key} is set, and du is not asked for", hint="set du = true, or leave it out")
    if requested and task.site.argv:
        raise SettingsError(
            "du and command are both set, and one source of the figures is enough", hint="leave one out"
        )
    if requested and not task.paths:
        raise SettingsError(
            "du = true, and paths names no directory to count", hint="name it: du walks every file below"
        )


def check_site(site: SiteCommand) -> None:
    """Raise SettingsError if the command cannot be meant."""
    expressions = {f"{key}_regex": getattr(site, key) for key in ("used", "limit", "percent")}
    given = [key for key, text in expressions.items() if text]
    if not site.argv:
        if given:
            raise SettingsError(
                f"{given[0]} is set, and there is no command whose output it could read",
                hint='set command = ["idrquota", "-w"]',
            )
        return
    if not site.argv[0].strip():
        raise SettingsError("command starts with an empty text", hint="its first text is the program")
    if len(site.argv) == 1 and " " in site.argv[0].strip() and "/" not in site.argv[0]:
        words = ", ".join(f'"{word}"' for word in site.argv[0].split())
        raise SettingsError("command is one text with blanks, and no shell reads it", hint=f"write a list: [{words}]")
    for match in re.finditer(_PLACEHOLDER, "\n".join(site.argv)):
        if match[1] not in ("path", "user"):
            raise SettingsError(
                f"command holds {match[0]}, and nothing fills that in", hint="{path} and {user} are filled in"
            )
    if not given:
        raise SettingsError(
            "command is set, and nothing says how to read what it prints",
            hint="set used_regex and limit_regex, or percent_regex",
        )
    for key, text in expressions.items():
        _check_expression(key, text)
    if site.percent and (site.used or site.limit):
        raise SettingsError(
            "percent_regex is set, and used_regex or limit_regex as well",
            hint="one form is enough: the percentage, or what is used and the limit",
        )
    if bool(site.used) != bool(site.limit):
        missing = "limit_regex" if site.used else "used_regex"
        raise SettingsError(f"{missing} is missing: what is used and the limit belong together")
    try:
        parse_bytes(f"1{site.unit}")
    except QuantityError:
        raise SettingsError(f"command_unit = {site.unit!r} is no unit", hint="KiB, GB, T ...") from None


def _check_expression(key: str, text: str) -> None:
    """Raise SettingsError naming the key, where in the text, and why not, if it does not compile or has no group."""
    try:
        pattern = re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(
            f"{key} = {text!r} is no regular expression: {error}",
            hint="try it in python3; a literal ( . [ needs a \\ before it",
        ) from None
    if text and pattern.groups == 0:
        raise SettingsError(f"{key} = {text!r} has no group", hint=r"put the figure in (): ([0-9.]+)")
