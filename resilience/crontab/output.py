"""Keeps of a run's output its beginning and its end, without secrets, in bounded memory and on a bounded disk."""

from __future__ import annotations

from resilience.system.cron_folder import CronFolder


def outputs(folder: CronFolder, key: str) -> tuple[str, ...]:
    """The names of the kept outputs of an entry, oldest first, in `<.cron>/output/<key>/`."""
    raise NotImplementedError


def prune(folder: CronFolder, key: str, keep_runs: int) -> int:
    """Keep the newest outputs of an entry; return how many were removed."""
    raise NotImplementedError
