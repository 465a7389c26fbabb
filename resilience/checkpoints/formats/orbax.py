"""Orbax (JAX): `_CHECKPOINT_METADATA`, one directory for each item, and manifests of OCDBT with their length inside.

Sources: orbax/checkpoint/_src/metadata/step_metadata_serialization.py (0.12); the header of a manifest is that of
tensorstore/kvstore/ocdbt/format: magic, length as 8 bytes, least significant first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from resilience.checkpoints.formats import Content, Fault, joined, missing

METADATA, TREE, MANIFEST = "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"
_MAGIC = bytes.fromhex("0cdb3a2a")
_ARRAY = re.compile(r'"value_type": "(jax\.Array|np\.ndarray)"')
_UNFINISHED = ".orbax-checkpoint-tmp"


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of directories with metadata of Orbax or a manifest of OCDBT."""
    for directory, names in content.directories.items():
        if _UNFINISHED in directory:
            yield Fault(directory, "a final name", f"one with {_UNFINISHED}", "is of a save that did not finish")
        if METADATA in names:
            yield from _check_metadata(content, directory)
        if TREE in names:
            tree = content.read_json(joined(directory, TREE))
            if isinstance(tree, Fault):
                yield tree
            # A tree of texts only is in a file of its own.
            elif (
                tree.get("use_ocdbt") and _ARRAY.search(json.dumps(tree.get("tree_metadata"))) and MANIFEST not in names
            ):
                yield missing(joined(directory, MANIFEST), f"a manifest by {TREE}")
        if MANIFEST in names:
            yield from _check_manifest(content, joined(directory, MANIFEST))


def _check_metadata(content: Content, directory: str) -> Iterator[Fault]:
    path = joined(directory, METADATA)
    metadata = content.read_json(path)
    if isinstance(metadata, Fault):
        yield metadata
        return
    if metadata.get("init_timestamp_nsecs") and not metadata.get("commit_timestamp_nsecs"):
        yield Fault(path, "the time of its commit", "none", "is of a save that did not finish")
    items = metadata.get("item_handlers")
    for item in items if isinstance(items, dict) else ():
        if joined(directory, item) not in content.directories:
            yield missing(joined(directory, item), f"an item by {METADATA}")


def _check_manifest(content: Content, path: str) -> Iterator[Fault]:
    size = content.sizes[path]
    header = content.read(path, 12)
    length = int.from_bytes(header[4:12], "little")
    if header[:4] != _MAGIC or length != size:
        found = f"{length:,} bytes by its header" if header[:4] == _MAGIC else "another beginning"
        yield Fault(path, f"a manifest of {size:,} bytes", found, "is truncated or damaged")
