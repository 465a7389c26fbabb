"""A disk whose data cannot be read or written."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.errors import UsageError
from resilience.inject.files import behaviour
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.fault import FileFault, FileSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EioSettings(FileSettings):
    """Which files are hit, and in what.

    Attributes:
        on: what fails: read, write or all.
    """

    on: str = "all"


def _behaviour(settings: EioSettings) -> Behaviour:
    if settings.on not in ("read", "write", "all"):
        raise UsageError(f"--on {settings.on}: what fails is read, write or all")
    return behaviour.input_output_error(settings.on)


FAULT = FileFault(
    summary="a dying disk: reading and writing data fails with EIO, names still work",
    Settings=EioSettings,
    example="resil inject eio --on write --for 5m",
    behaviour=_behaviour,
)
