"""A disk that answers late, and moves data slowly."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.errors import UsageError
from resilience.inject.files import behaviour
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.fault import FileFault, FileSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDiskSettings(FileSettings):
    """Which files are hit, and how slow they are.

    Attributes:
        delay_s: how late every operation is answered.
        rate_bytes: how much all together may read and write per second: 10M; 0: as much as the disk can.
    """

    delay_s: float = 0.1
    rate_bytes: int = 0


def _behaviour(settings: SlowDiskSettings) -> Behaviour:
    if settings.delay_s < 0 or settings.rate_bytes < 0:
        raise UsageError("a disk is late by 0 s or more, and moves 0 bytes per second (no limit) or more")
    if not settings.delay_s and not settings.rate_bytes:
        raise UsageError("a disk without a delay and a rate is not slow", hint="for instance --delay 0.5 --rate 10M")
    return behaviour.slow(settings.delay_s, settings.rate_bytes or None)


FAULT = FileFault(
    summary="a slow disk: every operation is late, and data comes slowly",
    Settings=SlowDiskSettings,
    example="resil inject slow-disk --delay 0.5 --rate 10M --for 10m",
    behaviour=_behaviour,
)
