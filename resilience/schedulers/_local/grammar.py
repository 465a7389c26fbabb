"""The small grammars of sbatch's option values: signal, begin, export, file patterns, arrays. Pure.

Source: sbatch(1), 22.05 to 26.05; the refusals are worded as sbatch words them.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping

from resilience.errors import QuantityError, SchedulerError, UsageError
from resilience.quantities import parse_slurm_time_s
from resilience.submission import MAX_LEAD_S, ArrayExpression, write_dependency

MAX_ARRAY_SIZE = 1001
"""SLURM's default MaxArraySize: the largest index is one less."""

_SIGNAL = re.compile(r"(?:(?P<where>[BR]{1,2}):)?(?P<name>[A-Za-z0-9]+)(?:@(?P<lead>\d+))?")
_NOW = re.compile(r"now(?:\+(?P<count>\d+)\s*(?P<unit>[a-z]*))?", re.IGNORECASE)
_UNITS_S = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}))?)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_DATE = re.compile(
    r"(?:(\d{1,2})/(\d{1,2})(?:/(\d{2}|\d{4}))?|(\d{2})(\d{2})(\d{2}))(?:-(\d{1,2}):(\d{2})(?::(\d{2}))?)?"
)
_HOURS = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}
_PATTERN = re.compile(r"%(?P<width>\d*)(?P<letter>[%AabJjNnstux])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LOGIN_NAMES = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG")


def parse_array(text: str) -> ArrayExpression:
    """Given the value of --array, return it. Raise SchedulerError, as sbatch does, if it is none or too large."""
    try:
        array = ArrayExpression.parse(text)
    except UsageError as error:
        raise SchedulerError(
            f"Batch job submission failed: Invalid job array specification ({error.message})", hint=error.hint
        ) from error
    if array.largest >= MAX_ARRAY_SIZE:
        raise SchedulerError(
            f"Batch job submission failed: Invalid job array specification ({text!r} goes beyond index "
            f"{MAX_ARRAY_SIZE - 1})",
            hint=f"MaxArraySize is {MAX_ARRAY_SIZE} here, as in SLURM unless a site changed it",
        )
    return array


def parse_dependency(text: str) -> str:
    """Given the value of --dependency, return it with every type spelt out. Raise SchedulerError if it is none."""
    try:
        written = write_dependency(text)
    except UsageError as error:
        raise _dependency_problem(error.message, error.hint) from error
    if "afterburstbuffer" in written:
        raise _dependency_problem("there are no burst buffers here", "use afterany:ID")
    return written


def _dependency_problem(why: str, hint: str) -> SchedulerError:
    return SchedulerError(f"Batch job submission failed: Job dependency problem ({why})", hint=hint)


def parse_time_limit_s(text: str) -> int | None:
    """Given the value of --time, return seconds; None is no limit, which 0 means as well (sbatch(1))."""
    try:
        return parse_slurm_time_s(text) or None
    except QuantityError as error:
        raise UsageError(f"Invalid --time specification: {error.message}", hint=error.hint) from error


def parse_signal(text: str) -> tuple[int, int, bool]:
    """Given `[B:]SIG[@seconds]`, return the signal's number, the lead in seconds, and whether `B:` was there.

    No `@` means 60 seconds. Raise UsageError if sbatch would refuse it.
    """
    match = _SIGNAL.fullmatch(text.strip())
    number = signal_number(match["name"]) if match else 0
    if match is None or not number or int(match["lead"] or 0) > MAX_LEAD_S:
        raise UsageError(
            f"Invalid --signal specification: {text!r}",
            hint="write for instance USR1@120 (to the srun steps) or B:USR1@120 (to the batch shell)",
        )
    return number, int(match["lead"] or 60), "B" in (match["where"] or "")


def signal_number(name: str) -> int:
    """Given `USR1`, `SIGUSR1` or `10`, return 10; 0 if there is no such signal."""
    if name.isdigit():
        return int(name) if 0 < int(name) < signal.NSIG else 0
    word = name.upper()
    found = signal.Signals.__members__.get(word if word.startswith("SIG") else f"SIG{word}")
    return int(found) if found is not None else 0


def parse_begin(text: str, now: float) -> float:
    """Given the value of --begin, return seconds since the epoch. Raise UsageError if sbatch would refuse it.

    `now+10`, `now+2hours`, `16:00`, `2026-11-20T08:00`, `11/20`, `tomorrow`, `uts1800000000`; read in this machine's
    time zone. A time of day that is past means tomorrow.
    """
    stripped = text.strip()
    word = stripped.lower()
    if match := _NOW.fullmatch(stripped):
        unit = _UNITS_S.get((match["unit"] or "").lower().removesuffix("s"))
        if unit is not None:
            return now + int(match["count"] or 0) * unit
    elif word.startswith("uts") and word[3:].isdigit():
        return float(word[3:])
    today = time.localtime(now)
    try:
        if word in ("today", "tomorrow"):
            return now if word == "today" else _epoch(today, today.tm_mon, today.tm_mday + 1, today.tm_year)
        if word in _HOURS:
            return _next(today, _HOURS[word], 0, 0, now)
        if match := _CLOCK.fullmatch(stripped):
            hour = int(match[1])
            if match[4]:
                hour = hour % 12 + (12 if match[4].lower() == "pm" else 0)
            _check(hour < 24)
            return _next(today, hour, int(match[2]), int(match[3] or 0), now)
        if match := _ISO.fullmatch(stripped):
            numbers = [int(part or 0) for part in match.groups()]
            return _epoch(today, numbers[1], numbers[2], numbers[0], *numbers[3:])
        if match := _DATE.fullmatch(stripped):
            month_day_year = match.groups()[:3] if match[1] else match.groups()[3:6]
            year = int(month_day_year[2] or today.tm_year)
            clock = [int(part or 0) for part in match.groups()[6:]]
            return _epoch(today, int(month_day_year[0]), int(month_day_year[1]), year + 2000 * (year < 100), *clock)
    except ValueError:
        pass
    raise UsageError(
        f"Invalid --begin specification: {text!r}",
        hint="write for instance now+2hours, 16:00, 2026-11-20T08:00 or tomorrow",
    )


def _next(today: time.struct_time, hour: int, minute: int, second: int, now: float) -> float:
    when = _epoch(today, today.tm_mon, today.tm_mday, today.tm_year, hour, minute, second)
    if when >= now:
        return when
    return _epoch(today, today.tm_mon, today.tm_mday + 1, today.tm_year, hour, minute, second)


def _epoch(
    today: time.struct_time, month: int, day: int, year: int, hour: int = 0, minute: int = 0, second: int = 0
) -> float:
    # Day 32 is meant (tomorrow at the end of a month), mktime carries it over; day 99 is a slip.
    _check(1 <= month <= 12 and 1 <= day <= 32 and 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60)
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError


def expand_pattern(pattern: str, *, raw: int, array: int, index: int | None, name: str, user: str, host: str) -> str:
    """Given the value of --output, return the path. `%4a` pads to four digits (sbatch(1), "filename pattern")."""
    # SLURM's NO_VAL stands for "no task", as its own logs show.
    task = 4294967294 if index is None else index
    values: dict[str, int | str] = {
        "%": "%", "A": array, "a": task, "b": task % 10, "J": raw, "j": raw, "N": host, "n": 0, "s": "batch", "t": 0,
        "u": user, "x": name.replace("/", "_"),
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        found = values[match["letter"]]
        return f"{found:0{min(int(match['width'] or 0), 10)}d}" if isinstance(found, int) else found

    return _PATTERN.sub(value, pattern)


def default_output(is_array: bool) -> str:
    """Where the output goes when nobody says."""
    return "slurm-%A_%a.out" if is_array else "slurm-%j.out"


def export_environment(export: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Given the value of --export and the submitter's environment, return the job's, before SLURM's own variables.

    ALL (also when empty) takes everything, NONE a login's bare minimum, NIL nothing; `A,B=1` those alone, and
    `ALL,B=1` everything with B changed. SLURM_* variables of an enclosing job are left behind: they are its, not ours.
    """
    own = {key: value for key, value in environ.items() if not _is_of_another_job(key)}
    words = _split_quoted(export) if export else ["ALL"]
    first = words[0].upper() if words else "ALL"
    if first == "NIL":
        return {}
    if first == "ALL" or any(word.upper() == "ALL" for word in words):
        result = dict(own)
    else:
        result = {name: own[name] for name in _LOGIN_NAMES if name in own} | {"PATH": _DEFAULT_PATH}
        result["ENVIRONMENT"] = "BATCH"
    for word in words:
        name, equals, value = word.partition("=")
        if name.upper() in ("ALL", "NONE", "NIL") and not equals:
            continue
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"Invalid --export specification: {word!r}", hint="write for instance ALL,NAME=value")
        if equals:
            result[name] = value
        elif name in own:
            result[name] = own[name]
    return result


def _is_of_another_job(name: str) -> bool:
    return name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_"))


def _split_quoted(text: str) -> list[str]:
    """Split at commas outside quotes; the quotes go."""
    parts, current, quote = [], "", ""
    for character in text:
        if quote:
            if character == quote:
                quote = ""
            else:
                current += character
        elif character in "'\"":
            quote = character
        elif character == ",":
            parts.append(current)
            current = ""
        else:
            current += character
    return [part for part in (*parts, current) if part]
