"""Marks that identify our lines in shared tables. Pure.

Each of our lines carries `resil:.cron:<token>` with the installation's token; a comment line also names the project, so
that reinstalling finds lines of an installation that is no longer recorded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from resilience.cron.records import RUN_NAME, Installation
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
    """Whether an installation wrote a line (without its newline), even if it was commented out since.

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


def is_disabled(line: str) -> bool:
    """Whether a line was disabled, by SLURM or with a `#`."""
    return line.startswith("#") and not line.startswith("#SCRON ")
