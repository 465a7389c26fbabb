"""Values as bash and sbatch read them back byte for byte. Pure."""

from __future__ import annotations

import re
import shlex

from resilience.errors import TemplateError

DIRECTIVE_LIMIT = 1000
"""Longest value of a directive, in bytes. sbatch refuses longer comments ("... parameter too long")."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLAIN_DIRECTIVE = re.compile(r"[\w@%+=:,./\[\]*-]+", re.ASCII)
_OPTION_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "'": "\\'", "\\": "\\\\"}


def quote_bash(text: str) -> str:
    """Given any text, return one word of bash, on one line, that stands for exactly its bytes.

    Control characters go into `$'...'`, so that no value can begin a line of the script, in a comment either.
    Raise TemplateError for NUL, which no argument or variable can hold.
    """
    if "\0" in text:
        raise TemplateError(f"a value cannot hold a NUL character: {text!r}")
    if _CONTROL.search(text) is None:
        return shlex.quote(text)
    return "$'" + "".join(map(_escape, text)) + "'"


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if _CONTROL.match(character) is None:
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def write_directive(name: str, value: str | None) -> str:
    """Given a long option of sbatch and its value (None: a flag), return the `#SBATCH` line.

    sbatch reads values much as a shell does: quotes and backslashes count, `#` begins a comment, nothing is expanded
    (sbatch's own parser, checked against 22.05). A line end would begin a line of the script. Raise TemplateError for
    what cannot be written.
    """
    if _OPTION_NAME.fullmatch(name) is None:
        raise TemplateError(
            f"{name!r} is not a long option of sbatch", hint="write it without dashes in front: job-name"
        )
    if value is None:
        return f"#SBATCH --{name}"
    if _CONTROL.search(value):
        raise TemplateError(
            f"--{name} cannot be {value!r}: it holds a line end or another control character",
            hint="one line of text, please",
        )
    if len(value.encode()) > DIRECTIVE_LIMIT:
        raise TemplateError(f"--{name} is longer than {DIRECTIVE_LIMIT} bytes: {value[:60]!r}...")
    if value and _PLAIN_DIRECTIVE.fullmatch(value):
        return f"#SBATCH --{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


def without_python(command: str, module: str = "-m") -> str:
    """Given a command line, return what a launcher wants of it: without `python` in front.

    For instance, `python -u train.py --lr 1` gives `train.py --lr 1`, and `python -m pkg.train` gives `-m pkg.train`,
    with `module` in the place of `-m`. Anything else is returned as it is.
    """
    match = re.match(r"\s*(?:\S*/)?python3?(?:\.\d+)?\s+(?:-u\s+)?(-m\s+)?(?=[^-\s])", command)
    if match is None:
        return command
    return (f"{module} " if match[1] else "") + command[match.end() :]
