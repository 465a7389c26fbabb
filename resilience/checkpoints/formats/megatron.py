"""Megatron-LM: directories of all model-parallel ranks (`--ckpt-format torch`), and what is beside DCP (`torch_dist`).

Source: megatron/training/checkpointing.py, `get_checkpoint_name`, and core/dist_checkpointing/core.py (August 2026).
"""

from __future__ import annotations

import re
from collections import Counter

from resilience.checkpoints.formats import Content, Fault, first_gap, joined
from resilience.checkpoints.formats.dcp import METADATA

_RANK = re.compile(r"(.*/)?mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_TRACKER = "latest_checkpointed_iteration.txt"


class Megatron:
    """Directories named `mp_rank_TT_PPP`, with a `metadata.json` of torch_dist, or with the tracker."""

    def check(self, content: Content) -> Fault | None:
        """See `Format`."""
        ranks: dict[str, dict[tuple[int, ...], str]] = {}
        for directory, names in content.directories.items():
            fault = None
            if "metadata.json" in names:
                fault = _check_torch_dist(content, directory)
            if _TRACKER in names:
                fault = fault or _check_tracker(content, directory)
            if fault is not None:
                return fault
            match = _RANK.fullmatch(directory)
            if match and any(name in names for name in _FILES):
                numbers = tuple(int(number) for number in match.groups()[1:] if number is not None)
                ranks.setdefault(match[1] or "", {})[numbers] = directory
        return next((fault for found in ranks.values() if (fault := _check_ranks(content, found))), None)


FORMAT = Megatron()


def _check_ranks(content: Content, found: dict[tuple[int, ...], str]) -> Fault | None:
    """Check that each tensor, pipeline and expert rank occurs equally often.

    Not each combination exists: experts are spread over tensor ranks, too, where they have groups of their own.
    """
    if len({len(numbers) for numbers in found}) > 1:
        return None
    counts = [Counter(values) for values in zip(*found, strict=True)]
    if all(sorted(count) == [*range(len(count))] and len({*count.values()}) == 1 for count in counts):
        return None
    gap, example = first_gap(set(found)) or (0,), next(iter(found.values()))
    numbers = "_".join(f"{number:0{3 if place else 2}d}" for place, number in enumerate(gap))
    file = next(name for name in _FILES if name in content.directories[example])
    path = joined(example.rpartition("mp_rank_")[0] + f"mp_rank_{numbers}", file)
    return Fault(path, f"a file for each rank, as in {example}", "none", "is missing")


def _check_torch_dist(content: Content, directory: str) -> Fault | None:
    path = joined(directory, "metadata.json")
    names = content.directories[directory]
    metadata = content.read_json(path)
    if isinstance(metadata, Fault):
        return metadata if METADATA in names else None  # of another framework
    if isinstance(metadata, dict) and metadata.get("sharded_backend") == "torch_dist":
        # Until 2025, `common.pt` held what is not sharded.
        for name in (METADATA, *(["common.pt"] if metadata.get("common_backend") == "torch" else [])):
            if name not in names:
                return Fault(joined(directory, name), f"a file by {path}", "none", "is missing")
    return None


def _check_tracker(content: Content, directory: str) -> Fault | None:
    path = joined(directory, _TRACKER)
    text = content.read(path, 100).decode("utf-8", "replace").strip()
    name = f"iter_{int(text):07d}" if text.isdecimal() else text
    if joined(directory, name) not in content.directories or not name:
        return Fault(joined(directory, name), f"a directory by {path}", "none", "is missing")
    return None
