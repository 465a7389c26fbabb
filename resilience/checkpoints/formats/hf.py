"""Directories of Hugging Face: each shard that an index names is there and holds its tensors; `trainer_state.json`.

Format: `save_pretrained` and `Trainer._save_checkpoint` of transformers 5.
"""

from __future__ import annotations

import re

from resilience.checkpoints.formats import Content, Fault, joined
from resilience.checkpoints.formats.safetensors import read_header

_INDEX = (".safetensors.index.json", ".bin.index.json")
_SHARD = re.compile(r"(model|pytorch_model)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")


class HuggingFace:
    """Directories with an index of shards, numbered shards, or the state of a Trainer."""

    def check(self, content: Content) -> Fault | None:
        """See `Format`."""
        for directory, names in content.directories.items():
            for name in names:
                if fault := _check_file(content, directory, name):
                    return fault
        return None


FORMAT = HuggingFace()


def _check_file(content: Content, directory: str, name: str) -> Fault | None:
    if name.endswith(_INDEX):
        return _check_index(content, directory, joined(directory, name))
    if name == "trainer_state.json":
        state = content.read_json(joined(directory, name))
        return state if isinstance(state, Fault) else None
    if match := _SHARD.fullmatch(name):
        count = int(match[3])
        follower = int(match[2]) % count + 1 if count else 1  # of all shards, that is each one
        path = joined(directory, f"{match[1]}-{follower:05d}-of-{match[3]}{match[4]}")
        if (
            path not in content.sizes
            and f"{match[1]}-00000-of-{match[3]}{match[4]}" not in content.directories[directory]
        ):
            return Fault(path, f"{count} shards as in {name}", "none with this number", "is missing")
    return None


def _check_index(content: Content, directory: str, path: str) -> Fault | None:
    index = content.read_json(path)
    if index is None or isinstance(index, Fault):
        return index
    tensors: dict[str, list[str]] = {}
    try:
        for tensor, shard in index["weight_map"].items():
            tensors.setdefault(joined(directory, shard), []).append(tensor)
    except (KeyError, TypeError, AttributeError) as error:
        return Fault(path, "a map of tensors to files", repr(error), "is damaged")
    for shard, names in tensors.items():
        if shard not in content.sizes:
            return Fault(shard, f"a file with {len(names)} tensors by {path}", "none", "is missing")
        if shard.endswith(".safetensors"):
            header = read_header(content, shard)
            if isinstance(header, Fault):
                return header
            missing = next((name for name in names if name not in header), None)
            if missing is not None:
                other = next((name for name in header if name), "nothing")
                return Fault(shard, f"tensor {missing} by {path}", f"{other}", "has other tensors")
    return None
