"""A site's own quota command: what to run, and the regular expressions that find the figures. Pure.

Regular expressions are searched in the whole text (`^` and `$` are line ends); the first match counts. Its first group
is the figure, its second, where there is one, the unit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from resilience.errors import ProbeError, QuantityError, SettingsError
from resilience.quantities import parse_bytes
from resilience.watch.checks._filesystem.amount import INODES, PERCENT, Amount

_COUNT = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(?:[eE]\+?([0-9]{1,2}))?\s*([kKmMgG]?)"
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_PLACEHOLDER = r"\{(\w*)\}"
_PLAIN = r"[0-9.]+"
# "4.5 Tio" is what French sites print; "TiB", "TB" and "T" are parse_bytes's.
_OCTETS = r"(?<=[KMGTPEkmgtpe])io\b|(?<=[KMGTPEkmgtpe])o\b"


class SiteCommand(NamedTuple):
    """How a site tells what is used.

    Attributes:
        argv: the program and its arguments; `{path}` and `{user}` are filled in.
        used: regular expression for what is used, of bytes or of inodes as the watchdog counts.
        limit: the same for the limit.
        percent: the same for the percentage, where nothing else is printed.
        unit: the unit of a size without one.
        max_age_s: how old the command's figures may be, as the site says: told with each figure.
    """

    argv: tuple[str, ...]
    used: str
    limit: str
    percent: str
    unit: str = "B"
    max_age_s: float = 0.0


def check_site(site: SiteCommand, names: dict[str, str]) -> None:
    """Raise SettingsError if the command cannot be meant. `names` maps each attribute to its key in the settings."""
    expressions = {names[key]: getattr(site, key) for key in ("used", "limit", "percent")}
    given = [key for key, text in expressions.items() if text]
    if not site.argv:
        if given:
            raise SettingsError(f"{given[0]} is set, and there is no command whose output it could read",
                                hint=f'set {names["argv"]} = ["idrquota", "-w"]')  # fmt: skip
        return
    if not site.argv[0].strip():
        raise SettingsError(f"{names['argv']} starts with an empty text", hint="its first text is the program")
    if len(site.argv) == 1 and " " in site.argv[0].strip() and "/" not in site.argv[0]:
        words = ", ".join(f'"{word}"' for word in site.argv[0].split())
        raise SettingsError(f"{names['argv']} is one text with blanks, and no shell reads it",
                            hint=f"write a list: [{words}]")  # fmt: skip
    for text in site.argv:
        for match in re.finditer(_PLACEHOLDER, text):
            if match[1] not in ("path", "user"):
                raise SettingsError(f"{names['argv']} holds {match[0]}, and nothing fills that in",
                                    hint="{path} and {user} are filled in")  # fmt: skip
    if not given:
        raise SettingsError(f"{names['argv']} is set, and nothing says how to read what it prints",
                            hint=f"set {names['used']} and {names['limit']}, or {names['percent']}")  # fmt: skip
    for key, text in expressions.items():
        compile_expression(key, text)
    if site.percent and (site.used or site.limit):
        raise SettingsError(f"{names['percent']} is set, and {names['used']} or {names['limit']} as well",
                            hint="one form is enough: the percentage, or what is used and the limit")  # fmt: skip
    if bool(site.used) != bool(site.limit):
        missing = names["limit"] if site.used else names["used"]
        raise SettingsError(f"{missing} is missing: what is used and the limit belong together")
    try:
        parse_bytes(f"1{site.unit}")
    except QuantityError:
        raise SettingsError(f"{names['unit']} = {site.unit!r} is no unit", hint="KiB, GB, T ...") from None


def compile_expression(key: str, text: str) -> re.Pattern[str]:
    """The pattern with at least one group. Raise SettingsError naming the key, where in the text, and why not."""
    try:
        pattern = re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"{key} = {text!r} is no regular expression: {error}",
                            hint="try it in python3; a literal ( . [ needs a \\ before it") from None  # fmt: skip
    if text and pattern.groups == 0:
        raise SettingsError(f"{key} = {text!r} has no group", hint=r"put the figure in (): ([0-9.]+)")
    return pattern


def site_command(site: SiteCommand, path: str, user: str) -> list[str]:
    """The argv with `{path}` and `{user}` filled in."""
    return [text.replace("{path}", path).replace("{user}", user) for text in site.argv]


def parse_site(text: str, site: SiteCommand, kind: str) -> Amount:
    """Given what the command printed, return the amount. Raise ProbeError if nothing there is one."""
    if not text.strip():
        raise ProbeError("it printed nothing")
    source, age_s = f"`{' '.join(site.argv)}`", site.max_age_s or None
    if site.percent:
        percent = _number(_find(text, site.percent, "percentage"))
        return Amount(kind=PERCENT, source=source, scope="quota", used=percent, limit=100.0, age_s=age_s)
    used, limit = _find(text, site.used, "use"), _find(text, site.limit, "limit")
    read = _count if kind == INODES else lambda figure: _size(figure, site.unit)
    return Amount(kind=kind, source=source, scope="quota", used=read(used), limit=read(limit) or None, age_s=age_s)


def _find(text: str, expression: str, what: str) -> str:
    match = re.search(expression, text, re.MULTILINE)
    if match is None or match[1] is None:
        raise ProbeError(f"it printed no {what} that {expression!r} finds: {text.strip()[:120]!r}")
    unit = match[2] or "" if (match.re.groups or 0) > 1 else ""
    return _without_separators(match[1]) + unit


def _without_separators(text: str) -> str:
    """`4,500 GiB` and `450'000` as `4500 GiB` and `450000`; `0,5` is left for the parser to refuse."""
    return re.sub(r"(?<=[0-9])[,'\u2019\u00a0\u202f ](?=[0-9]{3}(?![0-9]))", "", text.strip())


def _size(text: str, unit: str) -> float:
    plain = re.sub(_OCTETS, "iB", text.strip())
    try:
        return float(parse_bytes(plain + unit if re.fullmatch(_PLAIN, plain, re.ASCII) else plain))
    except QuantityError as error:
        raise ProbeError(error.message) from error


def _count(text: str) -> float:
    match = re.fullmatch(_COUNT, text.strip(), re.ASCII)
    if match is None:
        raise ProbeError(f"{text[:40]!r} is no number of files")
    return float(match[1]) * 10.0 ** int(match[2] or 0) * _COUNT_UNITS[match[3].lower()]


def _number(text: str) -> float:
    try:
        number = float(text.strip().rstrip("%"))
    except ValueError:
        raise ProbeError(f"{text[:40]!r} is no percentage") from None
    if not 0 <= number < 10**6:
        raise ProbeError(f"{text[:40]!r} is no percentage")
    return number
