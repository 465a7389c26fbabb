"""Read the command of a crontab's line: for a shell where one was asked for, else as words. Pure.

No shell unless the line asks for one: what only a shell would understand is refused, and never handed to a program as
if it were a word of the person's.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from resilience.errors import UsageError

_SHELL_WORDS = frozenset(
    ". alias case cd eval exec export for if module set source ulimit umask unset until while".split()  # noqa: SIM905
)
"""What a shell does itself, and no program can do for it."""

_IN_DOUBLE_QUOTES = "$`"
_UNQUOTED = "|&;<>()$`*?[~"
_USE_SHELL = "write SHELL=/bin/sh on a line above it, or put the command into a script in cron.daily/"


class CommandError(UsageError, ValueError):
    """A text is no command that can be run."""


def parse_command(text: str, *, shell: str = "", users: Collection[str] = ("root",)) -> tuple[str, ...]:
    """Given the text behind a line's schedule, return the command as words.

    `shell` is what SHELL= said above it; `users` are names that can only be a system crontab's user column. A `%`
    must be written `\\%`, as in crontab(5). Raise CommandError with what to write.
    """
    text = text.strip()
    if not text:
        raise CommandError("there is no command", hint="write five fields, then the command")
    first, *rest = text.split()
    if re.fullmatch(r"[*0-9][*0-9,/-]*", first):
        raise CommandError(
            f"there is a sixth field, {first!r}", hint="cron has no seconds: write five fields, or @every 90s"
        )
    if first in users and rest:
        raise CommandError(
            f"the command begins with {first!r}, as in a system's crontab, which has a column for the user",
            hint=f"leave {first!r} out: everything here runs as the owner of the project",
        )
    if re.search(r"(?<!\\)%", text):
        raise CommandError(
            "there is a `%`, which cron takes for the end of the command and the beginning of its input",
            hint=r"write `\%` where a `%` is meant, and put input into a script",
        )
    text = text.replace("\\%", "%")
    if shell:
        return shell, "-c", text
    return _split(text)


def _split(text: str) -> tuple[str, ...]:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:  # `No closing quotation`, `No escaped character`
        raise CommandError(
            f"the command's quotes do not match: {str(error).lower()}", hint="close the quote"
        ) from error
    found = _shell_syntax(text)
    if found:
        raise CommandError(f"only a shell understands {found}, and none was asked for", hint=_USE_SHELL)
    if not words or not words[0]:
        raise CommandError("there is no command", hint="write five fields, then the command")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0], re.DOTALL):
        raise CommandError(
            f"only a shell sets {words[0].partition('=')[0]} for one command, and none was asked for",
            hint=f"write {words[0]} on a line of its own above it",
        )
    if words[0] in _SHELL_WORDS:
        raise CommandError(f"{words[0]!r} is done by a shell, and none was asked for", hint=_USE_SHELL)
    if words[0].endswith((".slurm", ".sbatch")):
        raise CommandError(
            f"{words[0]} is a job's script, and would run here, not in the queue",
            hint=f"write `sbatch {words[0]}`, or put it into cron.daily/",
        )
    return tuple(words)


def _shell_syntax(text: str) -> str:
    """The first thing in a command that a shell would act on, as people write it; empty: there is none."""
    quote = ""
    before = " "
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and quote != "'":
            position += 2
            before = "x"
            continue
        if quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in _IN_DOUBLE_QUOTES:
                return f"the `{character}` in {text[position : position + 12]!r}"
        elif character in "'\"":
            quote = character
        elif character == "~":
            if before.isspace():
                return "a `~` for the home directory"
        elif character == "#":
            if before.isspace():
                return "a comment behind the command (`#`)"
        elif character in _UNQUOTED:
            sign = character * 2 if text.startswith(character * 2, position) and character in "|&<>" else character
            return f"`{sign}`"
        elif character == "{" and re.match(r"\{[^{}\s]*(,|\.\.)[^{}\s]*\}", text[position:]):
            return "`{...}`"
        before = character
        position += 1
    return ""
