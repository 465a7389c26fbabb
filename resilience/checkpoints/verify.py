"""Whether a checkpoint is what was committed: nothing missing, each file complete, each byte equal.

Three levels, each with those before it: `sizes` (the manifest is intact, each file is there with its size),
`structure` (each file is complete by its own headers: `formats/`), `digest` (each file is read, and equal to the
digest of the commit). "I could not look" is neither good nor damaged.
"""

from __future__ import annotations

import os
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass

from resilience.base.files import kind_of
from resilience.checkpoints.digest import OutOfTime, digest_file
from resilience.checkpoints.directory import Checkpoint
from resilience.checkpoints.formats import Content, Fault, check_content
from resilience.checkpoints.manifest import DamagedManifest, FileEntry, Manifest, in_share
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LEVELS", "Fault", "Verification", "stamp_of", "verify"]

LEVELS = ("sizes", "structure", "digest")


@dataclass(frozen=True, slots=True)
class Verification:
    """What a look at one checkpoint showed.

    Attributes:
        level: of LEVELS.
        fault: the first one found.
        unread: number of files that were not read before the deadline.
        why_unknown: why a look was impossible; empty if it was possible.
        token: of the manifest; empty if it could not be read.
        stamp: of the files before they were read, see `stamp_of`; empty if not all of them were.
    """

    level: str
    fault: Fault | None = None
    unread: int = 0
    why_unknown: str = ""
    token: str = ""
    stamp: str = ""

    @property
    def is_good(self) -> bool:
        """Return whether all was looked at, and no fault found."""
        return self.fault is None and not self.why_unknown and not self.unread

    def __str__(self) -> str:
        if self.fault is not None:
            return str(self.fault)
        if self.why_unknown:
            return f"could not be verified: {self.why_unknown}"
        return f"{self.unread} files not read in time" if self.unread else f"good ({self.level})"


def verify(
    checkpoint: Checkpoint, level: str = "digest", *, node: int = 0, nodes: int = 1, deadline: float | None = None
) -> Verification:
    """Look at a checkpoint, and return the first fault. Never raises for what is on disk.

    An error of reading makes the answer unknown. A missing file does not: its directory was there to say so.

    Args:
        checkpoint: committed or sealed.
        level: of LEVELS.
        node, nodes: look only at share `node` of `nodes`; the structure is looked at with share 0.
        deadline: of time.monotonic(); files are read up to it.
    """
    token = stamp = ""
    try:
        os.lstat(checkpoint.path)  # gone, or not mounted, is not damaged
        manifest = checkpoint.manifest()
        token = manifest.token
        if level == "digest" and node == 0:
            stamp = stamp_of(checkpoint, manifest)
        fault, unread = _look(checkpoint, manifest, level, node, nodes, deadline)
        if fault is not None:
            os.lstat(checkpoint.path)  # it was pruned meanwhile
        return Verification(level, fault, unread, token=token, stamp=stamp)
    except DamagedManifest as error:
        name = os.path.relpath(checkpoint.manifest_path, checkpoint.path)
        return Verification(level, Fault(name, "the manifest as written", error.message, "is damaged"))
    except CheckpointError as error:
        return Verification(level, why_unknown=str(error), token=token)
    except OSError as error:
        words = f"{error.filename or checkpoint.path}: {error.strerror or error}"
        return Verification(level, why_unknown=words, token=token)


def stamp_of(checkpoint: Checkpoint, manifest: Manifest) -> str:
    """Return a text that is another one once a file was written to, replaced or removed, or the checkpoint copied.

    A copy has another manifest file, though `cp -a` and rsync keep the times of the files. Raise OSError.
    """
    stamp = 0
    for entry in manifest.files:
        with suppress(FileNotFoundError, NotADirectoryError):  # `verify` says so
            info = os.lstat(_path_of(checkpoint, entry))
            stamp = zlib.crc32(
                f"{entry.path}\0{info.st_size} {info.st_mtime_ns}".encode(errors="surrogateescape"), stamp
            )
    return f"{os.lstat(checkpoint.manifest_path).st_ctime_ns} {stamp:08x}"


def _path_of(checkpoint: Checkpoint, entry: FileEntry) -> Path:
    return checkpoint.path / entry.path if entry.path else checkpoint.path


def _look(
    checkpoint: Checkpoint, manifest: Manifest, level: str, node: int, nodes: int, deadline: float | None
) -> tuple[Fault | None, int]:
    """Return the first fault, and the number of files not read. Raise OSError; CheckpointError for unknown digests."""
    share = [entry for entry in manifest.files if in_share(entry.path, node, nodes)]
    fault = next((fault for entry in share if (fault := _check_size(checkpoint, entry))), None)
    if fault is None and level != "sizes" and node == 0:
        if any(not entry.path for entry in manifest.files):  # a single file
            content = Content(checkpoint.store, {checkpoint.name: manifest.size_bytes})
        else:
            content = Content(checkpoint.path, {entry.path: entry.size for entry in manifest.files})
        fault = check_content(content)
    if fault is not None or level != "digest":
        return fault, 0
    for number, entry in enumerate(share):
        if deadline is not None and time.monotonic() >= deadline:
            return None, len(share) - number
        try:
            size, digest = digest_file(checkpoint.path / entry.path, manifest.algorithm, deadline=deadline)
        except OutOfTime:
            return None, len(share) - number
        if (size, digest) != (entry.size, entry.digest):
            expected, found = f"{manifest.algorithm} {entry.digest}", f"{digest} of {size:,} bytes"
            return Fault(entry.path or checkpoint.name, expected, found, "has other content than was committed"), 0
    return None, 0


def _check_size(checkpoint: Checkpoint, entry: FileEntry) -> Fault | None:
    name, expected = entry.path or checkpoint.name, f"{entry.size:,} bytes"
    try:
        info = os.lstat(_path_of(checkpoint, entry))
    except (FileNotFoundError, NotADirectoryError):
        return Fault(name, expected, "no file", "is missing")
    if kind := kind_of(info):
        return Fault(name, "a file", kind, "was replaced")
    if info.st_size != entry.size:
        what = "is truncated" if info.st_size < entry.size else "is too long"
        return Fault(name, expected, f"{info.st_size:,} bytes", what)
    return None
