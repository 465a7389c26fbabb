"""Parses a crontab: five fields and a command, `NAME=value`, `CRON_TZ=`, `MAILTO=`, options in comments. Pure.

The format is crontab(5)'s, and a line means what cron takes it for: a shell runs its command. An invalid line is
reported, and does not affect valid lines; no line runs with settings that its author did not mean.
"""

from __future__ import annotations

import re
import shlex
from binascii import crc32
from collections.abc import Collection, Mapping, Sequence

from resilience.cron.records import Entry, Ignored, Kind, Table
from resilience.cron.table.expression import EVERY, offset_of, parse_schedule
from resilience.cron.table.options import MARK, default_options, entry_options
from resilience.errors import UsageError
from resilience.messages import plural, quoted
from resilience.settings.cron_settings import CronSettings

CRONTAB = "crontab"
"""File name in the cron directory, and prefix of its entries' names: `crontab/backup`."""

LONGEST_LINE = 65536
"""Bytes. cron itself accepts 1000 (MAX_COMMAND in cron.h)."""

SHELL = "/bin/sh"
"""Runs the commands, as in cron, unless SHELL= names another."""

INPUT = "RESIL_CRON_INPUT"
_WITH_INPUT = f'printf %s "${INPUT}" | (unset {INPUT}; exec "$0" -c "$1")'
"""Gives a command its input through a pipe, as cron does. Other users see arguments, but no environment."""


def split_input(text: str) -> tuple[str, str | None]:
    """Return a line's command, and its standard input if it has any: do_command.c of cron.

    The first `%` without a backslash ends the command, and begins its input, in which such a `%` is a newline.
    """
    parts = re.split(r"^((?:[^\\%]|\\.)*)%", text, maxsplit=1)
    command = re.sub(r"(\\[^%])|\\%", lambda pair: pair[1] or "%", parts[1] if parts[1:] else text)
    if not parts[1:]:
        return command, None
    given = re.sub(r"(?<!\\)%", "\n", parts[2]).replace("\\%", "%")
    return command, given if not given or given.endswith("\n") else f"{given}\n"


def command_of(argv: Sequence[str]) -> str:
    """Return a command for display, without its input, given the words that run it."""
    if argv[2:3] == (_WITH_INPUT,):
        return f"{argv[4]}%..."
    return argv[2] if len(argv) == 3 and argv[1] == "-c" else shlex.join(argv)


def program_of(argv: Sequence[str]) -> str:
    """Return the program or builtin that a command starts; empty if only the shell can tell."""
    found = re.match(r"[\w./+:-]+(?=\s|%|$)", command_of(argv))
    return found[0] if found else ""


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
    parser = _Parser(settings, users)
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        parser.read(f"{place}:{number}", line.strip(b" \t\r"))
    parser.drop_pending()
    return Table(tuple(parser.entries.values()), tuple(parser.ignored))


class _Parser:
    """State after the lines so far. `pending`: place and text of an options line, which applies to the next line."""

    def __init__(self, settings: CronSettings, users: Collection[str]) -> None:
        self.settings, self.users = settings, users
        self.environment: Mapping[str, str] = {}
        self.zone = self.zone_error = ""
        self.mail_to: str | None = None
        self.pending: tuple[str, str] | None = None
        self.entries: dict[str, Entry] = {}
        self.ignored: list[Ignored] = []

    def read(self, place: str, raw: bytes) -> None:
        """Parse a line without blanks around it."""
        if not raw:
            self.drop_pending()
        elif raw.startswith(b"#"):
            if comment := re.match(f"{MARK}(.*)", raw[:LONGEST_LINE].decode("utf-8", "replace")):
                self.drop_pending()
                self.pending = place, comment[1]
        else:
            above, self.pending = self.pending, None
            try:
                line = _decode(raw)
                if re.match(r"(\"[^\"]*\"|'[^']*'|[^\s=\"'@*]+)[ \t]*=", line):
                    self.pending = above
                    self.drop_pending()
                    self.read_setting(place, line)
                else:
                    self.read_entry(place, line, above[1] if above else "")
            except UsageError as error:
                self.ignored.append(Ignored(place, error.message, error.hint, True))

    def drop_pending(self) -> None:
        """Report options without a following line."""
        if self.pending is not None:
            hint = "write them directly above a line, or at its end"
            self.ignored.append(Ignored(self.pending[0], "these options belong to no line", hint, True))
            self.pending = None

    def read_setting(self, place: str, line: str) -> None:
        """Parse a line `NAME = value` as load_env of cron's env.c does: quotes around the whole value are removed."""
        name, value = (part.strip() for part in line.split("=", 1))
        name = name.strip("\"'")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"{name!r} is not a variable name", hint="write letters, digits and `_`")
        if name == "CRON_TZ":
            self.zone_error = place  # until the value is known to be valid
        if value[:1] in {'"', "'"}:
            closed = re.fullmatch(r"([\"'])(.*)\1", value)
            if closed is None or closed[1] in closed[2]:
                raise UsageError(f"unbalanced quotes around the value of {name}", hint="close the quote at the end")
            value = closed[2]
        if name == "CRON_TZ":
            offset_of(value.strip())
            self.zone, self.zone_error = value.strip(), ""
        elif name == "MAILTO":
            self.mail_to = value.strip()
        elif name in {"LOGNAME", "USER"}:
            reason = f"cron does not allow setting {name}: everything runs as the owner of the project"
            self.ignored.append(Ignored(place, reason, "remove the line"))
        elif name == "PATH" and "$" in value:
            raise UsageError("cron does not expand `$...`, so this PATH is invalid", hint="write it out")
        else:
            is_shell = name != "SHELL" or value.startswith("/")
            others = {key: self.environment[key] for key in self.environment if key != name}
            self.environment = {**others, **({name: value} if is_shell else {})}
            if value and not is_shell:
                raise UsageError(f"SHELL={value} is not an absolute path", hint="write for instance SHELL=/bin/bash")

    def read_entry(self, place: str, line: str, above: str) -> None:
        """Parse a schedule, a command and its options."""
        line, *behind = re.split(rf"(?:^|(?<=\s)){MARK}", line, maxsplit=1)
        written, command = _split(line)
        schedule = parse_schedule(written, "" if self.zone_error else self.zone)
        options = entry_options(" ".join([above, *behind]), self.settings, schedule, is_drop_in=False)
        _check_command(command, self.users)
        if self.zone_error:
            hint = "correct CRON_TZ above it"
            raise UsageError(f"its time zone is invalid: see {self.zone_error}", hint=hint)
        name = self.name(schedule.text, command, options.name)
        shell, (program, given) = self.environment.get("SHELL", SHELL), split_input(command)
        self.entries[name] = Entry(
            name=name,
            place=place,
            schedule=schedule.text,
            kind=Kind.RUN,
            argv=(shell, "-c", program) if given is None else (SHELL, "-c", _WITH_INPUT, shell, program),
            zone=self.zone,
            environment=self.environment if given is None else {**self.environment, INPUT: given},
            mail_to=self.mail_to,
            options=options.options,
        )

    def name(self, schedule: str, command: str, wanted: str) -> str:
        """Return the entry's name. A duplicate line runs twice, as in cron, under two names."""
        if wanted and (taken := self.entries.get(f"{CRONTAB}/{wanted}")):
            raise UsageError(f"the name {wanted!r} is taken by {taken.place}", hint="choose another name=")
        zone = f"\0{self.zone}" if self.zone else ""
        first = wanted or format(crc32(f"{schedule}\0{command}{zone}".encode()), "08x")
        name, number = f"{CRONTAB}/{first}", 1
        while name in self.entries:
            number += 1
            name = f"{CRONTAB}/{first}-{number}"
        return name


def _decode(raw: bytes) -> str:
    """Return a line as text. Raise UsageError if it is none."""
    if len(raw) > LONGEST_LINE:
        raise UsageError(f"the line is {len(raw)} bytes long", hint=f"at most {LONGEST_LINE}: write a script")
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"byte {error.start + 1} of the line is not UTF-8", hint="save the file as UTF-8") from None
    if found := re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line):
        raise UsageError(f"the line contains the control character U+{ord(found[0]):04X}", hint="remove it")
    return line


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
    return " ".join(words[:width]), line.split(maxsplit=width)[width].strip()


def _check_command(command: str, users: Collection[str]) -> None:
    """Raise UsageError for the beginning of a command that is a mistake, though cron would run it."""
    first, *rest = command.split()
    if re.fullmatch(r"[*0-9][*0-9,/-]*", first):
        raise UsageError(
            f"unexpected sixth field {first!r}", hint="cron has no seconds: write five fields, or @every 90s"
        )
    if first in users and rest:
        raise UsageError(
            f"the command begins with {first!r}, like the user column of a system crontab",
            hint=f"remove {first!r}: everything here runs as the owner of the project",
        )
    if first.endswith((".slurm", ".sbatch")):
        raise UsageError(
            f"{first} is a batch script, and would run here instead of in the queue",
            hint=f"write `sbatch {quoted(first)}`, or put it into cron.daily/",
        )
