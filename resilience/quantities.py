"""Parses and formats quantities: sizes, durations, percentages, SLURM times. Pure."""

from __future__ import annotations

import re

from resilience.errors import QuantityError

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
# Patterns are compiled at first use, because most commands need none.
# ASCII digits, at most 18: int() also accepts Arabic digits, and raises another error for very long texts.
_SIZE = (
    r"(?ai)(?P<whole>[0-9]{1,18})(?:\.(?P<part>[0-9]{1,18}))?\s*"
    r"(?:(?P<prefix>[KMGTPE])(?P<binary>i?))?(?P<byte>B?)"
)
_NUMBER = r"[+-]?[0-9]{1,300}(?:\.[0-9]{0,300})?(?:[eE][+-]?[0-9]{1,3})?"
_PERCENT = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(%?)"
_DURATION_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION_PART = r"(?ai)([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(ms|min|[smhdw])"
_SLURM_TIME = (
    r"(?a)(?:(?P<days>\d{1,9})-(?P<dhours>\d{1,9})(?::(?P<dminutes>\d{1,9})(?::(?P<dseconds>\d{1,9}))?)?"
    r"|(?P<first>\d{1,9})(?::(?P<second>\d{1,9})(?::(?P<third>\d{1,9}))?)?)"
)
LONGEST_S = 100 * 366 * 86400.0
LARGEST_BYTES = 2**64
"""No duration and no size of a training is larger. Beyond them lie overflows: dates end in the year 9999."""

_SLURM_TIME_MAX_S = 2**31 - 61
"""sbatch counts seconds in 31 bits: 35791394 minutes become 2957761 days (observed with 22.05)."""
_UNLIMITED = frozenset({"unlimited", "infinite", "-1"})
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def parse_bytes(text: str) -> int:
    """Return a size in bytes.

    `40TiB` and `40T` are binary (as in `df -h`, `du -h` and SLURM's `--mem`), `40TB` is decimal, `512` is bytes.
    Raise QuantityError if the text is not a size.
    """
    match = re.fullmatch(_SIZE, text.strip())
    if match is None:
        raise QuantityError(f"{text!r} is not a size", hint="write for instance 40TiB, 500G, 1.5TB or 4096")
    prefix = (match["prefix"] or "").upper()
    decimal = bool(prefix and match["byte"] and not match["binary"])
    part = match["part"] or ""
    # Integer arithmetic: floats are inexact from 8 PiB on.
    number, unit = int(match["whole"] + part), _DECIMAL[prefix] if decimal else _BINARY[prefix]
    count = number * unit // int("1" + "0" * len(part))
    if count > LARGEST_BYTES:
        raise QuantityError(f"{text!r} is larger than 16 EiB")
    return count


def format_bytes(count: float) -> str:
    """Return a number of bytes in a readable form. For instance, 1536 gives `1.5 KiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        # Rounded first: 1023.9 KiB is shown as 1.0 MiB, not as 1024 KiB.
        if abs(round(value)) < 1024 or unit == "EiB":
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable: the last unit always returns")


def parse_percent(text: str) -> float:
    """Return 85.0 for `85%` or `85`.

    A value of 1 or less without a percent sign is rejected: `0.85` nearly always means 85 %, and as a threshold would
    trigger at every step.
    Raise QuantityError if the text is not a percentage from 0 to 100.
    """
    match = re.fullmatch(_PERCENT, text.strip())
    if match is None:
        raise QuantityError(f"{text!r} is not a percentage", hint="write for instance 85%")
    value = float(match[1])
    if value > 100:
        raise QuantityError(f"{text!r} is not between 0% and 100%")
    if 0 < value <= 1 and not match[2]:
        raise QuantityError(f"{text!r} is a fraction, not a percentage", hint=f"write {value * 100:g}%")
    return value


def parse_duration_s(text: str) -> float:
    """Return a duration in seconds. For instance, `1h30m` gives 5400.0 and `10m` gives 600.0.

    A number without unit is rejected as ambiguous: seconds, or SLURM's minutes.
    Raise QuantityError if the text is not such a duration, or longer than LONGEST_S.
    """
    stripped = text.strip()
    parts = re.findall(_DURATION_PART, stripped)
    if not parts or re.sub(_DURATION_PART, "", stripped).strip():
        raise QuantityError(f"{text!r} is not a duration", hint="write for instance 90s, 10m, 1h30m or 2d")
    seconds = float(sum(float(number) * _DURATION_UNITS_S[unit.lower()] for number, unit in parts))
    if seconds > LONGEST_S:
        raise QuantityError(f"{text!r} is longer than 100 years")
    return seconds


def parse_bool(text: str) -> bool:
    """Return True for `true`, `yes`, `on` or `1`, and False for their opposites. Raise ValueError for others."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return word in _TRUE


def parse_number(text: str) -> float:
    """Return a finite number. For instance, `1.5` and `1e-4`.

    Raise ValueError for a text that float() accepts and nobody means: `nan`, `inf`, `1_0`, the digits of other scripts.
    """
    if re.fullmatch(_NUMBER, text.strip()) is None or abs(number := float(text)) == float("inf"):
        raise ValueError(f"{text!r} is not a number")
    return number


def parse_in_unit(name: str, text: str) -> float:
    """Return a value in the unit of a setting, which is the suffix of its name.

    For instance, `beat_s` and `10m` give 600.0. A plain number is in the setting's unit. Raise ValueError for an
    invalid text: QuantityError, with a hint, if the name has a unit.
    """
    if name.endswith("_bytes"):
        return parse_bytes(text)
    if name.endswith("_percent"):
        return parse_percent(text)
    try:
        return parse_number(text)
    except ValueError:
        if not name.endswith("_s"):
            raise
        return parse_duration_s(text)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units. For instance, 5400 gives `1 h 30 min`."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, below, lower in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {lower}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def parse_slurm_time_s(text: str) -> int | None:
    """Return a SLURM time limit in seconds, or None if UNLIMITED.

    The grammar is sbatch's: `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`,
    `days-hours:minutes`, `days-hours:minutes:seconds` (sbatch(1), --time). For instance, `90` gives 5400 and
    `1-12` gives 129600. A limit of zero is UNLIMITED, as in sbatch. Surrounding blanks are ignored.
    Raise QuantityError if sbatch would reject the text or overflow.
    """
    stripped = text.strip()
    if stripped.lower() in _UNLIMITED:
        return None
    match = re.fullmatch(_SLURM_TIME, stripped)
    if match is None:
        raise QuantityError(
            f"{text!r} is not a SLURM time",
            hint="write minutes (90), H:M:S (20:00:00), D-H (1-12), D-H:M (1-12:30) or UNLIMITED",
        )
    if match["days"] is not None:
        hours, minutes, seconds = (int(match[name] or 0) for name in ("dhours", "dminutes", "dseconds"))
        total = int(match["days"]) * 86400 + hours * 3600 + minutes * 60 + seconds
    elif match["third"] is not None:
        total = int(match["first"]) * 3600 + int(match["second"]) * 60 + int(match["third"])
    else:
        total = int(match["first"]) * 60 + int(match["second"] or 0)
    if total > _SLURM_TIME_MAX_S:
        raise QuantityError(f"{text!r} is longer than SLURM can count", hint="write UNLIMITED")
    return total or None


def format_slurm_time(seconds: float | None) -> str:
    """Return a time limit in SLURM's form. For instance, 131400 gives `1-12:30:00` and None gives `UNLIMITED`."""
    if seconds is None:
        return "UNLIMITED"
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def quote_toml(text: str) -> str:
    """Return a text as TOML basic string on one line (https://toml.io/en/v1.0.0#string)."""
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}

    def escape(character: str) -> str:
        is_control = ord(character) < 32 or ord(character) == 127
        return named.get(character) or (f"\\u{ord(character):04x}" if is_control else character)

    return '"' + "".join(map(escape, text)) + '"'
