"""What a submit finds of its run directory, so that one that queued nothing can leave it so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.errors import ResilError
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import read_intents
from resilience.system.files import read_regular, write_atomic


@dataclass(frozen=True, slots=True)
class Footing:
    """What there was of a run directory before a submit.

    Attributes:
        run_file: content of its run.toml, None when it was never submitted from here.
        missing: the run's folder and those above it that were not there, the deepest first.
    """

    run_file: bytes | None
    missing: tuple[Path, ...]


def look_at_footing(directory: RunDirectory) -> Footing:
    """Remember what there is. Raise StateDirectoryError if it cannot be looked at."""
    if not directory.exists():
        folders = (directory.path, *directory.path.parents)
        return Footing(None, tuple(folder for folder in folders if not os.path.lexists(folder)))
    found = read_regular(directory.path / layout.RUN_FILE, limit_bytes=2**20)
    return Footing(found[0] if found is not None else b"", ())


def undo(directory: RunDirectory, footing: Footing, tokens: Collection[str]) -> None:
    """Leave a run directory as it was before a submit that queued nothing.

    Only what this very submit wrote is removed: the folder may hold a person's own files, and another submit may have
    begun to use it meanwhile.
    """
    with suppress(ResilError, OSError):
        if any(intent.token not in tokens for intent in read_intents(directory)):
            return  # what lies there now is another submit's
        if footing.run_file is not None:
            write_atomic(directory.path / layout.RUN_FILE, footing.run_file, mode=directory.file_mode)
            return
        if directory.path in footing.missing:
            shutil.rmtree(directory.path, ignore_errors=True)
        else:
            for name in (layout.SUBMISSIONS, layout.RUN_FILE):
                (directory.path / name).unlink(missing_ok=True)
            for name in layout.FOLDERS:
                with suppress(OSError):
                    (directory.path / name).rmdir()
        for folder in footing.missing[1:]:
            folder.rmdir()
