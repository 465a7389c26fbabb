"""Our lines in shared tables (crontab, scrontab, units): the command that makes a tick, its marks, and editing. Pure.

The environment of a crontab is nearly empty, that of a user manager is unpredictable, and that of a job is a login
shell's. So the command itself sets the environment that was recorded at installation.

Each of our lines carries `resil:.cron:<token>` with the installation's token; a comment line also names the project, so
that reinstalling finds lines of an installation that is no longer recorded.

A table is text whose undecodable bytes are surrogates (surrogateescape), and whose lines end with a newline only:
carriage returns, form feeds and a missing newline at the end are preserved. Our lines come first. So settings of the
table (MAILTO, SHELL, PATH in a crontab; a last `#SCRON` line in a scrontab) do not affect them, and a last line without
a newline stays one.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from resilience.cron.records import RUN_NAME, Installation
from resilience.errors import ResilError
from resilience.system.files import short_digest

_DISABLED = r"(?:#DISABLED: )*"
"""SLURM 24.11 prefixes the lines of an entry whose job was cancelled."""


def mark(token: str) -> str:
    """Return the mark in each line of an installation, and in the comment of its jobs."""
    return f"resil:{RUN_NAME}:{token}"


def unit_name(installation: Installation) -> str:
    """Return the name of an installation's job or unit: `resil-cron-0c4ee3bf`.

    The same however paths are spelled.
    """
    return f"resil-cron-{installation.token[:8]}"


def project_name(state_dir: Path) -> str:
    """Return the name of a project in the first comment line: `resil-cron-0c4ee3bf`."""
    return f"resil-cron-{short_digest(os.fsencode(state_dir))[:8]}"


def headline(installation: Installation, state_dir: Path) -> str:
    """Return the first comment line."""
    return (
        f"# {mark(installation.token)} {project_name(state_dir)}: the ticks of {installation.project}; "
        "`resil cron install` wrote these lines, `resil cron uninstall` removes them"
    )


def tokens_of(table: str, state_dir: Path) -> frozenset[str]:
    """Return the tokens of all installations of a project in a table."""
    pattern = rf"^{_DISABLED}# resil:{re.escape(RUN_NAME)}:([0-9a-f]+) {project_name(state_dir)}: "
    return frozenset(re.findall(pattern, table, re.MULTILINE))


def is_ours(line: str, token: str) -> bool:
    """Return whether an installation wrote a line (without its newline), even if it was commented out since.

    A line that only mentions the mark, or has other text before it, is not ours.
    """
    word = re.escape(mark(token))
    return (
        re.match(
            rf"{_DISABLED}(?:# ?)*(?:"
            rf"{word} resil-cron-[0-9a-f]{{8}}: "
            rf"|SCRON --job-name=resil-cron-[0-9a-f]{{8}} --comment={word}(?:\s|$)"
            rf"|[-*/,0-9]+(?: [-*/,0-9]+){{4}} (?:/bin/sh -c ')?: {word}; )",
            line,
        )
        is not None
    )


def without_ours(table: str, tokens: Collection[str]) -> str:
    """Return the table without the lines of these installations."""
    return "".join(line for line in _lines(table) if not _is_of(line, tokens))


def with_ours(table: str, lines: Sequence[str], tokens: Collection[str]) -> str:
    """Return the table with these lines instead of all lines of `tokens`; unchanged if they are already there."""
    if tuple(lines) == ours(table, tokens):
        return table
    return "".join(f"{line}\n" for line in lines) + without_ours(table, tokens)


def ours(table: str, tokens: Collection[str]) -> tuple[str, ...]:
    """Return the lines of these installations, without newlines."""
    return tuple(line.removesuffix("\n") for line in _lines(table) if _is_of(line, tokens))


def disabled(table: str, tokens: Collection[str]) -> tuple[str, ...]:
    """Return our lines that SLURM or a user disabled."""
    kept = ("#SCRON ", "# resil:")
    return tuple(line for line in ours(table, tokens) if line.startswith("#") and not line.startswith(kept))


def _lines(table: str) -> list[str]:
    return re.split(r"(?<=\n)", table)


def _is_of(line: str, tokens: Collection[str]) -> bool:
    return any(is_ours(line.removesuffix("\n"), token) for token in tokens if token in line)


def tick_words(installation: Installation, *words: str) -> tuple[str, ...]:
    """Return the command as words: `/opt/venv/bin/python -P -m resilience cron tick ...`.

    `-P` keeps project files such as random.py from shadowing Python's modules.
    """
    return (installation.python, "-P", "-m", "resilience", "cron", *words)


def shell_command(installation: Installation, words: Sequence[str], *, output: str = "", is_clean: bool = True) -> str:
    """Return one line of sh that changes to the project, sets the environment and executes the command.

    `output`: file that all output goes to, truncated each time; if its directory is missing, nothing runs or is printed
    (cron would mail it every minute; the missing heartbeat shows the problem). `is_clean`: pass no variables besides
    those recorded.
    """
    variables = [f"{name}={value}" for name, value in installation.environment.items()]
    clean = ["-i"] if is_clean else ["-u", "PYTHONHOME", "-u", "PYTHONPATH"]
    command = shlex.join(["/usr/bin/env", *clean, *variables, *words])
    quiet = f"exec 2>/dev/null; exec >{shlex.quote(output)} 2>&1; " if output else ""
    return f": {mark(installation.token)}; {quiet}cd {shlex.quote(installation.project)} && exec {command}"


LINE_ENDS = {"\n": "a line break", "\r": "a carriage return"}


def check_writable(installation: Installation, *, where: str, bad: Mapping[str, str] = LINE_ENDS) -> None:
    """Raise ResilError if a part of the command cannot be written to a table. `bad`: characters to their names."""
    named = {"the project directory": installation.project, "the interpreter": installation.python}
    named |= {f"${name}": value for name, value in installation.environment.items()}
    for what, value in named.items():
        for character, name in bad.items():
            if character in value:
                raise ResilError(
                    f"{what} contains {name}, which {where} cannot express: {value!r}",
                    hint="rename it, or use another backend: resil cron install --backend foreground",
                )
