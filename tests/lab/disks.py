"""File systems with real faults: a small one that fills up, one that can be made read-only."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.lab.slurm import host

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="a hung file system needs /dev/fuse and root"
)


@contextmanager
def small_disk(directory: Path, size: str = "64k", mode: str = "700") -> Iterator[Path]:
    """Mount a file system; skip the test if the mount fails."""
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode={mode}", "tmpfs", directory], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@contextmanager
def disk_of(user: str) -> Iterator[Path]:
    """A small file system that every node sees, as it is there before them, and that belongs to a user."""
    host.ensure_users()
    owner = pwd.getpwnam(user)
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        with small_disk(Path(above, "disk"), "4m", f"700,uid={owner.pw_uid},gid={owner.pw_gid}") as disk:
            yield disk


def fill(directory: Path) -> Path:
    """Fill the file system, and return the file that takes the space."""
    ballast = directory / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


@contextmanager
def kept_full(directory: Path) -> Iterator[None]:
    """Fill the file system, and keep it full whatever is deleted: a file that is open takes its space still."""
    with ExitStack() as held:
        ballast = fill(directory)
        held.callback(ballast.unlink, missing_ok=True)
        for path in [path for path in directory.rglob("*") if path.is_file()]:
            with suppress(FileNotFoundError):
                held.enter_context(open(path, "rb"))
        fill(directory)  # what was deleted meanwhile
        yield


def make_read_only(directory: Path, read_only: bool) -> None:
    """Remount read-only, as the kernel does after a disk error."""
    subprocess.run(["mount", "-o", f"remount,{'ro' if read_only else 'rw'}", directory], check=True)
