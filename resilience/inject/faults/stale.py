"""A network file system whose server has forgotten all files."""

from __future__ import annotations

from resilience.inject.files import behaviour
from resilience.inject.files.fault import FileFault, FileSettings

FAULT = FileFault(
    summary="a file server that has lost its files: everything fails with ESTALE",
    Settings=FileSettings,
    example="resil inject stale --for 5m",
    behaviour=lambda settings: behaviour.stale(),
)
