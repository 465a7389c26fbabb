"""Lines of a log: splitting, recognizing those of watchdogs and the guard, and sanitizing for display. Pure."""

from __future__ import annotations

import re
from binascii import crc32
from datetime import UTC, datetime

LINE_BYTES = 4096
"""The most that is read of one line: both its ends."""
SHOWN = 240
"""The most characters of a line that are displayed."""

ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""ECMA-48 control sequences and the operating system commands of terminals."""
PULSE = re.compile(rb"^\s*(?:\[[0-9-]{10}[ T][0-9:]{8}\]\s*)?PULSE:")
"""Lines that watchdogs append to a training's log, `[2022-05-01 10:00:02] PULSE: tr11 is running for ...`."""
OURS = re.compile(PULSE.pattern + rb"|^resil: ")
"""All lines of watchdogs and the guard: neither progress nor a fault. A failed save is in the journal."""
_STAMP = re.compile(rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_TIME_OF_DAY = re.compile(
    rb"\W{0,3}(?:[A-Z]?\d{4} +|\d\d/\d\d +|[A-Z][a-z]{2} +\d\d? +)?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?!\d)"
)
"""At the start of a line: glog's `I1120 10:00:00.123456`, MMEngine's `11/20 10:00:00`; elsewhere it is a duration."""
DAY_S = 86400.0
_LINE_ENDS = bytes.maketrans(b"\r\b", b"\n\n")
CLOCKS = re.compile(rb"(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d{1,2}:\d\d:\d\d(?:[.,]\d+)?|\b1[0-9]{9}(?:\.\d+)?\b")
_SECRETS = re.compile(
    r"(?i)\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abposr]-|AKIA|wandb_v1_)[A-Za-z0-9_-]{12,}"
    r"|(?<=://)[^/\s:@]{1,100}:[^/\s@]{1,200}(?=@)"
    r"|https://hooks\.slack\.com/\S+"
    r"|(?<=bearer )[A-Za-z0-9._~+/-]{12,}"
    r"|(?:(?<=password)|(?<=passwd)|(?<=secret)|(?<=token)|(?<=api_key)|(?<=apikey)|(?<=access_key))"
    r"['\"]?\s{0,3}[=:]\s{0,3}['\"]?(?=[^\s'\"]*[A-Za-z])[^\s'\",]{8,}"
)
"""Probable secrets, which are hidden: an alert has more readers than the log."""


def split(chunk: bytes) -> tuple[list[bytes], bytes]:
    """Return the finished lines in new bytes of a log, and the unfinished rest.

    A progress bar ends its lines with a carriage return, that of Keras with backspaces. NUL bytes are holes of a
    truncated file and are left out.
    """
    text = chunk.replace(b"\0", b"") if b"\0" in chunk else chunk
    if b"\r" in text or b"\b" in text:
        text = text.translate(_LINE_ENDS)
    lines = text.split(b"\n")
    return lines[:-1], lines[-1]


def plain(line: bytes) -> bytes:
    """Return a line without escape sequences, and without its middle if it is very long."""
    if len(line) > LINE_BYTES:
        line = line[: LINE_BYTES // 2] + b" ... " + line[-LINE_BYTES // 2 :]
    return ESCAPES.sub(b"", line) if b"\x1b" in line else line


def shown(line: bytes) -> str:
    """Return a line for display: no control characters, limited in length, probable secrets hidden."""
    text = ESCAPES.sub(b"", line[-8 * SHOWN :] if len(line) > 16 * SHOWN else line).decode("utf-8", "replace")
    text = "".join(c if c.isprintable() else " " for c in text).strip()
    text = _SECRETS.sub("[hidden]", text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


def identity(line: bytes) -> int:
    """Return a hash that is the same for lines that differ only in their timestamps."""
    return crc32(CLOCKS.sub(b"", line).strip())


def stamp(line: bytes) -> float | None:
    """Return the timestamp of a line in seconds, or None; only for `seconds_between`, as its time zone is unknown.

    A time of day without a date is less than DAY_S.
    """
    match = _TIME_OF_DAY.match(line)
    if match is not None:
        hour, minute, second = (int(part) for part in match.groups()[:3])
        whole = 3600.0 * hour + 60.0 * minute + second
        return whole + float(b"0." + match[4] if match[4] else 0) if whole < DAY_S else None
    match = _STAMP.search(line[:200]) or _STAMP.search(line[-200:])
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        whole = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return whole + float(b"0." + match[7] if match[7] else 0)


def seconds_between(first: float, second: float) -> float:
    """Return the seconds from one timestamp to another; those without a date are less than half a day apart."""
    if first < DAY_S and second < DAY_S:
        return (second - first + DAY_S / 2) % DAY_S - DAY_S / 2
    return second - first if min(first, second) >= DAY_S else 0.0
