"""Megatron-LM: directories of all model-parallel ranks (`--ckpt-format torch`), and what is beside DCP (`torch_dist`).

Source: megatron/training/checkpointing.py, `get_checkpoint_name`, and core/dist_checkpointing/core.py (August 2026).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from resilience.checkpoints.formats import Content, Fault, first_gap, joined, missing
from resilience.checkpoints.formats.dcp import METADATA

_RANK = re.compile(r"(.*/)?mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_TRACKER = "latest_checkpointed_iteration.txt"


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of directories named `mp_rank_TT_PPP`, of torch_dist, and of the tracker."""
    ranks: dict[str, dict[tuple[int, ...], str]] = {}
    for directory, names in content.directories.items():
        if "metadata.json" in names:
            yield from _check_torch_dist(content, directory, names)
        if _TRACKER in names:
            text = content.read(joined(directory, _TRACKER), 100).decode("utf-8", "replace").strip()
            name = f"iter_{int(text):07d}" if text.isdecimal() else text
            if joined(directory, name) not in content.directories or not name:
                yield missing(joined(directory, name), f"a directory by {_TRACKER}")
        match = _RANK.fullmatch(directory)
        if match and any(name in names for name in _FILES):
            numbers = tuple(int(number) for number in match.groups()[1:] if number is not None)
            ranks.setdefault(f"{match[1] or ''} {len(numbers)}", {})[numbers] = directory
    for found in ranks.values():
        yield from _check_ranks(content, found)


def _check_ranks(content: Content, found: dict[tuple[int, ...], str]) -> Iterator[Fault]:
    """Check that each tensor, pipeline and expert rank occurs equally often.

    Not each combination exists: experts are spread over tensor ranks, too, where they have groups of their own.
    """
    counts = [Counter(values) for values in zip(*found, strict=True)]
    if not all(sorted(count) == [*range(len(count))] and len({*count.values()}) == 1 for count in counts):
        gap, example = first_gap(set(found)) or (0,), next(iter(found.values()))
        numbers = "_".join(f"{number:0{3 if place else 2}d}" for place, number in enumerate(gap))
        file = next(name for name in _FILES if name in content.directories[example])
        path = joined(example.rpartition("mp_rank_")[0] + f"mp_rank_{numbers}", file)
        yield missing(path, f"a file for each rank, as in {example}")


def _check_torch_dist(content: Content, directory: str, names: list[str]) -> Iterator[Fault]:
    path = joined(directory, "metadata.json")
    metadata = content.read_json(path)
    if isinstance(metadata, Fault):
        if METADATA in names:  # else it is of another framework
            yield metadata
    elif metadata.get("sharded_backend") == "torch_dist":
        # Until 2025, `common.pt` held what is not sharded.
        for name in (METADATA, *(["common.pt"] if metadata.get("common_backend") == "torch" else [])):
            if name not in names:
                yield missing(joined(directory, name), f"a file by {path}")
