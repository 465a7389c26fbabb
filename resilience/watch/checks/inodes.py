"""`resil watch inodes`: free inodes. Without these, creating a file fails although there is free space."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.watch.checks._filesystem import FileSystemCheck
from resilience.watch.checks._filesystem.reading import INODES
from resilience.watch.checks._filesystem.task import FileSystemSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class InodesSettings(FileSystemSettings):
    """[watch.inodes]: the number of files on file systems.

    Attributes:
        warn_free: warn if fewer inodes than this are free.
        crit_free: critical if fewer inodes than this are free.
        du_limit: the limit for the total of `du --inodes`.
        checkpoint_files: files and directories in one checkpoint. Default: counted in that directory.
    """

    warn_free: int | None = None
    crit_free: int | None = None
    du_limit: int | None = None
    checkpoint_files: int | None = None


SUMMARY = "inodes on file systems: quotas, percent, free inodes, runway"
CHECK = FileSystemCheck(INODES, InodesSettings, SUMMARY, "resil watch inodes /scratch --warn-free 100000")
