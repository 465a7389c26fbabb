"""Directories to scan, and their size by du."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from resilience.watch.scan.scan import Scan, scan

NOW = 1_800_000_000.0
LONG_AGO = 1_600_000_000


def du(directory: Path) -> int:
    """Return the size in KiB that `du -sx` reports."""
    done = subprocess.run(["du", "-skx", directory], capture_output=True, text=True)
    return int(done.stdout.split()[0])


def kib(found: Scan) -> int:
    """Return the size in KiB of a scan."""
    return found.tree.blocks[0] // 2


def run_scan(root: Path, cache: Path | None = None, now: float = NOW, **options: Any) -> Scan:
    """Scan a directory."""
    return scan(root, cache, now=now, **options)


def write(path: Path, size: int = 10_000) -> Path:
    """Write a file, and create its parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


def settle(root: Path) -> None:
    """Set all mtimes to long ago: a scan never trusts the mtime of a directory that has just changed."""
    for directory, _, files in os.walk(root, topdown=False):
        for name in files:
            os.utime(Path(directory, name), (LONG_AGO, LONG_AGO), follow_symlinks=False)
        os.utime(directory, (LONG_AGO, LONG_AGO))


def a_tree(root: Path, tops: int = 4, subs: int = 5, files: int = 3) -> Path:
    """Create nested directories with a few files each and old mtimes."""
    for top in range(tops):
        for sub in range(subs):
            for number in range(files):
                write(root / f"t{top}" / f"s{sub}" / f"f{number}", 5000)
    settle(root)
    return root
