"""PyTorch's distributed checkpoints (DCP): `.metadata`, and one or more `__RANK_N.distcp` of each rank.

`.metadata` is a pickle. It is not unpickled: its opcodes are read as text, which gives the files that it refers to, and
the items that it knows and has no place for. DCP 2.13 commits both after a writer thread has failed (pytorch#191391).
Source: torch/distributed/checkpoint/metadata.py and filesystem.py, 2.13.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from posixpath import normpath
from typing import Any

from resilience.checkpoints.formats import Content, Fault, joined, missing
from resilience.checkpoints.formats.zipfiles import check_zip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pickletools import OpcodeInfo

METADATA = ".metadata"
_SHARD = re.compile(r"__\d+_\d+\.distcp")
_MODULE = b"torch.distributed.checkpoint.metadata"
_SECTIONS = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta")
"""Attributes of `Metadata`, in their order. Those after them are of others: Megatron adds the plans of all ranks."""
_MOST_READ_BYTES = 8 * 2**20
"""A longer `.metadata` is not read: its opcodes take about a second per 4 MB, and a child of the store has 32 MiB."""


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of directories with `.metadata` or `.distcp` files."""
    for directory, names in content.directories.items():
        shards = [joined(directory, name) for name in names if _SHARD.fullmatch(name)]
        for path in shards:
            if not content.sizes[path]:
                yield Fault(path, "tensors", "0 bytes", "is empty")
            elif content.read(path, 4) == b"PK\3\4":  # else its own serialization, such as a compressed one
                yield from check_zip(content, path, is_last_of_several=True)
        if METADATA in names:
            yield from _check_metadata(content, directory, has_shards=bool(shards))
        elif shards:
            yield missing(joined(directory, METADATA), f"a file beside {shards[0]}")


def _check_metadata(content: Content, directory: str, *, has_shards: bool) -> Iterator[Fault]:
    metadata = joined(directory, METADATA)
    size = content.sizes[metadata]
    if not has_shards and size and _MODULE not in content.read(metadata, 200):
        return  # of another framework
    if content.read(metadata, 1) != b"\x80" or content.read(metadata, 1, -1) != b".":
        yield Fault(metadata, "a pickle", f"another beginning or end of {size:,} bytes", "is truncated or damaged")
    if size > _MOST_READ_BYTES:
        return
    try:
        wanted, found, ends = read_metadata(content.read(metadata))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        yield Fault(metadata, "a pickle", str(error) or repr(error), "is damaged")
        return
    for name, end in sorted(ends.items()):
        path = normpath(joined(directory, name))
        there = content.sizes.get(path, 0)
        if there < end and not path.startswith(("/", "../")):
            what = "is truncated" if path in content.sizes else "is missing"
            yield Fault(path, f"{end:,} bytes by {METADATA}", f"{there:,} bytes", what)
    for item, count in wanted.items():
        if found[item] < count:
            yield Fault(
                metadata, f"{count} chunks of {item} in files", f"{found[item]}", "names data that was not written"
            )


def read_metadata(text: bytes) -> tuple[Counter[str], Counter[str], dict[str, int]]:
    """Return what the pickle in `.metadata` says. Follows its opcodes, and never builds an object.

    Returns:
        Number of chunks of each item; number of places of each item in files; end of the data in each file, in bytes.

    Raise ValueError and others if it is no pickle.
    """
    from pickletools import genops

    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    ends: dict[str, int] = {}
    recent: list[Any] = [None] * 8
    """The newest values: texts, numbers, `(class,)`, and None for all else."""
    memo: dict[int, Any] = {}
    """Without what is None."""
    memorized = 0
    item = section = ""
    operations: Iterator[tuple[OpcodeInfo, Any, int | None]] = genops(text)
    for opcode, argument, _ in operations:
        name = opcode.name
        if name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            if recent[-1] is not None:
                memo[memorized if name == "MEMOIZE" else argument] = recent[-1]
            memorized += 1
            continue
        if name in ("BINGET", "LONG_BINGET"):
            recent.append(memo.get(argument))
        elif name == "STACK_GLOBAL":
            recent[-2:] = [(recent[-1],)]
        elif name == "GLOBAL":
            recent.append((argument.rpartition(" ")[2],))
        elif name == "NEWOBJ" and isinstance(recent[-2], tuple):
            made = recent[-2][0]
            if made in ("TensorStorageMetadata", "BytesStorageMetadata"):
                item = str(recent[-3])
            if section == "state_dict_metadata":
                wanted[item] += made in ("ChunkStorageMetadata", "BytesStorageMetadata")
            recent.append(None)
        elif name in ("MARK", "FRAME", "PROTO"):
            continue
        else:
            recent.append(argument)
        if recent[-1] in _SECTIONS:
            section = recent[-1]
        if recent[-2] == "fqn" and section != "storage_meta":
            found[str(recent[-1])] += 1
        elif recent[-2] == "length" and recent[-4] == "offset" and recent[-6] == "relative_path":
            path, end = str(recent[-5]), int(recent[-3]) + int(recent[-1])
            ends[path] = max(ends.get(path, 0), end)
        if len(recent) > 4096:
            del recent[:-8]
    return +wanted, found, ends
