"""A file system that the kernel has remounted read-only after an error."""

from __future__ import annotations

from resilience.inject.files import behaviour
from resilience.inject.files.fault import FileFault, FileSettings

FAULT = FileFault(
    summary="a file system that has become read-only: every change fails with EROFS",
    Settings=FileSettings,
    example="resil inject read-only --for 5m",
    behaviour=lambda settings: behaviour.read_only(),
)
