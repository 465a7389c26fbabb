"""The manifest of a checkpoint: which files belong to it, with size and digest, written last. Pure.

    {"crc32": "8c3f01aa", "manifest": {"format": 1, "step": 41200, ..., "files": [["model.pt", 1073741824, "9f..."]]}}

`crc32` (zlib.crc32) is that of the compact JSON of `manifest` with sorted keys: a damaged manifest is no evidence.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from resilience.errors import CheckpointError

FORMAT = 1
ALGORITHMS = ("xxh3_128", "crc32")
"""xxh3_128 where the package `xxhash` is installed, else zlib.crc32."""


class DamagedManifest(CheckpointError):
    """The text is no manifest, or was damaged after it was written."""


class NewerManifest(CheckpointError):
    """The manifest was written by a newer version, which this one cannot judge: neither good nor damaged."""


class FileEntry(NamedTuple):
    """One file of a checkpoint.

    Attributes:
        path: relative to the checkpoint, with `/`; `""` for a checkpoint that is a single file.
        size: in bytes.
        digest: of the content, in hexadecimal, by the manifest's algorithm.
    """

    path: str
    size: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What was committed, or sealed.

    Attributes:
        token: random text that identifies this manifest: verifications refer to it.
        run: name of the run; empty outside of one.
        attempt: number of the attempt that saved it; 0: unknown.
        step: number of completed steps.
        save: number of the save of this step in its process; 0: unknown.
        label: its name for people; empty without one.
        world: number of ranks that saved it; 0: unknown.
        started_at, durable_at: seconds since the epoch.
        stall_s: how long the training waited, in seconds; None: unknown.
        algorithm: of the digests, one of ALGORITHMS.
        metrics: numbers for retention, such as `{"loss": 2.31}`.
        directories: number of directories inside.
        files: sorted by path.
    """

    token: str
    step: int
    algorithm: str
    files: tuple[FileEntry, ...]
    run: str = ""
    attempt: int = 0
    save: int = 0
    label: str = ""
    world: int = 0
    started_at: float = 0.0
    durable_at: float = 0.0
    stall_s: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    directories: int = 0
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """Return the total size of the files."""
        return sum(entry.size for entry in self.files)

    @property
    def inodes(self) -> int:
        """Return the number of files and directories, the checkpoint's own directory included."""
        return len(self.files) + self.directories + 1


def new_token() -> str:
    """Return a random token for a manifest."""
    return os.urandom(8).hex()


def in_share(path: str, node: int, nodes: int) -> bool:
    """Return whether a file belongs to the share of a node: files are spread by the zlib.crc32 of their path."""
    return zlib.crc32(os.fsencode(path)) % nodes == node


def to_text(manifest: Manifest) -> str:
    """Return the text of a manifest's file."""
    body = _canonical({one.name: getattr(manifest, one.name) for one in fields(manifest)})
    return f'{{"crc32":"{zlib.crc32(body.encode()):08x}","manifest":{body}}}\n'


def from_text(text: str | bytes, name: str) -> Manifest:
    """Return the manifest in a text. `name` is shown in errors.

    Raise NewerManifest if its format is newer than ours, else DamagedManifest if it is not what `to_text` wrote.
    """
    try:
        record = json.loads(text)
        body = record["manifest"]
        crc32 = zlib.crc32(_canonical(body).encode())
        newer = body["format"] > FORMAT
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedManifest(f"{name} is not a manifest: {error}") from None
    if record.get("crc32") != f"{crc32:08x}":
        raise DamagedManifest(f"{name} is damaged: its checksum is {crc32:08x}, and {record.get('crc32')} was recorded")
    if newer:
        raise NewerManifest(
            f"{name} has format {body['format']}, and this version of resil knows {FORMAT}",
            hint="use the newer version of resil that saved it",
        )
    try:
        return _manifest(body)
    except (TypeError, ValueError) as error:
        raise DamagedManifest(f"{name} is not a manifest: {error}") from None


def _manifest(body: dict[str, Any]) -> Manifest:
    known = {one.name for one in fields(Manifest)}
    files = tuple(FileEntry(str(path), int(size), str(digest)) for path, size, digest in body.get("files", ()))
    if any(entry.path.startswith("/") or ".." in entry.path.split("/") for entry in files):
        raise ValueError("a path leads out of the checkpoint")
    return Manifest(**{name: value for name, value in body.items() if name in known} | {"files": files})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
