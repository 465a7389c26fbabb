"""The environment of what runs: minimal, the same for every driver, and written down. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from resilience.model.cron import Entry


def environment_of(
    entry: Entry,
    slot: int,
    *,
    environ: Mapping[str, str],
    home: Path,
    user: str,
    config: Path,
    python: str,
    resil_folder: str,
    tool_folders: Sequence[str] = (),
    keep: Iterable[str] = (),
) -> dict[str, str]:
    """Given an entry and a slot, return what its run sees.

    `environ` is the scheduler's own; `tool_folders` are those of sbatch and squeue; `keep` names variables that pass as
    well: those that [channel.*] settings name with `*_variable`.
    """
    raise NotImplementedError
