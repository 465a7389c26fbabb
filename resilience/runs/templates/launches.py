"""Finds the line of a batch script that starts the training, and the template that starts it the same way. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_PROGRAMS = (
    ("container", r"(?:apptainer|singularity)\s+(?:exec|run)\b|\bsrun\b.*--container-(?:image|name)\b"),
    ("accelerate", r"accelerate\s+launch\b|-m\s+accelerate\.commands\.launch\b"),
    ("deepspeed", r"deepspeed(?=\s)|-m\s+deepspeed\.launcher\.\w+"),
    ("torchrun", r"torchrun(?=\s)|-m\s+torch\.distributed\.(?:run|launch)\b"),
    ("srun", r"(?:srun|mpirun|mpiexec)(?=\s)"),
    ("python", r"python[\d.]*(?=\s)"),
)
_TEMPLATES = tuple((name, re.compile(rf"(?<![\w.-])(?:{pattern})")) for name, pattern in _PROGRAMS)
_PYTHON = re.compile(r"(?<![\w.-])(?:[\w./~${}-]*/)?python[\d.]*\s.*")
_TRAINING = re.compile(r"(?:^|\s)(-m\s+(?!torch\.|accelerate\.|deepspeed\.)[\w.]+.*|[\w./~${}\"-]+\.py\b.*)")
_ENDING = re.compile(r"\s*&\s*$")


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of a training in a batch script.

    Attributes:
        line: as written, with its continuation lines joined.
        template: `python`, `srun`, `torchrun`, `accelerate`, `deepspeed` or `container`.
        command: the training without its launcher, as `[run] command` needs it; empty if it was not found.
    """

    line: str
    template: str
    command: str


def launches_of(script: str) -> tuple[Launch, ...]:
    """Return the lines of a script that start Python or a launcher, in their order."""
    return tuple(launch for line in _commands(script) if (launch := parse_launch(line)) is not None)


def training_of(script: str) -> Launch | None:
    """Return the launch that is the training: the last one with a Python file or module, else the last; or None."""
    found = launches_of(script)
    return next((one for one in reversed(found) if one.command), found[-1] if found else None)


def parse_launch(line: str) -> Launch | None:
    """Return the launch of a command line; None if it starts neither Python nor a launcher.

    `srun torchrun train.py` is of torchrun: its template has the srun.
    """
    template = next((name for name, pattern in _TEMPLATES if pattern.search(line)), "")
    if not template:
        return None
    bare = _ENDING.sub("", line)
    if template in ("python", "srun", "container"):
        match = _PYTHON.search(bare)
        command = match[0] if match is not None and _runs_a_file(match[0]) else ""
    else:
        match = _TRAINING.search(bare)
        command = f"python {match[1]}" if match is not None else ""
    return Launch(line, template, command.strip() if _is_whole(command) else "")


def _runs_a_file(command: str) -> bool:
    """Return whether Python is given a file or a module: not `python -c ...`, `python -` or `python -V`."""
    words = command.split()[1:]
    return any(not word.startswith("-") for word in words) and words[0] not in ("-c", "-")


def _is_whole(command: str) -> bool:
    """Return whether quotes and parentheses are balanced: the text may come from within `bash -c '...'`."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return command.count("(") == command.count(")")


def _commands(script: str) -> Iterator[str]:
    """Yield the commands of a script, with continuation lines joined and without comments."""
    for line in re.sub(r"\\\n\s*", "", script).splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            yield re.sub(r"\s+#\s.*$", "", text)
