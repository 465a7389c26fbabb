"""Parses the command of a crontab line: for a shell if one is set, else as words. Pure.

Without a shell, text that only a shell understands is rejected, and never passed to a program as a word.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from resilience.errors import UsageError
from resilience.messages import quoted

_SHELL_WORDS = frozenset(
    ". alias case cd eval exec export for if module set source ulimit umask unset until while".split()  # noqa: SIM905
)
"""Shell builtins and keywords without an equivalent program."""

_IN_DOUBLE_QUOTES = "$`"
_UNQUOTED = "|&;<>()$`*?[~"
_USE_SHELL = "write SHELL=/bin/sh on a line above it, or put the command into a script in cron.daily/"


class CommandError(UsageError, ValueError):
    """The text is not a valid command."""


def parse_command(text: str, *, shell: str = "", users: Collection[str] = ("root",)) -> tuple[str, ...]:
    """Return the command after a line's schedule as words.

    `shell`: value of SHELL= above it; `users`: names that can only be a system crontab's user column. A `%` must be
    written `\\%`, as in crontab(5). Raise CommandError with what to write.
    """
    text = text.strip()
    if not text:
        raise CommandError("the command is missing", hint="write five fields, then the command")
    first, *rest = text.split()
    if re.fullmatch(r"[*0-9][*0-9,/-]*", first):
        raise CommandError(
            f"unexpected sixth field {first!r}", hint="cron has no seconds: write five fields, or @every 90s"
        )
    if first in users and rest:
        raise CommandError(
            f"the command begins with {first!r}, like the user column of a system crontab",
            hint=f"remove {first!r}: everything here runs as the owner of the project",
        )
    if re.search(r"(?<!\\)%", text):
        raise CommandError(
            "unescaped `%`, which in cron ends the command and begins its input",
            hint=r"write `\%` for a literal `%`, and put input into a script",
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
        raise CommandError(f"unbalanced quotes in the command: {str(error).lower()}", hint="close the quote") from error
    found = _shell_syntax(text)
    if found:
        raise CommandError(f"{found} needs a shell, and none is set", hint=_USE_SHELL)
    if not words or not words[0]:
        raise CommandError("the command is missing", hint="write five fields, then the command")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0], re.DOTALL):
        raise CommandError(
            f"setting {words[0].partition('=')[0]} for one command needs a shell, and none is set",
            hint=f"write {words[0]} on a line of its own above it",
        )
    if words[0] in _SHELL_WORDS:
        raise CommandError(f"{words[0]!r} needs a shell, and none is set", hint=_USE_SHELL)
    if words[0].endswith((".slurm", ".sbatch")):
        raise CommandError(
            f"{words[0]} is a batch script, and would run here instead of in the queue",
            hint=f"write `sbatch {quoted(words[0])}`, or put it into cron.daily/",
        )
    return tuple(words)


def _shell_syntax(text: str) -> str:
    """Return the first shell syntax in a command, for display; empty if there is none."""
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
