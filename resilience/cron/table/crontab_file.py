"""Parses a crontab: five fields and a command, `NAME=value`, `CRON_TZ=`, `MAILTO=`, options in comments. Pure.

The format is crontab(5)'s. An invalid line is reported, and does not affect valid lines; no line runs with settings
that its author did not mean.
"""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Collection
from dataclasses import dataclass, field
from types import MappingProxyType

from resilience.cron.records import Entry, Ignored, Kind, Table
from resilience.cron.table.command_line import parse_command
from resilience.cron.table.expression import EVERY, parse_schedule
from resilience.cron.table.options import MARK, default_options, parse_options
from resilience.cron.table.zones import ZoneError, offset_of
from resilience.errors import UsageError
from resilience.messages import plural
from resilience.settings.cron_settings import CronSettings

NAME_PREFIX = "crontab"
"""Prefix of its entries' names: `crontab/backup`."""

LONGEST_LINE = 65536
"""Bytes. cron itself accepts 1000 (MAX_COMMAND in cron.h)."""

_NOT_FOR_CRONTABS = {
    "LOGNAME": "cron does not allow setting LOGNAME: everything runs as the owner of the project",
    "USER": "cron does not allow setting USER: everything runs as the owner of the project",
}
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f]"


@dataclass(slots=True)
class _Reading:
    """Parser state after the lines so far."""

    users: Collection[str]
    settings: CronSettings
    environment: dict[str, str] = field(default_factory=dict)
    zone: str = ""
    zone_error: str = ""
    mail_to: str | None = None
    pending: tuple[str, str] | None = None
    """Place and text of an options line, which applies to the next line."""
    entries: dict[str, Entry] = field(default_factory=dict)
    ignored: list[Ignored] = field(default_factory=list)

    def refuse(self, place: str, reason: str, hint: str = "", *, is_fault: bool = True) -> None:
        self.ignored.append(Ignored(place, reason, hint, is_fault))


def parse_crontab(
    text: str | bytes, place: str, settings: CronSettings, *, users: Collection[str] = ("root",)
) -> Table:
    """Parse a crontab into entries and ignored lines; `place` names it: `cron/crontab`.

    `users` are names that can only be a system crontab's user column. Raise OptionError only if the settings themselves
    are invalid.
    """
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    default_options(settings, is_drop_in=False)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Table(
            ignored=(Ignored(place, "the file is UTF-16, not UTF-8", f"iconv -f UTF-16 -t UTF-8 {place}", True),)
        )
    reading = _Reading(users, settings)
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        _read_line(reading, f"{place}:{number}", line.removesuffix(b"\r"))
    _drop_pending(reading)
    return Table(tuple(reading.entries.values()), tuple(reading.ignored))


def _read_line(reading: _Reading, place: str, raw: bytes) -> None:
    stripped = raw.strip(b" \t\r")
    if not stripped:
        _drop_pending(reading)
        return
    if stripped.startswith(b"#"):
        comment = re.match(f"{MARK}(.*)", stripped[:LONGEST_LINE].decode("utf-8", "replace"))
        if comment:
            _drop_pending(reading)
            reading.pending = place, comment[1]
        return
    above, reading.pending = reading.pending, None
    if len(stripped) > LONGEST_LINE:
        reading.refuse(place, f"the line is {len(stripped)} bytes long", f"at most {LONGEST_LINE}: write a script")
        return
    try:
        line = stripped.decode()
    except UnicodeDecodeError as error:
        reading.refuse(place, f"byte {error.start + 1} of the line is not UTF-8", "save the file as UTF-8")
        return
    if found := re.search(_CONTROL, line):
        reading.refuse(place, f"the line contains the control character U+{ord(found[0]):04X}", "remove it")
        return
    if re.match(r"(\"[^\"]*\"|'[^']*'|[^\s=\"'@*]+)[ \t]*=", line):
        reading.pending = above
        _drop_pending(reading)
        _read_setting(reading, place, line)
        return
    try:
        _read_entry(reading, place, line, above[1] if above else "")
    except UsageError as error:
        reading.refuse(place, error.message, error.hint)


def _drop_pending(reading: _Reading) -> None:
    """Report options without a following line."""
    if reading.pending is not None:
        place, _ = reading.pending
        reading.refuse(place, "these options belong to no line", "write them directly above a line, or at its end")
        reading.pending = None


def _read_setting(reading: _Reading, place: str, line: str) -> None:
    """Parse a line `NAME = value` as load_env of cron's env.c does: quotes around the whole value are removed."""
    name, _, value = line.partition("=")
    name, value = name.strip().strip("\"'"), value.strip()
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        reading.refuse(place, f"{name!r} is not a variable name", "write letters, digits and `_`")
        return
    if value[:1] in {'"', "'"}:
        closed = re.fullmatch(r"([\"'])(.*)\1", value)
        if closed is None or closed[1] in closed[2]:
            reading.refuse(place, f"unbalanced quotes around the value of {name}", "close the quote at the end")
            if name == "CRON_TZ":
                reading.zone_error = place
            return
        value = closed[2]
    if name == "CRON_TZ":
        _read_zone(reading, place, value)
    elif name == "MAILTO":
        reading.mail_to = value.strip()
    elif name in _NOT_FOR_CRONTABS:
        reading.refuse(place, _NOT_FOR_CRONTABS[name], "remove the line", is_fault=False)
    elif name == "SHELL" and not value.startswith("/"):
        reading.environment.pop("SHELL", None)
        if value:
            reading.refuse(place, f"SHELL={value} is not an absolute path", "write for instance SHELL=/bin/bash")
    elif name == "PATH" and "$" in value:
        reading.refuse(place, "cron does not expand `$...`, so this PATH is invalid", "write it out")
    else:
        reading.environment[name] = value


def _read_zone(reading: _Reading, place: str, zone: str) -> None:
    try:
        offset_of(zone.strip())
    except ZoneError as error:
        reading.zone_error = place
        reading.refuse(place, error.message, error.hint)
    else:
        reading.zone, reading.zone_error = zone.strip(), ""


def _read_entry(reading: _Reading, place: str, line: str, above: str) -> None:
    line, *rest = re.split(rf"(?:^|(?<=\s)){MARK}", line, maxsplit=1)
    options = parse_options(" ".join([above, *rest]), default_options(reading.settings, is_drop_in=False))
    schedule, command = _split(line)
    schedule = parse_schedule(schedule, "" if reading.zone_error else reading.zone).text
    argv = parse_command(command, shell=reading.environment.get("SHELL", ""), users=reading.users)
    if reading.zone_error:
        reading.refuse(place, f"its time zone is invalid: see {reading.zone_error}", "correct CRON_TZ above it")
        return
    name = _name(reading, schedule, command, options.name)
    reading.entries[name] = Entry(
        name=name,
        place=place,
        schedule=schedule,
        kind=Kind.RUN,
        argv=argv,
        zone=reading.zone,
        environment=MappingProxyType(dict(reading.environment)),
        mail_to=reading.mail_to,
        options=options.options,
    )


def _split(line: str) -> tuple[str, str]:
    """Split a line into schedule and command. Raise UsageError if either is missing."""
    words = line.split()
    if not words:
        raise UsageError("options without schedule and command", hint="write them above a line, or at its end")
    width = (2 if words[0] == EVERY else 1) if words[0].startswith("@") else 5
    if len(words) <= width:
        wanted = "five fields and a command" if width == 5 else f"{words[0]} and a command"
        raise UsageError(
            f"expected {wanted}, found {plural(len(words), 'word')}",
            hint="write minute, hour, day of the month, month, day of the week, command: `30 4 * * * backup`",
        )
    schedule, command = " ".join(words[:width]), line.split(maxsplit=width)[width]
    return schedule, command.strip()


def _name(reading: _Reading, schedule: str, command: str, wanted: str) -> str:
    """Return the entry's name. A duplicate line runs twice, as in cron, under two names."""
    if wanted:
        name = f"{NAME_PREFIX}/{wanted}"
        if name in reading.entries:
            raise UsageError(
                f"the name {wanted!r} is taken by {reading.entries[name].place}", hint="choose another name="
            )
        return name
    zone = f"\0{reading.zone}" if reading.zone else ""
    digits = format(crc32(f"{schedule}\0{command}{zone}".encode()), "08x")
    name, number = f"{NAME_PREFIX}/{digits}", 1
    while name in reading.entries:
        number += 1
        name = f"{NAME_PREFIX}/{digits}-{number}"
    return name
