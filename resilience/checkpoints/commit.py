"""The commit of a part: digests, manifest, and one rename. Runs in a child (`worker.py`); imports no framework.

Several nodes share the reading: the CRC-32 of a file's path says whose it is, whichever rank wrote it. Each node writes
`.resil/share.<node>.json` into the part. Rank 0's node commits: every share must be there, and agree with what is on
disk; then files, directories and manifest are on disk, and the part gets its name.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import ExitStack, suppress
from typing import Any

from resilience.base.files import open_directory, read_regular, replace_file, sync_directory
from resilience.checkpoints import fence
from resilience.checkpoints.digest import best_algorithm, digest_file, list_files, sync_file
from resilience.checkpoints.directory import MOST_MANIFEST_BYTES, Checkpoint, StoreDirectory
from resilience.checkpoints.formats import Content, check_content
from resilience.checkpoints.manifest import FileEntry, Manifest, in_share, new_token, to_text
from resilience.checkpoints.names import MANIFEST, OWN, committed_name, number_of, parse_part
from resilience.checkpoints.reuse import link_unchanged
from resilience.checkpoints.trash import discard, discard_replaced
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}
"""What rename(2) answers if the new name is that of a directory with content."""
_TRIES = 3


def share_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job of the worker: `store`, `part`, `node`, `nodes`. See `write_share`."""
    store = StoreDirectory.open(job["store"])
    return {"files": write_share(store.path / job["part"], job["node"], job["nodes"], job.get("algorithm"))}


def commit_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job of the worker: `store`, `part`, `nodes`, `fields` and `reuse`. See `commit`."""
    store = StoreDirectory.open(job["store"])
    return commit(store, job["part"], job["fields"], nodes=job.get("nodes", 1), reuse=job.get("reuse", False))


def write_share(part: Path, node: int, nodes: int, algorithm: str | None = None) -> int:
    """Write all files of a part to disk, digest those of this node, and record them; return how many they are.

    Any node may have written any file, and only that one can write it to disk. Raise CheckpointError; OSError.
    """
    algorithm = algorithm or best_algorithm()
    entries = _digest_share(part, node, nodes, algorithm)
    text = json.dumps({"nodes": nodes, "algorithm": algorithm, "files": entries}) + "\n"
    with suppress(FileExistsError):
        os.mkdir(part / OWN)
    replace_file(part / OWN / _share_name(node), text, mode=0o644, durable=True)
    return len(entries)


def commit(
    store: StoreDirectory, part: str, fields: dict[str, Any], *, nodes: int = 1, reuse: bool = False
) -> dict[str, Any]:
    """Commit the part of that name; return what was committed.

    Args:
        store: the directory of checkpoints.
        part: the part's name, which says step and attempt.
        fields: of the manifest: run, label, world, started_at, stall_s, metrics.
        nodes: number of shares to expect; with one node, its files are digested here.
        reuse: whether a file that an earlier checkpoint has may become a hard link to that.

    Returns:
        `name` of the checkpoint, `bytes`, `reused_bytes`, `inodes`, `digest_s`, and `outcome`: `committed`; `replaced`
        if there was another one of the step; `already` if this attempt has committed the step with the same content, or
        by a later save: then the part is discarded.

    Raises:
        CheckpointError: the part is not complete, or a newer attempt has begun. The part stays as it is.
        OSError: what could not be read or written. After the rename alone, the checkpoint is listed, and may be lost in
            a power cut.
    """
    parsed = parse_part(part)
    if parsed is None:
        raise CheckpointError(f"{part} is not the name of a save in flight")
    step, attempt, save = parsed
    fence.check(store, attempt)
    path = store.path / part
    with ExitStack() as open_files:
        held = open_directory(path)  # while it is open, its number stays the same on FUSE, too
        open_files.callback(os.close, held)
        began = time.monotonic()
        if nodes > 1:
            algorithm, entries = _read_shares(path, nodes)
        else:
            algorithm = best_algorithm()
            entries = _digest_share(path, 0, 1, algorithm)
        digest_s = time.monotonic() - began
        directories = _check(path, entries)
        reused_bytes = link_unchanged(store, path, step, algorithm, entries) if reuse else 0
        for directory in (*reversed(directories), ""):
            sync_directory(path / directory)
        manifest = Manifest(
            **fields | {"token": new_token(), "step": step, "attempt": attempt, "save": save, "algorithm": algorithm},
            durable_at=time.time(),
            directories=len(directories),
            files=tuple(sorted(entries)),
        )
        with suppress(FileExistsError):
            os.mkdir(path / OWN)
        for node in range(nodes if nodes > 1 else 0):
            os.unlink(path / OWN / _share_name(node))
        replace_file(path / OWN / MANIFEST, to_text(manifest), mode=0o644, durable=True)
        sync_directory(path)
        if os.stat(path).st_ino != os.fstat(held).st_ino:  # a restarted process gives its parts the same names
            raise CheckpointError(f"{path} was taken away", hint="was the training restarted?")
        name, outcome = _publish(store, part, manifest)
    return {
        "name": name,
        "bytes": manifest.size_bytes,
        "reused_bytes": reused_bytes,
        "inodes": manifest.inodes,
        "digest_s": round(digest_s, 3),
        "outcome": outcome,
    }


def _digest_share(part: Path, node: int, nodes: int, algorithm: str) -> list[FileEntry]:
    entries = []
    for path in sorted(list_files(part).sizes):
        if in_share(path, node, nodes):
            entries.append(FileEntry(path, *digest_file(part / path, algorithm, sync=True)))
        else:
            sync_file(part / path)
    return entries


def _read_shares(part: Path, nodes: int) -> tuple[str, list[FileEntry]]:
    """Return the algorithm and the files of all shares. Raise CheckpointError if one is missing or of another kind."""
    algorithms: set[str] = set()
    entries: list[FileEntry] = []
    directory = open_directory(part / OWN)
    try:
        for node in range(nodes):
            found = read_regular(_share_name(node), limit_bytes=MOST_MANIFEST_BYTES, directory=directory)
            if found is None:
                raise CheckpointError(
                    f"the digests of node {node} are not in {part}",
                    hint="check that all nodes see the same directory of checkpoints",
                )
            share = json.loads(found[0])
            if share["nodes"] != nodes:
                raise CheckpointError(f"node {node} counts {share['nodes']} nodes, and {nodes} were expected")
            algorithms.add(share["algorithm"])
            entries += [FileEntry(*entry) for entry in share["files"]]
    finally:
        os.close(directory)
    if len(algorithms) > 1:
        raise CheckpointError(
            f"nodes computed digests of different kinds: {', '.join(sorted(algorithms))}",
            hint="install the package xxhash on all nodes, or on none",
        )
    return algorithms.pop(), entries


def _check(part: Path, entries: list[FileEntry]) -> list[str]:
    """Return the directories inside. Raise CheckpointError if files changed after their digest, or are not complete."""
    sizes, directories = list_files(part)
    if not sizes:
        raise CheckpointError(f"nothing was written into {part}", hint="save into `part.path` of `guard.saving()`")
    if len(sizes) != len(entries) or any(sizes.get(entry.path) != entry.size for entry in entries):
        digested = {entry.path: entry.size for entry in entries}
        path = min(path for path in sizes.keys() | digested.keys() if sizes.get(path) != digested.get(path))
        raise CheckpointError(
            f"{part}/{path} has {_bytes(sizes.get(path))}, and had {_bytes(digested.get(path))} when it was digested",
            hint="save in the background with part.until(handle), so that the commit waits for it",
        )
    if fault := check_content(Content(part, sizes)):
        raise CheckpointError(f"{part} is not complete: {fault}", hint="a writer failed, perhaps without a word")
    return directories


def _bytes(size: int | None) -> str:
    return "no file" if size is None else f"{size:,} bytes"


def _publish(store: StoreDirectory, part: str, manifest: Manifest) -> tuple[str, str]:
    """Rename a complete part to the name of its step; return the name, and the outcome."""
    for _ in range(_TRIES):
        same = [one for one in store.checkpoints() if one.step == manifest.step and not one.is_sealed]
        found = _readable(same[-1]) if same else None
        if found and _makes_superfluous(found, manifest):
            discard(store, part)
            return same[-1].name, "already"
        name = committed_name(manifest.step, number_of(same[-1].name) + 1 if same else 1)
        fence.check(store, manifest.attempt)
        try:
            os.rename(store.path / part, store.path / name)
        except FileNotFoundError:
            # A file server that sees a request again answers so for the rename just made.
            made = _readable(Checkpoint(store.path, name, manifest.step))
            if made is None or made.token != manifest.token:
                fence.check(store, manifest.attempt)
                raise CheckpointError(
                    f"{store.path / part} was taken away", hint="does another process save here?"
                ) from None
        except OSError as error:
            if error.errno in _TAKEN:  # another save of the step was faster
                continue
            raise
        sync_directory(store.path)
        return name, "replaced" if discard_replaced(store) else "committed"
    raise CheckpointError(f"the name {name} was taken {_TRIES} times", hint="save each step once")


def _makes_superfluous(found: Manifest, manifest: Manifest) -> bool:
    """Return whether a committed checkpoint of a step is of the same attempt as a new save of it, and equal or later.

    A training that has gone back to an earlier step comes to the step again with another state; so does one that was
    launched again in its attempt, which counts its saves anew, or whose clock jumped.
    """
    if not manifest.attempt or (found.attempt, found.run) != (manifest.attempt, manifest.run):
        return False
    is_later = manifest.save > found.save or manifest.started_at > found.started_at
    return found.files == manifest.files or not is_later


def _readable(checkpoint: Checkpoint) -> Manifest | None:
    """Return a checkpoint's manifest, or None if it is damaged or gone."""
    with suppress(CheckpointError):
        return checkpoint.manifest()
    return None


def _share_name(node: int) -> str:
    return f"share.{node}.json"
