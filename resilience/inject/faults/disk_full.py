"""A disk without space, or a quota that is used up."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.inject.files import behaviour
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.fault import FileFault, FileSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFullSettings(FileSettings):
    """Which files are hit, and what is left to them.

    Attributes:
        space_bytes: how much may still be written: 100M. What is deleted meanwhile is free again.
        quota: fail as a quota does (EDQUOT), and not as a disk (ENOSPC).
    """

    space_bytes: int = 0
    quota: bool = False


def _behaviour(settings: DiskFullSettings) -> Behaviour:
    return behaviour.disk_full(settings.space_bytes, quota=settings.quota)


FAULT = FileFault(
    summary="a full disk or quota: writes fail with ENOSPC or EDQUOT",
    Settings=DiskFullSettings,
    example="resil inject disk-full --for 5m; resil inject disk-full --directory /scratch/me/run --space 500M --quota",
    behaviour=_behaviour,
)
