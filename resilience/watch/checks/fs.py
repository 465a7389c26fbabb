"""`resil watch fs`: free space, quotas, growth, and missing or read-only file systems."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.watch.checks._filesystem import FileSystemCheck
from resilience.watch.checks._filesystem.reading import BYTES
from resilience.watch.checks._filesystem.task import FileSystemSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FsSettings(FileSystemSettings):
    """[watch.fs]: free space on file systems.

    Attributes:
        warn_free_bytes: warn if less than this is free: 500GiB.
        crit_free_bytes: critical if less than this is free.
        large_bytes: a shared file system larger than this is judged by its free amount and runway, not by percent,
            unless a percentage is set.
        large_warn_free_bytes: warn if less than this is free on such a file system and no other threshold is set.
        large_crit_free_bytes: critical if less than this is free on such a file system and no other threshold is set.
        command_unit: the unit of sizes printed without one: KiB.
        du_limit_bytes: the limit for du's total.
        checkpoint_bytes: the size of one checkpoint. Default: measured in that directory.
        purge_days: the site deletes files not used for this many days; 0: never. Checked are the checkpoints, else
            the named path, else the project.
        purge_warn_days: how many days before the purge to warn.
        read_only: accept a read-only file system.
    """

    warn_free_bytes: int | None = None
    crit_free_bytes: int | None = None
    large_bytes: int = 100 * 2**40
    large_warn_free_bytes: int = 10 * 2**40
    large_crit_free_bytes: int = 2 * 2**40
    command_unit: str = "B"
    du_limit_bytes: int | None = None
    checkpoint_bytes: int | None = None
    purge_days: float = 0.0
    purge_warn_days: float = 7.0
    read_only: bool = False


SUMMARY = "free space on file systems: quotas, percent, free bytes, runway; missing and read-only file systems"
CHECK = FileSystemCheck(BYTES, FsSettings, SUMMARY, "resil watch fs /scratch --warn-percent 80")
