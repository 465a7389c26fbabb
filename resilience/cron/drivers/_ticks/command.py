"""The command that makes a tick, with the environment that it needs. Pure.

The environment of a crontab is nearly empty, a user manager's is somebody's guess and a job's is a login shell's: so
what counts stands in the command itself. It was recorded when the project was installed (`facts` of the installation
whose names begin with `$`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from resilience.cron.drivers._ticks.marks import mark
from resilience.cron.records import Installation
from resilience.errors import ResilError

VARIABLE = "$"
"""Facts whose names begin so are environment variables of the ticks: `$PATH`."""


def environment(installation: Installation) -> dict[str, str]:
    """The environment variables of the ticks."""
    return {name[1:]: value for name, value in sorted(installation.facts.items()) if name.startswith(VARIABLE)}


def tick_words(installation: Installation, *words: str) -> tuple[str, ...]:
    """The command as words: `/opt/venv/bin/python -P -m resilience cron tick ...`.

    `-P` keeps a file of the project that is called like a module of Python's (random.py) from being taken for it.
    """
    return (installation.python, "-P", "-m", "resilience", "cron", *words)


def shell_command(installation: Installation, words: Sequence[str], *, output: str = "", is_clean: bool = True) -> str:
    """One line of sh that goes to the project, sets the environment and becomes the command.

    With `output`, all that it writes goes to that file, which begins anew each time; without the file's directory
    nothing runs and nothing is said (cron would mail it, every minute; the missing heartbeat tells). `is_clean`: no
    variable besides those recorded.
    """
    variables = [f"{name}={value}" for name, value in environment(installation).items()]
    clean = ["-i"] if is_clean else ["-u", "PYTHONHOME", "-u", "PYTHONPATH"]
    command = shlex.join(["/usr/bin/env", *clean, *variables, *words])
    quiet = f"exec 2>/dev/null; exec >{shlex.quote(output)} 2>&1; " if output else ""
    return f": {mark(installation.token)}; {quiet}cd {shlex.quote(installation.project)} && exec {command}"


def refuse_unwritable(installation: Installation, *, where: str, bad: Mapping[str, str]) -> None:
    """Raise ResilError if something of the command cannot be written into a table. `bad`: character to its name."""
    named = {"the project directory": installation.project, "the interpreter": installation.python}
    named |= {f"${name}": value for name, value in environment(installation).items()}
    for what, value in named.items():
        for character, name in bad.items():
            if character in value:
                raise ResilError(
                    f"{what} has {name} in it, which cannot stand in {where}: {value!r}",
                    hint="rename it, or use another backend: resil cron install --backend foreground",
                )
