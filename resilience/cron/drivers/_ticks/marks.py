"""How what we wrote into a table of somebody else's is known as ours. Pure.

Every line that we write carries `resil:.cron:<token>`, where the token is the installation's; a line of comment names
the project besides, so that lines of an installation that nobody remembers any more are found when the project is
installed again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from resilience.cron.records import RUN_NAME, Installation
from resilience.system.files import short_digest

_DISABLED = r"(?:#DISABLED: )*"
"""What SLURM 24.11 puts before the lines of an entry whose job was cancelled."""


def mark(token: str) -> str:
    """What each line of an installation carries; the comment of its jobs, too."""
    return f"resil:{RUN_NAME}:{token}"


def unit_name(installation: Installation) -> str:
    """What an installation is called among others of the same person: its job, its unit. `resil-cron-0c4ee3bf`.

    The same however the paths are spelled.
    """
    return f"resil-cron-{installation.token[:8]}"


def project_name(state_dir: Path) -> str:
    """What a project is called in the line of comment that stands first: `resil-cron-0c4ee3bf`."""
    return f"resil-cron-{short_digest(os.fsencode(state_dir))[:8]}"


def headline(installation: Installation, state_dir: Path) -> str:
    """The line of comment that stands first."""
    return (
        f"# {mark(installation.token)} {project_name(state_dir)}: the ticks of {installation.project}; "
        "`resil cron install` wrote these lines, `resil cron uninstall` takes them out"
    )


def tokens_of(table: str, state_dir: Path) -> frozenset[str]:
    """The tokens of all installations of a project that stand in a table."""
    pattern = rf"^{_DISABLED}# resil:{re.escape(RUN_NAME)}:([0-9a-f]+) {project_name(state_dir)}: "
    return frozenset(re.findall(pattern, table, re.MULTILINE))


def is_ours(line: str, token: str) -> bool:
    """Whether an installation wrote a line (without its end), even if somebody commented it out since.

    A line that only speaks of the mark, or that has something of its own before it, is not ours.
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
    """Whether a line was put out of action: by SLURM, or by somebody with a `#`."""
    return line.startswith("#") and not line.startswith("#SCRON ")
