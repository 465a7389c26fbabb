"""Orbax (JAX): `_CHECKPOINT_METADATA`, one directory for each item, and manifests of OCDBT with their length inside.

Sources: orbax/checkpoint/_src/metadata/step_metadata_serialization.py (0.12); the header of a manifest is that of
tensorstore/kvstore/ocdbt/format: magic, length as 8 bytes, least significant first.
"""

from __future__ import annotations

import json
import re

from resilience.checkpoints.formats import Content, Fault, joined

METADATA, TREE, MANIFEST = "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"
_MAGIC = bytes.fromhex("0cdb3a2a")
_ARRAY = re.compile(r'"value_type": "(jax\.Array|np\.ndarray)"')
_UNFINISHED = ".orbax-checkpoint-tmp"


class Orbax:
    """Directories with a metadata file of Orbax or a manifest of OCDBT."""

    def check(self, content: Content) -> Fault | None:
        """See `Format`."""
        for directory, names in content.directories.items():
            if _UNFINISHED in directory:
                return Fault(directory, "a final name", f"one with {_UNFINISHED}", "is of a save that did not finish")
            for name, check in _CHECKS.items():
                fault = check(content, directory) if name in names else None
                if fault is not None:
                    return fault
        return None


FORMAT = Orbax()


def _check_metadata(content: Content, directory: str) -> Fault | None:
    path = joined(directory, METADATA)
    metadata = content.read_json(path)
    if metadata is None or isinstance(metadata, Fault):
        return metadata
    if not isinstance(metadata, dict):
        return Fault(path, "an object", type(metadata).__name__, "is damaged")
    if metadata.get("init_timestamp_nsecs") and not metadata.get("commit_timestamp_nsecs"):
        return Fault(path, "the time of its commit", "none", "is of a save that did not finish")
    items = metadata.get("item_handlers")
    for item in items if isinstance(items, dict) else ():
        if joined(directory, item) not in content.directories:
            return Fault(joined(directory, item), f"an item by {METADATA}", "none", "is missing")
    return None


def _check_tree(content: Content, directory: str) -> Fault | None:
    tree = content.read_json(joined(directory, TREE))
    if isinstance(tree, Fault):
        return tree
    # A tree of texts only is in a file of its own.
    if isinstance(tree, dict) and tree.get("use_ocdbt") and _ARRAY.search(json.dumps(tree.get("tree_metadata"))):
        path = joined(directory, MANIFEST)
        if path not in content.sizes:
            return Fault(path, f"a manifest by {TREE}", "none", "is missing")
    return None


def _check_manifest(content: Content, directory: str) -> Fault | None:
    path = joined(directory, MANIFEST)
    size = content.sizes[path]
    header = content.read(path, 12)
    length = int.from_bytes(header[4:12], "little")
    if header[:4] != _MAGIC or length != size:
        return Fault(
            path, f"a manifest of {size:,} bytes", f"{length:,} bytes by its header", "is truncated or damaged"
        )
    return None


_CHECKS = {METADATA: _check_metadata, TREE: _check_tree, MANIFEST: _check_manifest}
