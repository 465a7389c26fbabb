"""A slow storage for torch.distributed.checkpoint, in a separate module, because another process imports it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter


class SlowWriter(FileSystemWriter):
    """Writes the files and the metadata, which complete a checkpoint, after a delay."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path)
        self._seconds = seconds

    def finish(self, *arguments: Any, **keywords: Any) -> None:
        time.sleep(self._seconds)
        super().finish(*arguments, **keywords)
