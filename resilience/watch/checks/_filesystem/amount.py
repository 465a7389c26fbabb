"""One figure of use with its limits, whoever told it; and the texts of quota tools as numbers. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from resilience.errors import ProbeError, QuantityError
from resilience.quantities import format_bytes, parse_bytes

BYTES = "bytes"
INODES = "inodes"
PERCENT = "percent"
"""What a site command counts in when it tells nothing but percents."""

FILE_SYSTEM = "file system"
"""The scope of statvfs: everybody's files, and what is left of the disk itself."""

_FIGURE = r"\[?(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)(?P<unit>[kKmMgGtTpPeE]?)(?:i?B)?\]?\*?"
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}
_NO_LIMIT = frozenset({"", "-", "none", "unlimited", "no", "off", "∞", "infinite"})
_GRACE_PART = r"([0-9]{1,9})\s*(weeks?|days?|hours?|minutes?|mins?|seconds?|secs?|w|d|h|m|s)"
_GRACE_UNITS_S = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_GRACE_CLOCK = r"(?:([0-9]{1,9})\s*days?\s*)?([0-9]{1,4}):([0-9]{2})(?::([0-9]{2}))?"


class Amount(NamedTuple):
    """How much of something is used.

    Attributes:
        kind: bytes, inodes, or percent.
        source: who says so: `lfs quota`, `statvfs`.
        scope: whose limit it is: `file system`, `user alice`, `group lab`, `project 1001`, `fileset work`.
        used: how much is used.
        limit: where writing ends; None: nothing ends it.
        soft: above it the grace period runs; None: there is none.
        grace_s: seconds left of that period when it was asked; 0 when it is over; None when it does not run.
        age_s: how old the figure was when it was asked; None when that is not known.
        note: what else is known about it.
    """

    kind: str
    source: str
    scope: str
    used: float
    limit: float | None = None
    soft: float | None = None
    grace_s: float | None = None
    age_s: float | None = 0.0
    note: str = ""

    @property
    def key(self) -> str:
        """By which it is known again at the next look."""
        return f"{self.source}/{self.scope}/{self.kind}"


def amount_text(value: float, kind: str) -> str:
    """An amount as people read it: `18.4 TiB`, `450,000`, `12.5%`."""
    if kind == PERCENT:
        return f"{value:.1f}%"
    return format_bytes(value) if kind == BYTES else f"{value:,.0f}"


def parse_size(text: str, default_unit: str = "B") -> float:
    """Given a size of a quota tool, return bytes. A bare number is in `default_unit`; `*` and `[]` are its marks.

    For instance, `2000*` with the unit `K` gives 2048000.0, `8T` gives 8 TiB. All of lfs, mmlsquota, quota and
    xfs_quota count in powers of 1024. Raise ProbeError if it is no size.
    """
    match = re.fullmatch(_FIGURE, text.strip(), re.ASCII)
    if match is None:
        raise ProbeError(f"{text.strip()[:40]!r} is no size")
    unit = match["unit"] or default_unit
    return float(match["number"]) * parse_bytes("1" + unit)


def parse_count(text: str) -> float:
    """Given a number of files of a quota tool, return it. `160k` is 160,000: files are counted in tens.

    Raise ProbeError if it is no count.
    """
    match = re.fullmatch(_FIGURE, text.strip(), re.ASCII)
    if match is None:
        raise ProbeError(f"{text.strip()[:40]!r} is no number of files")
    return float(match["number"]) * _COUNT_UNITS[match["unit"].lower()]


def parse_limit(text: str, kind: str, default_unit: str = "B") -> float | None:
    """Given a limit of a quota tool, return it, or None where there is none: 0, `-`, `none`, `unlimited`."""
    stripped = text.strip()
    if stripped.lower() in _NO_LIMIT:
        return None
    return (parse_size(stripped, default_unit) if kind == BYTES else parse_count(stripped)) or None


def is_figure(text: str) -> bool:
    """Whether a word of a table is a size or a count."""
    return re.fullmatch(_FIGURE, text, re.ASCII) is not None


def parse_grace_s(text: str, *, is_over: bool) -> float | None:
    """Given the grace column of a quota tool, return the seconds left; 0.0 when they are over; None: not running.

    `is_over`: whether the soft limit is exceeded. Then `none`, `expired` and `0` say that the time is up (lfs and
    quota write `none`, xfs_quota `--none--`, mmlsquota `expired`); else they say nothing.
    """
    word = text.strip().strip("[]").strip().lower()
    if not is_over:
        return None
    clock = re.fullmatch(_GRACE_CLOCK, word, re.ASCII)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    parts = re.findall(_GRACE_PART, word, re.ASCII)
    if parts:
        return float(sum(int(number) * _GRACE_UNITS_S[unit[0]] for number, unit in parts))
    if word.strip("-") in {"none", "expired", "0", "0seconds"}:
        return 0.0
    return None


def amount(
    kind: str, source: str, scope: str, used: str, soft: str, limit: str, grace: str, *, unit: str = "K", note: str = ""
) -> Amount:
    """One amount from the words of a quota tool's table. Raise ProbeError if they are not figures."""
    try:
        in_use = parse_size(used, unit) if kind == BYTES else parse_count(used)
        soft_limit, hard_limit = parse_limit(soft, kind, unit), parse_limit(limit, kind, unit)
    except QuantityError as error:  # a unit that is none
        raise ProbeError(error.message) from error
    is_over = soft_limit is not None and in_use > soft_limit
    notes = [note] if note else []
    if used.strip().startswith("["):
        notes.append("some servers did not answer: the use is a lower bound")
    return Amount(
        kind=kind, source=source, scope=scope, used=in_use, limit=hard_limit, soft=soft_limit,
        grace_s=parse_grace_s(grace, is_over=is_over), age_s=None, note="; ".join(notes),
    )  # fmt: skip


def figures_of(words: list[str], what: str) -> tuple[list[str], list[str]]:
    """Given a row of `used quota limit [grace] files quota limit [grace]`, return its bytes and its inodes, with grace.

    quota leaves the grace column empty where no grace period runs, so a row has six, seven or eight words.
    Raise ProbeError if it has not.
    """
    if len(words) == 8:
        return words[:4], words[4:]
    if len(words) == 7 and not is_figure(words[3]):
        return words[:4], [*words[4:], ""]
    if len(words) == 7:
        return [*words[:3], ""], words[3:]
    if len(words) == 6:
        return [*words[:3], ""], [*words[3:], ""]
    raise ProbeError(f"{what} wrote a row of {len(words)} columns, not of 6 to 8")
