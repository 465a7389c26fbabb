"""How many descriptors this process has open: a test asks before and after."""

from __future__ import annotations

import gc
from pathlib import Path


def count_descriptors() -> int:
    """Return how many are open once those are closed that earlier tests left to the garbage collector."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
