"""Hints are commands that work when they are pasted: finds the commands in a hint, and parses them; none is run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from resilience.errors import ResilError
from resilience.finding import Finding

PACKAGE = str(Path(__file__).parents[2] / "resilience")
GIVEN: set[str] = set()
"""Every hint and advice that code of resil has given in this process, and that is not checked yet."""

_COMMAND = re.compile(r"(?P<before>^|: |`|\W)(?<![./\w'\"-])resil (?P<rest>(?P<word>-{0,2}[a-z][\w-]*).*)", re.DOTALL)
_END = re.compile(r"`|;|\s\(|\)|,(?:\s|$)|\s(?:or|and|then)\s|:\s|(?<!\.)\.(?:\s|$)|\s[#>|]\s|\s&&\s|\n")
_PLACEHOLDER = re.compile(r"<\w[\w -]*>|\.\.\.|…")


def commands_in(hint: str) -> Iterator[str]:
    """The calls of resil in a text for people: what follows `resil ` up to the next sign or word of the sentence.

    Elsewhere, `resil writes it` is a sentence.
    """
    found = _COMMAND.search(hint)
    if found is None:
        return
    is_verb = found["word"] in ("or", "on", "of") or found["word"].endswith("s")
    if found["word"] in names() or (found["before"] in ("", ": ", "`") and not is_verb):
        yield _END.split(found["rest"], maxsplit=1)[0].strip()
    yield from commands_in(found["rest"])


@cache
def names() -> frozenset[str]:
    from resilience.cli.main import COMMANDS

    return frozenset(COMMANDS)


def wrong(hint: str) -> str:
    """Why a command of the hint would not work as it stands; empty if all would."""
    for command in commands_in(hint):
        if command == "run":
            continue  # the name of the command in a sentence
        if _PLACEHOLDER.search(command):
            return f"resil {command}: a placeholder is a word in capitals"
        try:
            check_command(shlex.split(command))
        except ValueError as error:
            return f"resil {command}: {error}"
        except errors() as error:
            if "there is no watchdog" not in str(error):  # it is a plugin of the test, which has ended
                return f"resil {command}: {error}"
    return ""


@cache
def errors() -> tuple[type[Exception], ...]:
    """What a command line is refused with."""
    import typer

    return typer._click.exceptions.ClickException, ResilError


def check_command(words: list[str]) -> None:
    """Parse a command line as resil would, without running it. Raise what it would be refused with."""
    import typer

    command = _all_of_resil()
    context = None
    name = "resil"
    while True:
        try:
            context = command.make_context(name, list(words), parent=context)
        except (typer.Exit, SystemExit):  # --version, --help
            return
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "resolve_command") or (command.invoke_without_command and not rest):
            return
        if rest and rest[0].isupper():  # resil watch NAME
            return
        name, command, words = command.resolve_command(context, rest)


@cache
def _all_of_resil() -> Any:
    import typer

    from resilience.cli.main import app

    group: Any = typer.main.get_command(app)
    made = cache(group.get_command)
    group.get_command = lambda context, name: made(None, name)
    return group


def listen() -> None:
    """Collect the hints of errors and the advice of findings from now on, those of resil's own code."""

    def collecting(made: Any, attribute: str) -> None:
        original = made.__init__

        def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
            original(self, *arguments, **keywords)
            text = getattr(self, attribute)
            if text and _is_ours(sys._getframe(1)):
                GIVEN.add(text)

        made.__init__ = __init__

    from resilience.doctor.diagnosis import Diagnosis

    for made, attribute in ((ResilError, "hint"), (Finding, "advice"), (Diagnosis, "advice")):
        collecting(made, attribute)


def _is_ours(frame: Any) -> bool:
    """Whether the code that made it, subclasses' constructors left out, belongs to resil."""
    while frame is not None and frame.f_code.co_name == "__init__":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(PACKAGE)


def wrong_ones() -> list[str]:
    """Check what was collected since the last call."""
    new = sorted(GIVEN)
    GIVEN.clear()
    return [f"{reason}\n      of the hint: {hint}" for hint in new if (reason := wrong(hint))]
