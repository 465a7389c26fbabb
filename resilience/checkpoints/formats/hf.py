"""Directories of Hugging Face: each shard that an index names is there and holds its tensors; `trainer_state.json`.

Format: `save_pretrained` and `Trainer._save_checkpoint` of transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from resilience.checkpoints.formats import MOST_JSON_BYTES, Content, Fault, joined, missing
from resilience.checkpoints.formats.safetensors import read_header

_INDEX = (".safetensors.index.json", ".bin.index.json")
_SHARD = re.compile(r"(model|pytorch_model)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of indexes, numbered shards, and the state of a Trainer."""
    for path in content.sizes:
        directory, _, name = path.rpartition("/")
        if name.endswith((*_INDEX, "trainer_state.json")):
            value = content.read_json(path)
            if isinstance(value, Fault):
                yield value
            elif name.endswith(_INDEX) and content.sizes[path] <= MOST_JSON_BYTES:
                yield from _check_index(content, directory, path, value)
        elif match := _SHARD.fullmatch(name):
            count, number = int(match[3]), int(match[2])
            follower = f"{match[1]}-{number % max(count, 1) + 1:05d}-of-{match[3]}{match[4]}"
            if 1 <= number <= count and joined(directory, follower) not in content.sizes:  # others count from 0
                yield missing(joined(directory, follower), f"a file beside {name}")


def _check_index(content: Content, directory: str, path: str, index: dict[str, Any]) -> Iterator[Fault]:
    shards: dict[str, list[str]] = {}
    try:
        for tensor, shard in index["weight_map"].items():
            shards.setdefault(joined(directory, shard), []).append(tensor)
    except (KeyError, TypeError, AttributeError) as error:
        yield Fault(path, "a map of tensors to files", repr(error), "is damaged")
    for shard, names in shards.items():
        if shard not in content.sizes:
            yield missing(shard, f"a file with {len(names)} tensors by {path}")
        elif shard.endswith(".safetensors"):
            header = read_header(content, shard)
            if isinstance(header, Fault):
                yield header
            elif absent := next((name for name in names if name not in header), ""):
                other = next((name for name in header if name), "none")
                yield Fault(shard, f"tensor {absent} by {path}", other, "has other tensors")
