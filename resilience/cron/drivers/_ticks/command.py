"""The command that makes a tick, with its environment. Pure.

The environment of a crontab is nearly empty, that of a user manager is unpredictable, and that of a job is a login
shell's. So the command itself sets the environment that was recorded at installation (facts of the installation whose
names begin with `$`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from resilience.cron.drivers._ticks.marks import mark
from resilience.cron.records import Installation
from resilience.errors import ResilError

VARIABLE = "$"
"""Prefix of facts that are environment variables of the ticks: `$PATH`."""


def environment(installation: Installation) -> dict[str, str]:
    """Return the environment variables of the ticks."""
    return {name[1:]: value for name, value in sorted(installation.facts.items()) if name.startswith(VARIABLE)}


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
    variables = [f"{name}={value}" for name, value in environment(installation).items()]
    clean = ["-i"] if is_clean else ["-u", "PYTHONHOME", "-u", "PYTHONPATH"]
    command = shlex.join(["/usr/bin/env", *clean, *variables, *words])
    quiet = f"exec 2>/dev/null; exec >{shlex.quote(output)} 2>&1; " if output else ""
    return f": {mark(installation.token)}; {quiet}cd {shlex.quote(installation.project)} && exec {command}"


def check_writable(installation: Installation, *, where: str, bad: Mapping[str, str]) -> None:
    """Raise ResilError if a part of the command cannot be written to a table. `bad`: characters to their names."""
    named = {"the project directory": installation.project, "the interpreter": installation.python}
    named |= {f"${name}": value for name, value in environment(installation).items()}
    for what, value in named.items():
        for character, name in bad.items():
            if character in value:
                raise ResilError(
                    f"{what} contains {name}, which {where} cannot express: {value!r}",
                    hint="rename it, or use another backend: resil cron install --backend foreground",
                )
