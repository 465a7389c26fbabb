"""Where the files that ship with resil lie: templates and crontab samples."""

from __future__ import annotations

from pathlib import Path

from resilience.errors import ResilError

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_folder(kind: str) -> Path:
    """Given `slurm_templates` or `cron`, return the folder, in a clone, an editable install and a wheel alike.

    A wheel holds them below the package (`_shipped`, see pyproject.toml); a clone beside it. Raise ResilError if the
    installation lacks them.
    """
    for folder in (_PACKAGE / "_shipped" / kind, _PACKAGE.parent / kind):
        if folder.is_dir():
            return folder
    raise ResilError(
        f"this installation of resil lacks its {kind} folder (looked beside and below {_PACKAGE})",
        hint="install it again: pip install --force-reinstall resil",
    )
